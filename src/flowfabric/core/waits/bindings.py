"""The kinds of waitpoints that a suspension can bind."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from flowfabric.core import validation
from flowfabric.core.errors import InvalidRequest
from flowfabric.core.fast_dataclass import put
from flowfabric.core.ids import parse_id
from flowfabric.core.tokens.token import token_source
from flowfabric.core.waits.prompts import ApprovalPrompt, check_prompt
from flowfabric.core.waits.schemas import parse_schema


@dataclass(frozen=True, slots=True)
class NewWaitpoint:
    """A waitpoint with its own token. If a waitpoint with the same key is open, the suspension uses that one.

    If the waitpoint has an approver, that approver is the source of all its signals, regardless of the sender's claim.
    `ends_at` is the time when the token expires. With a `schema`, payloads that do not fit are refused. `prompt` is
    shown to the approver.
    """

    key: str
    approver: str | None = None
    ends_at: datetime | None = None
    schema: str | Mapping[str, Any] | None = None
    prompt: ApprovalPrompt | None = None

    def __post_init__(self) -> None:
        validation.name(self.key, "key")
        if self.approver is not None:
            token_source(self.approver)
        if self.ends_at is not None:
            put(self, ends_at=validation.timestamp(self.ends_at, "ends_at"))
        if self.schema is not None:
            put(self, schema=parse_schema(self.schema))
        check_prompt(self.prompt)


@dataclass(frozen=True, slots=True)
class PendingWaitpoint:
    """A waitpoint that must already exist, because a worker created it earlier to hand out its token."""

    key: str

    def __post_init__(self) -> None:
        validation.name(self.key, "key")


@dataclass(frozen=True, slots=True)
class StandingWaitpoint:
    """A waitpoint that was declared in the submission. Each of its signals is used by only one wait.

    Without `after`, a suspension that signals satisfy consumes the signals that it returns. A worker that records which
    signals it used passes `after`: signals up to this sequence number do not count, except those in `skipped`. All
    other signals count, even if an earlier suspension has observed them.
    """

    key: str
    after: int | None = None
    skipped: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        validation.name(self.key, "key")
        if self.after is not None:
            validation.integer(self.after, "after", 0, validation.MAX_INTEGER)
        put(self, skipped=parse_skipped(self.skipped, self.after))

    def counts(self, seq: int) -> bool:
        """Return True if the signal with this sequence number can count."""
        return self.after is None or seq > self.after or seq in self.skipped


@dataclass(frozen=True, slots=True)
class Child:
    """A waitpoint for the end of another execution.

    When that execution ends, the engine delivers a signal that has the final state as its name.
    """

    key: str
    execution_id: UUID

    def __post_init__(self) -> None:
        validation.name(self.key, "key")
        put(self, execution_id=parse_id(self.execution_id, "execution_id"))


@dataclass(frozen=True, slots=True)
class Timer:
    """A waitpoint for a point in time. At that time, the engine delivers a signal named `timer`."""

    key: str
    at: datetime

    def __post_init__(self) -> None:
        validation.name(self.key, "key")
        put(self, at=validation.timestamp(self.at, "at"))


Bound = NewWaitpoint | PendingWaitpoint | StandingWaitpoint | Child | Timer


def binding_parts(binding: Bound) -> tuple[str | None, ...]:
    """Return the parts that a binding adds to a request's digest.

    Class names are not among them, so they may change.
    """
    match binding:
        case NewWaitpoint(key, approver, ends_at):
            # Schema and prompt follow from the code, which may change between a call and its repeat.
            return "new", key, approver, None if ends_at is None else ends_at.isoformat()
        case PendingWaitpoint(key):
            return "pending", key
        case StandingWaitpoint(key, after, skipped):
            # Digests of requests without positions are stored, so they must not change.
            return "standing", key, str(after or 0), *map(str, skipped)
        case Child(key, execution_id):
            return "child", key, str(execution_id)
        case Timer(key, at):
            return "timer", key, at.isoformat()


def parse_skipped(value: object, after: int | None = None) -> tuple[int, ...]:
    """Return the sequence numbers of skipped signals. With `after`, none may be larger."""
    if isinstance(value, (tuple, list)) and not value:
        return ()
    maximum = validation.MAX_INTEGER if after is None else after
    return tuple(
        validation.integer(seq, "sequence number of a skipped signal", 1, maximum)
        for seq in validation.batch(value, "skipped")
    )


def parse_bindings(value: object) -> tuple[Bound, ...]:
    """Return bindings with distinct keys; a string becomes a new waitpoint."""
    bindings = tuple(_parse_binding(item) for item in validation.batch(value, "waitpoints"))
    if len({item.key for item in bindings}) != len(bindings):
        message = "two waitpoints of one suspension have the same key; rename one"
        raise InvalidRequest("invalid_request", message, field="waitpoints")
    return bindings


def parse_new_waitpoints(value: object) -> tuple[NewWaitpoint, ...]:
    """Return new waitpoints with distinct keys; a string becomes a waitpoint with that key."""
    waitpoints = []
    for binding in parse_bindings(value):
        if not isinstance(binding, NewWaitpoint):
            raise validation.wrong_type("a waitpoint", "a key or a NewWaitpoint", binding, field="waitpoints")
        waitpoints.append(binding)
    return tuple(waitpoints)


def _parse_binding(value: object) -> Bound:
    if isinstance(value, str):
        return NewWaitpoint(value)
    if isinstance(value, Bound):
        return value
    kinds = "a key, NewWaitpoint, PendingWaitpoint, StandingWaitpoint, Child or Timer"
    raise validation.wrong_type("a waitpoint", kinds, value, field="waitpoints")
