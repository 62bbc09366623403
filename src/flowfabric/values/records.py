"""Records that durable calls return. They are frozen, so that code cannot change a recorded result."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Generic, TypeAlias, TypeVar
from uuid import UUID

from flowfabric.core.waits.decisions import ApprovalDecision
from flowfabric.core.waits.records import StoredSignal
from flowfabric.values.guards import guarded, qualified_name

T_co = TypeVar("T_co", covariant=True)
ErrorClass: TypeAlias = type[BaseException]


@dataclass(frozen=True, slots=True)
class Approved:
    """Enough approvers approved; `by` names them, and `decisions` has every decision."""

    by: tuple[str, ...]
    decisions: tuple[ApprovalDecision, ...]


@dataclass(frozen=True, slots=True)
class Rejected:
    """Too many approvers rejected, so the approval can no longer succeed.

    `by` and `reason` are from the last rejection, and `decisions` has every decision.
    """

    by: str
    reason: str
    decisions: tuple[ApprovalDecision, ...]


@dataclass(frozen=True, slots=True)
class TimedOut:
    """The wait timed out. For an approval, `decisions` has the decisions made before the timeout."""

    at: datetime
    decisions: tuple[ApprovalDecision, ...] = ()


@dataclass(frozen=True, slots=True)
class Received(Generic[T_co]):
    """The payload of a signal or callback, its source, and the time when it was accepted.

    The source is `program`, `execution:ID`, `operator:NAME`, `approver:NAME` or `callback`. A source that the holder of
    a token claims without proof begins with `claimed:`.
    """

    value: T_co
    source: str
    at: datetime


@dataclass(frozen=True, slots=True)
class ConditionMet:
    """The condition holds; `signals` are the signals that satisfied it."""

    signals: tuple[StoredSignal, ...]


@dataclass(frozen=True, slots=True)
class RaceResult(Generic[T_co]):
    """The first successful result of a race, and the index of its call."""

    index: int
    value: T_co


@dataclass(frozen=True, slots=True)
class ErrorInfo:
    """The record of a failure.

    `type` is the name of its class, and `bases` has the names of its class and base classes. No class is ever imported
    by these names; `caused_by` only compares them.
    """

    type: str
    message: str
    bases: tuple[str, ...] = ()
    traceback: str = ""
    category: str = ""
    permanent: bool = False

    def caused_by(self, kind: ErrorClass, /) -> bool:
        """Return True if the failure was an exception of this class or of a subclass."""
        return any(same_class(base, class_name(kind)) for base in self.bases)


@dataclass(frozen=True, slots=True)
class Completed(Generic[T_co]):
    """The execution or branch completed; `value` is its result."""

    value: T_co


@dataclass(frozen=True, slots=True)
class Failed:
    """The execution or branch failed permanently."""

    error: ErrorInfo


@dataclass(frozen=True, slots=True)
class Cancelled:
    """The execution was cancelled."""

    reason: str


@dataclass(frozen=True, slots=True)
class Expired:
    """The execution ran out of time."""

    reason: str


@dataclass(frozen=True, slots=True)
class Skipped:
    """The execution never ran, because an upstream member of its flow did not end as required."""

    reason: str


@dataclass(frozen=True, slots=True)
class ApprovalRequest:
    """The argument of `notify` for one approver. With the token or the link, the approver approves or rejects.

    `title`, `details` and `show` are those of the call of `approval`.
    """

    name: str
    approver: str
    token: str = field(repr=False)
    link: str | None = field(repr=False)
    expires: datetime | None
    title: str | None = None
    details: str | None = None
    show: Mapping[str, Any] = field(default_factory=dict, hash=False)


@dataclass(frozen=True, slots=True)
class TaskContext:
    """Facts about the current execution and its run."""

    execution_id: UUID
    kind: str
    attempt: int
    epoch: int
    replaying: bool
    cancelled: bool
    idempotency_key: str
    tags: Mapping[str, str]


def class_name(kind: type) -> str:
    """Return the name under which a class is recorded: with its module, unless it is a builtin."""
    name, module = qualified_name(kind), guarded(lambda: str(kind.__module__), "?")
    return name if module == "builtins" else f"{module}.{name}"


def same_class(recorded: str, name: str) -> bool:
    """Return True if two recorded names mean the same class.

    In a module run as a script, the module name is `__main__`. A worker that imports the module records the same class
    under the module's real name.
    """
    if recorded == name:
        return True
    if not recorded.startswith("__main__.") and not name.startswith("__main__."):
        return False
    return _in_any_module(recorded, name) or _in_any_module(name, recorded)


def _in_any_module(main: str, other: str) -> bool:
    own = main.removeprefix("__main__.")
    return own != main and other.endswith(f".{own}")
