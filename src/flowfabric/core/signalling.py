"""What a signal does: it is kept in any case, and if a suspension waits on its waitpoint, the condition is judged.

A signal never touches an execution that is not suspended on its waitpoint: before, it is buffered; afterwards, refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from uuid import UUID

from flowfabric.core.decisions import Decision, decided
from flowfabric.core.errors import Refused
from flowfabric.core.evaluating import Counted, SignalFacts, counts, satisfied, satisfied_keys
from flowfabric.core.frozen import record, replace
from flowfabric.core.outcomes import Accepted
from flowfabric.core.records import Execution
from flowfabric.core.resuming import OpenWait, closing, decide_waitpoint_expiry, resumed
from flowfabric.core.sources import shown_sender, shown_source, source_of
from flowfabric.core.states import TERMINAL, State
from flowfabric.core.transitions import BUFFER, DELIVER, event_of, move, refusal
from flowfabric.core.waits import (
    Effect,
    Signal,
    Trigger,
    WaitChanges,
    Waitpoint,
    WaitpointKind,
    WaitpointState,
)


@record(frozen=True, slots=True, kw_only=True)
class SignalRequest:
    """What a sender says. `by_engine`: it came without a token, from somebody or something that the engine knows.
    `is_system`: it is the engine's own, which no limit keeps out."""

    id: UUID
    name: str
    payload: bytes
    encoding: str
    category: str
    source_type: str
    source_identity: str
    correlation: str | None
    key: str | None
    created_at: datetime | None
    resume_delay: timedelta | None
    by_engine: bool = False
    is_system: bool = False


def check_not_expired(waitpoint: Waitpoint, now: datetime) -> None:
    """Refuses a token whose waitpoint is past its time, open or not."""
    if waitpoint.expires_at is not None and waitpoint.expires_at <= now:
        message = "the waitpoint is past its time; ask for a new one"
        raise Refused("token_expired", message, ended_at=waitpoint.expires_at)


def check_open(execution: Execution, waitpoint: Waitpoint, now: datetime) -> None:
    """Refuses what can no longer be delivered: to an execution that has ended, to a waitpoint that is closed, or that
    nobody waits on and whose time is over."""
    if execution.state in TERMINAL:
        raise refusal(execution, BUFFER.refusal, "it takes no more signals")
    expired = decide_waitpoint_expiry(waitpoint, now)
    found = waitpoint if expired is None else expired
    if found.state is WaitpointState.CLOSED:
        raise refusal(execution, "waitpoint_closed", f"waitpoint {found.key!r} is closed ({found.close_reason})")


def decide_signal(
    execution: Execution, waitpoint: Waitpoint, wait: OpenWait | None, counting: Sequence[SignalFacts],
    request: SignalRequest, now: datetime,
) -> Decision[Accepted]:  # fmt: skip
    """The signal is accepted; `counting` are those that have counted in the open suspension so far."""
    if not request.is_system and execution.signal_seq >= execution.policy.max_signals:
        message = f"it has had {execution.signal_seq} signals, the policy allows {execution.policy.max_signals}"
        raise refusal(execution, "signal_limit_exceeded", message)
    signal = signal_of(execution, waitpoint, request, now)
    if wait is None or not _is_awaited(execution, waitpoint, wait):
        return _buffer(execution, waitpoint, signal, now)
    condition = wait.suspension.condition
    counted = counts(condition, counting, signal.facts)
    if counted is not Counted.YES:
        return _append(execution, waitpoint, wait, signal, counted, now)
    signal = replace(signal, suspension=wait.suspension.number, counts=True)
    so_far = (*counting, signal.facts)
    if not satisfied(condition, so_far):
        return _append(execution, waitpoint, wait, signal, counted, now)
    return _satisfy(execution, wait, signal, satisfied_keys(condition, so_far), request.resume_delay, now)


def _is_awaited(execution: Execution, waitpoint: Waitpoint, wait: OpenWait) -> bool:
    """True until the wait is closed. What comes after its timeout and before the duty still counts: it would otherwise
    be accepted for nothing."""
    bound = waitpoint.state is WaitpointState.ACTIVE and waitpoint.suspension == wait.suspension.number
    return execution.state is State.SUSPENDED and bound


def _buffer(execution: Execution, waitpoint: Waitpoint, signal: Signal, now: datetime) -> Decision[Accepted]:
    after = move(execution, BUFFER, now, signal_seq=signal.seq)
    decision = decided(
        Accepted(signal.id, Effect.BUFFERED, None), execution, after, BUFFER, details=_details(signal, Effect.BUFFERED)
    )
    return replace(decision, waits=WaitChanges(received=(signal,), moved=_fired(waitpoint)))


def _append(
    execution: Execution, waitpoint: Waitpoint, wait: OpenWait, signal: Signal, counted: Counted, now: datetime
) -> Decision[Accepted]:
    # What a standing waitpoint's wait does not use stays in its queue for the next one.
    if waitpoint.kind is not WaitpointKind.STANDING or counted is Counted.YES:
        signal = replace(signal, suspension=wait.suspension.number)
    signal = replace(signal, effect=Effect.APPENDED)
    after = move(execution, DELIVER, now, signal_seq=signal.seq)
    answer = Accepted(signal.id, Effect.APPENDED, counted)
    details = _details(signal, Effect.APPENDED) | {"counted": counted.value}
    decision = decided(answer, execution, after, DELIVER, details=details)
    return replace(decision, waits=WaitChanges(received=(signal,), moved=_fired(waitpoint)))


def _satisfy(
    execution: Execution, wait: OpenWait, signal: Signal, used: Sequence[str], delay: timedelta | None, now: datetime
) -> Decision[Accepted]:
    suspension = wait.suspension
    signal = replace(signal, effect=Effect.SATISFIED)
    received = move(execution, DELIVER, now, signal_seq=signal.seq)
    after, transition = resumed(
        received, suspension, Trigger.SIGNALS, suspension.resume_delay if delay is None else delay, now
    )
    waits = replace(closing(suspension, wait.waitpoints, Trigger.SIGNALS, now, used), received=(signal,))
    details = {"suspension": str(suspension.id), "trigger": Trigger.SIGNALS.value, "signal": str(signal.id)}
    return Decision(
        Accepted(signal.id, Effect.SATISFIED, Counted.YES), execution, after,
        event_of(execution, received, DELIVER, details=_details(signal, Effect.SATISFIED)),
        also=event_of(received, after, transition, details=details), waits=waits,
    )  # fmt: skip


def signal_of(execution: Execution, waitpoint: Waitpoint, request: SignalRequest, now: datetime) -> Signal:
    """The signal as the next row of its execution, which nobody has waited for yet."""
    source = source_of(
        approver=waitpoint.approver, source_type=request.source_type, source_identity=request.source_identity,
        known_to_engine=request.by_engine,
    )  # fmt: skip
    return Signal(
        id=request.id, execution_id=execution.id, seq=execution.signal_seq + 1, waitpoint_id=waitpoint.id,
        waitpoint=waitpoint.key, name=request.name, category=request.category, source=source,
        source_type=request.source_type, source_identity=request.source_identity, correlation=request.correlation,
        payload=request.payload, encoding=request.encoding, key=request.key, created_at=request.created_at,
        accepted_at=now, effect=Effect.BUFFERED, suspension=None, counts=False,
    )  # fmt: skip


def _fired(waitpoint: Waitpoint) -> tuple[Waitpoint, ...]:
    """A timer that has fired, so that it does not fire again."""
    return () if waitpoint.fires_at is None else (replace(waitpoint, fires_at=None),)


def _details(signal: Signal, effect: Effect) -> dict[str, str]:
    sender = shown_sender(signal)
    return {
        "signal": str(signal.id), "name": signal.name, "waitpoint": signal.waitpoint, "effect": effect.value,
        "source": shown_source(signal), **({} if sender is None else {"sender": sender}),
    }  # fmt: skip
