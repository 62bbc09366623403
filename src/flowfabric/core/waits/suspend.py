"""Decisions of a worker about waiting: create waitpoints early, and suspend until a condition holds.

A suspension evaluates the signals that arrived before it. If these signals already satisfy the condition, the
suspension is stored as closed and the worker keeps its lease.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from flowfabric.core.errors import Conflict, InvalidRequest, NotFound
from flowfabric.core.executions.decision import Decision, make_decision
from flowfabric.core.executions.outcomes import OpenWaitpoint, Satisfied, Suspended
from flowfabric.core.executions.records import Execution, Fence, Resumption
from flowfabric.core.executions.requests import Step, digest, step_parts
from flowfabric.core.executions.states import State
from flowfabric.core.executions.transitions import SATISFY_IMMEDIATELY, SUSPEND, apply_transition, refusal
from flowfabric.core.fast_dataclass import record, replace
from flowfabric.core.tokens.token import Minter, WaitpointSeed
from flowfabric.core.waits.bindings import (
    Bound,
    Child,
    NewWaitpoint,
    PendingWaitpoint,
    StandingWaitpoint,
    Timer,
    binding_parts,
)
from flowfabric.core.waits.condition_json import to_json
from flowfabric.core.waits.conditions import Condition, validate
from flowfabric.core.waits.evaluate import SignalFacts, counting_signals, is_satisfied, satisfied_keys
from flowfabric.core.waits.prompts import prompt_json
from flowfabric.core.waits.records import (
    BLOCKING,
    OnTimeout,
    SignalBinding,
    SignalObservation,
    SignalUnbinding,
    StoredSignal,
    Suspension,
    SuspensionReason,
    Trigger,
    UnusedWaitpoints,
    WaitChanges,
    Waitpoint,
    WaitpointKind,
    WaitpointState,
)
from flowfabric.core.waits.resume import close_wait
from flowfabric.core.waits.signals import child_signal, make_signal

MAX_OPEN_WAITPOINTS = 1000
_MAX_PAST = timedelta(minutes=10)


@record(frozen=True, slots=True, kw_only=True)
class Suspend:
    """A worker's request to wait.

    `seeds` has an id and a nonce for each binding, even for bindings that need neither.
    """

    fence: Fence
    bindings: tuple[Bound, ...]
    condition: Condition
    reason: SuspensionReason
    timeout_at: datetime | None
    timeout: timedelta | None
    on_timeout: OnTimeout
    resume_delay: timedelta
    rest: UnusedWaitpoints
    key: str | None
    suspension_id: UUID
    seeds: tuple[WaitpointSeed, ...]
    steps: tuple[Step, ...] = ()

    def digest(self) -> str:
        timeout_at = None if self.timeout_at is None else self.timeout_at.isoformat()
        times = (timeout_at, str(self.timeout), str(self.resume_delay))
        bindings = [part for binding in self.bindings for part in binding_parts(binding)]
        parts = (json.dumps(to_json(self.condition)), *bindings, self.reason, self.on_timeout, self.rest, self.key)
        return digest("suspend", *times, *parts, *step_parts(self.steps))

    def first_due(self, now: datetime) -> datetime | None:
        """Return when the first timeout or timer is due if the suspension opens now; None if it has neither."""
        ends = (self.timeout_at, None if self.timeout is None else now + self.timeout)
        times = [*ends, *(binding.at for binding in self.bindings if isinstance(binding, Timer))]
        return min((time for time in times if time is not None), default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateWaitpoint:
    """A worker's request to create a waitpoint before it waits, so that it can hand out the token early."""

    fence: Fence
    key: str
    expires_at: datetime | None
    expires: timedelta | None
    approver: str | None
    ends_at: datetime | None
    seed: WaitpointSeed
    schema: str | None = None
    prompt: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateWaitpoints:
    """A worker's request to create several waitpoints, and to record steps in the same transaction."""

    fence: Fence
    waitpoints: tuple[CreateWaitpoint, ...]
    steps: tuple[Step, ...] = ()


@record(frozen=True, slots=True)
class SuspendInputs:
    """The inputs of a new suspension from the store: open waitpoints, their signals, and ended children.

    `unused` are the signals that belong to no suspension. `observed` are those that belong to the last suspension at a
    standing waitpoint whose binding has a position. The worker may not have used them.
    """

    waitpoints: Mapping[str, Waitpoint]
    unused: Mapping[UUID, tuple[SignalFacts, ...]]
    observed: Mapping[UUID, tuple[SignalFacts, ...]] = field(default_factory=dict)
    ended_children: Mapping[UUID, State] = field(default_factory=dict)


NO_INPUTS = SuspendInputs({}, {})


def decide_create_waitpoint(
    execution: Execution, request: CreateWaitpoint, inputs: SuspendInputs, minter: Minter, now: datetime
) -> Decision[OpenWaitpoint]:
    """Create a pending waitpoint. If a waitpoint with this key is already open, return it with its token."""
    existing, closed = _find_open(inputs, request.key, now)
    if existing is not None:
        return _return_existing(execution, existing, request, minter)
    check_number(execution, inputs, 1)
    expires_at = now + request.expires if request.expires is not None else request.expires_at
    waitpoint = Waitpoint(
        id=request.seed.id,
        execution_id=execution.id,
        key=request.key,
        kind=WaitpointKind.ADDRESSED,
        state=WaitpointState.PENDING,
        created_at=now,
        token=minter.new(execution.id, request.seed, request.approver, request.ends_at),
        expires_at=expires_at,
        generation=execution.generation,
        payload_schema=request.schema,
        prompt=request.prompt,
    )
    after = replace(execution, is_standalone=False)
    return Decision(
        make_open_waitpoint(waitpoint, minter), execution, after, waits=WaitChanges(added=(waitpoint,), moved=closed)
    )


def decide_create_waitpoints(
    execution: Execution, requests: Sequence[CreateWaitpoint], inputs: SuspendInputs, minter: Minter, now: datetime
) -> Decision[list[OpenWaitpoint]]:
    """Create several pending waitpoints. If one of them is refused, raise its error and create no waitpoint."""
    decisions = [decide_create_waitpoint(execution, request, inputs, minter, now) for request in requests]
    written = [decision.waits for decision in decisions if decision.waits is not None]
    added = tuple(item for changes in written for item in changes.added)
    check_number(execution, inputs, len(added))
    moved = tuple(item for changes in written for item in changes.moved)
    outcomes = [decision.outcome for decision in decisions]
    if not written:
        return Decision(outcomes, execution)
    after = replace(execution, is_standalone=False) if added else None
    return Decision(outcomes, execution, after, waits=WaitChanges(added=added, moved=moved))


def decide_suspend(
    execution: Execution, request: Suspend, inputs: SuspendInputs, minter: Minter, now: datetime
) -> Decision[Suspended | Satisfied]:
    """Give up the lease until the condition holds. If the condition already holds, keep the lease."""
    suspension = _make_suspension(execution, request, now)
    pairs = zip(request.bindings, request.seeds, strict=True)
    bound = [_bind(suspension, binding, drawn, inputs, minter) for binding, drawn in pairs]
    check_number(execution, inputs, sum(item.is_new for item in bound))
    _check_condition(request, bound, suspension)
    _check_places(execution, request.bindings)
    arrived = _ended_children(execution, bound, inputs, now)
    available = [facts for item in bound for facts in item.available(inputs)]
    counting = counting_signals(request.condition, [*available, *(signal.facts for signal in arrived)])
    if arrived:
        orders = {facts.order for facts in counting}
        arrived = [replace(one, suspension=suspension.number, counts=one.seq in orders) for one in arrived]
        execution = replace(execution, signal_seq=arrived[-1].seq)
    if is_satisfied(request.condition, counting):
        return _satisfy_immediately(execution, suspension, bound, counting, arrived, inputs)
    after = apply_transition(
        execution,
        SUSPEND,
        now,
        digest=suspension.digest,
        is_standalone=False,
        suspension_count=suspension.number,
        blocking_reason=BLOCKING[request.reason],
    )
    waits = WaitChanges(
        opened=(suspension,),
        **_split_by_age(bound, [item.waitpoint for item in bound]),
        received=tuple(arrived),
        bound=_bind_signals(suspension, bound, counting),
        observed=_observe_signals(suspension, bound, counting, inputs),
    )
    outcome = Suspended(suspension.id, tuple(make_open_waitpoint(item.waitpoint, minter) for item in bound))
    details = {"suspension": str(suspension.id), "reason": request.reason.value}
    return make_decision(outcome, execution, after, SUSPEND, waits=waits, details=details)


def make_open_waitpoint(waitpoint: Waitpoint, minter: Minter) -> OpenWaitpoint:
    """Return a waitpoint and its token in the form that the worker receives."""
    return OpenWaitpoint(waitpoint.id, waitpoint.key, minter.token(waitpoint), waitpoint.expires_at)


def _ended_children(
    execution: Execution, bound: list[_BoundWaitpoint], inputs: SuspendInputs, now: datetime
) -> list[StoredSignal]:
    """Return signals for the children that ended before the execution first waited for them."""
    signals: list[StoredSignal] = []
    for item in bound:
        child = item.waitpoint.child_id
        if item.is_new and child is not None and child in inputs.ended_children:
            numbered = replace(execution, signal_seq=execution.signal_seq + len(signals))
            request = child_signal(item.waitpoint, inputs.ended_children[child], now)
            signals.append(make_signal(numbered, item.waitpoint, request, now))
    return signals


@record(frozen=True, slots=True)
class _BoundWaitpoint:
    """A waitpoint that the suspension binds.

    `closed` has the expired waitpoint with the same key, if it replaces one.
    """

    waitpoint: Waitpoint
    binding: Bound
    is_new: bool
    closed: tuple[Waitpoint, ...] = ()

    @property
    def is_standing(self) -> bool:
        return self.waitpoint.kind is WaitpointKind.STANDING

    def available(self, inputs: SuspendInputs) -> list[SignalFacts]:
        """Return the signals that arrived earlier, and that no wait has used."""
        return [facts for facts in inputs.unused.get(self.waitpoint.id, ()) if self._counts(facts)] + self.observed(
            inputs
        )

    def observed(self, inputs: SuspendInputs) -> list[SignalFacts]:
        """Return the signals that an earlier suspension observed, and that the worker has not used."""
        return [facts for facts in inputs.observed.get(self.waitpoint.id, ()) if self._counts(facts)]

    def _counts(self, facts: SignalFacts) -> bool:
        return not isinstance(self.binding, StandingWaitpoint) or self.binding.counts(facts.order)


def _make_suspension(execution: Execution, request: Suspend, now: datetime) -> Suspension:
    timeout_at = now + request.timeout if request.timeout is not None else request.timeout_at
    if timeout_at is not None and timeout_at < now - _MAX_PAST:
        message = f"timeout_at {timeout_at} is long before the store's time {now}; pass a later one"
        raise InvalidRequest("timeout_at_in_past", message, timeout_at=timeout_at, now=now)
    return Suspension(
        id=request.suspension_id,
        execution_id=execution.id,
        number=execution.suspension_count + 1,
        generation=execution.generation,
        epoch=request.fence.epoch,
        lease_id=request.fence.lease_id,
        key=request.key,
        digest=request.digest(),
        condition=request.condition,
        reason=request.reason,
        rest=request.rest,
        opened_at=now,
        timeout_at=timeout_at,
        on_timeout=request.on_timeout,
        resume_delay=request.resume_delay,
    )


def _bind(
    suspension: Suspension, binding: Bound, seed: WaitpointSeed, inputs: SuspendInputs, minter: Minter
) -> _BoundWaitpoint:
    existing, closed = _find_open(inputs, binding.key, suspension.opened_at)
    if existing is None and isinstance(binding, PendingWaitpoint | StandingWaitpoint):
        kind = "pending" if isinstance(binding, PendingWaitpoint) else "standing"
        message = f"execution {suspension.execution_id} has no open {kind} waitpoint {binding.key!r}; create it first"
        raise NotFound("waitpoint_not_found", message, execution_id=suspension.execution_id, waitpoint=binding.key)
    if existing is None:
        return _BoundWaitpoint(_make_waitpoint(suspension, binding, seed, minter), binding, True, closed)
    _check_fit(binding, existing, suspension.opened_at)
    expires_at = None if existing.kind is WaitpointKind.STANDING else suspension.timeout_at
    active = replace(existing, state=WaitpointState.ACTIVE, suspension=suspension.number, expires_at=expires_at)
    return _BoundWaitpoint(active, binding, False)


def _make_waitpoint(suspension: Suspension, binding: Bound, seed: WaitpointSeed, minter: Minter) -> Waitpoint:
    waitpoint = Waitpoint(
        id=seed.id,
        execution_id=suspension.execution_id,
        key=binding.key,
        kind=_KINDS[type(binding)],
        state=WaitpointState.ACTIVE,
        created_at=suspension.opened_at,
        suspension=suspension.number,
        expires_at=suspension.timeout_at,
        generation=suspension.generation,
    )
    match binding:
        case Child():
            return replace(waitpoint, child_id=binding.execution_id)
        case Timer():
            return replace(waitpoint, fires_at=binding.at)
        case NewWaitpoint():
            token = minter.new(suspension.execution_id, seed, binding.approver, binding.ends_at)
            return replace(waitpoint, token=token, payload_schema=binding.schema, prompt=prompt_json(binding.prompt))
    return waitpoint


def _find_open(inputs: SuspendInputs, key: str, now: datetime) -> tuple[Waitpoint | None, tuple[Waitpoint, ...]]:
    """Return the open waitpoint with this key, or None. If it has expired, return it closed, as the second value."""
    existing = inputs.waitpoints.get(key)
    if existing is None or existing.expires_at is None or existing.expires_at > now:
        return existing, ()
    return None, (existing.close("expired", now),)


def _check_fit(binding: Bound, existing: Waitpoint, now: datetime) -> None:
    kind = _KINDS[type(binding)]
    same = existing.kind is kind
    if isinstance(binding, NewWaitpoint):
        same &= binding.approver in (None, existing.approver)
    if isinstance(binding, Child):
        same &= existing.child_id == binding.execution_id
    if isinstance(binding, Timer):
        # An existing timer with a different time does not fit. A timer that has fired fits any time in the past.
        same &= existing.fires_at == binding.at or (existing.fires_at is None and binding.at <= now)
    if not same:
        message = f"waitpoint {binding.key!r} is already open with other settings; use another key"
        raise Conflict("waitpoint_already_exists", message, waitpoint=binding.key, waitpoint_id=existing.id)


def check_number(execution: Execution, inputs: SuspendInputs, more: int) -> None:
    if len(inputs.waitpoints) + more > MAX_OPEN_WAITPOINTS:
        message = f"it has {len(inputs.waitpoints)} open waitpoints, the limit is {MAX_OPEN_WAITPOINTS}; close some"
        raise refusal(execution, "too_many_open_waitpoints", message)


def _check_condition(request: Suspend, bound: list[_BoundWaitpoint], suspension: Suspension) -> None:
    """Validate the condition again, now that the approvers of existing waitpoints are known."""
    approvers = {item.waitpoint.key: item.waitpoint.approver for item in bound if item.waitpoint.approver is not None}
    if approvers:
        keys = [item.waitpoint.key for item in bound]
        validate(request.condition, keys, has_timeout=suspension.timeout_at is not None, approvers=approvers)


def _check_places(execution: Execution, bindings: tuple[Bound, ...]) -> None:
    """Raise if `after` of a binding is larger than the last sequence number, since it would ignore future signals."""
    last = execution.signal_seq
    for binding in bindings:
        if isinstance(binding, StandingWaitpoint) and binding.after is not None and binding.after > last:
            message = f"after of {binding.key!r} is {binding.after}, but the last signal is {last}; use that or less"
            raise InvalidRequest("out_of_range", message, field="after", minimum=0, maximum=last)


def _return_existing(
    execution: Execution, existing: Waitpoint, request: CreateWaitpoint, minter: Minter
) -> Decision[OpenWaitpoint]:
    if existing.kind is WaitpointKind.STANDING and existing.token is None:
        seed = replace(request.seed, id=existing.id)
        token = minter.new(execution.id, seed, request.approver, request.ends_at)
        named = replace(existing, token=token)
        return Decision(make_open_waitpoint(named, minter), execution, waits=WaitChanges(moved=(named,)))
    if existing.token is None or request.approver not in (None, existing.approver):
        message = f"waitpoint {request.key!r} is already open with other settings; use another key"
        raise Conflict("waitpoint_already_exists", message, waitpoint=request.key, waitpoint_id=existing.id)
    return Decision(make_open_waitpoint(existing, minter), execution)


def _satisfy_immediately(
    execution: Execution,
    suspension: Suspension,
    bound: list[_BoundWaitpoint],
    counting: tuple[SignalFacts, ...],
    arrived: list[StoredSignal],
    inputs: SuspendInputs,
) -> Decision[Satisfied]:
    now = suspension.opened_at
    used = satisfied_keys(suspension.condition, counting)
    end = close_wait(suspension, [item.waitpoint for item in bound], Trigger.SIGNALS, now, used)
    waits = WaitChanges(
        opened=end.changed,
        **_split_by_age(bound, end.moved),
        received=tuple(arrived),
        bound=_bind_signals(suspension, bound, counting),
        observed=_observe_signals(suspension, bound, counting, inputs),
        unbound=tuple(_without_empty(end.unbound, bound, inputs)),
    )
    after = apply_transition(
        execution,
        SATISFY_IMMEDIATELY,
        now,
        is_standalone=False,
        suspension_count=suspension.number,
        resumption=Resumption(suspension.id, Trigger.SIGNALS.value),
    )
    details = {"suspension": str(suspension.id), "trigger": Trigger.SIGNALS.value, "at_once": True}
    outcome = Satisfied(suspension.id, Trigger.SIGNALS)
    return make_decision(outcome, execution, after, SATISFY_IMMEDIATELY, waits=waits, details=details)


def _without_empty(
    unbound: Sequence[SignalUnbinding], bound: list[_BoundWaitpoint], inputs: SuspendInputs
) -> Iterator[SignalUnbinding]:
    """Yield the writes for waitpoints that have signals: no signal can arrive between the open and the close."""
    filled = {item.waitpoint.id for item in bound if item.available(inputs)}
    for unbinding in unbound:
        ids = tuple(id_ for id_ in unbinding.waitpoint_ids if id_ in filled)
        if ids:
            yield replace(unbinding, waitpoint_ids=ids)


def _bind_signals(
    suspension: Suspension, bound: list[_BoundWaitpoint], counting: tuple[SignalFacts, ...]
) -> tuple[SignalBinding, ...]:
    """Bind the signals that arrived earlier at addressed waitpoints to the suspension."""
    waitpoints = [item.waitpoint for item in bound if not item.is_new and not item.is_standing]
    if not waitpoints:
        return ()
    keys = {waitpoint.key for waitpoint in waitpoints}
    orders = tuple(facts.order for facts in counting if facts.waitpoint in keys)
    ids = tuple(waitpoint.id for waitpoint in waitpoints)
    return (SignalBinding(suspension.execution_id, suspension.number, ids, orders),)


def _observe_signals(
    suspension: Suspension, bound: list[_BoundWaitpoint], counting: tuple[SignalFacts, ...], inputs: SuspendInputs
) -> tuple[SignalObservation, ...]:
    """Bind the signals that count at standing waitpoints. The others stay in the queues, also observed ones."""
    standing = [item for item in bound if item.is_standing]
    keys = {item.waitpoint.key for item in standing}
    orders = tuple(facts.order for facts in counting if facts.waitpoint in keys)
    released = tuple(
        facts.order for item in standing for facts in item.observed(inputs) if facts.order not in set(orders)
    )
    if not orders and not released:
        return ()
    return (SignalObservation(suspension.execution_id, suspension.number, orders, released),)


def _split_by_age(bound: list[_BoundWaitpoint], waitpoints: Sequence[Waitpoint]) -> dict[str, Any]:
    """Return the waitpoints to insert (`added`) and to update (`moved`), including the replaced expired waitpoints."""
    new_ids = {item.waitpoint.id for item in bound if item.is_new}
    expired = [waitpoint for item in bound for waitpoint in item.closed]
    existing = [waitpoint for waitpoint in waitpoints if waitpoint.id not in new_ids]
    return {"added": tuple(item for item in waitpoints if item.id in new_ids), "moved": (*expired, *existing)}


_KINDS = {
    NewWaitpoint: WaitpointKind.ADDRESSED,
    PendingWaitpoint: WaitpointKind.ADDRESSED,
    StandingWaitpoint: WaitpointKind.STANDING,
    Child: WaitpointKind.CHILD,
    Timer: WaitpointKind.TIMER,
}
