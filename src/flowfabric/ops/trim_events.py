"""trim_events: removes events whose execution is gone, or that belong to none, when nobody waits for them any more."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from uuid import UUID

from flowfabric.core.positions import Position
from flowfabric.core.trimming import PAGE, POSTPONED, decide_trim, passed_by
from flowfabric.store.transaction import Transaction


async def expire_subscribers(tx: Transaction, silence: timedelta) -> list[tuple[str, str]]:
    """Gives up named subscribers that have been silent for so long; they are told when they come back."""
    now = await tx.now()
    return await tx.subscribers.expire(now, now - silence)


async def trim_events(tx: Transaction, ids: Sequence[UUID]) -> int:
    """How many of these executions, which are gone, have lost events or their last trace; a page of events goes at a
    time. Those that a subscriber still needs wait."""
    now = await tx.now()
    trim = decide_trim(await tx.trimming.lock_free(ids, now), await tx.trimming.slowest(), PAGE)
    if trim.postpone:
        await tx.trimming.postpone(trim.postpone, now + POSTPONED)
    if trim.part:
        await tx.trimming.remove(trim.part)
    if trim.gone:
        await tx.trimming.forget(trim.gone)
    if trim.last is not None:
        await tx.trimming.note(trim.last)
    return len(trim.gone) + len(trim.part)


async def old_events_apart(tx: Transaction, now: datetime, limit: int, retention: timedelta) -> list[Position]:
    """Events of no execution that are older than that, of lanes, keys and workers, and that every subscriber has
    passed."""
    return passed_by(await tx.trimming.apart(now - retention, limit), await tx.trimming.slowest())


async def trim_events_apart(tx: Transaction, positions: Sequence[Position]) -> int:
    """How many of these events were removed."""
    old = passed_by(positions, await tx.trimming.slowest())
    if old:
        await tx.trimming.remove_apart(old)
        await tx.trimming.note(max(old))
    return len(old)
