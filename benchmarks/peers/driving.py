"""Drivers that keep a peer busy with a fixed number of jobs in flight, or with one job at a time on an idle worker.

A job counts when its function runs, not when its result is stored, which favours the peer. The figure is the smaller of
the jobs submitted and the jobs run within the time. So jobs that were submitted before the turn, or that remain after
it, do not increase the figure.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from benchmarks.peers.protocol import Turn

_WARM = 20
_PAUSE_S = 0.01
_LATEST_S = 60.0


class Threads:
    """Driver for a peer that is used from threads."""

    def __init__(self, turn: Turn) -> None:
        self._turn = turn
        self._lock = threading.Lock()
        self._places = threading.Semaphore(turn.request.in_flight)
        self._ran = threading.Event()
        self._last = 0.0
        self._sent = self._done = 0
        self._is_over = False

    def ran(self) -> None:
        """Count one run. The job calls this method."""
        at = time.perf_counter()
        with self._lock:
            self._last, self._done = at, self._done + 1
        self._places.release()
        self._ran.set()

    def rate(self, submit: Callable[[], object], *, callers: int = 8, per_job: int = 1) -> None:
        """Measure the rate of jobs. Each job counts `per_job` times."""

        def caller() -> None:
            while not self._is_over:
                self._places.acquire()
                submit()
                with self._lock:
                    self._sent += 1

        for _ in range(callers):
            threading.Thread(target=caller, daemon=True).start()
        ends = time.monotonic() + _LATEST_S
        while self._done < _WARM:
            if time.monotonic() > ends:
                raise RuntimeError(f"only {self._done} jobs ran in {_LATEST_S:.0f} s")
            time.sleep(0.01)
        self._turn.begin()
        sent, done = self._sent, self._done
        time.sleep(self._turn.request.seconds)
        self._turn.end(min(self._sent - sent, self._done - done) * per_job)
        self._is_over = True

    def starts(self, submit: Callable[[], object]) -> None:
        """Measure the time from each submit to the start of its job."""
        times = [self._start_ms(submit) for _ in range(3)]
        self._turn.begin()
        times = [self._start_ms(submit) for _ in range(self._turn.request.number)]
        self._turn.end(len(times), times_ms=times)

    def _start_ms(self, submit: Callable[[], object]) -> float:
        time.sleep(_PAUSE_S)
        self._ran.clear()
        began = time.perf_counter()
        submit()
        if not self._ran.wait(_LATEST_S):
            raise RuntimeError("a job did not start")
        return (self._last - began) * 1000


class Coroutines:
    """Driver for a peer that is used from an event loop. Jobs are submitted in batches."""

    def __init__(self, turn: Turn) -> None:
        self._turn = turn
        self._room = asyncio.Event()
        self._ran = asyncio.Event()
        self._last = 0.0
        self._asked = self._sent = self._done = 0

    def ran(self) -> None:
        """Count one run. The job calls this method."""
        self._last = time.perf_counter()
        self._done += 1
        self._ran.set()
        self._room.set()

    async def rate(
        self, submit: Callable[[int], Awaitable[object]], *, batch: int, callers: int = 4, per_job: int = 1
    ) -> None:
        """Measure the rate of jobs. Each job counts `per_job` times."""
        tasks = [asyncio.create_task(self._feed(submit, batch)) for _ in range(callers)]
        async with asyncio.timeout(_LATEST_S):
            while self._done < _WARM:  # noqa: ASYNC110 - jobs may end in any way that the peer likes
                await asyncio.sleep(0.01)
        self._turn.begin()
        sent, done = self._sent, self._done
        await asyncio.sleep(self._turn.request.seconds)
        for task in tasks:
            if task.done():
                task.result()
        self._turn.end(min(self._sent - sent, self._done - done) * per_job)
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)

    async def starts(self, submit: Callable[[int], Awaitable[object]]) -> None:
        """Measure the time from each submit to the start of its job."""
        times = [await self._start_ms(submit) for _ in range(3)]
        self._turn.begin()
        times = [await self._start_ms(submit) for _ in range(self._turn.request.number)]
        self._turn.end(len(times), times_ms=times)

    async def _feed(self, submit: Callable[[int], Awaitable[object]], batch: int) -> None:
        while True:
            while self._asked + batch - self._done > max(batch, self._turn.request.in_flight):
                self._room.clear()
                await self._room.wait()
            self._asked += batch
            await submit(batch)
            self._sent += batch

    async def _start_ms(self, submit: Callable[[int], Awaitable[object]]) -> float:
        await asyncio.sleep(_PAUSE_S)
        self._ran.clear()
        began = time.perf_counter()
        await submit(1)
        await asyncio.wait_for(self._ran.wait(), _LATEST_S)
        return (self._last - began) * 1000


def in_loop(scenario: Callable[[Turn], Coroutine[Any, Any, None]]) -> Callable[[Turn], None]:
    """Run a coroutine scenario on the fast event loop."""

    def run(turn: Turn) -> None:
        import uvloop

        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(scenario(turn))

    return run
