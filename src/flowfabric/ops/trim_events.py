"""trim_events: removes events whose execution is gone, or that belong to none, when nobody waits for them any more."""

from __future__ import annotations

from datetime import timedelta

from flowfabric.core.trimming import POSTPONED, decide_trim, passed_by
from flowfabric.store.transaction import Transaction


async def expire_subscribers(tx: Transaction, silence: timedelta) -> list[tuple[str, str]]:
    """Gives up named subscribers that have been silent for so long; they are told when they come back."""
    now = await tx.now()
    return await tx.subscribers.expire(now, now - silence)


async def trim_events(tx: Transaction, limit: int) -> int:
    """How many executions that are gone have no events any more; those that a subscriber still needs wait."""
    now = await tx.now()
    trim = decide_trim(await tx.trimming.due(now, limit), await tx.trimming.slowest())
    if trim.postpone:
        await tx.trimming.postpone(trim.postpone, now + POSTPONED)
    if trim.remove:
        await tx.trimming.remove(trim.remove)
    if trim.last is not None:
        await tx.trimming.note(trim.last)
    return len(trim.remove)


async def trim_events_apart(tx: Transaction, retention: timedelta, limit: int) -> int:
    """How many events of no execution were removed: those older than that, of lanes, keys and workers."""
    until = await tx.now() - retention
    old = passed_by(await tx.trimming.apart(until, limit), await tx.trimming.slowest())
    if old:
        await tx.trimming.remove_apart(old)
        await tx.trimming.note(max(old))
    return len(old)
