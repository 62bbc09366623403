"""Waits for signals: for one by its typed name, or for several by a condition."""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields
from datetime import datetime, timedelta
from typing import Any, Protocol, overload
from uuid import UUID

from flowfabric.core import validation
from flowfabric.core.errors import FlowFabricError, InvalidRequest
from flowfabric.core.executions.requests import StepStatus
from flowfabric.core.waits.bindings import Bound, NewWaitpoint, StandingWaitpoint
from flowfabric.core.waits.conditions import Condition, Single, waitpoint_keys
from flowfabric.core.waits.evaluate import counting_signals, is_satisfied
from flowfabric.core.waits.records import Effect, StoredSignal, SuspensionReason
from flowfabric.core.waits.signals import wait_key
from flowfabric.core.waits.snapshot import Override, WaitSnapshot
from flowfabric.core.waits.sources import format_source
from flowfabric.runtime.branch import Branch, require_branch
from flowfabric.runtime.durable_call import DurableCall, T_co
from flowfabric.runtime.journal import Record
from flowfabric.runtime.signals import Signal
from flowfabric.runtime.waits import (
    ConsumedSignals,
    DueTimeReached,
    SignalsArrived,
    UnreadableSignal,
    Verdict,
    Wait,
)
from flowfabric.values import ValueCodec
from flowfabric.values.aliases import Durable, Duration, T
from flowfabric.values.codecs import format_type
from flowfabric.values.errors import PermanentError, WaitOverridden
from flowfabric.values.guards import mark_final
from flowfabric.values.records import ConditionMet, Received, TimedOut


@overload
def wait_signal(signal: Signal[T], /, *, timeout: None = None) -> Durable[Received[T]]: ...
@overload
def wait_signal(signal: Signal[T], /, *, timeout: Duration) -> Durable[Received[T] | TimedOut]: ...
def wait_signal(signal: Signal[T], /, *, timeout: Duration | None = None) -> Any:
    """Wait for the next signal of this name.

    The engine keeps a signal that the task declares, from the submit until a wait returns it. A wait that times out or
    loses a race uses no signal. Signals that the task does not declare are accepted only while the task awaits them.
    """
    return SignalCall(require_branch("wait_signal"), signal, _timeout(timeout))


@overload
def wait_for(condition: Condition, /, *, timeout: None = None) -> Durable[ConditionMet]: ...
@overload
def wait_for(condition: Condition, /, *, timeout: Duration) -> Durable[ConditionMet | TimedOut]: ...
def wait_for(condition: Condition, /, *, timeout: Duration | None = None) -> Any:
    """Wait until signals satisfy a condition of the engine.

    The condition names waitpoints: signals that the task declares, and others that are open only during the wait.
    """
    return ConditionCall(require_branch("wait_for"), condition, _timeout(timeout))


class WaitCall(DurableCall[T_co]):
    """A call that waits for signals or a due time. The next commit records its outcome."""

    timeout: timedelta | None = None
    payload: tuple[int, Any] | None = None  # The number of the received signal, and its decoded payload.

    async def execute(self) -> Any:
        is_old = self.record is not None
        wait, signals = self.make_wait(self.open_wait(self.timeout), is_old=is_old), self.run.calls.signals
        try:
            record = self.decide(await self.await_verdict(wait))
            self.run.record_writer.enqueue(record)
        except BaseException:
            signals.release(wait.reserved)
            raise
        signals.consume(wait.reserved)
        return self.replay(record)

    def make_wait(self, due: datetime | None, *, is_old: bool) -> Wait:
        """Return the waits that the branch needs."""
        raise NotImplementedError

    def decide(self, verdict: Verdict) -> Record:
        """Return the record for the way in which the wait ended."""
        match verdict:
            case Override(by=by, reason=reason):
                return self.call_id.record(StepStatus.FAILED, overridden={"by": by, "reason": reason})
            case DueTimeReached(at=at):
                return self.call_id.record(StepStatus.OK, timed_out=at.isoformat())
            case SignalsArrived(signals=signals):
                return self.find_signals(signals)
        raise AssertionError("only a wait for a child ends with an execution")

    def find_signals(self, signals: tuple[StoredSignal, ...]) -> Record:
        """Return the record of a wait that ended with these signals."""
        return self.call_id.record(StepStatus.OK, signals=[to_facts(signal) for signal in signals])

    def replay(self, record: Record) -> Any:
        overridden = record.facts.get("overridden")
        if overridden is not None:
            raise WaitOverridden(overridden["by"], overridden["reason"])
        timed_out = record.facts.get("timed_out")
        if timed_out is not None:
            return TimedOut(datetime.fromisoformat(timed_out))
        return self.decode(record)

    def decode(self, record: Record) -> Any:
        """Return the value that the awaiting code gets for the recorded signals."""
        raise NotImplementedError


class SignalCall(WaitCall[Any]):
    """A wait for one signal by its name."""

    def __init__(self, branch: Branch, signal: Signal[Any], timeout: timedelta | None) -> None:
        if not isinstance(signal, Signal):
            raise InvalidRequest("invalid_type", f"wait_signal takes a Signal, not {type(signal).__name__}")
        super().__init__(branch, wait_key(signal.name), "signal")
        self.signal, self.timeout = signal, timeout
        self.is_standing = any(declared.name == signal.name for declared in branch.run.task.settings.signals)

    def make_wait(self, due: datetime | None, *, is_old: bool) -> Wait:
        key = self.signal.name if self.is_standing else self.path
        return SignalWait(self, key, due, self.signal, is_standing=self.is_standing, is_old=is_old)

    def find_signals(self, signals: tuple[StoredSignal, ...]) -> Record:
        [signal] = signals
        used = self.run.calls.signals.facts(signals) if self.is_standing else {}
        return self.call_id.record(StepStatus.OK, signals=[to_facts(signal)], **used)

    def decode(self, record: Record) -> Any:
        return decode_received(record, self.signal.payload_type, self.payload)


class ConditionCall(WaitCall[Any]):
    """A wait for a condition."""

    def __init__(self, branch: Branch, condition: Condition, timeout: timedelta | None) -> None:
        if not isinstance(condition, Condition):
            message = f"wait_for takes Single, AllOf, AnyOf or Count, not {type(condition).__name__}"
            raise InvalidRequest("invalid_type", message)
        super().__init__(branch, "wait_for", "condition")
        self.condition, self.timeout = condition, timeout

    def make_wait(self, due: datetime | None, *, is_old: bool) -> Wait:
        declared = {signal.name for signal in self.run.task.settings.signals}
        return ConditionWait(self, self.condition, declared, due, is_old=is_old)

    def find_signals(self, signals: tuple[StoredSignal, ...]) -> Record:
        used = self.run.calls.signals.facts(signals)
        return self.call_id.record(StepStatus.OK, signals=[to_facts(signal) for signal in signals], **used)

    def decode(self, record: Record) -> ConditionMet:
        return ConditionMet(tuple(from_facts(record.facts["signals"])))


class Expected(Protocol):
    """The payload that a wait can read: its codec, and the schema by which the store checks it."""

    @property
    def payload_type(self) -> ValueCodec[Any]: ...

    @property
    def schema(self) -> str | None: ...


class SignalWait(Wait):
    """A wait until a signal arrives at one waitpoint."""

    reason = SuspensionReason.WAITING_FOR_SIGNAL

    def __init__(
        self,
        call: WaitCall[Any],
        key: str,
        due: datetime | None,
        expected: Expected,
        *,
        is_standing: bool = False,
        is_old: bool = False,
    ) -> None:
        super().__init__(call, due, is_old=is_old)
        self._receiver, self._expected = call, expected
        self._key, self._is_standing, self._signals = key, is_standing, call.run.calls.signals

    def keys(self) -> Mapping[str, int]:
        return {self._key: self._signals.position(self._key) if self._is_standing else 0}

    def bindings(self) -> Sequence[Bound]:
        if self._is_standing:
            return (_standing(self._key, self._signals),)
        return (NewWaitpoint(self._key, ends_at=self.due, schema=self._expected.schema),)

    def condition(self) -> Condition:
        return Single(self._key)

    def find_verdict(self, snapshot: WaitSnapshot) -> Verdict | None:
        available = [signal for signal in snapshot.signals if signal.waitpoint == self._key]
        if self._is_standing:
            available = [signal for signal in available if self._signals.is_available(signal)]
        for signal in available:
            if self._is_in_time(signal) and self._can_read(signal):
                if self._is_standing:
                    self.reserved = (signal,)
                    self._signals.reserve(self.reserved, [one for one in available if one.seq not in self.unreadable])
                return SignalsArrived((signal,))
        return snapshot.overridden.get(self._key)

    def _can_read(self, signal: StoredSignal) -> bool:
        """Return True if the payload has the awaited type. Otherwise the run skips the signal."""
        if signal.seq not in self.unreadable:
            try:
                self._receiver.payload = (signal.seq, self._expected.payload_type.restore(signal.payload or b"null"))
            except FlowFabricError:
                # The error may contain a part of the payload, which must not get into logs and events.
                reason = f"it cannot be read as {format_type(self._expected.payload_type.annotation)}"
                self.unreadable[signal.seq] = UnreadableSignal(signal, reason)
        return signal.seq not in self.unreadable


class ConditionWait(Wait):
    """A wait until signals satisfy a condition."""

    reason = SuspensionReason.WAITING_FOR_SIGNAL

    def __init__(
        self, call: DurableCall[Any], condition: Condition, declared: set[str], due: datetime | None, *, is_old: bool
    ) -> None:
        super().__init__(call, due, is_old=is_old)
        self._condition, self._declared, self._signals = condition, declared, call.run.calls.signals
        # An earlier wait for an undeclared signal may have observed signals at a waitpoint that is closed now.
        self.needs_read = is_old or not declared.issuperset(waitpoint_keys(condition))

    def keys(self) -> Mapping[str, int]:
        return {key: self._signals.position(key) for key in waitpoint_keys(self._condition)}

    def bindings(self) -> Sequence[Bound]:
        return [
            _standing(key, self._signals) if key in self._declared else NewWaitpoint(key)
            for key in waitpoint_keys(self._condition)
        ]

    def condition(self) -> Condition:
        return self._condition

    def find_verdict(self, snapshot: WaitSnapshot) -> Verdict | None:
        keys = waitpoint_keys(self._condition)
        available = [one for one in snapshot.signals if one.waitpoint in keys and self._signals.is_available(one)]
        signals = {signal.id: signal for signal in available if self._is_in_time(signal)}
        counting = counting_signals(self._condition, [signal.facts for signal in signals.values()])
        if is_satisfied(self._condition, counting):
            self.reserved = tuple(signals[facts.id] for facts in counting)
            self._signals.reserve(self.reserved, available)
            return SignalsArrived(self.reserved)
        return next((snapshot.overridden[key] for key in keys if key in snapshot.overridden), None)


def _standing(key: str, signals: ConsumedSignals) -> StandingWaitpoint:
    """Return the binding of a declared signal. The records of this execution decide which signals are used."""
    return StandingWaitpoint(key, signals.position(key), signals.skipped(key))


def decode_received(record: Record, codec: ValueCodec[T], decoded: tuple[int, T] | None) -> Received[T]:
    """Return the recorded signal with its decoded payload. `decoded` has the payload if this run has decoded it.

    A wait skips signals that it cannot read. If the type has changed since the wait was recorded, a payload that does
    not fit is a permanent failure, since a retry would see the same payload.
    """
    [signal] = from_facts(record.facts["signals"])
    if decoded is not None and decoded[0] == signal.seq:
        return Received(decoded[1], format_source(signal), signal.accepted_at)
    try:
        payload = codec.restore(signal.payload or b"null")
    except FlowFabricError as error:
        message = f"{record.path} received a payload that does not fit: {error.message}"
        failure = PermanentError(message, path=record.path)
        mark_final(failure)
        raise failure from error
    return Received(payload, format_source(signal), signal.accepted_at)


def _timeout(timeout: Duration | None) -> timedelta | None:
    return None if timeout is None else validation.duration(timeout, "timeout")


# Records contain the whole signal, so that every later run decodes the same signal. `_CODECS` converts the fields of a
# signal that are not plain JSON.

_FIELDS = tuple(field.name for field in fields(StoredSignal))
_ID = (str, UUID)
_TIME = (datetime.isoformat, datetime.fromisoformat)
_CODECS: Mapping[str, tuple[Callable[[Any], str], Callable[[Any], Any]]] = {
    "id": _ID, "execution_id": _ID, "waitpoint_id": _ID, "created_at": _TIME, "accepted_at": _TIME,
    "payload": (lambda data: b64encode(data).decode(), b64decode), "effect": (str, Effect),
}  # fmt: skip


def to_facts(signal: StoredSignal) -> dict[str, Any]:
    """Return the signal as JSON, without absent fields."""
    values = {name: value for name in _FIELDS if (value := getattr(signal, name)) is not None}
    return {name: _CODECS[name][0](value) if name in _CODECS else value for name, value in values.items()}


def from_facts(documents: Iterable[Mapping[str, Any]]) -> list[StoredSignal]:
    """Return the signals parsed from JSON."""
    return [StoredSignal(**{name: _decode(name, document.get(name)) for name in _FIELDS}) for document in documents]


def _decode(name: str, value: Any) -> Any:
    return value if value is None or name not in _CODECS else _CODECS[name][1](value)
