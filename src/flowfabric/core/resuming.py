"""How a suspension ends: by signals, its timeout or an operator. One of them closes it, with everything it bound."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime, timedelta
from typing import Any

from flowfabric.core.conditions import AnyOf
from flowfabric.core.decisions import Decision, decided, end_attempt
from flowfabric.core.errors import NotFound
from flowfabric.core.frozen import record, replace
from flowfabric.core.outcomes import AlreadySatisfied, Ended, Escalated, Resumed, WaitpointClosed
from flowfabric.core.records import AttemptOutcome, Execution, Resumption
from flowfabric.core.requests import Command
from flowfabric.core.sources import source_of
from flowfabric.core.states import State, derive_vector
from flowfabric.core.transitions import (
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
    move,
    refusal,
)
from flowfabric.core.waits import (
    Effect,
    OnTimeout,
    Rest,
    Signal,
    Suspension,
    Trigger,
    Unbinding,
    WaitChanges,
    Waitpoint,
    WaitpointKind,
    WaitpointState,
)

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


def closing(
    suspension: Suspension, waitpoints: Sequence[Waitpoint], trigger: Trigger, now: datetime, used: Collection[str] = ()
) -> WaitChanges:
    """The suspension and its waitpoints close. Standing ones stay open, and so do those that a satisfied AnyOf did not
    need if the rest is to be kept; what came to these may still count in a later wait."""
    keeps = suspension.rest is Rest.KEEP and trigger is Trigger.SIGNALS and isinstance(suspension.condition, AnyOf)
    moved, unbound = [], []
    for waitpoint in waitpoints:
        is_used = trigger is Trigger.SIGNALS and waitpoint.key in used
        if waitpoint.kind is WaitpointKind.STANDING or (keeps and not is_used):
            moved.append(replace(waitpoint, state=WaitpointState.PENDING, expires_at=None))
            if not is_used:
                unbound.append(waitpoint.id)
        else:
            reason = _REASONS[trigger]
            moved.append(replace(waitpoint, state=WaitpointState.CLOSED, closed_at=now, close_reason=reason))
    closed = replace(suspension, closed_at=now, closed_by=trigger, timeout_at=suspension.timeout_at)
    freed = (Unbinding(suspension.execution_id, suspension.number, tuple(unbound)),) if unbound else ()
    return WaitChanges(changed=(closed,), moved=tuple(moved), unbound=freed)


def resumed(
    execution: Execution, suspension: Suspension, trigger: Trigger, delay: timedelta, now: datetime
) -> tuple[Execution, Transition]:
    """The execution after its suspension was closed: it waits for a worker, or for the delay to pass."""
    by_operator = trigger is Trigger.OPERATOR
    resumption = Resumption(suspension.id, trigger.value)
    if delay > timedelta(0):
        transition = OVERRIDE_DELAYED if by_operator else RESUME_DELAYED
        return move(execution, transition, now, ready_at=now + delay, resumption=resumption), transition
    transition = OVERRIDE if by_operator else RESUME
    return move(execution, transition, now, resumption=resumption), transition


def decide_resume(
    execution: Execution, wait: OpenWait | None, delay: timedelta | None, command: Command, now: datetime
) -> Decision[Resumed | AlreadySatisfied]:
    """An operator ends the wait, whatever it waits for."""
    if wait is None:
        raise refusal(execution, RESUME.refusal, "it waits for nothing")
    suspension = wait.suspension
    after, transition = resumed(
        execution, suspension, Trigger.OPERATOR, suspension.resume_delay if delay is None else delay, now
    )
    answer = Resumed(suspension.id, _public(after))
    facts: dict[str, Any] = {"principal": command.principal, "reason": command.reason}
    facts |= {"details": _details(suspension, Trigger.OPERATOR)}
    decision: Decision[Resumed | AlreadySatisfied] = decided(answer, execution, after, transition, **facts)
    return replace(decision, waits=closing(suspension, wait.waitpoints, Trigger.OPERATOR, now))


def decide_suspension_timeout(
    execution: Execution, wait: OpenWait | None, now: datetime
) -> Decision[Resumed | Ended | Escalated] | None:
    """What is to be done with an overdue suspension; None if it is closed, or not due, or its timer is gone."""
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
    execution: Execution, waitpoint: Waitpoint | None, command: Command, now: datetime
) -> Decision[WaitpointClosed]:
    """The waitpoint takes no more signals; a suspension that has bound it waits on for the rest."""
    if waitpoint is None:
        raise NotFound("waitpoint_not_found", f"execution {execution.id} has no such waitpoint")
    if waitpoint.state is WaitpointState.CLOSED:
        return Decision(WaitpointClosed(waitpoint.id, already=True), execution)
    closed = replace(waitpoint, state=WaitpointState.CLOSED, closed_at=now, close_reason="closed")
    after = move(execution, CLOSE_WAITPOINT, now)
    facts: dict[str, Any] = {"principal": command.principal, "reason": command.reason}
    facts |= {"details": {"waitpoint": waitpoint.key}}
    decision = decided(WaitpointClosed(waitpoint.id, already=False), execution, after, CLOSE_WAITPOINT, **facts)
    return replace(decision, waits=WaitChanges(moved=(closed,)))


def decide_waitpoint_expiry(waitpoint: Waitpoint, now: datetime) -> Waitpoint | None:
    """A pending waitpoint past its time, closed. None: it is bound or closed, or its time has not come."""
    overdue = waitpoint.expires_at is not None and waitpoint.expires_at <= now
    if waitpoint.state is not WaitpointState.PENDING or not overdue:
        return None
    return replace(waitpoint, state=WaitpointState.CLOSED, closed_at=now, close_reason="expired")


def _escalate(execution: Execution, suspension: Suspension, now: datetime) -> Decision[Any]:
    after = move(execution, ESCALATE, now)
    decision = decided(
        Escalated(suspension.id), execution, after, ESCALATE, details=_details(suspension, Trigger.TIMEOUT)
    )
    return replace(decision, waits=WaitChanges(changed=(replace(suspension, timeout_at=None),)))


def _auto_resume(execution: Execution, wait: OpenWait, now: datetime) -> Decision[Any]:
    suspension = wait.suspension
    numbered = replace(execution, signal_seq=execution.signal_seq + 1)
    after, transition = resumed(numbered, suspension, Trigger.TIMEOUT, suspension.resume_delay, now)
    answer = Resumed(suspension.id, _public(after))
    decision = decided(answer, execution, after, transition, details=_details(suspension, Trigger.TIMEOUT))
    changes = closing(suspension, wait.waitpoints, Trigger.TIMEOUT, now)
    return replace(decision, waits=replace(changes, received=(_timeout_signal(numbered, suspension, now),)))


def _end(execution: Execution, wait: OpenWait, now: datetime) -> Decision[Any]:
    suspension = wait.suspension
    message = f"nothing ended the wait before its timeout {_shown(suspension.timeout_at)}"
    failure: dict[str, Any] = {"failure_message": message, "failure_category": SUSPENSION_TIMEOUT}
    transition, outcome = _ENDINGS[suspension.on_timeout]
    if transition is CANCEL:
        failure = {}
        after = move(execution, CANCEL, now, cancelled_by=SUSPENSION_TIMEOUT, cancel_reason=message)
    else:
        after = move(execution, transition, now, **failure)
    attempt = end_attempt(execution, outcome, now, **failure)
    details = _details(suspension, Trigger.TIMEOUT) | {"category": SUSPENSION_TIMEOUT}
    decision = decided(Ended(after.state), execution, after, transition, attempt, reason=message, details=details)
    return replace(decision, waits=closing(suspension, wait.waitpoints, Trigger.TIMEOUT, now))


_ENDINGS = {
    OnTimeout.FAIL: (WAIT_FAILED, AttemptOutcome.FAILURE),
    OnTimeout.CANCEL: (CANCEL, AttemptOutcome.CANCELLED),
    OnTimeout.EXPIRE: (EXPIRE, AttemptOutcome.FAILURE),
}


def _timeout_signal(execution: Execution, suspension: Suspension, now: datetime) -> Signal:
    """The engine's own signal that the wait ran out, among those that the resumed worker observes."""
    source = source_of(approver=None, source_type="system", source_identity=SUSPENSION_TIMEOUT, known_to_engine=True)
    return Signal(
        id=suspension.id, execution_id=execution.id, seq=execution.signal_seq, waitpoint_id=None, waitpoint="",
        name="timeout", category="system", source=source, source_type="system", source_identity=SUSPENSION_TIMEOUT,
        correlation=None, payload=b"", encoding="json", key=None, created_at=now, accepted_at=now,
        effect=Effect.SATISFIED, suspension=suspension.number, counts=True,
    )  # fmt: skip


def _details(suspension: Suspension, trigger: Trigger) -> dict[str, Any]:
    return {"suspension": str(suspension.id), "trigger": trigger.value}


def _public(execution: Execution) -> Any:
    vector = derive_vector(execution.state, execution.blocking_reason, execution.attempt_state, execution.ownership)
    return vector.public_state


def _shown(time: datetime | None) -> str:
    return time.isoformat() if time else "?"
