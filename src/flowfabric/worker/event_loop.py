"""The event loop of a process that is ours, and how often its garbage is looked for."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterator
from contextlib import contextmanager

from flowfabric.sdk import raw_tasks

# What hundreds of executions under way consist of is many and small, and not garbage: runs leave no circles behind. To
# look through it as often as Python does takes a third of the time of a busy worker.
_NEW_OBJECTS = 20_000


@contextmanager
def own_runner() -> Iterator[asyncio.Runner]:
    """Runs coroutines in a loop that is ours, in a process that is too while the block lasts. Tasks of asyncio that
    bodies leave behind end with them."""
    before = gc.get_threshold()
    if 0 < before[0] < _NEW_OBJECTS:
        gc.set_threshold(_NEW_OBJECTS, *before[1:])
    try:
        with asyncio.Runner(loop_factory=new_event_loop) as runner:
            raw_tasks.watch(runner.get_loop())
            yield runner
    finally:
        gc.set_threshold(*before)


def new_event_loop() -> asyncio.AbstractEventLoop:
    """A loop of uvloop's if that is installed, else one of asyncio's; for `asyncio.Runner(loop_factory=…)`."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()
