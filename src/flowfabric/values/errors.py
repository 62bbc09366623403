"""Errors that durable functions raise or receive, besides the errors of the engine.

FlowFabricError
├── InvalidRequest
│   └── ValueRefused       a value cannot be stored by its annotation
├── PermanentError         raise it where a retry cannot help
├── InputMismatch          the stored input no longer fits the function; the execution is held
├── StepFailed             a step failed permanently
├── AllFailed              every call of a race failed
├── ExecutionFailed        the awaited execution failed
├── ExecutionCancelled     … was cancelled
├── ExecutionExpired       … ran out of time
├── ExecutionSkipped       … was skipped by its flow
├── WaitOverridden         an operator ended the wait
└── Diverged               the code no longer makes the recorded calls
asyncio.CancelledError
└── CancelRequested        a request to cancel the execution; clean up first
BaseException
└── Unwind                 ends a run whose branches all wait; it runs again later
    └── LeaseLost          ends a run whose process no longer owns the execution
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable
from types import MappingProxyType
from typing import Any

from flowfabric.core.errors import FlowFabricError, InvalidRequest
from flowfabric.values import guards
from flowfabric.values.records import ErrorInfo

_MAX_NOTES = 5


class _PicklableError(FlowFabricError):
    """An error that can be pickled although its constructor does not take the values in `args`."""

    def __reduce__(self) -> tuple[Any, ...]:
        state = {**self.__dict__, "fields": dict(self.fields)}
        return _rebuild_error, (type(self), self.args, state)


class ValueRefused(_PicklableError, InvalidRequest):
    """A value cannot be stored, or would be restored as a different value; nothing was written."""

    def __init__(self, message: str, *, code: str = "value_refused", **fields: Any) -> None:
        super().__init__(code, message, **fields)


class PermanentError(_PicklableError):
    """A failure that a retry cannot fix. Raise it, or a subclass of it."""

    def __init__(self, message: str = "", /, **fields: Any) -> None:
        super().__init__("permanent_error", message, **fields)

    def __str__(self) -> str:
        return self.message


class InputMismatch(_PicklableError):
    """The stored input no longer fits the function.

    The execution is held until the function or the input is repaired.
    """

    def __init__(self, message: str, **fields: Any) -> None:
        super().__init__("input_mismatch", message, **fields)


class StepFailed(_PicklableError):
    """A step failed permanently, because it has no attempts left or a retry cannot help.

    Its cause is the exception that the step raised. In later runs, a note has the traceback of that exception instead.
    `raises` are the exception classes that the step declared. The failure is of none of these classes, or could not be
    rebuilt as one of them.
    """

    def __init__(self, error: ErrorInfo, path: str, *, raises: Collection[type[Exception]] = ()) -> None:
        summary = f"{path} failed: {_format_failure(error)}"
        advice = _advise(error, raises)
        super().__init__("step_failed", f"{summary}; {advice}" if advice else summary, path=path, type=error.type)
        self.error = error
        self.path = path

    def caused_by(self, kind: type[BaseException], /) -> bool:
        """Return True if the step raised an exception of this class or of a subclass."""
        return self.error.caused_by(kind)


class ExecutionFailed(_PicklableError):
    """The awaited execution failed permanently. A note of this error has the traceback of the code that failed."""

    def __init__(self, error: ErrorInfo) -> None:
        super().__init__("execution_failed", f"the execution failed: {_format_failure(error)}", type=error.type)
        self.error = error
        add_traceback(self, error)

    def caused_by(self, kind: type[BaseException], /) -> bool:
        """Return True if the execution failed with an exception of this class or of a subclass."""
        return self.error.caused_by(kind)


class ExecutionCancelled(_PicklableError):
    """The awaited execution was cancelled."""

    def __init__(self, reason: str = "") -> None:
        super().__init__("execution_cancelled", _add_reason("the execution was cancelled", reason), reason=reason)
        self.reason = reason


class ExecutionExpired(_PicklableError):
    """The awaited execution ran out of time."""

    def __init__(self, reason: str = "") -> None:
        super().__init__("execution_expired", _add_reason("the execution ran out of time", reason), reason=reason)
        self.reason = reason


class ExecutionSkipped(_PicklableError):
    """The awaited execution was skipped by its flow."""

    def __init__(self, reason: str = "") -> None:
        super().__init__("execution_skipped", _add_reason("the execution was skipped", reason), reason=reason)
        self.reason = reason


class AllFailed(_PicklableError):
    """All calls of a race failed; `failures` has their errors in the order of the calls."""

    def __init__(self, failures: Iterable[ErrorInfo]) -> None:
        self.failures = tuple(failures)
        messages = "; ".join(_format_failure(failure) for failure in self.failures)
        super().__init__("all_failed", f"all {len(self.failures)} calls of the race failed: {messages}")
        for failure in self.failures[:_MAX_NOTES]:
            add_traceback(self, failure)


class WaitOverridden(_PicklableError):
    """An operator ended the wait before its condition was met and before it timed out."""

    def __init__(self, by: str, reason: str = "") -> None:
        super().__init__("wait_overridden", _add_reason(f"{by} ended the wait", reason), by=by, reason=reason)
        self.by = by
        self.reason = reason


class Diverged(_PicklableError):
    """The code no longer makes the recorded durable calls; `report` compares the recorded calls with the new calls.

    The execution is held, and the run does not count as an attempt.
    """

    def __init__(self, report: str) -> None:
        super().__init__("diverged", report)
        self.report = report


class CancelRequested(asyncio.CancelledError):
    """A request to cancel the execution. Clean up and return; durable calls work until the grace period ends."""


class Unwind(BaseException):
    """Ends a run in which every branch waits; do not catch it.

    The function runs again from the top when a wait is over. In the ended run, durable calls no longer work.
    """


class LeaseLost(Unwind):
    """Ends a run whose process no longer owns the execution; later calls of the run are not recorded."""


def add_traceback(error: BaseException, info: ErrorInfo) -> None:
    """Add the recorded traceback of a failure to the exception that reports it, so that a reader sees the line."""
    if info.traceback:
        guards.add_note(error, f"\nRecorded by the worker:\n\n{info.traceback.rstrip()}")


def _rebuild_error(kind: type[FlowFabricError], args: tuple[Any, ...], state: dict[str, Any]) -> FlowFabricError:
    error = kind.__new__(kind, *args)
    error.__dict__.update(state, fields=MappingProxyType(state["fields"]))
    return error


def _format_failure(error: ErrorInfo) -> str:
    return f"{error.type}: {error.message}" if error.message else error.type


def _add_reason(what: str, reason: str) -> str:
    return f"{what}: {reason}" if reason else what


def _advise(error: ErrorInfo, raises: Collection[type[Exception]]) -> str:
    """Return advice on how to catch the failure by its class, or an empty text if no user code raised it."""
    if any(error.caused_by(kind) for kind in raises):
        return f"{error.type} is declared but cannot be rebuilt from its args; give it plain JSON args"
    if not error.bases or error.bases[0].startswith("flowfabric."):
        return ""
    return f"declare raises=[{error.type}] to catch it by class"
