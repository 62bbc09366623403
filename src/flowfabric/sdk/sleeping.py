"""Time: sleeping and polling. Both are records with a due time; while it lies ahead, nothing is held."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, overload

from flowfabric.core import limits
from flowfabric.core.requests import StepStatus
from flowfabric.sdk.aliases import Async, Durable, Duration, P, T
from flowfabric.sdk.durable import DurableCall
from flowfabric.sdk.journal import Record
from flowfabric.sdk.parking import Wait
from flowfabric.sdk.steps import StepCall
from flowfabric.sdk.storing import checked_result
from flowfabric.sdk.units import Unit, require_unit


def sleep(duration: Duration, /) -> Durable[None]:
    """Goes on after this long. The time is set when it is first awaited, and does not change after that."""
    span = limits.duration(duration, "duration")
    return Sleep(require_unit("sleep"), lambda now: now + span)


def sleep_until(when: datetime, /) -> Durable[None]:
    """Goes on at this time."""
    moment = limits.moment(when, "when")
    return Sleep(require_unit("sleep_until"), lambda _: moment)


@overload
def poll(every: Duration, fn: Async[P, T | None], /, *args: P.args, **kwargs: P.kwargs) -> Durable[T]: ...
@overload
def poll(every: Duration, fn: Callable[P, T | None], /, *args: P.args, **kwargs: P.kwargs) -> Durable[T]: ...
def poll(every: Duration, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """Asks the function now and then every so often, until it answers something else than None or False. However often
    it asks, there is one record."""
    return Poll(require_unit("poll"), every, fn, args, kwargs)


class Sleep(DurableCall[None]):
    """A pause until a time that is recorded at the first arrival."""

    def __init__(self, unit: Unit, due: Callable[[datetime], datetime]) -> None:
        super().__init__(unit, "sleep", "sleep")
        self._due = due

    def replayed(self, record: Record) -> None:
        return None

    async def fresh(self) -> None:
        if self.record is None:
            due = self._due(self.run.now())
            self.run.commits.ride(self.made.record(StepStatus.OPEN, due=due.isoformat()))
        else:
            due = datetime.fromisoformat(self.record.facts["due"])
        await self.park(Wait(self, due))
        self.run.commits.ride(self.made.record(StepStatus.OK, due=due.isoformat()))


class Poll(StepCall):
    """A step that is asked again and again."""

    kind = "poll"

    def __init__(
        self, unit: Unit, every: Duration, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> None:
        self.every = limits.duration(every, "every")
        super().__init__(unit, fn, args, kwargs)

    async def _succeed(self) -> Any:
        form = checked_result(self.fn)
        asked = self._asked_before()
        while True:
            result = await self._performed()
            asked += 1
            if result is not None and result is not False:
                stored = form.stored(result, self)
                await self.run.commits.write(self.made.record(StepStatus.OK, value=stored.data, asked=asked))
                return stored.value
            due = self.run.now() + self.every
            self.run.commits.ride(self.made.record(StepStatus.OPEN, due=due.isoformat(), asked=asked))
            await self._back_off(due)

    def _asked_before(self) -> int:
        return 0 if self.record is None else int(self.record.facts.get("asked", 0))
