"""purge: removes executions whose retention has passed, with everything that belongs to them but their events."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from uuid import UUID

from flowfabric.core import limits
from flowfabric.core.purging import ROWS, due_by, fitting, remains_of
from flowfabric.store.transaction import Transaction

_FIRST_ID = UUID(int=0)


async def purge(tx: Transaction, ids: Sequence[UUID], keep_events: timedelta) -> int:
    """How many were removed; one that was replayed meanwhile stays. Their events stay that much longer at least."""
    found = await tx.purging.lock_free(ids)
    now = await tx.now()
    going = [item.id for item in fitting(due_by(found, now), ROWS)]
    if going:
        await tx.purging.remove(going, now + keep_events)
    return len(going)


async def purge_flows(tx: Transaction, ids: Sequence[UUID], keep_events: timedelta) -> int:
    """How many flows or members of flows were removed: a flow goes when its last member has gone. The events of members
    stay that much longer at least."""
    flows = await tx.flows.lock_free(ids)
    now, done, rows = await tx.now(), 0, 0
    for flow in flows.values():
        if flow.purge_at is None or flow.purge_at > now or done >= limits.BATCH or rows >= ROWS:
            continue
        members = await tx.flows.members.page(flow.id, _FIRST_ID, limits.BATCH - done)
        going = fitting([remains_of(member) for member in members], ROWS - rows)
        rows += sum(item.rows for item in going)
        done += len(going) + 1
        is_last = len(going) == len(members) and done <= limits.BATCH
        gone = [item.id for item in going] + ([flow.id] if flow.implicit and is_last else [])
        if gone:
            await tx.flows.members.lock(gone)
            await tx.purging.remove(gone, now + keep_events)
        if is_last:
            await tx.flows.purge([flow.id])
    return done


async def expired_keys(tx: Transaction, now: datetime, limit: int) -> list[tuple[str, str]]:
    """Namespaces and names of idempotency keys whose window has passed."""
    return await tx.keys.expired(now, limit)


async def drop_expired_keys(tx: Transaction, keys: Sequence[tuple[str, str]]) -> int:
    """How many of these were removed; one that was taken anew meanwhile stays."""
    return await tx.keys.drop_expired(keys, await tx.now())
