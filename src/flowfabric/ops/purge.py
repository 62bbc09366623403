"""purge: removes executions whose retention has passed, with everything that belongs to them but their events."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from uuid import UUID

from flowfabric.core import limits
from flowfabric.store.transaction import Transaction

_FIRST_ID = UUID(int=0)


async def purge(tx: Transaction, ids: Sequence[UUID], keep_events: timedelta) -> int:
    """How many were removed; one that was replayed meanwhile stays. Their events stay that much longer at least."""
    found = await tx.purging.lock_ends(ids)
    now = await tx.now()
    due = [id_ for id_, purge_at in found.items() if purge_at is not None and purge_at <= now]
    if due:
        await _remove(tx, due, now + keep_events)
    return len(due)


async def purge_flows(tx: Transaction, ids: Sequence[UUID], keep_events: timedelta) -> int:
    """How many flows or members of flows were removed: a flow goes when its last member has gone. The events of members
    stay that much longer at least."""
    flows = await tx.flows.lock_free(ids)
    now, done = await tx.now(), 0
    for flow in flows.values():
        if flow.purge_at is None or flow.purge_at > now or done >= limits.BATCH:
            continue
        members = await tx.flows.members.page(flow.id, _FIRST_ID, limits.BATCH - done)
        done += len(members) + 1
        is_last = done <= limits.BATCH
        if flow.implicit and is_last:
            members += (await tx.executions.get(None, [flow.id])).values()
        if members:
            gone = [member.id for member in members]
            await tx.flows.members.lock(gone)
            await _remove(tx, gone, now + keep_events)
        if is_last:
            await tx.flows.purge([flow.id])
    return done


async def _remove(tx: Transaction, ids: Sequence[UUID], trim_at: datetime) -> None:
    await tx.purging.bury(ids, trim_at)
    await tx.purging.remove(ids)


async def expired_keys(tx: Transaction, now: datetime, limit: int) -> list[tuple[str, str]]:
    """Namespaces and names of idempotency keys whose window has passed."""
    return await tx.keys.expired(now, limit)


async def drop_expired_keys(tx: Transaction, keys: Sequence[tuple[str, str]]) -> int:
    """How many of these were removed; one that was taken anew meanwhile stays."""
    return await tx.keys.drop_expired(keys, await tx.now())
