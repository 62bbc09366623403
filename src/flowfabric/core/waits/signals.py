"""Decisions about signals. Every accepted signal is stored, and it may satisfy the condition of an open suspension.

A signal does not change an execution that is not suspended on its waitpoint. A signal that arrives before its waitpoint
is bound to a suspension is stored for later. A signal to a closed waitpoint is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from uuid import UUID, uuid5

from flowfabric.core.errors import Refused
from flowfabric.core.executions.decision import Decision, make_decision
from flowfabric.core.executions.outcomes import Accepted
from flowfabric.core.executions.records import Execution
from flowfabric.core.executions.states import TERMINAL, State
from flowfabric.core.executions.transitions import (
    BUFFER,
    DELIVER,
    SKIP_SIGNAL,
    apply_transition,
    refusal,
    transition_event,
)
from flowfabric.core.fast_dataclass import record, replace
from flowfabric.core.waits.evaluate import Counted, SignalFacts, is_satisfied, judge_signal, satisfied_keys
from flowfabric.core.waits.records import (
    Effect,
    StoredSignal,
    Trigger,
    WaitChanges,
    Waitpoint,
    WaitpointKind,
    WaitpointState,
)
from flowfabric.core.waits.resume import OpenWait, close_wait, decide_waitpoint_expiry, resume_execution
from flowfabric.core.waits.sources import OPERATOR, format_sender, format_source, join_source, make_source


@record(frozen=True, slots=True, kw_only=True)
class SignalRequest:
    """A signal as its sender describes it.

    `by_engine` is True if the signal was sent without a token, so the engine itself knows the sender. `is_system` is
    True if the engine is the sender; the limit of signals then does not apply. The event records the `principal`.
    """

    id: UUID
    name: str
    payload: bytes = b""
    encoding: str = "json"
    category: str
    source_type: str
    source_identity: str
    correlation: str | None = None
    key: str | None = None
    created_at: datetime | None
    resume_delay: timedelta | None = None
    by_engine: bool = False
    is_system: bool = False
    principal: str | None = None


def approval_key(name: str, suffix: str) -> str:
    """Return the idempotency key under which an operator's signal is stored.

    It contains line breaks. Keys from the holders of tokens cannot, so no holder can take the key of a later approval.
    """
    return f"approval\n{name}\n{suffix}"


def as_approval(request: SignalRequest) -> SignalRequest:
    """Convert a signal that was sent by name to the form in which operators signal an open wait."""
    kind, identity = request.source_type, request.source_identity
    return replace(
        request,
        category="approval",
        source_type=OPERATOR,
        source_identity=identity if kind == OPERATOR else join_source(kind, identity),
        key=None if request.key is None else approval_key(request.name, request.key),
    )


def wait_key(name: str) -> str:
    """Return the name under which a task records a wait for a signal. The key of the waitpoint contains this name."""
    return f"signal:{name}"


def find_open_wait(waitpoints: Sequence[Waitpoint], name: str) -> Waitpoint | None:
    """Return the oldest open waitpoint at which a task waits for a signal with this name, in any branch."""
    matches = [waitpoint for waitpoint in waitpoints if is_wait_for(waitpoint, name)]
    return min(matches, key=lambda waitpoint: waitpoint.id, default=None)


def is_wait_for(waitpoint: Waitpoint, name: str) -> bool:
    """Return True if a task waits at this waitpoint for an undeclared signal with this name."""
    return waitpoint.kind is WaitpointKind.ADDRESSED and _is_key_of(waitpoint.key, wait_key(name))


def _is_key_of(key: str, wait: str) -> bool:
    # A key looks like `gather[1]/signal:paid#2`. Both parts, the branch and the name of the signal, may contain
    # slashes.
    scope, matched, more = key.rpartition(wait)
    return bool(matched) and scope[-1:] in ("", "/") and more[:1] in ("", "#", "[")


def check_not_expired(waitpoint: Waitpoint, now: datetime) -> None:
    """Raise if the waitpoint is past its expiry, whether it is closed or not."""
    if waitpoint.expires_at is not None and waitpoint.expires_at <= now:
        message = "the waitpoint has expired; request a new one"
        raise Refused("token_expired", message, ended_at=waitpoint.expires_at)


def check_open(execution: Execution, waitpoint: Waitpoint, now: datetime) -> None:
    """Raise if the execution has ended, if the waitpoint is closed, or if it expired before a suspension bound it."""
    if execution.state in TERMINAL:
        raise refusal(execution, BUFFER.refusal, "it has ended and accepts no signals")
    current = decide_waitpoint_expiry(waitpoint, now) or waitpoint
    if current.state is WaitpointState.CLOSED:
        raise refusal(execution, "waitpoint_closed", f"waitpoint {current.key!r} is closed ({current.close_reason})")


def decide_signal(
    execution: Execution,
    waitpoint: Waitpoint,
    wait: OpenWait | None,
    counting: Sequence[SignalFacts],
    request: SignalRequest,
    now: datetime,
) -> Decision[Accepted]:
    """Accept a signal; `counting` are the earlier signals that count in the open suspension."""
    if not request.is_system and execution.signal_seq >= execution.policy.max_signals:
        message = f"it has {execution.signal_seq} signals, the limit of its policy"
        raise refusal(execution, "signal_limit_exceeded", message)
    decision = _decide_effect(execution, waitpoint, wait, counting, request, now)
    if request.principal is None or decision.event is None:
        return decision
    return replace(decision, event=replace(decision.event, principal=request.principal))


def _decide_effect(
    execution: Execution,
    waitpoint: Waitpoint,
    wait: OpenWait | None,
    counting: Sequence[SignalFacts],
    request: SignalRequest,
    now: datetime,
) -> Decision[Accepted]:
    signal = make_signal(execution, waitpoint, request, now)
    if wait is None or not _is_awaited(execution, waitpoint, wait):
        return _buffer(execution, waitpoint, signal, now)
    condition = wait.suspension.condition
    counted = judge_signal(condition, counting, signal.facts)
    if counted is not Counted.YES:
        return _append(execution, waitpoint, wait, signal, counted, now)
    signal = replace(signal, suspension=wait.suspension.number, counts=True)
    so_far = (*counting, signal.facts)
    if not is_satisfied(condition, so_far):
        return _append(execution, waitpoint, wait, signal, counted, now)
    return _satisfy(execution, wait, signal, satisfied_keys(condition, so_far), request.resume_delay, now)


def _is_awaited(execution: Execution, waitpoint: Waitpoint, wait: OpenWait) -> bool:
    """Return True if the execution is suspended on this waitpoint.

    A signal after the timeout still counts until a reconciler closes the wait; otherwise it would be accepted but
    unused.
    """
    bound = waitpoint.state is WaitpointState.ACTIVE and waitpoint.suspension == wait.suspension.number
    return execution.state is State.SUSPENDED and bound


def _buffer(execution: Execution, waitpoint: Waitpoint, signal: StoredSignal, now: datetime) -> Decision[Accepted]:
    after = apply_transition(execution, BUFFER, now, signal_seq=signal.seq)
    waits = WaitChanges(received=(signal,), moved=_mark_fired(waitpoint))
    outcome = Accepted(signal.id, Effect.BUFFERED, None)
    return make_decision(outcome, execution, after, BUFFER, waits=waits, details=_details(signal))


def _append(
    execution: Execution, waitpoint: Waitpoint, wait: OpenWait, signal: StoredSignal, counted: Counted, now: datetime
) -> Decision[Accepted]:
    # A signal that this wait does not use stays in the queue of its standing waitpoint for the next wait.
    if waitpoint.kind is not WaitpointKind.STANDING or counted is Counted.YES:
        signal = replace(signal, suspension=wait.suspension.number)
    signal = replace(signal, effect=Effect.APPENDED)
    after = apply_transition(execution, DELIVER, now, signal_seq=signal.seq)
    outcome = Accepted(signal.id, Effect.APPENDED, counted)
    details = _details(signal) | {"counted": counted.value}
    waits = WaitChanges(received=(signal,), moved=_mark_fired(waitpoint))
    return make_decision(outcome, execution, after, DELIVER, waits=waits, details=details)


def _satisfy(
    execution: Execution,
    wait: OpenWait,
    signal: StoredSignal,
    used: Sequence[str],
    delay: timedelta | None,
    now: datetime,
) -> Decision[Accepted]:
    suspension = wait.suspension
    signal = replace(signal, effect=Effect.SATISFIED)
    received = apply_transition(execution, DELIVER, now, signal_seq=signal.seq)
    delay = suspension.resume_delay if delay is None else delay
    after, transition = resume_execution(received, suspension, Trigger.SIGNALS, delay, now)
    waits = replace(close_wait(suspension, wait.waitpoints, Trigger.SIGNALS, now, used), received=(signal,))
    details = {"suspension": str(suspension.id), "trigger": Trigger.SIGNALS.value, "signal": str(signal.id)}
    return Decision(
        Accepted(signal.id, Effect.SATISFIED, Counted.YES),
        execution,
        after,
        transition_event(execution, received, DELIVER, details=_details(signal)),
        extra_event=transition_event(received, after, transition, details=details),
        waits=waits,
    )


def decide_skip_signal(execution: Execution, signal: StoredSignal, reason: str, now: datetime) -> Decision[bool]:
    """Note in the history that the task cannot read the payload of a signal."""
    after = apply_transition(execution, SKIP_SIGNAL, now)
    details = {**_details(signal), "reason": reason}
    return make_decision(True, execution, after, SKIP_SIGNAL, details=details)


def make_signal(execution: Execution, waitpoint: Waitpoint, request: SignalRequest, now: datetime) -> StoredSignal:
    """Return the row for a new signal of the execution, with the next sequence number and no suspension."""
    source = make_source(
        approver=waitpoint.approver,
        source_type=request.source_type,
        source_identity=request.source_identity,
        known_to_engine=request.by_engine,
    )
    return StoredSignal(
        id=request.id,
        execution_id=execution.id,
        seq=execution.signal_seq + 1,
        waitpoint_id=waitpoint.id,
        waitpoint=waitpoint.key,
        name=request.name,
        category=request.category,
        source=source,
        source_type=request.source_type,
        source_identity=request.source_identity,
        correlation=request.correlation,
        payload=request.payload,
        encoding=request.encoding,
        key=request.key,
        created_at=request.created_at,
        accepted_at=now,
        effect=Effect.BUFFERED,
    )


def _mark_fired(waitpoint: Waitpoint) -> tuple[Waitpoint, ...]:
    """Return the waitpoint of a timer marked as fired, so that it does not fire again; nothing for other waitpoints."""
    return () if waitpoint.fires_at is None else (replace(waitpoint, fires_at=None),)


def _details(signal: StoredSignal) -> dict[str, str]:
    sender = format_sender(signal)
    return {
        "signal": str(signal.id),
        "name": signal.name,
        "waitpoint": signal.waitpoint,
        "effect": signal.effect.value,
        "source": format_source(signal),
        **({} if sender is None else {"sender": sender}),
    }


def child_signal(waitpoint: Waitpoint, outcome: State, now: datetime) -> SignalRequest:
    """Return the engine's signal that a child has ended.

    Its id is derived from the waitpoint, so it is stored only once.
    """
    child = str(waitpoint.child_id)
    return SignalRequest(
        id=uuid5(waitpoint.id, "child"),
        name=outcome.value,
        category="system",
        source_type="system",
        source_identity=child,
        correlation=child,
        created_at=now,
        by_engine=True,
        is_system=True,
    )
