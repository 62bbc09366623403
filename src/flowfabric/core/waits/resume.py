"""Decisions that end a suspension: because of signals, its timeout or an operator.

Each of these closes the suspension and its waitpoints.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from flowfabric.core.errors import NotFound
from flowfabric.core.executions.decision import Decision, end_attempt, make_decision
from flowfabric.core.executions.outcomes import AlreadySatisfied, Ended, Escalated, Resumed, WaitpointClosed
from flowfabric.core.executions.records import AttemptOutcome, Execution, Resumption
from flowfabric.core.executions.requests import AuditInfo
from flowfabric.core.executions.states import State
from flowfabric.core.executions.transitions import (
    CANCEL,
    CLOSE_WAITPOINT,
    ESCALATE,
    EXPIRE,
    OVERRIDE,
    OVERRIDE_DELAYED,
    RESUME,
    RESUME_DELAYED,
    WAIT_FAILED,
    Transition,
    apply_transition,
    refusal,
)
from flowfabric.core.fast_dataclass import record, replace
from flowfabric.core.waits.conditions import AnyOf
from flowfabric.core.waits.records import (
    Effect,
    OnTimeout,
    SignalUnbinding,
    StoredSignal,
    Suspension,
    Trigger,
    UnusedWaitpoints,
    WaitChanges,
    Waitpoint,
    WaitpointKind,
    WaitpointState,
)
from flowfabric.core.waits.sources import make_source

SUSPENSION_TIMEOUT = "suspension_timeout"
_REASONS = {
    Trigger.SIGNALS: "resumed",
    Trigger.OPERATOR: "resumed",
    Trigger.TIMEOUT: "timed_out",
    Trigger.ENDED: "ended",
}


@record(frozen=True, slots=True)
class OpenWait:
    """The open suspension of an execution and the waitpoints that it has bound."""

    suspension: Suspension
    waitpoints: tuple[Waitpoint, ...]


def close_wait(
    suspension: Suspension, waitpoints: Sequence[Waitpoint], trigger: Trigger, now: datetime, used: Collection[str] = ()
) -> WaitChanges:
    """Close the suspension and its waitpoints.

    Standing waitpoints stay open. A suspension with `keep` also leaves the waitpoints open that a satisfied AnyOf did
    not use. The signals of open waitpoints may count in a later wait.
    """
    keeps = (
        suspension.rest is UnusedWaitpoints.KEEP
        and trigger is Trigger.SIGNALS
        and isinstance(suspension.condition, AnyOf)
    )
    moved, unbound, standing = list[Waitpoint](), list[UUID](), list[UUID]()
    for waitpoint in waitpoints:
        is_used = trigger is Trigger.SIGNALS and waitpoint.key in used
        if waitpoint.kind is WaitpointKind.STANDING or (keeps and not is_used):
            moved.append(replace(waitpoint, state=WaitpointState.PENDING, expires_at=None))
            if not is_used:
                (standing if waitpoint.kind is WaitpointKind.STANDING else unbound).append(waitpoint.id)
        else:
            moved.append(waitpoint.close(_REASONS[trigger], now))
    closed = replace(suspension, closed_at=now, closed_by=trigger)
    freed = tuple(
        SignalUnbinding(suspension.execution_id, suspension.number, tuple(ids), only_counting=ids is standing)
        for ids in (unbound, standing)
        if ids
    )
    return WaitChanges(changed=(closed,), moved=tuple(moved), unbound=freed)


def resume_execution(
    execution: Execution, suspension: Suspension, trigger: Trigger, delay: timedelta, now: datetime
) -> tuple[Execution, Transition]:
    """Return the resumed execution, which waits for a worker or is delayed, and its transition."""
    by_operator = trigger is Trigger.OPERATOR
    changes: dict[str, Any] = {"resumption": Resumption(suspension.id, trigger.value)}
    if delay > timedelta(0):
        transition = OVERRIDE_DELAYED if by_operator else RESUME_DELAYED
        changes["ready_at"] = now + delay
    else:
        transition = OVERRIDE if by_operator else RESUME
    return apply_transition(execution, transition, now, **changes), transition


def decide_resume(
    execution: Execution, wait: OpenWait | None, delay: timedelta | None, command: AuditInfo, now: datetime
) -> Decision[Resumed | AlreadySatisfied]:
    """End the wait because an operator asks for it, even if its condition does not hold."""
    if wait is None:
        raise refusal(execution, RESUME.refusal, "it is not waiting")
    suspension = wait.suspension
    delay = suspension.resume_delay if delay is None else delay
    after, transition = resume_execution(execution, suspension, Trigger.OPERATOR, delay, now)
    outcome = Resumed(suspension.id, after.vector.public_state)
    waits = close_wait(suspension, wait.waitpoints, Trigger.OPERATOR, now)
    facts = {**command.facts, "details": _details(suspension, Trigger.OPERATOR)}
    return make_decision(outcome, execution, after, transition, waits=waits, **facts)


def decide_suspension_timeout(
    execution: Execution, wait: OpenWait | None, now: datetime
) -> Decision[Resumed | Ended | Escalated] | None:
    """Apply the timeout of a suspension; return None if no suspension is open or its timeout has not passed."""
    if execution.state is not State.SUSPENDED or wait is None:
        return None
    suspension = wait.suspension
    if suspension.timeout_at is None or suspension.timeout_at > now:
        return None
    if suspension.on_timeout is OnTimeout.ESCALATE:
        return _escalate(execution, suspension, now)
    if suspension.on_timeout is OnTimeout.AUTO_RESUME:
        return _auto_resume(execution, wait, now)
    return _end(execution, wait, now)


def decide_close_waitpoint(
    execution: Execution, waitpoint: Waitpoint | None, command: AuditInfo, now: datetime
) -> Decision[WaitpointClosed]:
    """Close a waitpoint to further signals.

    If a suspension has bound the waitpoint, it still waits for its other waitpoints.
    """
    if waitpoint is None:
        raise NotFound("waitpoint_not_found", f"execution {execution.id} has no such waitpoint; check its id")
    if waitpoint.state is WaitpointState.CLOSED:
        return Decision(WaitpointClosed(waitpoint.id, already=True), execution)
    outcome = WaitpointClosed(waitpoint.id, already=False)
    after = apply_transition(execution, CLOSE_WAITPOINT, now)
    waits = WaitChanges(moved=(waitpoint.close("closed", now),))
    facts = {**command.facts, "details": {"waitpoint": waitpoint.key}}
    return make_decision(outcome, execution, after, CLOSE_WAITPOINT, waits=waits, **facts)


def decide_waitpoint_expiry(waitpoint: Waitpoint, now: datetime) -> Waitpoint | None:
    """Close an expired pending waitpoint; return None if it is not pending or not expired."""
    overdue = waitpoint.expires_at is not None and waitpoint.expires_at <= now
    if waitpoint.state is not WaitpointState.PENDING or not overdue:
        return None
    return waitpoint.close("expired", now)


def _escalate(execution: Execution, suspension: Suspension, now: datetime) -> Decision[Any]:
    after = apply_transition(execution, ESCALATE, now)
    waits = WaitChanges(changed=(replace(suspension, timeout_at=None),))
    details = _details(suspension, Trigger.TIMEOUT)
    return make_decision(Escalated(suspension.id), execution, after, ESCALATE, waits=waits, details=details)


def _auto_resume(execution: Execution, wait: OpenWait, now: datetime) -> Decision[Any]:
    suspension = wait.suspension
    numbered = replace(execution, signal_seq=execution.signal_seq + 1)
    after, transition = resume_execution(numbered, suspension, Trigger.TIMEOUT, suspension.resume_delay, now)
    outcome = Resumed(suspension.id, after.vector.public_state)
    closed = close_wait(suspension, wait.waitpoints, Trigger.TIMEOUT, now)
    waits = replace(closed, received=(_timeout_signal(numbered, suspension, now),))
    details = _details(suspension, Trigger.TIMEOUT)
    return make_decision(outcome, execution, after, transition, waits=waits, details=details)


def _end(execution: Execution, wait: OpenWait, now: datetime) -> Decision[Any]:
    suspension = wait.suspension
    assert suspension.timeout_at is not None, "only a suspension with a timeout times out"
    message = f"the wait timed out at {suspension.timeout_at.isoformat()}"
    failure: dict[str, Any] = {"failure_message": message, "failure_category": SUSPENSION_TIMEOUT}
    transition, outcome = _ENDINGS[suspension.on_timeout]
    if transition is CANCEL:
        after = apply_transition(execution, CANCEL, now, cancelled_by=SUSPENSION_TIMEOUT, cancel_reason=message)
        attempt = end_attempt(execution, outcome, now)
    else:
        after = apply_transition(execution, transition, now, **failure)
        attempt = end_attempt(execution, outcome, now, **failure)
    waits = close_wait(suspension, wait.waitpoints, Trigger.TIMEOUT, now)
    facts = {"reason": message, "details": _details(suspension, Trigger.TIMEOUT) | {"category": SUSPENSION_TIMEOUT}}
    return make_decision(Ended(after.state), execution, after, transition, attempt, waits, **facts)


_ENDINGS = {
    OnTimeout.FAIL: (WAIT_FAILED, AttemptOutcome.FAILURE),
    OnTimeout.CANCEL: (CANCEL, AttemptOutcome.CANCELLED),
    OnTimeout.EXPIRE: (EXPIRE, AttemptOutcome.FAILURE),
}


def _timeout_signal(execution: Execution, suspension: Suspension, now: datetime) -> StoredSignal:
    """Return the engine's signal about the timeout, from which the resumed worker learns of it."""
    source = make_source(approver=None, source_type="system", source_identity=SUSPENSION_TIMEOUT, known_to_engine=True)
    return StoredSignal(
        id=suspension.id,
        execution_id=execution.id,
        seq=execution.signal_seq,
        waitpoint_id=None,
        waitpoint="",
        name="timeout",
        category="system",
        source=source,
        source_type="system",
        source_identity=SUSPENSION_TIMEOUT,
        created_at=now,
        accepted_at=now,
        effect=Effect.SATISFIED,
        suspension=suspension.number,
        counts=True,
    )


def _details(suspension: Suspension, trigger: Trigger) -> dict[str, Any]:
    return {"suspension": str(suspension.id), "trigger": trigger.value}
