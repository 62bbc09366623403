"""The reference model of `engine.signals`, of an operator's resume, and of what time does to waits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from uuid import UUID

from flowfabric.engine import (
    Accepted,
    AlreadySatisfied,
    AttemptOutcome,
    Counted,
    DuplicateSignal,
    Effect,
    InvalidRequest,
    NotFound,
    OnTimeout,
    Refused,
    Resumed,
    Secret,
    Signal,
    State,
    Trigger,
    WaitpointKind,
    WaitpointState,
)
from tests.model.records import Execution
from tests.model.ringing import verifies
from tests.model.waiting import close, go_on, observed
from tests.model.waits import Slot, Wait, counted, holds, needed_keys, signal_symbol
from tests.model.world import World, refused

TIMED_OUT = "suspension_timeout"
_ENDS = {OnTimeout.FAIL: State.FAILED, OnTimeout.CANCEL: State.CANCELLED, OnTimeout.EXPIRE: State.EXPIRED}


class Signals:
    """What comes from outside."""

    def __init__(self, world: World) -> None:
        self._world = world

    def deliver(
        self, namespace: str, *, token: Secret, name: str, payload: bytes, source_identity: str,
        signal_id: UUID | None, key: str | None, resume_delay: timedelta | None,
    ) -> Accepted | DuplicateSignal:  # fmt: skip
        """By a token that is genuine: signed for this namespace with a key that still verifies."""
        facts = self._world.ring.tokens.get(token)
        if facts is None or facts.namespace != namespace or not verifies(self._world, facts.kid):
            raise InvalidRequest("invalid_token", "")
        execution = self._world.find(namespace, facts.execution_id)
        slot = next(slot for slot in execution.slots if slot.id == facts.waitpoint_id)
        source = f"claimed:8:external:{source_identity}"
        signal = _signal(
            execution, slot, self._world.now, id=signal_id, name=name, payload=payload, key=key, category="external",
            source=f"approver:{slot.approver}" if slot.approver else source, source_type="external",
            source_identity=source_identity,
        )  # fmt: skip
        return self._receive(execution, slot, signal, resume_delay, by_token=True)

    def approve(
        self, namespace: str, *, execution_id: UUID, waitpoint: str, name: str, suffix: str | None
    ) -> Accepted | DuplicateSignal:
        """By an operator, whom the engine knows."""
        execution = self._world.find(namespace, execution_id)
        slot = _named(execution, waitpoint, (WaitpointKind.ADDRESSED, WaitpointKind.STANDING))
        source = "engine:8:operator:operator"
        signal = _signal(
            execution, slot, self._world.now, name=name, key=suffix and f"approval\n{name}\n{suffix}",
            category="approval", source=f"approver:{slot.approver}" if slot.approver else source,
            source_type="operator", source_identity="operator",
        )  # fmt: skip
        return self._receive(execution, slot, signal, None)

    def send(
        self, namespace: str, *, execution_id: UUID, name: str, payload: bytes, source_identity: str,
        signal_id: UUID | None, key: str | None,
    ) -> Accepted | DuplicateSignal:  # fmt: skip
        """To the standing waitpoint of that name."""
        execution = self._world.find(namespace, execution_id)
        slot = _named(execution, name, (WaitpointKind.STANDING,))
        source = f"engine:7:program:{source_identity}"
        signal = _signal(
            execution, slot, self._world.now, id=signal_id, name=name, payload=payload, key=key, category="program",
            source=f"approver:{slot.approver}" if slot.approver else source, source_type="program",
            source_identity=source_identity,
        )  # fmt: skip
        return self._receive(execution, slot, signal, None)

    def observe(
        self, namespace: str, *, execution_id: UUID, suspension: UUID | None, include_unmatched: bool
    ) -> tuple[Signal, ...]:
        """What belongs to the latest suspension, or to this one."""
        execution = self._world.find(namespace, execution_id)
        for wait in reversed(execution.waits):
            if suspension in (None, wait.id):
                return observed(execution, wait, include_unmatched=include_unmatched)
        if suspension is None:
            return ()
        raise NotFound("suspension_not_found", "")

    def _receive(
        self, execution: Execution, slot: Slot, signal: Signal, delay: timedelta | None, by_token: bool = False
    ) -> Accepted | DuplicateSignal:
        """A repeat is answered whatever has happened since; then time, the execution and the waitpoint are asked."""
        for earlier in execution.signals:
            if earlier.id == signal.id:
                return DuplicateSignal(earlier.id)
        for earlier in execution.signals:
            if signal.key is not None and (earlier.waitpoint_id, earlier.key) == (slot.id, signal.key):
                return DuplicateSignal(earlier.id)
        overdue = slot.expires_at is not None and slot.expires_at <= self._world.now
        ended = slot.token_ends_at is not None and slot.token_ends_at <= self._world.now
        if by_token and (overdue or ended):
            raise Refused("token_expired", "")
        if execution.state.is_terminal:
            raise refused(execution, "target_not_signalable")
        # Whoever is known without a token may still answer a wait that is past its time; a slot in no wait is gone.
        if not slot.is_open or (overdue and slot.state is WaitpointState.PENDING):
            raise refused(execution, "waitpoint_closed")
        if len(execution.signals) >= execution.policy.max_signals:
            raise refused(execution, "signal_limit_exceeded")
        if signal.id.int == 0:
            signal = replace(signal, id=self._world.mint())
        return accept(self._world, execution, slot, signal, delay)


def accept(
    world: World, execution: Execution, slot: Slot, signal: Signal, delay: timedelta | None
) -> Accepted:  # fmt: skip
    """The signal is kept; if the execution is suspended on its waitpoint, the condition is judged."""
    wait = execution.wait
    if wait is None or slot.state is not WaitpointState.ACTIVE:
        execution.signals.append(signal)
        slot.fires_at = None
        world.note(execution, "signal.buffered", replace(execution))
        return Accepted(signal.id, Effect.BUFFERED, None)
    mine = [item for item in execution.signals if item.suspension == wait.number]
    helps = counted(wait.condition, mine, signal)
    ends_it = holds(wait.condition, [*mine, signal])
    belongs = helps is Counted.YES or slot.kind is not WaitpointKind.STANDING
    effect = Effect.SATISFIED if ends_it else Effect.APPENDED
    signal = replace(
        signal, effect=effect, suspension=wait.number if belongs else None, counts=helps is Counted.YES
    )  # fmt: skip
    execution.signals.append(signal)
    world.note(execution, "signal.delivered", replace(execution))
    if ends_it:
        resume(world, execution, wait, wait.resume_delay if delay is None else delay, [*mine, signal])
    else:
        slot.fires_at = None
    return Accepted(signal.id, effect, helps)


def resume(world: World, execution: Execution, wait: Wait, delay: timedelta, signals: list[Signal]) -> None:
    """Signals have ended the wait."""
    before = replace(execution)
    close(world, execution, wait, Trigger.SIGNALS, needed_keys(wait.condition, signals))
    go_on(world, execution, delay)
    world.note(execution, "lifecycle.resumed", before)


def override(
    world: World, execution: Execution, suspension: UUID | None, delay: timedelta | None, reason: str
) -> Resumed | AlreadySatisfied:
    """An operator ends the wait."""
    wait = execution.wait
    if suspension is not None and (wait is None or wait.id != suspension):
        return AlreadySatisfied("suspension_closed")
    if wait is None:
        raise refused(execution, "execution_not_suspended")
    before = replace(execution)
    close(world, execution, wait, Trigger.OPERATOR)
    go_on(world, execution, wait.resume_delay if delay is None else delay)
    world.note(execution, "operator.resumed", before, "operator", reason)
    return Resumed(wait.id, execution.vector.public_state)


class WaitDuties:
    """What becomes due about waits."""

    def __init__(self, world: World) -> None:
        self._world = world

    @property
    def all(self) -> tuple[Callable[[Execution], None], ...]:
        return self._timeout, self._timer, self._expiry

    def _timeout(self, execution: Execution) -> None:
        wait, world = execution.wait, self._world
        if wait is None or wait.timeout_at is None or wait.timeout_at > world.now:
            return
        before = replace(execution)
        if wait.on_timeout is OnTimeout.ESCALATE:
            wait.timeout_at, execution.is_escalated = None, True
            world.note(execution, "lifecycle.blocked", before)
        elif wait.on_timeout is OnTimeout.AUTO_RESUME:
            close(world, execution, wait, Trigger.TIMEOUT)
            execution.signals.append(_timeout_signal(execution, wait, world.now))
            go_on(world, execution, wait.resume_delay)
            world.note(execution, "lifecycle.resumed", before)
        else:
            self._end(execution, wait, before)

    def _end(self, execution: Execution, wait: Wait, before: Execution) -> None:
        world, state = self._world, _ENDS[wait.on_timeout]
        known = execution.resumption
        close(world, execution, wait, Trigger.TIMEOUT)
        execution.resumption = known
        if state is State.CANCELLED:
            execution.cancelled_by = TIMED_OUT
            at = wait.timeout_at.isoformat() if wait.timeout_at else ""
            execution.cancel_reason = f"nothing ended the wait before its timeout {at}"
            world.end_attempt(execution, AttemptOutcome.CANCELLED)
        else:
            execution.category = TIMED_OUT
            world.end_attempt(execution, AttemptOutcome.FAILURE, category=TIMED_OUT)
        world.end_lease(execution, "execution_not_active")
        world.terminate(execution, state)
        world.note(execution, f"completion.{state.value}", before)

    def _timer(self, execution: Execution) -> None:
        """The first timer that is due; what it resumes needs no other."""
        due = [slot for slot in execution.slots if slot.is_open and slot.fires_at and slot.fires_at <= self._world.now]
        if due:
            slot = min(due, key=lambda slot: slot.fires_at or self._world.now)
            accept(self._world, execution, slot, _timer_signal(execution, slot, self._world.now), None)

    def _expiry(self, execution: Execution) -> None:
        for slot in execution.slots:
            is_pending = slot.state is WaitpointState.PENDING
            if is_pending and slot.expires_at is not None and slot.expires_at <= self._world.now:
                slot.close(self._world.now, "expired")


def _named(execution: Execution, key: str, kinds: tuple[WaitpointKind, ...]) -> Slot:
    """The open waitpoint of that key; else the last one, so that a repeat is known and the rest is told why not."""
    found = [slot for slot in execution.slots if slot.key == key]
    slot = next((slot for slot in found if slot.is_open), found[-1] if found else None)
    if slot is None or slot.kind not in kinds:
        raise NotFound("waitpoint_not_found", "")
    return slot


def _signal(
    execution: Execution, slot: Slot | None, now: datetime, *, name: str, category: str, source: str, source_type: str,
    source_identity: str, id: UUID | None = None, payload: bytes = b"", key: str | None = None,
    created_at: datetime | None = None,
) -> Signal:  # fmt: skip
    return Signal(
        id=id or UUID(int=0), execution_id=execution.id, seq=len(execution.signals) + 1,
        waitpoint_id=slot.id if slot else None, waitpoint=slot.key if slot else "", name=name, category=category,
        source=source, source_type=source_type, source_identity=source_identity, correlation=None, payload=payload,
        encoding="json", key=key, created_at=created_at, accepted_at=now, effect=Effect.BUFFERED, suspension=None,
        counts=False,
    )  # fmt: skip


def _timer_signal(execution: Execution, slot: Slot, now: datetime) -> Signal:
    return _signal(
        execution, slot, now, id=signal_symbol(execution.id, len(execution.signals) + 1), name="timer",
        category="system", source="engine:6:system:timer", source_type="system", source_identity="timer",
        created_at=now,
    )  # fmt: skip


def _timeout_signal(execution: Execution, wait: Wait, now: datetime) -> Signal:
    signal = _signal(
        execution, None, now, id=wait.id, name="timeout", category="system",
        source=f"engine:6:system:{TIMED_OUT}", source_type="system", source_identity=TIMED_OUT, created_at=now,
    )  # fmt: skip
    return replace(signal, effect=Effect.SATISFIED, suspension=wait.number, counts=True)
