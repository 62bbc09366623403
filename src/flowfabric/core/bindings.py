"""What a suspension may wait on: waitpoints that are new, that were handed out before, or that the engine feeds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from flowfabric.core import limits
from flowfabric.core.errors import InvalidRequest
from flowfabric.core.frozen import put
from flowfabric.core.ids import parse_id
from flowfabric.core.tokens import token_source


@dataclass(frozen=True, slots=True)
class Fresh:
    """A waitpoint with a token of its own; if one with this key is open already, that one. With an approver, its
    signals count as that source, whatever the sender says; `ends_at` ends the token itself."""

    key: str
    approver: str | None = None
    ends_at: datetime | None = None

    def __post_init__(self) -> None:
        put(
            self,
            key=limits.name(self.key, "key"),
            approver=None if self.approver is None else token_source(self.approver),
            ends_at=None if self.ends_at is None else limits.moment(self.ends_at, "ends_at"),
        )


@dataclass(frozen=True, slots=True)
class Pending:
    """A waitpoint that was created before, with the token that was handed out; refused if there is none."""

    key: str

    def __post_init__(self) -> None:
        put(self, key=limits.name(self.key, "key"))


@dataclass(frozen=True, slots=True)
class Standing:
    """A waitpoint that was declared when the execution was submitted; each of its signals is used by one wait. Signals
    up to the place `after` do not count: for workers that keep their own account of what was used."""

    key: str
    after: int = 0

    def __post_init__(self) -> None:
        put(self, key=limits.name(self.key, "key"), after=limits.whole(self.after, "after", 0, limits.LARGEST))


@dataclass(frozen=True, slots=True)
class Child:
    """The end of another execution; the engine delivers a signal named after its outcome."""

    key: str
    execution_id: UUID

    def __post_init__(self) -> None:
        put(self, key=limits.name(self.key, "key"), execution_id=parse_id(self.execution_id, "execution_id"))


@dataclass(frozen=True, slots=True)
class Timer:
    """A point in time; the engine delivers a signal named `timer`."""

    key: str
    at: datetime

    def __post_init__(self) -> None:
        put(self, key=limits.name(self.key, "key"), at=limits.moment(self.at, "at"))


Bound = Fresh | Pending | Standing | Child | Timer


def bindings(value: object) -> tuple[Bound, ...]:
    """Bindings with distinct keys; a text stands for a fresh one."""
    if isinstance(value, str | bytes) or not isinstance(value, Sequence):
        message = f"waitpoints must be a list of keys or bindings, not {type(value).__name__}"
        raise InvalidRequest("invalid_type", message, field="waitpoints")
    found = tuple(_binding(item) for item in limits.batch(value, "waitpoints"))
    if len({item.key for item in found}) != len(found):
        raise InvalidRequest(
            "invalid_request", "two waitpoints of one suspension have the same key", field="waitpoints"
        )
    return found


def fresh(value: object) -> tuple[Fresh, ...]:
    """Fresh bindings with distinct keys; a text stands for one."""
    found = bindings(value)
    for item in found:
        if not isinstance(item, Fresh):
            message = f"a waitpoint to be created must be a key or Fresh, not {type(item).__name__}"
            raise InvalidRequest("invalid_type", message, field="waitpoints")
    return tuple(item for item in found if isinstance(item, Fresh))


def _binding(item: object) -> Bound:
    if isinstance(item, str):
        return Fresh(item)
    if isinstance(item, Fresh | Pending | Standing | Child | Timer):
        return item
    message = f"a waitpoint must be a key, Fresh, Pending, Standing, Child or Timer, not {type(item).__name__}"
    raise InvalidRequest("invalid_type", message, field="waitpoints")
