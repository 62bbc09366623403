"""Sleeping and polling. Both record a due time, and the execution holds no lease and no slot until that time."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, overload

from flowfabric.core import validation
from flowfabric.core.executions.requests import StepStatus
from flowfabric.runtime.branch import Branch, require_branch
from flowfabric.runtime.calls.step import StepCall
from flowfabric.runtime.durable_call import DurableCall
from flowfabric.runtime.journal import Record
from flowfabric.runtime.results import store_result
from flowfabric.runtime.waits import Wait
from flowfabric.values import return_codec
from flowfabric.values.aliases import Async, Durable, Duration, P, T


def sleep(duration: Duration, /) -> Durable[None]:
    """Continue after `duration`. The due time is set when the sleep is first awaited and does not change afterwards."""
    span = validation.duration(duration, "duration")
    return Sleep(require_branch("sleep"), lambda now: now + span)


def sleep_until(when: datetime, /) -> Durable[None]:
    """Continue at this time."""
    due = validation.timestamp(when, "when")
    return Sleep(require_branch("sleep_until"), lambda _: due)


@overload
def poll(every: Duration, fn: Async[P, T | None], /, *args: P.args, **kwargs: P.kwargs) -> Durable[T]: ...
@overload
def poll(every: Duration, fn: Callable[P, T | None], /, *args: P.args, **kwargs: P.kwargs) -> Durable[T]: ...
def poll(every: Duration, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """Call the function immediately and then every `every`, until it returns something other than None or False.

    All of these calls share a single record in the journal.
    """
    return Poll(require_branch("poll"), every, fn, args, kwargs)


class Sleep(DurableCall[None]):
    """A pause until a due time. The first run that reaches the sleep records this time."""

    def __init__(self, branch: Branch, due: Callable[[datetime], datetime]) -> None:
        super().__init__(branch, "sleep", "sleep")
        self._due = due

    def replay(self, record: Record) -> None:
        return None

    async def execute(self) -> None:
        if self.record is None:
            due = self._due(self.run.now())
            self.run.record_writer.enqueue(self.call_id.record(StepStatus.OPEN, due=due.isoformat()))
        else:
            due = datetime.fromisoformat(self.record.facts["due"])
        await self.await_verdict(Wait(self, due))
        self.run.record_writer.enqueue(self.call_id.record(StepStatus.OK, due=due.isoformat()))


class Poll(StepCall):
    """A step that is repeated until it returns a value."""

    kind = "poll"

    def __init__(
        self, branch: Branch, every: Duration, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> None:
        self.every = validation.duration(every, "every")
        super().__init__(branch, fn, args, kwargs)

    async def _succeed(self) -> Any:
        codec = return_codec(self.fn)
        tries = 0 if self.record is None else int(self.record.facts.get("asked", 0))
        while True:
            result = await self._perform()
            self.end_try()
            tries += 1
            if result is not None and result is not False:
                stored = store_result(result, codec, self)
                await self.run.record_writer.write(self.record_result(stored.data, asked=tries))
                return stored.value
            due = self.run.now() + self.every
            record = self.call_id.record(StepStatus.OPEN, ran=self.ran, due=due.isoformat(), asked=tries)
            self.run.record_writer.enqueue(record)
            await self._back_off(due)
            self.start_try()
