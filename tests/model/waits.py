"""What the reference model remembers of waits, and its own reading of conditions.

A leaf of a condition wants a number of different things; the signals that brought the first of each, as long as more
were wanted, are those that count. That is all a condition is judged by, and it is worked out anew over all signals.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Protocol
from uuid import UUID, uuid5

from flowfabric.engine import (
    AllOf,
    AnyOf,
    BlockingReason,
    ByName,
    Condition,
    Count,
    Counted,
    Fence,
    OnTimeout,
    OpenWaitpoint,
    Rest,
    Secret,
    Single,
    SuspensionReason,
    Trigger,
    WaitpointKind,
    WaitpointState,
)

_NAMES = UUID(int=7)


def slot_symbol(execution_id: UUID, key: str, number: int) -> UUID:
    """The id that stands for the `number`-th waitpoint of an execution under a key."""
    return uuid5(_NAMES, f"{execution_id} waitpoint {key} {number}")


def signal_symbol(execution_id: UUID, seq: int) -> UUID:
    """The id that stands for the one of a signal that the engine sent itself."""
    return uuid5(_NAMES, f"{execution_id} signal {seq}")


def token_symbol(waitpoint_id: UUID) -> Secret:
    """What stands for the token of a waitpoint, of which there is only one."""
    return Secret(f"token of {waitpoint_id}")


@dataclass
class Slot:
    """A waitpoint."""

    id: UUID
    key: str
    kind: WaitpointKind
    created_at: datetime
    state: WaitpointState = WaitpointState.PENDING
    suspension: int | None = None
    kid: str | None = None
    approver: str | None = None
    token_ends_at: datetime | None = None
    expires_at: datetime | None = None
    fires_at: datetime | None = None
    closed_at: datetime | None = None
    close_reason: str | None = None

    @property
    def is_open(self) -> bool:
        return self.state is not WaitpointState.CLOSED

    def close(self, now: datetime, reason: str) -> None:
        """It takes nothing any more."""
        self.state, self.closed_at, self.close_reason = WaitpointState.CLOSED, now, reason


@dataclass
class Wait:
    """A suspension. `request` is what a repetition is compared by; `at_once`: it was satisfied when it was opened."""

    id: UUID
    number: int
    generation: int
    fence: Fence
    key: str | None
    request: tuple[Any, ...]
    condition: Condition
    reason: SuspensionReason
    rest: Rest
    opened_at: datetime
    timeout_at: datetime | None
    on_timeout: OnTimeout
    resume_delay: timedelta
    at_once: bool = False
    closed_at: datetime | None = None
    closed_by: Trigger | None = None
    bound: tuple[OpenWaitpoint, ...] = ()


@dataclass
class RingKey:
    """A key of the ring; `is_final` says that its end was given, and holds for open waitpoints too."""

    kid: str
    secret: str
    created_at: datetime
    retired_at: datetime | None = None
    verifies_until: datetime | None = None
    is_final: bool = False
    collected_at: datetime | None = None


@dataclass(frozen=True)
class TokenFacts:
    """What a token that was handed out is for."""

    namespace: str
    execution_id: UUID
    waitpoint_id: UUID
    kid: str


@dataclass
class Ring:
    """All keys, and every token that was ever minted."""

    keys: list[RingKey] = field(default_factory=list)
    tokens: dict[Secret, TokenFacts] = field(default_factory=dict)


class Sent(Protocol):
    """What a condition sees of a signal."""

    @property
    def id(self) -> UUID: ...
    @property
    def waitpoint(self) -> str: ...
    @property
    def name(self) -> str: ...
    @property
    def source(self) -> str: ...


def holds(condition: Condition, signals: Iterable[Sent]) -> bool:
    """True if these signals satisfy the condition."""
    known = list(signals)
    match condition:
        case AllOf():
            return all(holds(member, known) for member in condition.members)
        case AnyOf():
            return any(holds(member, known) for member in condition.members)
        case Single() | Count():
            return len(first_of_each(condition, known)) == _wanted(condition)
    return False


def counting(condition: Condition, signals: Iterable[Sent]) -> set[UUID]:
    """The ids of the signals that count, given all of them in order of acceptance."""
    known = list(signals)
    return {sent.id for leaf in leaves(condition) for sent in first_of_each(leaf, known)}


def counted(condition: Condition, before: Iterable[Sent], sent: Sent) -> Counted:
    """Whether a signal counts that comes after these."""
    concerned = [leaf for leaf in leaves(condition) if sent.waitpoint in keys_of(leaf)]
    if not concerned:
        return Counted.NOT_IN_CONDITION
    if not any(_fits(leaf, sent) for leaf in concerned):
        return Counted.NOT_MATCHED
    return Counted.YES if sent.id in counting(condition, [*before, sent]) else Counted.NOTHING_NEW


def needed_keys(condition: Condition, signals: Iterable[Sent]) -> set[str]:
    """The keys of what a satisfied condition has used: of an AnyOf only its satisfied members'."""
    known = list(signals)
    members = condition.members if isinstance(condition, AnyOf) else [condition]
    return {key for member in members if holds(member, known) for leaf in leaves(member) for key in keys_of(leaf)}


def leaves(condition: Condition) -> Iterator[Single | Count]:
    """The leaves that look at signals."""
    match condition:
        case AllOf() | AnyOf():
            for member in condition.members:
                yield from leaves(member)
        case Single() | Count():
            yield condition


def keys_of(leaf: Single | Count) -> tuple[str, ...]:
    """The waitpoints that a leaf looks at."""
    return (leaf.waitpoint,) if isinstance(leaf, Single) else tuple(leaf.waitpoints)


def first_of_each(leaf: Single | Count, signals: Iterable[Sent]) -> list[Sent]:
    """The signals that first brought each different thing to a leaf, as many as it wants."""
    brought: dict[Hashable, Sent] = {}
    for sent in signals:
        if sent.waitpoint in keys_of(leaf) and _fits(leaf, sent):
            brought.setdefault(_thing(leaf, sent), sent)
    return list(brought.values())[: _wanted(leaf)]


def _wanted(leaf: Single | Count) -> int:
    return leaf.n if isinstance(leaf, Count) else 1


def _fits(leaf: Single | Count, sent: Sent) -> bool:
    return not isinstance(leaf.matcher, ByName) or leaf.matcher.name == sent.name


def _thing(leaf: Single | Count, sent: Sent) -> Hashable:
    if isinstance(leaf, Single):
        return "any"
    return {"waitpoints": sent.waitpoint, "signals": sent.id, "sources": sent.source}[str(leaf.distinct)]


BLOCKED_BY = {
    SuspensionReason.WAITING_FOR_SIGNAL: BlockingReason.WAITING_FOR_SIGNAL,
    SuspensionReason.WAITING_FOR_APPROVAL: BlockingReason.WAITING_FOR_APPROVAL,
    SuspensionReason.MANUAL_PAUSE: BlockingReason.PAUSED_BY_OPERATOR,
}
