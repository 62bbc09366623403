"""A thread beside the worker's, with an event loop of its own: whatever blocks the worker's does not hold it up."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from flowfabric.worker.event_loop import new_event_loop

_log = logging.getLogger("flowfabric.worker")
_PAUSE_S = 1.0
Job = Callable[[], Coroutine[Any, Any, None]]


class SideThread:
    """Runs jobs that never end until it is closed; one that breaks is begun again."""

    def __init__(self, jobs: Sequence[Job]) -> None:
        self._jobs = jobs
        self._loop = new_event_loop()
        self._main: asyncio.Task[None] | None = None
        self._owner = asyncio.get_running_loop()
        self._ended = asyncio.Event()
        self._thread = threading.Thread(target=self._work, name="flowfabric-renewal", daemon=True)

    def start(self) -> None:
        """Begins the jobs."""
        self._thread.start()

    async def close(self, within_s: float) -> None:
        """Ends the jobs; a thread that does not end in time is left to itself."""
        self._loop.call_soon_threadsafe(self._cancel)
        try:
            async with asyncio.timeout(within_s):
                await self._ended.wait()
        except TimeoutError:
            _log.warning("the renewing thread did not end in time")

    def _work(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._run_jobs())
        try:
            self._owner.call_soon_threadsafe(self._ended.set)
        except RuntimeError:
            return  # The worker's loop is closed: nobody waits any more.

    async def _run_jobs(self) -> None:
        self._main = asyncio.create_task(_all(self._jobs))
        await asyncio.wait([self._main])

    def _cancel(self) -> None:
        if self._main is None:
            self._loop.call_soon(self._cancel)
        else:
            self._main.cancel()


async def _all(jobs: Sequence[Job]) -> None:
    async with asyncio.TaskGroup() as group:
        for job in jobs:
            group.create_task(_for_ever(job))


async def _for_ever(job: Job) -> None:
    while True:
        try:
            await job()
        except Exception:
            _log.exception("a duty of the worker broke and is begun again")
        await asyncio.sleep(_PAUSE_S)
