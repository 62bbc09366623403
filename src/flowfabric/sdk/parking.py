"""What parked branches wait for, and what would let one of them go on.

The outcome of a wait is worked out from what is stored: the signals at its waitpoints, how its children ended, its due
time. So it does not matter which run finds it out, and a suspension is only the way to be woken.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Any, TypeAlias
from uuid import UUID

from flowfabric.core.bindings import Bound, Child, Fresh, Timer
from flowfabric.core.conditions import AllOf, AnyOf, Condition, Count, Distinct, Single
from flowfabric.core.errors import InvalidRequest
from flowfabric.core.graph import ALL_OF, EdgeKind, Join, Siblings, any_of
from flowfabric.core.looking import Look, Override
from flowfabric.core.states import State
from flowfabric.core.views import Outcome
from flowfabric.core.waits import OnTimeout, Signal, SuspensionReason

if TYPE_CHECKING:
    from flowfabric.sdk.durable import DurableCall

MOST_TOGETHER = 64
_FIRST = any_of(siblings=Siblings.LET_RUN)
_BAD_ENDS = (State.FAILED.value, State.CANCELLED.value, State.EXPIRED.value, State.SKIPPED.value)


class Together(StrEnum):
    """What the direct members of a group need before the code around it can go on."""

    ALL_WELL = "gather"
    ALL_ENDED = "settle"
    FIRST_SUCCESS = "race"


@dataclass(frozen=True, slots=True, eq=False)
class Group:
    """The waits that are direct members of one group."""

    need: Together


@dataclass(frozen=True, slots=True)
class Due:
    """The time of the wait has come."""

    at: datetime


@dataclass(frozen=True, slots=True)
class Heard:
    """These signals end the wait."""

    signals: tuple[Signal, ...]


@dataclass(frozen=True, slots=True)
class ChildEnded:
    """The execution that was waited for has ended."""

    outcome: Outcome


Verdict: TypeAlias = Due | Heard | ChildEnded | Override


def is_bad_end(verdict: Verdict) -> bool:
    """True for the end of an execution that is no success."""
    return isinstance(verdict, ChildEnded) and verdict.outcome.state is not State.COMPLETED


class Wait:
    """What one parked branch waits for; by itself, a time."""

    reason = SuspensionReason.STEP_BOUNDARY
    on_timeout: OnTimeout | None = None

    def __init__(self, call: DurableCall[Any], due: datetime | None = None, *, is_old: bool = False) -> None:
        self.call = call
        self.due = due
        self.together: Group | None = None
        self.is_unseen = is_old
        self.future: asyncio.Future[Verdict] = asyncio.get_running_loop().create_future()

    @property
    def path(self) -> str:
        return self.call.path

    @property
    def wakes_at(self) -> datetime | None:
        """When its time lets the branch go on; never, if the engine is to do something else at that time."""
        return self.due if self.on_timeout is None else None

    @property
    def child(self) -> UUID | None:
        """The execution whose end is waited for."""
        return None

    def keys(self) -> Mapping[str, int]:
        """The waitpoints to look at, each with the place after which signals are wanted."""
        return {}

    def bindings(self) -> Sequence[Bound]:
        """What a suspension binds for it."""
        return ()

    def opened(self) -> list[str]:
        """The waitpoints that are there for it alone."""
        return [item.key for item in self.bindings() if isinstance(item, Fresh)]

    def condition(self) -> Condition | None:
        """What ends it, beside its time."""
        return None

    def judge(self, look: Look | None, now: datetime) -> Verdict | None:
        """How it has ended, if it has; without a look only its time can have come."""
        found = None if look is None else self._found(look)
        if found is not None:
            return found
        due = self.wakes_at
        return Due(due) if due is not None and self.is_due(now) else None

    def is_due(self, now: datetime) -> bool:
        """True once its time has come."""
        return self.wakes_at is not None and now >= self.wakes_at

    def _found(self, look: Look) -> Verdict | None:
        return None

    def _in_time(self, signal: Signal) -> bool:
        return self.wakes_at is None or signal.accepted_at <= self.wakes_at


class ChildWait(Wait):
    """Waits for the end of an execution."""

    def __init__(
        self, call: DurableCall[Any], child: UUID, due: datetime | None = None, *, is_old: bool = False
    ) -> None:
        super().__init__(call, due, is_old=is_old)
        self._child = child

    @property
    def child(self) -> UUID | None:
        return self._child

    def bindings(self) -> Sequence[Bound]:
        return (Child(self.path, self._child),)

    def condition(self) -> Condition | None:
        return Single(self.path)

    def _found(self, look: Look) -> Verdict | None:
        outcome = look.children.get(self._child)
        return None if outcome is None else ChildEnded(outcome)


@dataclass(frozen=True, slots=True)
class Wake:
    """What a suspension is asked to wait for."""

    bindings: tuple[Bound, ...]
    condition: Condition
    timeout_at: datetime | None
    on_timeout: OnTimeout
    reason: SuspensionReason


def earliest(waits: Sequence[Wait]) -> datetime | None:
    """When the first of the waits goes on by its time."""
    return min((wait.wakes_at for wait in waits if wait.wakes_at is not None), default=None)


@dataclass(frozen=True, slots=True)
class Family:
    """Children that are waited for by themselves, and which ends of them count."""

    children: list[UUID]
    join: Join
    edge: EdgeKind


def only_children(waits: Sequence[Wait]) -> Family | None:
    """The children, if nothing else is waited for, and what lets one of the branches go on."""
    children = [wait.child for wait in waits if wait.child is not None and wait.due is None]
    if len(children) != len(waits):
        return None
    groups = {wait.together for wait in waits}
    match [group and group.need for group in groups]:
        case [Together.ALL_WELL]:
            return Family(children, ALL_OF, EdgeKind.ON_SUCCESS)
        case [Together.ALL_ENDED]:
            return Family(children, ALL_OF, EdgeKind.ON_COMPLETION)
        case [Together.FIRST_SUCCESS]:
            return Family(children, _FIRST, EdgeKind.ON_SUCCESS)
    return Family(children, _FIRST, EdgeKind.ON_COMPLETION)


def wake(waits: Sequence[Wait]) -> Wake:
    """What wakes the execution as soon as one of its branches can go on."""
    timers = _timers(waits)
    waits = _at_most(waits, MOST_TOGETHER - len(timers))
    # Several waits for one signal share its waitpoint.
    bindings = tuple({binding.key: binding for wait in waits for binding in wait.bindings()}.values())
    if len(waits) == 1:
        return _alone(waits[0], bindings)
    if len(bindings) + len(timers) > MOST_TOGETHER:
        message = f"{len(bindings)} waits at once are too many, the limit is {MOST_TOGETHER}; use children"
        raise InvalidRequest("too_many_waits", message, limit=MOST_TOGETHER)
    members: list[Condition] = [Single(timer.key) for timer in timers]
    for group in _groups(waits):
        members += _members(group)
    timeout_at, on_timeout = _end(waits)
    return Wake((*bindings, *timers), AnyOf(members), timeout_at, on_timeout, waits[0].reason)


def _at_most(waits: Sequence[Wait], most: int) -> Sequence[Wait]:
    """The waits, or as many as the engine takes: those children are left for later that count together with others,
    since they must all end. A failure of one that is left is seen when the others have ended."""
    number = sum(len(wait.bindings()) for wait in waits)
    if number <= most:
        return waits
    left, kept = number - most, list[Wait]()
    for wait in reversed(waits):
        is_one_of_many = wait.child is not None and wait.due is None and _counts_together(wait)
        if left > 0 and is_one_of_many:
            left -= 1
        else:
            kept.append(wait)
    return kept[::-1]


def _counts_together(wait: Wait) -> bool:
    return wait.together is not None and wait.together.need is not Together.FIRST_SUCCESS


def _alone(wait: Wait, bindings: tuple[Bound, ...]) -> Wake:
    condition = wait.condition()
    assert condition is not None, "a wait without a condition is only a time, for which there is a delay"
    return Wake(bindings, condition, wait.due, wait.on_timeout or OnTimeout.AUTO_RESUME, wait.reason)


def _end(waits: Sequence[Wait]) -> tuple[datetime | None, OnTimeout]:
    """When the engine is to do something about the execution because one of its waits took too long, and what."""
    ends = [(wait.due, wait.on_timeout) for wait in waits if wait.due is not None and wait.on_timeout is not None]
    return min(ends, default=(None, OnTimeout.AUTO_RESUME))


def _groups(waits: Sequence[Wait]) -> list[list[Wait]]:
    """The waits with a condition; those that count together in one list."""
    groups: dict[object, list[Wait]] = {}
    for wait in waits:
        if wait.condition() is not None:
            groups.setdefault(wait.together if _counts_together(wait) else wait, []).append(wait)
    return list(groups.values())


def _members(group: list[Wait]) -> list[Condition]:
    """All of them have ended, or a child among them badly, if that matters."""
    conditions = [condition for wait in group if (condition := wait.condition()) is not None]
    children = [wait.path for wait in group if wait.child is not None]
    if len(children) == len(group) > 1:
        together: Condition = Count(len(children), Distinct.WAITPOINTS, children)
    else:
        together = conditions[0] if len(conditions) == 1 else AllOf(conditions)
    first = group[0].together
    if len(group) == 1 or not children or first is None or first.need is Together.ALL_ENDED:
        return [together]
    return [together, *(Count(1, Distinct.WAITPOINTS, children, name) for name in _BAD_ENDS)]


def _timers(waits: Sequence[Wait]) -> list[Timer]:
    """One timer for the earliest due time of all."""
    first = earliest(waits)
    return [] if first is None else [Timer(f"timer:{first.isoformat()}", first)]
