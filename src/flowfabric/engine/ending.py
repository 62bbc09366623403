"""Waiting for the end of an execution or a flow: rung when it comes, and looked for now and then by itself."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from uuid import UUID

from flowfabric.core import limits
from flowfabric.core.views import Glance
from flowfabric.store.transaction import Answer
from flowfabric.wakeups.bells import Bell, end_of
from flowfabric.wakeups.wakeups import Wakeups

_FIRST_LOOK_S = 0.005
_LONGEST_LOOK_S = 0.25
_LONGEST_LOOK_ALIVE_S = 2.0

Look = Callable[[Glance | None], Awaitable[Answer | None]]


async def until_ended(
    wakeups: Wakeups,
    id_: UUID,
    look: Look[Answer],
    timeout: limits.Duration | None,  # noqa: ASYNC109
) -> Answer | None:
    """What `look` finds when it has ended, at once if it has; None if the timeout passes first."""
    limit_s = None if timeout is None else limits.duration(timeout, "timeout").total_seconds()
    if not wakeups.alive:
        # Nobody begins to listen for what has ended already.
        found = await look(None)
        if found is not None:
            return found
    with wakeups.bell([end_of(id_)]) as bell:
        found = await look(None)
        if found is not None:
            return found
        if limit_s is None:
            return await watched(wakeups, bell, look)
        try:
            async with asyncio.timeout(limit_s):
                return await watched(wakeups, bell, look)
        except TimeoutError:
            return None


async def watched(wakeups: Wakeups, bell: Bell, look: Look[Answer]) -> Answer:
    """What `look` finds when it has ended; it is given what the bell was told."""
    pause_s = _FIRST_LOOK_S
    while True:
        # Whoever is rung for looks by itself only in case the bell fails.
        longest_s = _LONGEST_LOOK_ALIVE_S if wakeups.alive else pause_s
        await bell.wait(random.uniform(longest_s / 2, longest_s))
        pause_s = min(2 * pause_s, _LONGEST_LOOK_S)
        found = await look(bell.told)
        if found is not None:
            return found
