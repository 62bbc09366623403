"""The reference model of `engine.signals`, of an operator's resume, and of the due times of waits."""

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
    State,
    StoredSignal,
    Trigger,
    WaitpointKind,
    WaitpointState,
)
from tests.model.keys_model import verifies
from tests.model.records import Execution
from tests.model.wait_records import Slot, Wait, count_signal, is_satisfied, needed_keys, signal_symbol
from tests.model.waits_model import close, continue_execution, list_signals
from tests.model.world import World, make_refusal

TIMED_OUT = "suspension_timeout"
_ENDS = {OnTimeout.FAIL: State.FAILED, OnTimeout.CANCEL: State.CANCELLED, OnTimeout.EXPIRE: State.EXPIRED}


class Signals:
    """The calls that send and list signals."""

    def __init__(self, world: World) -> None:
        self._world = world

    def deliver(
        self,
        namespace: str,
        *,
        token: Secret,
        name: str,
        payload: bytes,
        source_identity: str,
        signal_id: UUID | None,
        key: str | None,
        resume_delay: timedelta | None,
    ) -> Accepted | DuplicateSignal:
        """Accept a signal if its token was signed for this namespace, with a key that still verifies."""
        facts = self._world.ring.tokens.get(token)
        if facts is None or facts.namespace != namespace or not verifies(self._world, facts.kid):
            raise InvalidRequest("invalid_token", "")
        execution = self._world.find(namespace, facts.execution_id)
        slot = next(slot for slot in execution.slots if slot.id == facts.waitpoint_id)
        source = f"claimed:8:external:{source_identity}"
        signal = _make_signal(
            execution,
            slot,
            self._world.now,
            id=signal_id,
            name=name,
            payload=payload,
            key=key,
            category="external",
            source=f"approver:{slot.approver}" if slot.approver else source,
            source_type="external",
            source_identity=source_identity,
        )
        return self._receive(execution, slot, signal, resume_delay, by_token=True)

    def approve(
        self, namespace: str, *, execution_id: UUID, waitpoint: str, name: str, suffix: str | None
    ) -> Accepted | DuplicateSignal:
        """Accept an approval by an operator, whose identity the engine knows."""
        execution = self._world.find(namespace, execution_id)
        slot = _find_slot(execution, waitpoint, (WaitpointKind.ADDRESSED, WaitpointKind.STANDING))
        source = "engine:8:operator:operator"
        signal = _make_signal(
            execution,
            slot,
            self._world.now,
            name=name,
            key=suffix and f"approval\n{name}\n{suffix}",
            category="approval",
            source=f"approver:{slot.approver}" if slot.approver else source,
            source_type="operator",
            source_identity="operator",
        )
        return self._receive(execution, slot, signal, None, principal="operator")

    def send(
        self,
        namespace: str,
        *,
        execution_id: UUID,
        name: str,
        payload: bytes,
        source_identity: str,
        signal_id: UUID | None,
        key: str | None,
    ) -> Accepted | DuplicateSignal:
        """Accept a signal for the standing waitpoint of that name."""
        execution = self._world.find(namespace, execution_id)
        slot = _find_slot(execution, name, (WaitpointKind.STANDING,))
        source = f"engine:7:program:{source_identity}"
        signal = _make_signal(
            execution,
            slot,
            self._world.now,
            id=signal_id,
            name=name,
            payload=payload,
            key=key,
            category="program",
            source=f"approver:{slot.approver}" if slot.approver else source,
            source_type="program",
            source_identity=source_identity,
        )
        return self._receive(execution, slot, signal, None)

    def list(
        self, namespace: str, *, execution_id: UUID, suspension: UUID | None, include_unmatched: bool
    ) -> tuple[StoredSignal, ...]:
        """Return the signals of the given suspension, by default of the latest one."""
        execution = self._world.find(namespace, execution_id)
        for wait in reversed(execution.waits):
            if suspension in (None, wait.id):
                return list_signals(execution, wait, include_unmatched=include_unmatched)
        if suspension is None:
            return ()
        raise NotFound("suspension_not_found", "")

    def _receive(
        self,
        execution: Execution,
        slot: Slot,
        signal: StoredSignal,
        delay: timedelta | None,
        by_token: bool = False,
        principal: str | None = None,
    ) -> Accepted | DuplicateSignal:
        """Return a duplicate for a repeated signal.

        Otherwise check the times, the execution and the waitpoint, and accept the signal.
        """
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
            raise make_refusal(execution, "target_not_signalable")
        # A sender without a token may still signal a waitpoint of an overdue wait, but not an overdue waitpoint outside
        # a wait.
        if not slot.is_open or (overdue and slot.state is WaitpointState.PENDING):
            raise make_refusal(execution, "waitpoint_closed")
        if len(execution.signals) >= execution.policy.max_signals:
            raise make_refusal(execution, "signal_limit_exceeded")
        if signal.id.int == 0:
            signal = replace(signal, id=self._world.mint())
        return accept(self._world, execution, slot, signal, delay, principal)


def accept(
    world: World,
    execution: Execution,
    slot: Slot,
    signal: StoredSignal,
    delay: timedelta | None,
    principal: str | None = None,
) -> Accepted:
    """Store the signal. If the execution is suspended on the signal's waitpoint, evaluate the condition."""
    wait = execution.wait
    if wait is None or slot.state is not WaitpointState.ACTIVE:
        execution.signals.append(signal)
        slot.fires_at = None
        world.note(execution, "signal.buffered", replace(execution), principal)
        return Accepted(signal.id, Effect.BUFFERED, None)
    wait_signals = [earlier for earlier in execution.signals if earlier.suspension == wait.number]
    counted = count_signal(wait.condition, wait_signals, signal)
    ends_it = is_satisfied(wait.condition, [*wait_signals, signal])
    belongs = counted is Counted.YES or slot.kind is not WaitpointKind.STANDING
    effect = Effect.SATISFIED if ends_it else Effect.APPENDED
    signal = replace(signal, effect=effect, suspension=wait.number if belongs else None, counts=counted is Counted.YES)
    execution.signals.append(signal)
    world.note(execution, "signal.delivered", replace(execution), principal)
    if ends_it:
        resume(world, execution, wait, wait.resume_delay if delay is None else delay, [*wait_signals, signal])
    else:
        slot.fires_at = None
    return Accepted(signal.id, effect, counted)


def resume(world: World, execution: Execution, wait: Wait, delay: timedelta, signals: list[StoredSignal]) -> None:
    """End the wait because signals satisfy its condition."""
    before = replace(execution)
    close(world, execution, wait, Trigger.SIGNALS, needed_keys(wait.condition, signals))
    continue_execution(world, execution, delay)
    world.note(execution, "lifecycle.resumed", before)


def override(
    world: World, execution: Execution, suspension: UUID | None, delay: timedelta | None, reason: str
) -> Resumed | AlreadySatisfied:
    """End the wait on behalf of an operator."""
    wait = execution.wait
    if suspension is not None and (wait is None or wait.id != suspension):
        return AlreadySatisfied("suspension_closed")
    if wait is None:
        raise make_refusal(execution, "execution_not_suspended")
    before = replace(execution)
    close(world, execution, wait, Trigger.OPERATOR)
    continue_execution(world, execution, wait.resume_delay if delay is None else delay)
    world.note(execution, "operator.resumed", before, "operator", reason)
    return Resumed(wait.id, execution.vector.public_state)


class WaitDuties:
    """The model of the duties for waits: timeouts, timers and the expiry of waitpoints."""

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
            execution.signals.append(_make_timeout_signal(execution, wait, world.now))
            continue_execution(world, execution, wait.resume_delay)
            world.note(execution, "lifecycle.resumed", before)
        else:
            self._end(execution, wait, before)

    def _end(self, execution: Execution, wait: Wait, before: Execution) -> None:
        world, state = self._world, _ENDS[wait.on_timeout]
        resumption = execution.resumption
        close(world, execution, wait, Trigger.TIMEOUT)
        execution.resumption = resumption
        if state is State.CANCELLED:
            execution.cancelled_by = TIMED_OUT
            at = wait.timeout_at.isoformat() if wait.timeout_at else ""
            execution.cancel_reason = f"the wait timed out at {at}"
            world.end_attempt(execution, AttemptOutcome.CANCELLED)
        else:
            execution.category = TIMED_OUT
            world.end_attempt(execution, AttemptOutcome.FAILURE, category=TIMED_OUT)
        world.end_lease(execution, "execution_not_active")
        world.terminate(execution, state)
        world.note(execution, f"completion.{state.value}", before)

    def _timer(self, execution: Execution) -> None:
        """Fire only the first due timer, because it may end the wait."""
        due = [slot for slot in execution.slots if slot.is_open and slot.fires_at and slot.fires_at <= self._world.now]
        if due:
            slot = min(due, key=lambda slot: slot.fires_at or self._world.now)
            accept(self._world, execution, slot, _make_timer_signal(execution, slot, self._world.now), None)

    def _expiry(self, execution: Execution) -> None:
        for slot in execution.slots:
            is_pending = slot.state is WaitpointState.PENDING
            if is_pending and slot.expires_at is not None and slot.expires_at <= self._world.now:
                slot.close(self._world.now, "expired")


def _find_slot(execution: Execution, key: str, kinds: tuple[WaitpointKind, ...]) -> Slot:
    """Return the open waitpoint with this key.

    If no waitpoint with this key is open, return the last closed one, so that repeated signals are recognized.
    """
    slots = [slot for slot in execution.slots if slot.key == key]
    slot = next((slot for slot in slots if slot.is_open), slots[-1] if slots else None)
    if slot is None or slot.kind not in kinds:
        raise NotFound("waitpoint_not_found", "")
    return slot


def _make_signal(
    execution: Execution,
    slot: Slot | None,
    now: datetime,
    *,
    name: str,
    category: str,
    source: str,
    source_type: str,
    source_identity: str,
    id: UUID | None = None,
    payload: bytes = b"",
    key: str | None = None,
    created_at: datetime | None = None,
) -> StoredSignal:
    return StoredSignal(
        id=id or UUID(int=0),
        execution_id=execution.id,
        seq=len(execution.signals) + 1,
        waitpoint_id=slot.id if slot else None,
        waitpoint=slot.key if slot else "",
        name=name,
        category=category,
        source=source,
        source_type=source_type,
        source_identity=source_identity,
        correlation=None,
        payload=payload,
        encoding="json",
        key=key,
        created_at=created_at,
        accepted_at=now,
        effect=Effect.BUFFERED,
        suspension=None,
        counts=False,
    )


def _make_timer_signal(execution: Execution, slot: Slot, now: datetime) -> StoredSignal:
    return _make_signal(
        execution,
        slot,
        now,
        id=signal_symbol(execution.id, len(execution.signals) + 1),
        name="timer",
        category="system",
        source="engine:6:system:timer",
        source_type="system",
        source_identity="timer",
        created_at=now,
    )


def _make_timeout_signal(execution: Execution, wait: Wait, now: datetime) -> StoredSignal:
    signal = _make_signal(
        execution,
        None,
        now,
        id=wait.id,
        name="timeout",
        category="system",
        source=f"engine:6:system:{TIMED_OUT}",
        source_type="system",
        source_identity=TIMED_OUT,
        created_at=now,
    )
    return replace(signal, effect=Effect.SATISFIED, suspension=wait.number, counts=True)
