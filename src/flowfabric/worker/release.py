"""Releasing leases, so that another worker can continue the same attempt immediately."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Iterable

from flowfabric.core.errors import FlowFabricError, Unavailable, is_permanent
from flowfabric.core.executions.records import Fence
from flowfabric.engine.engine import Engine

_log = logging.getLogger("flowfabric.worker")
_MAX_TRIES = 4
_MAX_IN_FLIGHT = 32


async def release_leases(engine: Engine, fences: Iterable[Fence], after_s: float = 0.0) -> None:
    """Release the leases, or delay their executions by `after_s`.

    If the store is unavailable, this retries a few times and then lets the leases expire.
    """
    slots = asyncio.Semaphore(_MAX_IN_FLIGHT)
    await asyncio.gather(*(_release(engine, fence, after_s, slots) for fence in fences))


async def _release(engine: Engine, fence: Fence, after_s: float, slots: asyncio.Semaphore) -> None:
    for attempt in range(1, _MAX_TRIES + 1):
        try:
            async with slots:
                await (engine.leases.delay(fence, after=after_s) if after_s else engine.leases.release(fence))
            return
        except Unavailable as error:
            if is_permanent(error):
                return  # The worker stops, and reports why.
            if attempt == _MAX_TRIES:
                _log.warning("Lease on %s could not be released and will expire: %s", fence.execution_id, error)
        except FlowFabricError:
            return  # The lease has already ended.
        await asyncio.sleep(random.uniform(0.5, 1.0) * 0.05 * 2**attempt)
