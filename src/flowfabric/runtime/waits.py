"""What branches wait for, and the suspension that resumes the execution when one of the waits ends.

The outcome of a wait follows from stored data: the signals at its waitpoints, the ends of its children, and its due
time. So any run can determine the outcome, and a suspension only serves to wake the execution.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias
from uuid import UUID

from flowfabric.core.errors import FlowFabricError, InvalidRequest
from flowfabric.core.executions.states import State
from flowfabric.core.executions.views import Outcome
from flowfabric.core.flows.graph import ALL_OF, EdgeKind, Join, Siblings, any_of
from flowfabric.core.validation import MAX_BATCH
from flowfabric.core.waits.bindings import Bound, Child, NewWaitpoint, Timer
from flowfabric.core.waits.conditions import AllOf, AnyOf, Condition, Count, Distinct, Single
from flowfabric.core.waits.evaluate import signal_limits
from flowfabric.core.waits.records import OnTimeout, StoredSignal, SuspensionReason, WaitpointState
from flowfabric.core.waits.snapshot import Override, WaitSnapshot
from flowfabric.runtime.record_writer import retry_while_owned

if TYPE_CHECKING:
    from flowfabric.runtime.durable_call import DurableCall
    from flowfabric.runtime.run import TaskRun


MAX_OPEN_WAITS = 64
_FIRST = any_of(siblings=Siblings.LET_RUN)
_BAD_ENDS = (State.FAILED.value, State.CANCELLED.value, State.EXPIRED.value, State.SKIPPED.value)


class GroupNeed(StrEnum):
    """Which of its direct members must end, and how, before the code that awaits a group can continue."""

    ALL_WELL = "gather"
    ALL_ENDED = "settle"
    FIRST_SUCCESS = "race"


_GROUP_ENDS = {
    GroupNeed.ALL_WELL: (ALL_OF, EdgeKind.ON_SUCCESS),
    GroupNeed.ALL_ENDED: (ALL_OF, EdgeKind.ON_COMPLETION),
    GroupNeed.FIRST_SUCCESS: (_FIRST, EdgeKind.ON_SUCCESS),
}
_ANY_END = (_FIRST, EdgeKind.ON_COMPLETION)


@dataclass(frozen=True, slots=True, eq=False)
class WaitGroup:
    """The waits that are direct members of one group."""

    need: GroupNeed


@dataclass(frozen=True, slots=True)
class DueTimeReached:
    """The due time of the wait has come."""

    at: datetime


@dataclass(frozen=True, slots=True)
class SignalsArrived:
    """The signals that end the wait."""

    signals: tuple[StoredSignal, ...]


@dataclass(frozen=True, slots=True)
class ChildEnded:
    """The awaited execution has ended."""

    outcome: Outcome


@dataclass(frozen=True, slots=True)
class UnreadableSignal:
    """A signal that a wait skips, because its payload does not have the awaited type."""

    signal: StoredSignal
    reason: str


Verdict: TypeAlias = DueTimeReached | SignalsArrived | ChildEnded | Override


def is_bad_end(verdict: Verdict) -> bool:
    """Return True if the wait ended because an execution ended without success."""
    return isinstance(verdict, ChildEnded) and verdict.outcome.state is not State.COMPLETED


class ConsumedSignals:
    """The signals that the waits of an execution have used, by the key of their waitpoint.

    Only the record of a wait consumes signals. A wait that has found its signals reserves them until it is recorded. If
    its code is cancelled before that, the signals are available to the next wait.

        position   no signal up to this number is available, except skipped ones
        open       signals up to the position that no record has consumed: they are skipped or reserved
        reserved   signals that a wait has found and not yet recorded
    """

    def __init__(self) -> None:
        self._positions: dict[str, int] = {}
        self._open: dict[str, set[int]] = {}
        self._reserved: dict[str, set[int]] = {}
        self._recorded: dict[str, set[int]] = {}

    def restore(self, facts: Mapping[str, Any]) -> None:
        """Add the signals that an earlier run recorded in a wait, or that the last generation had consumed."""
        used: Mapping[str, int] = facts.get("used", {})
        for signal in facts.get("signals", ()):
            self._recorded.setdefault(signal["waitpoint"], set()).add(signal["seq"])
        for key, seq in used.items():
            self._positions[key] = max(seq, self.position(key))
            # Records of concurrent waits are restored in any order, so a signal may be skipped after it was used.
            recorded, skipped = self._recorded.get(key, set()), facts.get("skipped", {}).get(key, ())
            self._open[key] = self._open.get(key, set()).union(skipped) - recorded

    def position(self, key: str) -> int:
        """Return the sequence number up to which signals are used, except skipped ones."""
        return self._positions.get(key, 0)

    def skipped(self, key: str) -> tuple[int, ...]:
        """Return the sequence numbers up to the position that are still available, oldest first."""
        if not self._open.get(key):
            return ()
        return tuple(sorted(self._open[key] - self._reserved.get(key, set()))[:MAX_BATCH])

    def is_available(self, signal: StoredSignal) -> bool:
        """Return True if no wait has used or reserved the signal."""
        key = signal.waitpoint
        return signal.seq > self.position(key) or signal.seq in self.skipped(key)

    def reserve(self, signals: Sequence[StoredSignal], available: Sequence[StoredSignal]) -> None:
        """Reserve signals for a wait. `available` has all available signals that the wait could have used."""
        for signal in signals:
            self._positions[signal.waitpoint] = max(signal.seq, self.position(signal.waitpoint))
            self._reserved.setdefault(signal.waitpoint, set()).add(signal.seq)
        for signal in available:
            if signal.seq <= self.position(signal.waitpoint):
                self._open.setdefault(signal.waitpoint, set()).add(signal.seq)

    def release(self, signals: Sequence[StoredSignal]) -> None:
        """Make reserved signals available again, because their wait was not recorded."""
        for signal in signals:
            self._reserved[signal.waitpoint].discard(signal.seq)

    def consume(self, signals: Sequence[StoredSignal]) -> None:
        """Consume reserved signals, because their wait is recorded."""
        self.release(signals)
        for signal in signals:
            self._open[signal.waitpoint].discard(signal.seq)

    def facts(self, signals: Sequence[StoredSignal] | None = None) -> dict[str, Any]:
        """Return the facts that record the use of these signals; without signals, of all consumed signals.

        The record of a wait also names the older signals that no record has consumed, since it moves the position past
        them. Their waits may be recorded later, or never.
        """
        if signals is None:
            used, own = dict(self._positions), set[tuple[str, int]]()
        else:
            used, own = (
                {signal.waitpoint: signal.seq for signal in signals},
                {(one.waitpoint, one.seq) for one in signals},
            )
        skipped = {
            key: sorted(seq for seq in self._open.get(key, ()) if seq <= last and (key, seq) not in own)
            for key, last in used.items()
        }
        skipped = {key: numbers for key, numbers in skipped.items() if numbers}
        return ({"used": used} if used else {}) | ({"skipped": skipped} if skipped else {})


class Wait:
    """What one branch waits for. The base class waits for a time."""

    reason = SuspensionReason.STEP_BOUNDARY
    on_timeout: OnTimeout | None = None
    child: UUID | None = None  # The execution whose end is awaited.
    reserved: tuple[StoredSignal, ...] = ()  # The signals that the wait has found and not yet recorded.
    is_parked = False  # True once a check left the wait open because another branch was active.

    def __init__(self, call: DurableCall[Any], due: datetime | None = None, *, is_old: bool = False) -> None:
        self.call = call
        self.path = call.path
        self.due = due
        self.group: WaitGroup | None = None
        self.is_old = is_old
        self.needs_read = is_old
        self.unreadable: dict[int, UnreadableSignal] = {}
        self.future: asyncio.Future[Verdict] = asyncio.get_running_loop().create_future()

    @property
    def wakes_at(self) -> datetime | None:
        """The time at which the branch continues without signals.

        None if there is no due time, or if the engine does something else at the due time, such as fail the execution.
        """
        return self.due if self.on_timeout is None else None

    def keys(self) -> Mapping[str, int]:
        """Return the keys of the waitpoints to read. The value of each is the number of the last signal to ignore."""
        return {}

    def bindings(self) -> Sequence[Bound]:
        """Return the waitpoints and children that a suspension must observe for this wait."""
        return ()

    def own_waitpoints(self) -> list[str]:
        """Return the keys of waitpoints that are opened only for this wait."""
        return [binding.key for binding in self.bindings() if isinstance(binding, NewWaitpoint)]

    def condition(self) -> Condition | None:
        """Return the condition that ends the wait, or None if only its due time ends it."""
        return None

    def limits(self) -> Mapping[str, int]:
        """Return how many signals at each waitpoint the wait can use."""
        condition = self.condition()
        return {} if condition is None else signal_limits(condition)

    def find_end(self, verdict: Verdict | None, now: datetime) -> Verdict | None:
        """Return how the wait ended, by the verdict of a snapshot or its due time, or None if it is open."""
        # An operator ends a wait only while the execution is suspended, so a new wait cannot be overridden yet.
        if verdict is not None and (self.is_old or not isinstance(verdict, Override)):
            return verdict
        due = self.wakes_at
        return DueTimeReached(due) if due is not None and self.is_due(now) else None

    def is_due(self, now: datetime) -> bool:
        """Return True once the due time of the wait has come."""
        return self.wakes_at is not None and now >= self.wakes_at

    def find_verdict(self, snapshot: WaitSnapshot) -> Verdict | None:
        """Return how the wait has ended according to the snapshot, or None if it is still open."""
        return None

    def _is_in_time(self, signal: StoredSignal) -> bool:
        return self.wakes_at is None or signal.accepted_at <= self.wakes_at


class ChildWait(Wait):
    """A wait for the end of an execution."""

    def __init__(self, call: DurableCall[Any], child: UUID, due: datetime | None, *, is_old: bool) -> None:
        super().__init__(call, due, is_old=is_old)
        self.child: UUID = child

    def bindings(self) -> Sequence[Bound]:
        return (Child(self.path, self.child),)

    def condition(self) -> Condition | None:
        return Single(self.path)

    def find_verdict(self, snapshot: WaitSnapshot) -> Verdict | None:
        outcome = snapshot.children.get(self.child)
        return None if outcome is None else ChildEnded(outcome)


@dataclass(frozen=True, slots=True)
class SuspendRequest:
    """The arguments of the engine's `suspend` operation."""

    bindings: tuple[Bound, ...]
    condition: Condition
    timeout_at: datetime | None
    on_timeout: OnTimeout
    reason: SuspensionReason


def earliest_due(waits: Sequence[Wait]) -> datetime | None:
    """Return the earliest time at which one of the waiting branches continues by time, or None."""
    return min((wait.wakes_at for wait in waits if wait.wakes_at is not None), default=None)


def child_waits(waits: Sequence[Wait]) -> tuple[list[UUID], Join, EdgeKind] | None:
    """Return the awaited children, and the join and edge kind that resume a branch.

    Return None if a branch waits for something other than a child, or has a due time.
    """
    children = [wait.child for wait in waits if wait.child is not None and wait.due is None]
    if len(children) != len(waits):
        return None
    [group, *others] = {wait.group for wait in waits}
    join, edge = _ANY_END if group is None or others else _GROUP_ENDS[group.need]
    return children, join, edge


def suspend_request(waits: Sequence[Wait]) -> SuspendRequest:
    """Return the suspension that wakes the execution as soon as one of its branches can continue."""
    timers = _timers(waits)
    waits = _limit_waits(waits, MAX_OPEN_WAITS - len(timers))
    # Several waits for one signal share its waitpoint.
    bindings = tuple({binding.key: binding for wait in waits for binding in wait.bindings()}.values())
    if len(waits) == 1:
        return _single_request(waits[0], bindings)
    if len(bindings) + len(timers) > MAX_OPEN_WAITS:
        message = f"{len(bindings)} waits at once are too many, the limit is {MAX_OPEN_WAITS}; use children"
        raise InvalidRequest("too_many_waits", message, limit=MAX_OPEN_WAITS)
    members: list[Condition] = [Single(timer.key) for timer in timers]
    for group in _groups(waits):
        members += _group_conditions(group)
    timeout_at, on_timeout = _timeout(waits)
    return SuspendRequest((*bindings, *timers), AnyOf(members), timeout_at, on_timeout, waits[0].reason)


def _limit_waits(waits: Sequence[Wait], maximum: int) -> Sequence[Wait]:
    """Return the waits. If the engine does not accept all of them, omit some waits for children.

    Omit only children of groups that need all members to end. The run checks the omitted children after the others
    have ended, so it notices a failure of an omitted child only then.
    """
    number = sum(len(wait.bindings()) for wait in waits)
    if number <= maximum:
        return waits
    excess, kept = number - maximum, list[Wait]()
    for wait in reversed(waits):
        is_one_of_many = wait.child is not None and wait.due is None and _counts_in_group(wait)
        if excess > 0 and is_one_of_many:
            excess -= 1
        else:
            kept.append(wait)
    return kept[::-1]


def _counts_in_group(wait: Wait) -> bool:
    return wait.group is not None and wait.group.need is not GroupNeed.FIRST_SUCCESS


def _single_request(wait: Wait, bindings: tuple[Bound, ...]) -> SuspendRequest:
    condition = wait.condition()
    assert condition is not None, "a wait without a condition is a delay, not a suspension"
    return SuspendRequest(bindings, condition, wait.due, wait.on_timeout or OnTimeout.AUTO_RESUME, wait.reason)


def _timeout(waits: Sequence[Wait]) -> tuple[datetime | None, OnTimeout]:
    """Return the earliest time at which a wait takes too long, and the effect of that timeout."""
    ends = [(wait.due, wait.on_timeout) for wait in waits if wait.due is not None and wait.on_timeout is not None]
    return min(ends, default=(None, OnTimeout.AUTO_RESUME))


def _groups(waits: Sequence[Wait]) -> list[list[Wait]]:
    """Return the waits with a condition, in lists. Waits of a group that needs all members to end share a list."""
    groups: dict[object, list[Wait]] = {}
    for wait in waits:
        if wait.condition() is not None:
            groups.setdefault(wait.group if _counts_in_group(wait) else wait, []).append(wait)
    return list(groups.values())


def _group_conditions(group: list[Wait]) -> list[Condition]:
    """Return the conditions that resume the execution for the waits of one list.

    One condition is that all waits have ended. In a `gather`, the failure of any child is another.
    """
    conditions = [condition for wait in group if (condition := wait.condition()) is not None]
    children = [wait.path for wait in group if wait.child is not None]
    if len(children) == len(group) > 1:
        together: Condition = Count(len(children), Distinct.WAITPOINTS, children)
    else:
        together = conditions[0] if len(conditions) == 1 else AllOf(conditions)
    first = group[0].group
    if len(group) == 1 or not children or first is None or first.need is GroupNeed.ALL_ENDED:
        return [together]
    return [together, *(Count(1, Distinct.WAITPOINTS, children, name) for name in _BAD_ENDS)]


def _timers(waits: Sequence[Wait]) -> list[Timer]:
    """Return one timer for the earliest due time, or no timer if no wait has a due time."""
    first = earliest_due(waits)
    return [] if first is None else [Timer(f"timer:{first.isoformat()}", first)]


async def close_waitpoints(run: TaskRun, keys: Collection[str], reason: str) -> None:
    """Close the waitpoints of the execution with these keys, so that the engine refuses later signals to them."""
    if not keys:
        return
    # A commit in progress may be opening some of them.
    await run.record_writer.wait_idle()
    retry = partial(retry_while_owned, run, needs_lease=False)
    waitpoints = run.engine.waitpoints
    after: UUID | None = None
    while page := await retry(partial(waitpoints.list, run.lease.execution_id, after=after)):
        after = page[-1].id
        for waitpoint in page:
            if waitpoint.key in keys and waitpoint.state is not WaitpointState.CLOSED:
                with suppress(FlowFabricError):
                    await retry(partial(waitpoints.close, waitpoint.id, reason, principal="program"))
