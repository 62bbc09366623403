"""Working until the process is told to end.

SIGTERM and SIGINT drain the worker; a second SIGINT ends the process at once, as if nobody had caught it. The handlers
are set in the plain way, not on the event loop, so that they work while the loop is blocked.
"""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from flowfabric.worker.worker import Worker

_log = logging.getLogger("flowfabric.worker")


async def run_until_signalled(worker: Worker) -> None:
    """Works until SIGTERM or SIGINT, then drains with the worker's grace. Only for the main thread."""
    async with worker:
        with stopped_by_signals(worker):
            await worker.run()


@contextmanager
def stopped_by_signals(worker: Worker) -> Iterator[None]:
    """While the block lasts, SIGTERM and SIGINT stop the worker instead of the process."""
    loop = asyncio.get_running_loop()
    stops: list[asyncio.Task[None]] = []
    interrupted = False

    def stop(name: str) -> None:
        if not stops:
            _log.info("%s: draining", name)
            stops.append(asyncio.ensure_future(worker.stop()))

    def on_signal(number: int, frame: FrameType | None) -> None:
        nonlocal interrupted
        if number == signal.SIGINT and interrupted:
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            signal.raise_signal(signal.SIGINT)
        interrupted = interrupted or number == signal.SIGINT
        loop.call_soon_threadsafe(stop, signal.Signals(number).name)

    former = {number: signal.signal(number, on_signal) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)
