"""The event loop of a process that is ours."""

from __future__ import annotations

import asyncio


def new_event_loop() -> asyncio.AbstractEventLoop:
    """A loop of uvloop's if that is installed, else one of asyncio's; for `asyncio.Runner(loop_factory=…)`."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()
