"""trim_events: remove events that every subscriber has read, if their execution is removed or they never had one."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from uuid import UUID

from flowfabric.core.events.cursor import Position
from flowfabric.core.retention import MAX_TRIMMED_EVENTS, POSTPONE_FOR, decide_trim, select_processed
from flowfabric.store.transaction import Transaction


async def expire_subscribers(tx: Transaction, silence: timedelta) -> list[tuple[str, str]]:
    """Expire named subscribers that have been silent for `silence`, and return them.

    If a reader of an expired subscriber comes back, it gets an error.
    """
    now = await tx.now()
    return await tx.subscribers.expire(now, now - silence)


async def trim_events(tx: Transaction, ids: Sequence[UUID]) -> int:
    """Remove some events of the removed executions `ids`, and return how many of these executions lost events.

    If a subscriber has not read an event yet, the event stays, and its execution is tried again later.
    """
    now = await tx.now()
    trim = decide_trim(await tx.trim.lock_free(ids, now), await tx.trim.slowest_position(), MAX_TRIMMED_EVENTS)
    if trim.postpone:
        await tx.trim.postpone(trim.postpone, now + POSTPONE_FOR)
    if trim.part:
        await tx.trim.remove(trim.part)
    if trim.gone:
        await tx.trim.remove_all(trim.gone)
    if trim.last is not None:
        await tx.trim.note_trimmed(trim.last)
    return len(trim.gone) + len(trim.part)


async def old_events_apart(tx: Transaction, now: datetime, limit: int, retention: timedelta) -> list[Position]:
    """Return events of lanes, keys and workers that are older than `retention` and that every subscriber has read."""
    return select_processed(await tx.trim.list_unattached(now - retention, limit), await tx.trim.slowest_position())


async def trim_events_apart(tx: Transaction, positions: Sequence[Position]) -> int:
    """Remove the events at these positions, which belong to no execution, and return how many were removed."""
    old = select_processed(positions, await tx.trim.slowest_position())
    if old:
        await tx.trim.remove_unattached(old)
        await tx.trim.note_trimmed(max(old))
    return len(old)
