"""What a worker decides about waiting: it creates waitpoints early, and gives its lease up until a condition holds.

A suspension is judged at once by the signals that came before it: if they satisfy the condition already, it is stored
as opened and closed, and the worker keeps its lease.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from uuid import UUID

from flowfabric.core.bindings import Bound, Child, Fresh, Pending, Standing, Timer
from flowfabric.core.child_ends import child_signal
from flowfabric.core.condition_json import to_json
from flowfabric.core.conditions import Condition, validate
from flowfabric.core.decisions import Decision, decided
from flowfabric.core.errors import Conflict, InvalidRequest, NotFound
from flowfabric.core.evaluating import SignalFacts, counting_signals, satisfied, satisfied_keys
from flowfabric.core.fences import digest
from flowfabric.core.frozen import record, replace
from flowfabric.core.minting import Drawn, Minter, claims_for
from flowfabric.core.outcomes import OpenWaitpoint, Satisfied, Suspended
from flowfabric.core.records import Execution, Fence, Resumption
from flowfabric.core.requests import Step, step_parts
from flowfabric.core.resuming import closing
from flowfabric.core.signalling import signal_of
from flowfabric.core.states import State
from flowfabric.core.transitions import SATISFY_AT_ONCE, SUSPEND, move, refusal
from flowfabric.core.waits import (
    BLOCKING,
    Binding,
    OnTimeout,
    Rest,
    Signal,
    Suspension,
    SuspensionReason,
    Trigger,
    WaitChanges,
    Waitpoint,
    WaitpointKind,
    WaitpointState,
)

MOST_OPEN = 1000
_LATEST_PAST = timedelta(minutes=10)


@record(frozen=True, slots=True, kw_only=True)
class Suspend:
    """A worker's wish to wait. `drawn` has an id and a nonce for each binding, whether it needs them or not."""

    fence: Fence
    bindings: tuple[Bound, ...]
    condition: Condition
    reason: SuspensionReason
    timeout_at: datetime | None
    timeout: timedelta | None
    on_timeout: OnTimeout
    resume_delay: timedelta
    rest: Rest
    key: str | None
    suspension_id: UUID
    drawn: tuple[Drawn, ...]
    steps: tuple[Step, ...] = ()

    def digest(self) -> str:
        times = [value.isoformat() for value in (self.timeout_at,) if value] + [str(self.timeout)]
        parts = [repr(to_json(self.condition)), repr(self.bindings), self.reason, self.on_timeout, self.rest, self.key]
        return digest("suspend", *times, str(self.resume_delay), *parts, *step_parts(self.steps))

    def first_due(self, now: datetime) -> datetime | None:
        """When the first of its times comes, if it is opened now; None if it waits for none."""
        ends = (self.timeout_at, None if self.timeout is None else now + self.timeout)
        times = [*ends, *(binding.at for binding in self.bindings if isinstance(binding, Timer))]
        return min((time for time in times if time is not None), default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateWaitpoint:
    """A worker's wish for a waitpoint before it waits, to hand its token out."""

    fence: Fence
    key: str
    expires_at: datetime | None
    expires: timedelta | None
    approver: str | None
    ends_at: datetime | None
    drawn: Drawn


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateWaitpoints:
    """A worker's wish for several of them at once, and the steps that are recorded with them."""

    fence: Fence
    waitpoints: tuple[CreateWaitpoint, ...]
    steps: tuple[Step, ...] = ()


@record(frozen=True, slots=True)
class Room:
    """What a suspension finds: the open waitpoints by key, the signals that no wait has used, by waitpoint, and how
    those children ended that have."""

    waitpoints: Mapping[str, Waitpoint]
    unused: Mapping[UUID, tuple[SignalFacts, ...]]
    ended_children: Mapping[UUID, State] = field(default_factory=dict)


EMPTY = Room({}, {})


def decide_create_waitpoint(
    execution: Execution, request: CreateWaitpoint, room: Room, minter: Minter, now: datetime
) -> Decision[OpenWaitpoint]:
    """A pending waitpoint; if one with this key is open, that one with its token."""
    existing, closed = _open(room, request.key, now)
    if existing is not None:
        return _handed_out(execution, existing, request, minter)
    _check_number(execution, room, 1)
    expires_at = now + request.expires if request.expires is not None else request.expires_at
    claims = claims_for(execution.id, request.drawn, request.approver, request.ends_at)
    waitpoint = Waitpoint(
        id=request.drawn.id, execution_id=execution.id, key=request.key, kind=WaitpointKind.ADDRESSED,
        state=WaitpointState.PENDING, created_at=now, token=minter.new(claims), expires_at=expires_at,
        generation=execution.generation,
    )  # fmt: skip
    after = replace(execution, plain=False)
    return Decision(shown(waitpoint, minter), execution, after, waits=WaitChanges(added=(waitpoint,), moved=closed))


def decide_create_waitpoints(
    execution: Execution, requests: Sequence[CreateWaitpoint], room: Room, minter: Minter, now: datetime
) -> Decision[list[OpenWaitpoint]]:
    """The same for several at once; all of them, or the refusal of the first that cannot be."""
    decisions = [decide_create_waitpoint(execution, request, room, minter, now) for request in requests]
    written = [decision.waits for decision in decisions if decision.waits is not None]
    added = tuple(item for changes in written for item in changes.added)
    _check_number(execution, room, len(added))
    moved = tuple(item for changes in written for item in changes.moved)
    answers = [decision.answer for decision in decisions]
    if not written:
        return Decision(answers, execution)
    after = replace(execution, plain=False) if added else None
    return Decision(answers, execution, after, waits=WaitChanges(added=added, moved=moved))


def decide_suspend(
    execution: Execution, request: Suspend, room: Room, minter: Minter, now: datetime
) -> Decision[Suspended | Satisfied]:
    """The lease is given up until the condition holds; if it holds already, the lease is kept."""
    suspension = _suspension(execution, request, now)
    pairs = zip(request.bindings, request.drawn, strict=True)
    bound = [_bind(suspension, binding, drawn, room, minter) for binding, drawn in pairs]
    _check_number(execution, room, sum(item.is_new for item in bound))
    _check_condition(request, bound, suspension)
    _check_places(execution, request.bindings)
    arrived = _ended_children(execution, bound, room, now)
    unused = [facts for item in bound for facts in room.unused.get(item.waitpoint.id, ()) if facts.order > item.after]
    counting = counting_signals(request.condition, [*unused, *(signal.facts for signal in arrived)])
    arrived = _counted(arrived, suspension, counting)
    execution = replace(execution, signal_seq=execution.signal_seq + len(arrived)) if arrived else execution
    if satisfied(request.condition, counting):
        return _with_arrived(_satisfied_at_once(execution, suspension, bound, counting, now), arrived)
    after = move(
        execution, SUSPEND, now, digest=suspension.digest, plain=False, suspension_count=suspension.number,
        blocking_reason=BLOCKING[request.reason],
    )  # fmt: skip
    waits = WaitChanges(
        opened=(suspension,),
        added=_added(bound),
        moved=_moved(bound),
        bound=_bound_signals(suspension, bound, counting),
    )
    answer = Suspended(suspension.id, tuple(shown(item.waitpoint, minter) for item in bound))
    details = {"suspension": str(suspension.id), "reason": request.reason.value}
    decision: Decision[Suspended | Satisfied] = decided(answer, execution, after, SUSPEND, details=details)
    return _with_arrived(replace(decision, waits=waits), arrived)


def shown(waitpoint: Waitpoint, minter: Minter) -> OpenWaitpoint:
    """A waitpoint with its token, as its worker sees it."""
    return OpenWaitpoint(waitpoint.id, waitpoint.key, minter.token(waitpoint), waitpoint.expires_at)


def _ended_children(execution: Execution, bound: list[_Bound], room: Room, now: datetime) -> tuple[Signal, ...]:
    """The signals of children that ended before anybody waited for them; whoever waited has had theirs."""
    signals: list[Signal] = []
    for item in bound:
        child = item.waitpoint.child_id
        if item.is_new and child is not None and child in room.ended_children:
            numbered = replace(execution, signal_seq=execution.signal_seq + len(signals))
            request = child_signal(item.waitpoint, room.ended_children[child], now)
            signals.append(signal_of(numbered, item.waitpoint, request, now))
    return tuple(signals)


def _counted(
    arrived: tuple[Signal, ...], suspension: Suspension, counting: tuple[SignalFacts, ...]
) -> tuple[Signal, ...]:
    counts = {facts.order for facts in counting}
    return tuple(replace(signal, suspension=suspension.number, counts=signal.seq in counts) for signal in arrived)


def _with_arrived(
    decision: Decision[Suspended | Satisfied], arrived: tuple[Signal, ...]
) -> Decision[Suspended | Satisfied]:
    if not arrived or decision.waits is None:
        return decision
    return replace(decision, waits=replace(decision.waits, received=arrived))


@record(frozen=True, slots=True)
class _Bound:
    """A waitpoint as it is when the suspension is open, and the expired one of the same key that makes room for it."""

    waitpoint: Waitpoint
    is_new: bool
    closed: tuple[Waitpoint, ...] = ()
    after: int = 0


def _suspension(execution: Execution, request: Suspend, now: datetime) -> Suspension:
    timeout_at = now + request.timeout if request.timeout is not None else request.timeout_at
    if timeout_at is not None and timeout_at < now - _LATEST_PAST:
        message = f"timeout_at {timeout_at} is long before the store's time {now}; give a later one"
        raise InvalidRequest("timeout_at_in_past", message, timeout_at=timeout_at, now=now)
    return Suspension(
        id=request.suspension_id, execution_id=execution.id, number=execution.suspension_count + 1,
        generation=execution.generation, epoch=request.fence.epoch, lease_id=request.fence.lease_id, key=request.key,
        digest=request.digest(), condition=request.condition, reason=request.reason, rest=request.rest, opened_at=now,
        timeout_at=timeout_at, on_timeout=request.on_timeout, resume_delay=request.resume_delay,
    )  # fmt: skip


def _bind(suspension: Suspension, binding: Bound, drawn: Drawn, room: Room, minter: Minter) -> _Bound:
    existing, closed = _open(room, binding.key, suspension.opened_at)
    if existing is None and isinstance(binding, Pending | Standing):
        kind = "pending" if isinstance(binding, Pending) else "standing"
        message = f"there is no open {kind} waitpoint {binding.key!r} on execution {suspension.execution_id}"
        raise NotFound("waitpoint_not_found", message, execution_id=suspension.execution_id, waitpoint=binding.key)
    if existing is None:
        return _Bound(_new(suspension, binding, drawn, minter), True, closed)
    _check_fit(binding, existing, suspension.opened_at)
    expires_at = None if existing.kind is WaitpointKind.STANDING else suspension.timeout_at
    active = replace(existing, state=WaitpointState.ACTIVE, suspension=suspension.number, expires_at=expires_at)
    return _Bound(active, False, after=binding.after if isinstance(binding, Standing) else 0)


def _new(suspension: Suspension, binding: Bound, drawn: Drawn, minter: Minter) -> Waitpoint:
    waitpoint = Waitpoint(
        id=drawn.id, execution_id=suspension.execution_id, key=binding.key, kind=_KINDS[type(binding)],
        state=WaitpointState.ACTIVE, created_at=suspension.opened_at, suspension=suspension.number,
        expires_at=suspension.timeout_at, generation=suspension.generation,
    )  # fmt: skip
    match binding:
        case Child():
            return replace(waitpoint, child_id=binding.execution_id)
        case Timer():
            return replace(waitpoint, fires_at=binding.at)
        case Fresh():
            claims = claims_for(suspension.execution_id, drawn, binding.approver, binding.ends_at)
            return replace(waitpoint, token=minter.new(claims))
    return waitpoint


def _open(room: Room, key: str, now: datetime) -> tuple[Waitpoint | None, tuple[Waitpoint, ...]]:
    """The open waitpoint of a key; one past its time is closed here, whether or not the duty has been there."""
    existing = room.waitpoints.get(key)
    if existing is None or existing.expires_at is None or existing.expires_at > now:
        return existing, ()
    return None, (replace(existing, state=WaitpointState.CLOSED, closed_at=now, close_reason="expired"),)


def _check_fit(binding: Bound, existing: Waitpoint, now: datetime) -> None:
    wanted = _KINDS[type(binding)]
    same = existing.kind is wanted
    if isinstance(binding, Fresh):
        same &= binding.approver in (None, existing.approver)
    if isinstance(binding, Child):
        same &= existing.child_id == binding.execution_id
    if isinstance(binding, Timer):
        # Another time is another timer, or a wait would end early; one that has fired will do for what is past.
        same &= existing.fires_at == binding.at or (existing.fires_at is None and binding.at <= now)
    if not same:
        message = f"waitpoint {binding.key!r} is open already, and is another one than this; take another key"
        raise Conflict("waitpoint_already_exists", message, waitpoint=binding.key, waitpoint_id=existing.id)


def _check_number(execution: Execution, room: Room, more: int) -> None:
    if len(room.waitpoints) + more > MOST_OPEN:
        message = f"it has {len(room.waitpoints)} open waitpoints, the limit is {MOST_OPEN}"
        raise refusal(execution, "too_many_open_waitpoints", message)


def _check_condition(request: Suspend, bound: list[_Bound], suspension: Suspension) -> None:
    """The request was checked when it came; only what is open already tells all approvers."""
    approvers = {item.waitpoint.key: item.waitpoint.approver for item in bound if item.waitpoint.approver is not None}
    if approvers:
        keys = [item.waitpoint.key for item in bound]
        validate(request.condition, keys, has_timeout=suspension.timeout_at is not None, approvers=approvers)


def _check_places(execution: Execution, bindings: tuple[Bound, ...]) -> None:
    """What is still to come must count, so no binding may begin behind the last signal that there is."""
    last = execution.signal_seq
    for binding in bindings:
        if isinstance(binding, Standing) and binding.after > last:
            message = f"after of {binding.key!r} is {binding.after}, but the last signal that came is {last}"
            raise InvalidRequest("out_of_range", message, field="after", least=0, most=last)


def _handed_out(
    execution: Execution, existing: Waitpoint, request: CreateWaitpoint, minter: Minter
) -> Decision[OpenWaitpoint]:
    if existing.kind is WaitpointKind.STANDING and existing.token is None:
        drawn = replace(request.drawn, id=existing.id)
        named = replace(existing, token=minter.new(claims_for(execution.id, drawn, request.approver, request.ends_at)))
        return Decision(shown(named, minter), execution, waits=WaitChanges(moved=(named,)))
    if existing.token is None or request.approver not in (None, existing.approver):
        message = f"waitpoint {request.key!r} is open already, and is another one than this; take another key"
        raise Conflict("waitpoint_already_exists", message, waitpoint=request.key, waitpoint_id=existing.id)
    return Decision(shown(existing, minter), execution)


def _satisfied_at_once(
    execution: Execution, suspension: Suspension, bound: list[_Bound], counting: tuple[SignalFacts, ...], now: datetime
) -> Decision[Suspended | Satisfied]:
    used = satisfied_keys(suspension.condition, counting)
    end = closing(suspension, [item.waitpoint for item in bound], Trigger.SIGNALS, now, used)
    new = {item.waitpoint.id for item in bound if item.is_new}
    waits = WaitChanges(
        opened=end.changed,
        added=tuple(item for item in end.moved if item.id in new),
        moved=(
            *(item for entry in bound for item in entry.closed),
            *(item for item in end.moved if item.id not in new),
        ),
        bound=_bound_signals(suspension, bound, counting),
        unbound=end.unbound,
    )
    after = move(
        execution, SATISFY_AT_ONCE, now, plain=False, suspension_count=suspension.number,
        resumption=Resumption(suspension.id, Trigger.SIGNALS.value),
    )  # fmt: skip
    details = {"suspension": str(suspension.id), "trigger": Trigger.SIGNALS.value, "at_once": True}
    answer: Suspended | Satisfied = Satisfied(suspension.id, Trigger.SIGNALS)
    return replace(decided(answer, execution, after, SATISFY_AT_ONCE, details=details), waits=waits)


def _bound_signals(
    suspension: Suspension, bound: list[_Bound], counting: tuple[SignalFacts, ...]
) -> tuple[Binding, ...]:
    """Waiting signals join the suspension; of a standing waitpoint those that count, the rest stay in its queue."""
    groups: dict[bool, list[Waitpoint]] = {False: [], True: []}
    for item in bound:
        if not item.is_new:
            groups[item.waitpoint.kind is WaitpointKind.STANDING].append(item.waitpoint)
    return tuple(
        Binding(
            suspension.execution_id, suspension.number, tuple(item.id for item in group),
            tuple(facts.order for facts in counting if facts.waitpoint in {item.key for item in group}), standing,
        )
        for standing, group in groups.items()
        if group
    )  # fmt: skip


def _added(bound: list[_Bound]) -> tuple[Waitpoint, ...]:
    return tuple(item.waitpoint for item in bound if item.is_new)


def _moved(bound: list[_Bound]) -> tuple[Waitpoint, ...]:
    expired = (waitpoint for item in bound for waitpoint in item.closed)
    return (*expired, *(item.waitpoint for item in bound if not item.is_new))


_KINDS = {
    Fresh: WaitpointKind.ADDRESSED,
    Pending: WaitpointKind.ADDRESSED,
    Standing: WaitpointKind.STANDING,
    Child: WaitpointKind.CHILD,
    Timer: WaitpointKind.TIMER,
}
