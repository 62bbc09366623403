"""A durable call: it has its identity from the moment it is made, and is performed when it is awaited."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Generator, Sequence
from types import TracebackType
from typing import Any, Generic, TypeVar

from flowfabric.core.errors import InvalidRequest
from flowfabric.core.requests import StepStatus
from flowfabric.sdk.accidents import Decide
from flowfabric.sdk.closing import close_waitpoints
from flowfabric.sdk.errors import CancelRequested
from flowfabric.sdk.journal import KEYED, Made, Record
from flowfabric.sdk.parking import Due, Verdict, Wait
from flowfabric.sdk.units import UNIT, Unit

T_co = TypeVar("T_co", covariant=True)


class DurableCall(Coroutine[None, None, T_co], Generic[T_co]):
    """What `step`, `sleep` and the others return. It is a coroutine, so that type checkers see a forgotten await and
    asyncio takes it as a task."""

    decides: Sequence[Decide] = ()
    members: Sequence[Any] = ()

    def __init__(self, unit: Unit, name: str, kind: str, *, key: str | None = None, digest: str | None = None) -> None:
        self.unit = unit
        self.run = unit.run
        self.is_stuck = self.run.calls.is_cut_off
        if self.is_stuck:
            self.made, self.record = Made(name, "", KEYED, kind), None
        else:
            self.made, self.record = unit.make(name, kind, key=key, digest=digest)
        self.is_awaited = False
        if self.run.calls.accidents:
            self.decides = self.run.calls.accidents.gone_by(unit)
        self._inner: Coroutine[Any, Any, T_co] | None = None
        self.run.calls.made.append(self)

    @property
    def is_answered(self) -> bool:
        """True if its outcome is recorded. A call that was given up has none."""
        record = self.record
        return record is not None and record.is_final and record.status is not StepStatus.ABANDONED

    @property
    def path(self) -> str:
        """Under which the call is recorded."""
        return self.made.path

    async def perform(self) -> T_co:
        """Answers from the record, or does what the call is for."""
        record, calls = self.record, self.run.calls
        if record is not None and record.is_final:
            if record.facts.get("cancel_requested"):
                raise CancelRequested
            if record.status is StepStatus.ABANDONED:
                # The branch that gave it up must be taken again, so it is not started and waits to be given up.
                await asyncio.Event().wait()
            return self.replayed(record)
        calls.check_alive(here(self))
        calls.check_cancel(self)
        return await self.fresh()

    async def fresh(self) -> T_co:
        """Does what the call is for, and records it."""
        raise NotImplementedError

    def replayed(self, record: Record) -> T_co:
        """The recorded outcome: answered, or raised."""
        raise NotImplementedError

    async def park(self, wait: Wait) -> Verdict:
        """Waits, with every other branch that waits. Only a branch of the task can: a task of the user's own would not
        be there any more when the wait is over."""
        unit = here(self)
        if asyncio.current_task() is not unit.task:
            message = f"{self.path} waits, which an asyncio task of your own cannot; await it in the task's function"
            raise InvalidRequest("wait_in_raw_task", message, path=self.path)
        wait.together = unit.together
        opened = wait.opened()
        unit.opens(opened)
        resting = self.run.resting
        verdict = await resting.park(unit, wait)
        unit.closes(opened)
        if opened and isinstance(verdict, Due) and (resting.parked or resting.active > 1):
            # The end of a suspension by its time closes the waitpoints, but this one was beside others.
            await close_waitpoints(self.run, opened, f"{self.path} has timed out")
        return verdict

    def begin(self) -> Coroutine[Any, Any, T_co]:
        """The call being performed; a call is awaited once."""
        if self.is_awaited:
            message = f"{self.path} has been awaited already; keep its result"
            raise InvalidRequest("awaited_twice", message, path=self.path)
        self.is_awaited = True
        if self.decides:
            return self._perform_after(self.decides)
        return _never() if self.is_stuck else self.perform()

    async def _perform_after(self, decides: Sequence[Decide]) -> T_co:
        """Performs the call once groups are decided that failed by accident before it."""
        for decide in decides:
            await decide()
        return await self.perform()

    def __await__(self) -> Generator[Any, None, T_co]:
        return self.begin().__await__()

    def send(self, value: None, /) -> Any:
        if self._inner is None:
            self._inner = self.begin()
        return self._inner.send(value)

    def throw(self, kind: Any, value: Any = None, traceback: TracebackType | None = None, /) -> Any:
        if self._inner is None:
            self._inner = self.begin()
        return self._inner.throw(kind if value is None else value)

    def close(self) -> None:
        if self._inner is not None:
            self._inner.close()


async def _never() -> Any:
    """What a call comes to in code that has swallowed `Unwind` too often: it never returns."""
    task = asyncio.current_task()
    assert task is not None, "a coroutine runs in a task"
    _forsake(task)
    await asyncio.Event().wait()


def _forsake(task: asyncio.Task[Any]) -> None:
    """Leaves a task alone for ever. Whatever would end it is swallowed too: cancelled at the end of its loop it would
    go on, so that the loop never ends, and closed by the garbage collector it would turn for ever right there. What the
    frame of a daemon thread holds is never collected, not even when the process ends."""
    asyncio._unregister_task(task)
    threading.Thread(target=_hold, args=(task,), name="flowfabric-forsaken", daemon=True).start()


def _hold(task: asyncio.Task[Any]) -> None:
    threading.Event().wait()


def here(call: DurableCall[Any]) -> Unit:
    """The branch that performs the call, which may be another one than made it."""
    return UNIT.get() or call.unit
