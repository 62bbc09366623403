"""What durable functions raise and see, on top of the errors of the engine.

FlowFabricError
├── InvalidRequest
│   └── ValueRefused       a value cannot be stored as its annotation says
├── PermanentError         raise it: trying again would not help
├── InputMismatch          the stored input does not fit the function any more; the execution is held
├── StepFailed             a step failed for good
├── AllFailed              every call of a race failed
├── ExecutionFailed        another execution failed … was cancelled, expired or was skipped
├── ExecutionCancelled
├── ExecutionExpired
├── ExecutionSkipped
├── WaitOverridden         an operator ended the wait
└── Diverged               the code no longer makes the calls that are recorded
asyncio.CancelledError
└── CancelRequested        the execution is asked to end, and may clean up first
BaseException
└── Unwind                 the function is left because it waits; never the end of anything
    └── LeaseLost          … or because somebody else works on the execution now
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable
from types import MappingProxyType
from typing import Any

from flowfabric.core.errors import FlowFabricError, InvalidRequest
from flowfabric.sdk.records import ErrorInfo


class _Copied(FlowFabricError):
    """An error that is pickled as it is, whatever its constructor takes."""

    def __reduce__(self) -> tuple[Any, ...]:
        state = {**self.__dict__, "fields": dict(self.fields)}
        return _copy, (type(self), self.args, state)


class ValueRefused(_Copied, InvalidRequest):
    """A value cannot be stored, or not so that it comes back; nothing was written."""

    def __init__(self, message: str, *, code: str = "value_refused", **fields: Any) -> None:
        super().__init__(code, message, **fields)


class PermanentError(_Copied):
    """Raise it, or a class of your own that inherits from it, where trying again would not help."""

    def __init__(self, message: str = "", /, **fields: Any) -> None:
        super().__init__("permanent_error", message, **fields)

    def __str__(self) -> str:
        return self.message


class InputMismatch(_Copied):
    """The stored input does not fit the function any more, which holds the execution until either is repaired."""

    def __init__(self, message: str, **fields: Any) -> None:
        super().__init__("input_mismatch", message, **fields)


class StepFailed(_Copied):
    """A step failed for good: its tries are spent, or trying again would not help. `raises` are the classes that the
    step declared; the failure could not be raised again as one of them."""

    def __init__(self, error: ErrorInfo, path: str, *, raises: Collection[type[Exception]] = ()) -> None:
        said = f"{path} failed: {_said(error)}"
        advice = _advice(error, raises)
        super().__init__("step_failed", f"{said}; {advice}" if advice else said, path=path, type=error.type)
        self.error = error
        self.path = path

    def caused_by(self, kind: type[BaseException], /) -> bool:
        """True when the step raised this class or one that inherits from it."""
        return self.error.caused_by(kind)


class ExecutionFailed(_Copied):
    """The execution that was waited for failed for good."""

    def __init__(self, error: ErrorInfo) -> None:
        super().__init__("execution_failed", f"the execution failed: {_said(error)}", type=error.type)
        self.error = error

    def caused_by(self, kind: type[BaseException], /) -> bool:
        """True when the execution failed by this class or one that inherits from it."""
        return self.error.caused_by(kind)


class ExecutionCancelled(_Copied):
    """The execution that was waited for was cancelled."""

    def __init__(self, reason: str = "") -> None:
        super().__init__("execution_cancelled", _because("the execution was cancelled", reason), reason=reason)
        self.reason = reason


class ExecutionExpired(_Copied):
    """The execution that was waited for ran out of time."""

    def __init__(self, reason: str = "") -> None:
        super().__init__("execution_expired", _because("the execution ran out of time", reason), reason=reason)
        self.reason = reason


class ExecutionSkipped(_Copied):
    """The execution that was waited for was skipped by its flow."""

    def __init__(self, reason: str = "") -> None:
        super().__init__("execution_skipped", _because("the execution was skipped", reason), reason=reason)
        self.reason = reason


class AllFailed(_Copied):
    """No call of a race succeeded; `failures` are theirs, in the order of the calls."""

    def __init__(self, failures: Iterable[ErrorInfo]) -> None:
        self.failures = tuple(failures)
        said = "; ".join(_said(failure) for failure in self.failures)
        super().__init__("all_failed", f"all {len(self.failures)} calls of the race failed: {said}")


class WaitOverridden(_Copied):
    """An operator ended the wait: it is neither met nor timed out."""

    def __init__(self, by: str, reason: str = "") -> None:
        super().__init__("wait_overridden", _because(f"{by} ended the wait", reason), by=by, reason=reason)
        self.by = by
        self.reason = reason


class Diverged(_Copied):
    """The code no longer makes the calls that are recorded; `report` shows both. The execution is held, no attempt is
    used up."""

    def __init__(self, report: str) -> None:
        super().__init__("diverged", report)
        self.report = report


class CancelRequested(asyncio.CancelledError):
    """The execution was asked to end. Clean up and leave: durable calls work until the time of grace is over."""


class Unwind(BaseException):
    """The function is left because everything in it waits; it runs again from the top when it can go on. Let it pass:
    nothing durable happens until then."""


class LeaseLost(Unwind):
    """The function is left because this process no longer works on the execution; what it still does is not
    recorded."""


def _copy(kind: type[FlowFabricError], args: tuple[Any, ...], state: dict[str, Any]) -> FlowFabricError:
    error = kind.__new__(kind, *args)
    error.__dict__.update(state, fields=MappingProxyType(state["fields"]))
    return error


def _said(error: ErrorInfo) -> str:
    return f"{error.type}: {error.message}" if error.message else error.type


def _because(what: str, reason: str) -> str:
    return f"{what}: {reason}" if reason else what


def _advice(error: ErrorInfo, raises: Collection[type[Exception]]) -> str:
    """How to catch the failure by its class; nothing for failures that nobody's code raised."""
    if any(error.caused_by(kind) for kind in raises):
        return f"{error.type} is declared, but cannot be made again from its args: give it plain JSON args"
    if not error.bases or error.bases[0].startswith("flowfabric."):
        return ""
    return f"declare raises=[{error.type}] to catch it by class"
