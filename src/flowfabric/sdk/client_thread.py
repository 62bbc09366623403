"""Where plain code waits for the async verbs: one daemon thread with an event loop in each process. In a step it is the
worker's loop, which has an engine already and is free while the step runs in a thread."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextvars import Context
from typing import TypeVar

from flowfabric.core.errors import InvalidRequest
from flowfabric.sdk import units
from flowfabric.sdk.aliases import Durable

T = TypeVar("T")


class ClientThread:
    """A loop that runs in a thread of its own from the first use on."""

    def __init__(self) -> None:
        self.begin_anew()

    def begin_anew(self) -> None:
        """Forgets thread and loop. Only the forking thread lives on in a child: there the loop would never run, and the
        lock might never be free."""
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None

    def running(self) -> asyncio.AbstractEventLoop:
        """The loop, started by the first call."""
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                threading.Thread(target=self._loop.run_forever, name="flowfabric-client", daemon=True).start()
            return self._loop


_thread = ClientThread()
os.register_at_fork(after_in_child=_thread.begin_anew)


def wait_for(make: Callable[[], Durable[T]]) -> T:
    """The result of an async verb in plain code. Inside a task that is a plain function it is a durable call."""
    refuse_on_a_loop()
    step = units.in_step()
    if step is not None:
        return _awaited_on(step.run.loop, make())
    if units.UNIT.get() is not None:
        from flowfabric.sdk import bridge

        return bridge.call(make)
    return _awaited_on(_thread.running(), make())


def refuse_on_a_loop() -> None:
    """Refuses to block a thread whose event loop is running."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise InvalidRequest("blocks_the_loop", "this would block the running event loop; await the async verb instead")


def _awaited_on(loop: asyncio.AbstractEventLoop, call: Durable[T]) -> T:
    """The result of a call that was made here, where it is known who calls, and is awaited on another thread's loop.
    Interrupted, the call is cancelled."""
    # It is awaited in an empty context: what is durable or part of a step was settled when the call was made.
    future: Future[T] = Context().run(asyncio.run_coroutine_threadsafe, _awaited(call), loop)
    try:
        return future.result()
    except BaseException:
        future.cancel()
        raise


async def _awaited(call: Durable[T]) -> T:
    return await call
