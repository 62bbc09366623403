"""purge: remove executions whose retention has passed, with everything that belongs to them except their events."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from uuid import UUID

from flowfabric.core import validation
from flowfabric.core.executions.states import State
from flowfabric.core.retention import MAX_PURGE_ROWS, estimate_purge, select_due, take_batch
from flowfabric.ops.operation import operation
from flowfabric.store.records import Listing
from flowfabric.store.transaction import Transaction

_FIRST_ID = UUID(int=0)
_LAST_ID = UUID(int=2**128 - 1)


async def purge(tx: Transaction, ids: Sequence[UUID], keep_events: timedelta) -> int:
    """Remove executions whose retention has passed, and return how many.

    An execution that was replayed in the meantime stays. The events stay at least for `keep_events`.
    """
    candidates = await tx.purge.lock_free(ids)
    now = await tx.now()
    due_ids = [remains.id for remains in take_batch(select_due(candidates, now), MAX_PURGE_ROWS)]
    if due_ids:
        await tx.purge.remove(due_ids, now, now + keep_events)
    return len(due_ids)


async def purge_flows(tx: Transaction, ids: Sequence[UUID], keep_events: timedelta) -> int:
    """Remove members of flows whose retention has passed, and return how many members and flows were removed.

    A flow is removed with its last member. The events of members stay at least for `keep_events`.
    """
    flows = await tx.flows.lock_free(ids)
    now, done, rows = await tx.now(), 0, 0
    for flow in flows.values():
        if flow.purge_at is None or flow.purge_at > now or done >= validation.MAX_BATCH or rows >= MAX_PURGE_ROWS:
            continue
        members = await tx.members.page(flow.id, _FIRST_ID, validation.MAX_BATCH - done)
        steps = await tx.steps.last_numbers([member.id for member in members])
        batch = take_batch([estimate_purge(member, steps[member.id]) for member in members], MAX_PURGE_ROWS - rows)
        rows += sum(remains.rows for remains in batch)
        done += len(batch) + 1
        is_last = len(batch) == len(members) and done <= validation.MAX_BATCH
        removed = [remains.id for remains in batch] + ([flow.id] if flow.implicit and is_last else [])
        if removed:
            await tx.members.lock(removed)
            await tx.purge.remove(removed, now, now + keep_events)
        if is_last:
            await tx.flows.purge([flow.id])
    return done


async def find_keys_to_drop(tx: Transaction, now: datetime, limit: int) -> list[tuple[str, str]]:
    """Return the namespace and name of each idempotency key that outlived its execution and its window."""
    return await tx.idempotency_keys.list_due(now, limit)


async def drop_keys(tx: Transaction, keys: Sequence[tuple[str, str]]) -> int:
    """Remove these idempotency keys, except keys that were taken again, and return how many were removed."""
    return await tx.idempotency_keys.drop(keys, await tx.now())


@operation()
async def erase_next(tx: Transaction, namespace: str, limit: int) -> int:
    """Remove up to `limit` executions of a temporary namespace with their events, and return how many.

    Call this operation until it returns 0. No other process adds executions, because none knows the namespace.
    """
    listing = Listing(namespace=namespace, states=tuple(State), before=_LAST_ID, limit=limit)
    ids = [execution.id for execution in await tx.executions.page(listing)]
    if not ids:
        await tx.routes.remove_unused(namespace)
        return 0
    locked = await tx.executions.lock(namespace, ids)
    await tx.purge.remove(list(locked), validation.MAX_TIME, None)
    await tx.trim.remove_all(list(locked))
    return len(locked)
