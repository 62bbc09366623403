"""The event loop of a worker process, and its garbage collection."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterator
from contextlib import contextmanager

from flowfabric.runtime import branch

# Active runs consist of many small objects that are not garbage, and runs leave no reference cycles. Garbage collection
# as often as by default would take a third of the time of a busy worker.
_GC_THRESHOLD = 20_000


@contextmanager
def event_loop_runner() -> Iterator[asyncio.Runner]:
    """Yield a runner with a new event loop, with less frequent garbage collection inside the block.

    Asyncio tasks that a body leaves running are cancelled when the body ends.
    """
    before = gc.get_threshold()
    if 0 < before[0] < _GC_THRESHOLD:
        gc.set_threshold(_GC_THRESHOLD, *before[1:])
    try:
        with asyncio.Runner(loop_factory=new_event_loop) as runner:
            branch.track_raw_tasks(runner.get_loop())
            yield runner
    finally:
        gc.set_threshold(*before)


def new_event_loop() -> asyncio.AbstractEventLoop:
    """Return a new uvloop event loop if uvloop is installed, otherwise a new asyncio event loop."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()
