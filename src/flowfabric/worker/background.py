"""Background jobs of a worker: lease renewal and a watchdog for its event loop.

They run in a thread with its own event loop, so that blocking code in the worker's loop does not stop them. Without a
second engine, leases are renewed in the worker's loop.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import time
import traceback
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, nullcontext, suppress
from typing import Any

from flowfabric.engine.engine import Engine
from flowfabric.worker.claimer import ClaimCriteria
from flowfabric.worker.event_loop import new_event_loop
from flowfabric.worker.leases import LeaseRenewer, LeaseTable, OpenEngine, RenewalReport

_log = logging.getLogger("flowfabric.worker")
_RESTART_PAUSE_S = 1.0
_CLOSE_TIMEOUT_S = 5.0
_BLOCKED_AFTER_S = 1.0
_PROBE_PAUSE_S = 0.5
_CHECK_OWNER_EVERY_S = 1.0
_ONE_DAY_S = 86_400.0
Job = Callable[[], Coroutine[Any, Any, None]]


@asynccontextmanager
async def run_background_jobs(
    engine: Engine,
    open_engine: OpenEngine | None,
    lease_table: LeaseTable,
    worker: ClaimCriteria,
    on_report: Callable[[RenewalReport], None],
    *,
    limit: Callable[[Coroutine[Any, Any, None]], Coroutine[Any, Any, None]],
) -> AsyncIterator[None]:
    """Renew leases and watch the event loop inside the block. `on_report` gets each renewal report in this loop.

    Without `open_engine`, the worker's own engine renews the leases in this loop. Hints about leases of the worker's
    instance make the renewer look at them. `limit` bounds the wait for the thread.
    """
    ttl_s = worker.lease_ttl.total_seconds()
    loop = asyncio.get_running_loop()
    async with AsyncExitStack() as stack:
        jobs = [LoopWatchdog(loop).run]
        if open_engine is None:
            renewer = LeaseRenewer(lease_table, ttl_s, lambda: nullcontext(engine), on_report)
            await stack.enter_async_context(run_in_background(renewer.run()))
        else:
            renewer = LeaseRenewer(lease_table, ttl_s, open_engine, _call_in_loop(loop, on_report))
            jobs.append(renewer.run)
        await stack.enter_async_context(run_in_background(_forward_hints(engine, worker, renewer)))
        thread = BackgroundThread(jobs)
        stack.push_async_callback(lambda: limit(thread.close(_CLOSE_TIMEOUT_S)))
        thread.start()
        yield


async def _forward_hints(engine: Engine, worker: ClaimCriteria, renewer: LeaseRenewer) -> None:
    with engine.leases.watch_held(worker.worker.instance) as hints:
        while True:
            if await hints.wait(_ONE_DAY_S):
                renewer.check_soon()


@asynccontextmanager
async def run_in_background(job: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Run a job as a task inside the block."""
    task = asyncio.create_task(job)
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def _call_in_loop(
    loop: asyncio.AbstractEventLoop, callback: Callable[[RenewalReport], None]
) -> Callable[[RenewalReport], None]:
    def call(report: RenewalReport) -> None:
        with suppress(RuntimeError):  # The worker's loop is closed, so the report has no receiver.
            loop.call_soon_threadsafe(callback, report)

    return call


class BackgroundThread:
    """A thread with its own event loop, which runs jobs until `close` is called. A job that fails is restarted.

    The thread also ends if the loop that started it is closed.
    """

    def __init__(self, jobs: Sequence[Job]) -> None:
        self._jobs = jobs
        self._loop = new_event_loop()
        self._stopping = asyncio.Event()
        self._owner = asyncio.get_running_loop()
        self._ended = asyncio.Event()
        self._thread = threading.Thread(target=self._work, name="flowfabric-renewal", daemon=True)

    def start(self) -> None:
        """Start the jobs."""
        self._thread.start()

    async def close(self, timeout_s: float) -> None:
        """Stop the jobs. If they do not end within the timeout, the thread keeps running."""
        self._loop.call_soon_threadsafe(self._stopping.set)
        try:
            async with asyncio.timeout(timeout_s):
                await self._ended.wait()
        except TimeoutError:
            _log.warning("Renewal thread did not end within %g s", timeout_s)

    def _work(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._run_jobs())
        with suppress(RuntimeError):  # The worker's loop is closed, so `close` is not waiting.
            self._owner.call_soon_threadsafe(self._ended.set)

    async def _run_jobs(self) -> None:
        async with AsyncExitStack() as stack:
            for job in self._jobs:
                await stack.enter_async_context(run_in_background(_run_forever(job)))
            while not self._owner.is_closed() and not self._stopping.is_set():
                with suppress(TimeoutError):
                    async with asyncio.timeout(_CHECK_OWNER_EVERY_S):
                        await self._stopping.wait()


async def _run_forever(job: Job) -> None:
    while True:
        try:
            await job()
        except Exception:
            _log.exception("Background job failed, restarting it in %g s", _RESTART_PAUSE_S)
        await asyncio.sleep(_RESTART_PAUSE_S)


class LoopWatchdog:
    """Watches an event loop from a different loop. Create it in the thread of the watched loop."""

    def __init__(self, watched: asyncio.AbstractEventLoop) -> None:
        self._watched = watched
        self._thread_id = threading.get_ident()

    async def run(self) -> None:
        """Probe the watched loop every half second. Each time that it is blocked for a second, log one warning."""
        while True:
            responded = asyncio.Event()
            if not self._probe(responded):
                return
            if not await _responds_in_time(responded):
                self._report()
                await responded.wait()
            await asyncio.sleep(_PROBE_PAUSE_S)

    def _probe(self, responded: asyncio.Event) -> bool:
        own = asyncio.get_running_loop()
        try:
            self._watched.call_soon_threadsafe(_respond, own, responded)
        except RuntimeError:
            return False  # The watched loop is closed.
        return True

    def _report(self) -> None:
        frame = sys._current_frames().get(self._thread_id)
        stack = "".join(traceback.format_stack(frame)) if frame is not None else "the thread has ended"
        _log.warning("Event loop has been blocked for %g s. It is executing:\n%s", _BLOCKED_AFTER_S, stack)


async def _responds_in_time(responded: asyncio.Event) -> bool:
    """Return False if the watched loop did not respond in time.

    If the timeout itself came much too late, the whole process was paused, so wait again.
    """
    while True:
        started_at = time.monotonic()
        try:
            async with asyncio.timeout(_BLOCKED_AFTER_S):
                await responded.wait()
            return True
        except TimeoutError:
            if time.monotonic() - started_at < 2 * _BLOCKED_AFTER_S:
                return False


def _respond(loop: asyncio.AbstractEventLoop, responded: asyncio.Event) -> None:
    with suppress(RuntimeError):  # The watching loop is closed.
        loop.call_soon_threadsafe(responded.set)
