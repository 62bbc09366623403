"""Waiting for the end of an execution or a flow: rung when it comes, and looked for now and then by itself."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from uuid import UUID

from flowfabric.core import limits
from flowfabric.store.transaction import Answer
from flowfabric.wakeups.bells import Bell, end_of
from flowfabric.wakeups.wakeups import Wakeups

_MOMENT_S = 0.02
_FIRST_LOOK_S = 0.005
_LONGEST_LOOK_S = 0.25
_LONGEST_LOOK_ALIVE_S = 2.0

Look = Callable[[], Awaitable[Answer | None]]


async def until_ended(
    wakeups: Wakeups,
    id_: UUID,
    look: Look[Answer],
    timeout: limits.Duration | None,  # noqa: ASYNC109
    *,
    is_new: bool = False,
) -> Answer | None:
    """What `look` finds when it has ended, at once if it has; None if the timeout passes first. What `is_new` has been
    stored just now, so the first look waits for the bell, if only for a moment: it may have rung already."""
    limit_s = None if timeout is None else limits.duration(timeout, "timeout").total_seconds()
    if not wakeups.alive and not is_new:
        # Nobody begins to listen for what has ended already.
        found = await look()
        if found is not None:
            return found
    with wakeups.bell([end_of(id_)]) as bell:
        if is_new:
            await bell.wait(min(_MOMENT_S, _MOMENT_S if limit_s is None else limit_s))
        found = await look()
        if found is not None:
            return found
        if limit_s is None:
            return await _watched(wakeups, bell, look)
        try:
            async with asyncio.timeout(limit_s):
                return await _watched(wakeups, bell, look)
        except TimeoutError:
            return None


async def _watched(wakeups: Wakeups, bell: Bell, look: Look[Answer]) -> Answer:
    pause_s = _FIRST_LOOK_S
    while True:
        # Whoever is rung for looks by itself only in case the bell fails.
        longest_s = _LONGEST_LOOK_ALIVE_S if wakeups.alive else pause_s
        await bell.wait(random.uniform(longest_s / 2, longest_s))
        pause_s = min(2 * pause_s, _LONGEST_LOOK_S)
        found = await look()
        if found is not None:
            return found
