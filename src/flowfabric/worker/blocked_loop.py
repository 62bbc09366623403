"""Tells when the worker's event loop does not answer, and what it is doing instead."""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import time
import traceback

_log = logging.getLogger("flowfabric.worker")
_PATIENCE_S = 1.0
_PAUSE_S = 0.5


class LoopWatch:
    """Watches a loop from another; made in the thread of the loop that is watched."""

    def __init__(self, watched: asyncio.AbstractEventLoop) -> None:
        self._watched = watched
        self._thread_id = threading.get_ident()

    async def run(self) -> None:
        """Asks for an answer twice a second, for ever; reports once each time that none comes within a second."""
        while True:
            answered = asyncio.Event()
            if not self._ask(answered):
                return
            if not await _in_time(answered):
                self._report()
                await answered.wait()
            await asyncio.sleep(_PAUSE_S)

    def _ask(self, answered: asyncio.Event) -> bool:
        own = asyncio.get_running_loop()
        try:
            self._watched.call_soon_threadsafe(_answer, own, answered)
        except RuntimeError:
            return False  # The loop is closed: there is nothing left to watch.
        return True

    def _report(self) -> None:
        frame = sys._current_frames().get(self._thread_id)
        stack = "".join(traceback.format_stack(frame)) if frame is not None else "the thread is gone"
        _log.warning(
            "the event loop has not answered for %g s; everything in it waits. It is here:\n%s", _PATIENCE_S, stack
        )


async def _in_time(answered: asyncio.Event) -> bool:
    """False if no answer came although this thread ran: when the whole process stood still, it is asked again."""
    while True:
        asked_at = time.monotonic()
        try:
            async with asyncio.timeout(_PATIENCE_S):
                await answered.wait()
            return True
        except TimeoutError:
            if time.monotonic() - asked_at < 2 * _PATIENCE_S:
                return False


def _answer(loop: asyncio.AbstractEventLoop, answered: asyncio.Event) -> None:
    try:
        loop.call_soon_threadsafe(answered.set)
    except RuntimeError:
        return  # The watching loop is closed.
