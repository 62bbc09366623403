"""Cancel the task that reaches the k-th await, counted over all tasks that an operation starts."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Coroutine, Generator
from typing import Any


class Cutter:
    """Counts the awaits of new tasks and cancels the task at the chosen await."""

    def __init__(self, at: int) -> None:
        self.at = at
        self.awaits = 0

    @property
    def cut(self) -> bool:
        """Whether the chosen await was reached."""
        return 0 < self.at <= self.awaits

    async def run(self, call: Awaitable[Any]) -> BaseException | None:
        """Run the call in a new task. Return the error or the cancellation that ended it, or None."""
        loop = asyncio.get_running_loop()
        loop.set_task_factory(self._make_task)
        try:
            task = asyncio.create_task(_awaited(call))
        finally:
            await asyncio.wait([task])
            loop.set_task_factory(None)
        if task.cancelled():
            return asyncio.CancelledError()
        return task.exception() or task.result()

    def suspended(self) -> None:
        """Count one await, and cancel the task if this await is the chosen one."""
        self.awaits += 1
        task = asyncio.current_task()
        if self.awaits == self.at and task is not None:
            asyncio.get_running_loop().call_soon(task.cancel)

    def _make_task(self, loop: asyncio.AbstractEventLoop, coroutine: Any, **options: Any) -> asyncio.Task[Any]:
        return asyncio.Task(Counted(coroutine, self), loop=loop, **options)


class Counted(Coroutine[Any, Any, Any]):
    """A coroutine that counts how often it suspends at an await."""

    def __init__(self, coroutine: Coroutine[Any, Any, Any], cutter: Cutter) -> None:
        self._coroutine = coroutine
        self._cutter = cutter

    def send(self, value: Any) -> Any:
        awaited = self._coroutine.send(value)
        self._cutter.suspended()
        return awaited

    def throw(self, *error: Any) -> Any:
        awaited = self._coroutine.throw(*error)
        self._cutter.suspended()
        return awaited

    def close(self) -> None:
        self._coroutine.close()

    def __await__(self) -> Generator[Any, Any, Any]:
        return self._coroutine.__await__()


async def _awaited(call: Awaitable[Any]) -> Any:
    return await call
