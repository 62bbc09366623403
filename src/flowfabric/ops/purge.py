"""purge: removes executions whose retention has passed, with everything that belongs to them but their events."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from uuid import UUID

from flowfabric.store.transaction import Transaction


async def purge(tx: Transaction, ids: Sequence[UUID], keep_events: timedelta) -> int:
    """How many were removed; one that was replayed meanwhile stays. Their events stay that much longer at least."""
    found = await tx.executions.lock_free(ids)
    now = await tx.now()
    due = [item for item in found.values() if item.purge_at is not None and item.purge_at <= now]
    if due:
        await tx.executions.purge(due)
        await tx.trimming.bury([item.id for item in due], now + keep_events)
    return len(due)


async def drop_expired_keys(tx: Transaction, limit: int) -> int:
    """How many idempotency keys were removed because their window has passed."""
    return await tx.keys.drop_expired(await tx.now(), limit)
