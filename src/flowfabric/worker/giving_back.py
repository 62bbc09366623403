"""Giving leases back, so that somebody else goes on with the same attempt at once."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Iterable

from flowfabric.core.errors import FlowFabricError, Unavailable
from flowfabric.core.records import Fence
from flowfabric.engine.engine import Engine

_log = logging.getLogger("flowfabric.worker")
_TRIES = 4
_AT_ONCE = 32


async def give_back(engine: Engine, fences: Iterable[Fence], after_s: float = 0.0) -> None:
    """Releases the leases, or delays their executions for so long; those that have ended meanwhile need nothing. A
    store that does not answer is asked a few times; what stays runs out by itself."""
    turns = asyncio.Semaphore(_AT_ONCE)
    await asyncio.gather(*(_give_back(engine, fence, after_s, turns) for fence in fences))


async def _give_back(engine: Engine, fence: Fence, after_s: float, turns: asyncio.Semaphore) -> None:
    for attempt in range(1, _TRIES + 1):
        try:
            async with turns:
                await (engine.leases.delay(fence, after=after_s) if after_s else engine.leases.release(fence))
            return
        except Unavailable as error:
            if attempt == _TRIES:
                _log.warning("the lease on %s is not given back and runs out by itself: %s", fence.execution_id, error)
        except FlowFabricError:
            return  # It was ended, lost or given back before: nothing is held any more.
        await asyncio.sleep(random.uniform(0.5, 1.0) * 0.05 * 2**attempt)
