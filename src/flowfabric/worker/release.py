"""Releasing leases, so that another worker can continue the same attempt immediately.

A lease under which code has run must not run again. So the worker releases it as soon as the code has stopped, and
repeats the release until the store confirms that the lease has ended. The release moves the epoch, and the store then
refuses late writes. If the code does not stop, the lease expires.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from flowfabric.core.errors import FlowFabricError, NotFound, Refused, Unavailable, is_permanent
from flowfabric.core.executions.outcomes import Held
from flowfabric.core.executions.postpone import RUN_FAILED
from flowfabric.core.executions.records import Fence
from flowfabric.engine.engine import Engine

_log = logging.getLogger("flowfabric.worker")
_MAX_TRIES = 4
_GIVE_UP_AFTER_S = 5.0
_MAX_IN_FLIGHT = 32
_MAX_PAUSE_S = 2.0
_CLOSE_TIMEOUT_S = 2.0
WaitStopped = Callable[[], Coroutine[Any, Any, None]]


@dataclass(frozen=True, slots=True)
class FailedRun:
    """A run that failed inside our own code: its traceback, the version of its code, and when to try again."""

    report: str
    version: str
    pause_s: float


async def release_leases(engine: Engine, fences: Iterable[Fence]) -> None:
    """Release leases under which no code has run, or whose worker stops.

    If the store is unavailable, this retries a few times, for a few seconds, and then lets the leases expire.
    """
    slots = asyncio.Semaphore(_MAX_IN_FLIGHT)
    await asyncio.gather(*(_release(engine, fence, slots) for fence in fences))


async def _release(engine: Engine, fence: Fence, slots: asyncio.Semaphore) -> None:
    stop_at = time.monotonic() + _GIVE_UP_AFTER_S
    for attempt in range(1, _MAX_TRIES + 1):
        try:
            async with slots:
                await engine.leases.release(fence)
            return
        except Unavailable as error:
            if is_permanent(error):
                return  # The worker stops, and reports why.
            if attempt == _MAX_TRIES or time.monotonic() >= stop_at:
                _log.warning("Lease on %s could not be released and will expire: %s", fence.execution_id, error)
                return
        except FlowFabricError:
            return  # The lease has already ended.
        await asyncio.sleep(random.uniform(0.5, 1.0) * 0.05 * 2**attempt)


class BackgroundReleases:
    """Releases leases in the background until the store confirms that they have ended.

    `on_ended` gets the id of each lease that has ended. Use this object only on the worker's loop.
    """

    def __init__(self, engine: Engine, on_ended: Callable[[UUID], None]) -> None:
        self._engine = engine
        self._on_ended = on_ended
        self._slots = asyncio.Semaphore(_MAX_IN_FLIGHT)
        self._tasks: dict[UUID, asyncio.Task[None]] = {}
        self._waiting: set[UUID] = set()

    def add(self, fence: Fence, wait_stopped: WaitStopped | None = None, failure: FailedRun | None = None) -> None:
        """Release a lease once `wait_stopped` returns. After a failure of the run, postpone the execution."""
        if fence.lease_id not in self._tasks:
            task = asyncio.create_task(self._release(fence, wait_stopped, failure), name="flowfabric-release")
            self._tasks[fence.lease_id] = task
            task.add_done_callback(lambda _: self._tasks.pop(fence.lease_id, None))

    async def close(self) -> None:
        """Give the releases a moment to succeed, then leave the remaining leases to expire."""
        tasks = list(self._tasks.values())
        sent = [task for lease_id, task in self._tasks.items() if lease_id not in self._waiting]
        if sent:
            await asyncio.wait(sent, timeout=_CLOSE_TIMEOUT_S)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _release(self, fence: Fence, wait_stopped: WaitStopped | None, failure: FailedRun | None) -> None:
        if wait_stopped is not None:
            self._waiting.add(fence.lease_id)
            try:
                await wait_stopped()
            finally:
                self._waiting.discard(fence.lease_id)
        tries = 0
        while not await self._try(fence, failure, is_first=not tries):
            tries += 1
            await asyncio.sleep(random.uniform(0.5, 1.0) * min(_MAX_PAUSE_S, 0.05 * 2.0 ** min(tries, 10)))
        self._on_ended(fence.lease_id)

    async def _try(self, fence: Fence, failure: FailedRun | None, *, is_first: bool) -> bool:
        """Release the lease. Return False if its state in the store is unknown."""
        try:
            async with self._slots:
                if failure is None:
                    await self._engine.leases.release(fence)
                else:
                    await self._postpone(fence, failure)
        except (Refused, NotFound):
            return True  # The lease has already ended.
        except Exception as error:
            if is_permanent(error):
                return True  # The worker stops, and reports why.
            if is_first:
                _log.warning("Lease on %s could not be released, retrying: %s", fence.execution_id, error)
            return False
        return True

    async def _postpone(self, fence: Fence, failure: FailedRun) -> None:
        outcome = await self._engine.leases.postpone(
            fence, RUN_FAILED, failure.report, version=failure.version, after=failure.pause_s
        )
        if isinstance(outcome, Held):
            _log.error("Execution %s is held, because its runs keep failing unexpectedly", fence.execution_id)
