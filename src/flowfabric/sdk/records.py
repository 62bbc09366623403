"""What durable calls answer with. All records are frozen, so that a `match` sees what was recorded and nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Generic, TypeAlias, TypeVar
from uuid import UUID

from flowfabric.core.waits import Signal

T_co = TypeVar("T_co", covariant=True)
ErrorClass: TypeAlias = type[BaseException]


@dataclass(frozen=True, slots=True)
class Decision:
    """What one approver said, and when."""

    by: str
    approve: bool
    comment: str
    at: datetime


@dataclass(frozen=True, slots=True)
class Approved:
    """Enough approvers said yes: who they are, and everything that was said."""

    by: tuple[str, ...]
    decisions: tuple[Decision, ...]


@dataclass(frozen=True, slots=True)
class Rejected:
    """The approval can no longer be reached: who said no last, why, and everything that was said."""

    by: str
    reason: str
    decisions: tuple[Decision, ...]


@dataclass(frozen=True, slots=True)
class TimedOut:
    """The wait ended by its timeout; an approval also says what was decided until then."""

    at: datetime
    decisions: tuple[Decision, ...] = ()


@dataclass(frozen=True, slots=True)
class Received(Generic[T_co]):
    """The payload of a signal or callback, who sent it, and when it was accepted. The source is `program`,
    `execution:ID`, `operator:NAME`, `approver:NAME` or `callback`; what a sender with a token only claims begins with
    `claimed:`."""

    value: T_co
    source: str
    at: datetime


@dataclass(frozen=True, slots=True)
class Met:
    """The condition holds, by these signals."""

    signals: tuple[Signal, ...]


@dataclass(frozen=True, slots=True)
class Winner(Generic[T_co]):
    """The first success of a race, and which of its calls it was."""

    index: int
    value: T_co


@dataclass(frozen=True, slots=True)
class ErrorInfo:
    """A failure as it is recorded: the name of its class, what it said, and the names of all its base classes. Classes
    are never looked up by these names; they only answer `caused_by`."""

    type: str
    message: str
    bases: tuple[str, ...] = ()
    traceback: str = ""
    category: str = ""
    permanent: bool = False

    def caused_by(self, kind: ErrorClass, /) -> bool:
        """True when the failure was of this class or of one that inherits from it."""
        return any(same_class(base, class_name(kind)) for base in self.bases)


@dataclass(frozen=True, slots=True)
class Completed(Generic[T_co]):
    """The execution or branch succeeded with this value."""

    value: T_co


@dataclass(frozen=True, slots=True)
class Failed:
    """The execution or branch failed for good."""

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
    """The execution never ran, because something before it in its flow did not end as needed."""

    reason: str


@dataclass(frozen=True, slots=True)
class Ask:
    """What `notify` is told for each approver: what is asked, and the token or link that decides it."""

    name: str
    approver: str
    token: str = field(repr=False)
    link: str | None = field(repr=False)
    expires: datetime | None


@dataclass(frozen=True, slots=True)
class Current:
    """The execution whose code asks, and how it is run right now."""

    execution_id: UUID
    kind: str
    attempt: int
    epoch: int
    replaying: bool
    cancelled: bool
    idempotency_key: str
    tags: Mapping[str, str]


def class_name(kind: type) -> str:
    """By which name a class is recorded: with its module, unless it is a builtin."""
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def same_class(recorded: str, name: str) -> bool:
    """True when two recorded names mean one class. A module run as a script calls itself `__main__`, and the worker
    that imports it knows the same class under the module's name."""
    if recorded == name:
        return True
    if not recorded.startswith("__main__.") and not name.startswith("__main__."):
        return False
    return _in_any_module(recorded, name) or _in_any_module(name, recorded)


def _in_any_module(main: str, other: str) -> bool:
    own = main.removeprefix("__main__.")
    return own != main and other.endswith(f".{own}")
