"""The thread in which the async methods run that plain code calls: a daemon thread with an event loop, one per process.

Inside a step, the methods run on the worker's loop instead, which already has an engine and is free while the step runs
in a thread.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextvars import Context
from typing import Any, TypeVar

from flowfabric.core.errors import InvalidRequest
from flowfabric.runtime.branch import BRANCH, STEP, BranchResult
from flowfabric.store.forks import call_after_fork, check_not_forked
from flowfabric.values.aliases import Durable

T = TypeVar("T")
# With this mark, pytest leaves out the frames of this module, so that a failed test shows the lines of the user.
__tracebackhide__ = True


class ClientThread:
    """An event loop in its own thread, started on first use."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Forget the thread and its loop, after a fork.

        In a child process only the thread that forked survives, so the old loop would never run there. The old lock
        might also stay locked.
        """
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None

    def start(self) -> asyncio.AbstractEventLoop:
        """Return the loop. The first call starts the loop and its thread."""
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                threading.Thread(target=self._loop.run_forever, name="flowfabric-client", daemon=True).start()
            return self._loop


_thread = ClientThread()
call_after_fork(_thread.reset)


def run_on_client_thread(make: Callable[[], Durable[T]]) -> T:
    """Call an async method from plain code and return its result.

    In a plain task's function, this is a durable call.
    """
    if running_loop() is not None:
        message = "this would block the running event loop; await the async method instead"
        raise InvalidRequest("blocks_the_loop", message)
    step = STEP.get()
    if step is not None:
        check_not_forked(step.run.forks)
        return _wait_on(step.run.loop, make())
    if BRANCH.get() is not None:
        from flowfabric.runtime import sync_bridge

        return sync_bridge.call(make)
    return _wait_on(_thread.start(), make())


def running_loop() -> asyncio.AbstractEventLoop | None:
    """Return the event loop that runs in this thread, if any."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def _wait_on(loop: asyncio.AbstractEventLoop, call: Durable[T]) -> T:
    """Await a call on the loop of a different thread, and return its result.

    Cancel the call if this thread is interrupted.
    """
    # Use an empty context, so that the call does not see the caller's branch or step and become durable again.
    future: Future[BranchResult] = Context().run(asyncio.run_coroutine_threadsafe, _await_call(call), loop)
    try:
        ending = future.result()
    except BaseException:
        future.cancel()
        raise
    if ending.error is not None:
        raise ending.error
    value: T = ending.value
    return value


async def _await_call(call: Durable[Any]) -> BranchResult:
    """Return how the call ended. An error that a future raises would get frames of the standard library."""
    try:
        return BranchResult(await call)
    except Exception as error:
        return BranchResult(error=error)
