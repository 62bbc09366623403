"""Waiting for signals: by their typed name, or by a condition of the engine over several."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, overload

from flowfabric.core import limits
from flowfabric.core.bindings import Bound, Fresh, Standing
from flowfabric.core.conditions import Condition, Single, keys_of
from flowfabric.core.errors import FlowFabricError, InvalidRequest
from flowfabric.core.evaluating import counting_signals, satisfied
from flowfabric.core.looking import Look, Override
from flowfabric.core.requests import StepStatus
from flowfabric.core.sources import shown_source
from flowfabric.core.waits import Signal as Accepted
from flowfabric.core.waits import SuspensionReason
from flowfabric.sdk.aliases import Durable, Duration, T
from flowfabric.sdk.durable import DurableCall, T_co
from flowfabric.sdk.ending import FINAL_MARK
from flowfabric.sdk.errors import PermanentError, WaitOverridden
from flowfabric.sdk.journal import Record
from flowfabric.sdk.parking import Due, Heard, Verdict, Wait
from flowfabric.sdk.records import Met, Received, TimedOut
from flowfabric.sdk.signal_records import from_facts, to_facts
from flowfabric.sdk.signals import Signal, wait_key
from flowfabric.sdk.units import Unit, require_unit
from flowfabric.sdk.values import Form


@overload
def wait_signal(signal: Signal[T], /, *, timeout: None = None) -> Durable[Received[T]]: ...
@overload
def wait_signal(signal: Signal[T], /, *, timeout: Duration) -> Durable[Received[T] | TimedOut]: ...
def wait_signal(signal: Signal[T], /, *, timeout: Duration | None = None) -> Any:
    """Waits for the next signal of this name. One that the task declares is kept from the submit on until it is
    awaited; another is accepted only while it is awaited."""
    return SignalCall(require_unit("wait_signal"), signal, _span(timeout))


@overload
def wait_for(condition: Condition, /, *, timeout: None = None) -> Durable[Met]: ...
@overload
def wait_for(condition: Condition, /, *, timeout: Duration) -> Durable[Met | TimedOut]: ...
def wait_for(condition: Condition, /, *, timeout: Duration | None = None) -> Any:
    """Waits until signals satisfy a condition of the engine. Its waitpoints are the signals that the task declares, by
    name, and others that are open while they are awaited."""
    return ConditionCall(require_unit("wait_for"), condition, _span(timeout))


class WaitCall(DurableCall[T_co]):
    """A call that waits for signals or for its time; its outcome is recorded with the next commit."""

    timeout: timedelta | None = None

    def opened(self) -> datetime | None:
        """The due time, which is set and recorded at the first arrival."""
        if self.record is not None:
            due = self.record.facts.get("due")
            return None if due is None else datetime.fromisoformat(due)
        moment = None if self.timeout is None else self.run.now() + self.timeout
        self.run.commits.ride(self.made.record(StepStatus.OPEN, **self.open_facts(moment)))
        return moment

    def open_facts(self, due: datetime | None) -> dict[str, Any]:
        """What the open record remembers."""
        return {} if due is None else {"due": due.isoformat()}

    async def fresh(self) -> Any:
        is_old = self.record is not None
        verdict = await self.park(self.wait(self.opened(), is_old=is_old))
        record = self.decided(verdict)
        self.run.commits.ride(record)
        return self.replayed(record)

    def wait(self, due: datetime | None, *, is_old: bool) -> Wait:
        """What the branch parks on."""
        raise NotImplementedError

    def decided(self, verdict: Verdict) -> Record:
        """The outcome as it is recorded."""
        match verdict:
            case Override(by=by, reason=reason):
                return self.made.record(StepStatus.FAILED, overridden={"by": by, "reason": reason})
            case Due(at=at):
                return self.made.record(StepStatus.OK, timed_out=at.isoformat())
            case Heard(signals=signals):
                return self.heard(signals)
        raise AssertionError("only children end by an execution's end")

    def heard(self, signals: tuple[Accepted, ...]) -> Record:
        """The outcome by these signals."""
        return self.made.record(StepStatus.OK, signals=[to_facts(signal) for signal in signals])

    def replayed(self, record: Record) -> Any:
        overridden = record.facts.get("overridden")
        if overridden is not None:
            raise WaitOverridden(overridden["by"], overridden["reason"])
        timed_out = record.facts.get("timed_out")
        if timed_out is not None:
            return TimedOut(datetime.fromisoformat(timed_out))
        return self.answer(record)

    def answer(self, record: Record) -> Any:
        """What the function gets for the recorded signals."""
        raise NotImplementedError


class SignalCall(WaitCall[Any]):
    """A wait for one signal of a name."""

    def __init__(self, unit: Unit, signal: Signal[Any], timeout: timedelta | None) -> None:
        if not isinstance(signal, Signal):
            raise InvalidRequest("invalid_type", f"wait_signal takes a Signal, not {type(signal).__name__}")
        super().__init__(unit, wait_key(signal.name), "signal")
        self.signal, self.timeout = signal, timeout
        self.is_standing = any(item.name == signal.name for item in unit.run.task.settings.signals)

    def wait(self, due: datetime | None, *, is_old: bool) -> Wait:
        key = self.signal.name if self.is_standing else self.path
        return SignalWait(self, key, due, is_standing=self.is_standing, is_old=is_old)

    def heard(self, signals: tuple[Accepted, ...]) -> Record:
        [signal] = signals
        used: dict[str, Any] = {"used": {self.signal.name: signal.seq}} if self.is_standing else {}
        return self.made.record(StepStatus.OK, signals=[to_facts(signal)], **used)

    def answer(self, record: Record) -> Any:
        [signal] = from_facts(record.facts["signals"])
        return Received(payload_of(signal, self.signal.form, self.path), shown_source(signal), signal.accepted_at)


class ConditionCall(WaitCall[Any]):
    """A wait for a condition."""

    def __init__(self, unit: Unit, condition: Condition, timeout: timedelta | None) -> None:
        if not isinstance(condition, Condition):
            message = f"wait_for takes Single, AllOf, AnyOf or Count, not {type(condition).__name__}"
            raise InvalidRequest("invalid_type", message)
        super().__init__(unit, "wait_for", "condition")
        self.condition, self.timeout = condition, timeout

    def wait(self, due: datetime | None, *, is_old: bool) -> Wait:
        declared = {signal.name for signal in self.run.task.settings.signals}
        return ConditionWait(self, self.condition, declared, due, is_old=is_old)

    def heard(self, signals: tuple[Accepted, ...]) -> Record:
        used = {signal.waitpoint: signal.seq for signal in signals}
        return self.made.record(StepStatus.OK, signals=[to_facts(signal) for signal in signals], used=used)

    def answer(self, record: Record) -> Met:
        return Met(tuple(from_facts(record.facts["signals"])))


class SignalWait(Wait):
    """Parked until a signal comes to one waitpoint."""

    reason = SuspensionReason.WAITING_FOR_SIGNAL

    def __init__(
        self, call: DurableCall[Any], key: str, due: datetime | None, *, is_standing: bool = False,
        is_old: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(call, due, is_old=is_old)
        self._key, self._is_standing = key, is_standing

    def keys(self) -> Mapping[str, int]:
        return {self._key: self._used()}

    def bindings(self) -> Sequence[Bound]:
        if self._is_standing:
            return (Standing(self._key, self._used()),)
        return (Fresh(self._key, ends_at=self.due),)

    def condition(self) -> Condition:
        return Single(self._key)

    def _used(self) -> int:
        return self.call.run.calls.consumed.get(self._key, 0) if self._is_standing else 0

    def _found(self, look: Look) -> Verdict | None:
        used = self._used()
        for signal in look.signals:
            if signal.waitpoint == self._key and signal.seq > used and self._in_time(signal):
                if self._is_standing:
                    self.call.run.calls.consumed[self._key] = signal.seq
                return Heard((signal,))
        return look.overridden.get(self._key)


class ConditionWait(Wait):
    """Parked until signals satisfy a condition."""

    reason = SuspensionReason.WAITING_FOR_SIGNAL

    def __init__(
        self, call: DurableCall[Any], condition: Condition, declared: set[str], due: datetime | None, *, is_old: bool
    ) -> None:
        super().__init__(call, due, is_old=is_old)
        self._condition, self._declared = condition, declared

    def keys(self) -> Mapping[str, int]:
        consumed = self.call.run.calls.consumed
        return {key: consumed.get(key, 0) for key in keys_of(self._condition)}

    def bindings(self) -> Sequence[Bound]:
        return [Standing(key, after) if key in self._declared else Fresh(key) for key, after in self.keys().items()]

    def condition(self) -> Condition:
        return self._condition

    def _found(self, look: Look) -> Verdict | None:
        after = self.keys()
        signals = {
            signal.id: signal
            for signal in look.signals
            if signal.seq > after.get(signal.waitpoint, signal.seq) and self._in_time(signal)
        }
        counting = counting_signals(self._condition, [signal.facts for signal in signals.values()])
        if satisfied(self._condition, counting):
            heard = tuple(signals[facts.id] for facts in counting)
            for signal in heard:
                self.call.run.calls.consumed[signal.waitpoint] = signal.seq
            return Heard(heard)
        return next((look.overridden[key] for key in after if key in look.overridden), None)


def payload_of(signal: Accepted, form: Form[T], path: str) -> T:
    """What a signal brought. One that does not fit is a failure for good: the next run would see the same."""
    try:
        return form.restore(signal.payload or b"null")
    except FlowFabricError as error:
        failure = PermanentError(f"{path} got a payload that does not fit: {error.message}", path=path)
        setattr(failure, FINAL_MARK, True)
        raise failure from error


def _span(timeout: Duration | None) -> timedelta | None:
    return None if timeout is None else limits.duration(timeout, "timeout")
