"""Shutdown of a worker: release or finish every lease without using up an attempt.

    stop ──── grace period ────> grace is over ──── CLEANUP_S ────> the deadline passes
              active runs unwind                leases are released,     the worker waits for nothing more;
                                                remaining runs end       leases that were not released expire

Everything after the grace period shares this one deadline. So a worker also stops in time while the store does not
respond.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any

from flowfabric.core.errors import FlowFabricError, Refused
from flowfabric.engine.engine import Engine
from flowfabric.worker.active_runs import ActiveRuns
from flowfabric.worker.claimer import Claimer
from flowfabric.worker.release import release_leases

CLEANUP_S = 3.0
_UNWIND_S = 0.75
_CANCEL_S = 0.1


class Deadline:
    """The end of the grace period of a worker, and the end of its shutdown `CLEANUP_S` later."""

    def __init__(self) -> None:
        self.grace_over = asyncio.Event()
        self.ends_at: float | None = None
        self._passed = asyncio.Event()
        self._timers: list[asyncio.TimerHandle] = []

    @property
    def remaining_s(self) -> float | None:
        """The time until the deadline, or None if it was not set."""
        return None if self.ends_at is None else max(0.0, self.ends_at - asyncio.get_running_loop().time())

    def set(self, grace_s: float) -> None:
        """End the grace period after `grace_s`. If this is called again, the grace that ends first counts."""
        loop = asyncio.get_running_loop()
        ends_at = loop.time() + grace_s + CLEANUP_S
        if self.ends_at is None or ends_at < self.ends_at:
            self.ends_at = ends_at
            self.cancel()
            over, passed = self.grace_over.set, self._passed.set
            self._timers = [loop.call_at(ends_at - CLEANUP_S, over), loop.call_at(ends_at, passed)]

    def cancel(self) -> None:
        """Cancel the timers."""
        for timer in self._timers:
            timer.cancel()

    async def limit(self, work: Coroutine[Any, Any, None]) -> None:
        """Run `work` until it ends or the deadline passes. It begins in any case."""
        task, passed = asyncio.ensure_future(work), asyncio.ensure_future(self._passed.wait())
        try:
            await asyncio.wait([task, passed], return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                task.cancel()
                await asyncio.wait([task], timeout=_CANCEL_S)
        finally:
            task.cancel()
            passed.cancel()
        if task.done() and not task.cancelled():
            task.result()


async def drain(
    engine: Engine, claimer: Claimer, runs: ActiveRuns, grace_over: asyncio.Event, loss: FlowFabricError | None
) -> None:
    """Stop claiming, release unstarted leases, and let active runs unwind until the grace period is over.

    `loss` is the error if the store is lost, so that the runs cannot record anything. Releases run beside the rest,
    because the store may not respond.
    """
    await claimer.stop()
    async with asyncio.TaskGroup() as releases:
        releases.create_task(release_leases(engine, runs.drain()))
        await wait_for_first(runs.wait_until_idle(), grace_over.wait())
        if runs.is_busy:
            error = loss or Refused("execution_not_active", "the worker has stopped")
            releases.create_task(release_leases(engine, runs.abandon(error)))
            await _end_runs(runs)
        releases.create_task(release_leases(engine, runs.take_unstarted()))
        await runs.finish_releases()
    await _release_unknown(engine, claimer)


async def wait_for_first(*waits: Coroutine[Any, Any, Any]) -> None:
    """Wait until one of the coroutines ends in any way, then cancel the others."""
    tasks = [asyncio.ensure_future(wait) for wait in waits]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _end_runs(runs: ActiveRuns) -> None:
    """Give the runs a moment to end, then cancel them."""
    await wait_for_first(runs.wait_until_idle(), asyncio.sleep(_UNWIND_S))
    if tasks := runs.cancel():
        await asyncio.wait(tasks, timeout=_UNWIND_S)


async def _release_unknown(engine: Engine, claimer: Claimer) -> None:
    with suppress(FlowFabricError):  # The store is unavailable, so these leases expire.
        await release_leases(engine, [lease.fence for lease in await claimer.find_unknown_leases()])
