"""The wait records of the reference model, and its own evaluation of conditions.

A leaf of a condition requires a number of distinct values, such as sources. A signal counts if it brings a new value,
until that number is reached. The model evaluates all signals again for each new signal.
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
    Secret,
    Single,
    SuspensionReason,
    Trigger,
    UnusedWaitpoints,
    WaitpointKind,
    WaitpointState,
)

_NAMES = UUID(int=7)


def slot_symbol(execution_id: UUID, key: str, number: int) -> UUID:
    """Return the symbol of the `number`-th waitpoint of an execution under a key."""
    return uuid5(_NAMES, f"{execution_id} waitpoint {key} {number}")


def signal_symbol(execution_id: UUID, seq: int) -> UUID:
    """Return the symbol of a signal that the engine sent."""
    return uuid5(_NAMES, f"{execution_id} signal {seq}")


def token_symbol(waitpoint_id: UUID) -> Secret:
    """Return the symbol for the token of a waitpoint."""
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
        """Close the waitpoint for signals."""
        self.state, self.closed_at, self.close_reason = WaitpointState.CLOSED, now, reason


@dataclass
class Wait:
    """A suspension.

    A repeated call must have an equal `request`. `is_immediate` means that the condition was already satisfied when the
    suspension was opened.
    """

    id: UUID
    number: int
    generation: int
    fence: Fence
    key: str | None
    request: tuple[Any, ...]
    condition: Condition
    reason: SuspensionReason
    unused_waitpoints: UnusedWaitpoints
    opened_at: datetime
    timeout_at: datetime | None
    on_timeout: OnTimeout
    resume_delay: timedelta
    is_immediate: bool = False
    closed_at: datetime | None = None
    closed_by: Trigger | None = None
    bound: tuple[OpenWaitpoint, ...] = ()


@dataclass
class RingKey:
    """A key of the key ring.

    `is_final` means that the rotation set an explicit grace: the key stops verifying at `verifies_until`, even if open
    waitpoints still have its tokens.
    """

    kid: str
    secret: str
    created_at: datetime
    retired_at: datetime | None = None
    verifies_until: datetime | None = None
    is_final: bool = False
    collected_at: datetime | None = None


@dataclass(frozen=True)
class TokenFacts:
    """The namespace, execution, waitpoint and key of a token."""

    namespace: str
    execution_id: UUID
    waitpoint_id: UUID
    kid: str


@dataclass
class Ring:
    """All keys, and every token that was ever minted."""

    keys: list[RingKey] = field(default_factory=list)
    tokens: dict[Secret, TokenFacts] = field(default_factory=dict)


class SignalLike(Protocol):
    """The fields of a signal that a condition uses."""

    @property
    def id(self) -> UUID: ...
    @property
    def waitpoint(self) -> str: ...
    @property
    def name(self) -> str: ...
    @property
    def source(self) -> str: ...


def is_satisfied(condition: Condition, signals: Iterable[SignalLike]) -> bool:
    """Return True if these signals satisfy the condition."""
    all_signals = list(signals)
    match condition:
        case AllOf():
            return all(is_satisfied(member, all_signals) for member in condition.members)
        case AnyOf():
            return any(is_satisfied(member, all_signals) for member in condition.members)
        case Single() | Count():
            return len(find_first_of_each(condition, all_signals)) == _required_number(condition)
    return False


def find_counting(condition: Condition, signals: Iterable[SignalLike]) -> set[UUID]:
    """Return the ids of the signals that count for the condition. `signals` must be in the order of acceptance."""
    all_signals = list(signals)
    return {signal.id for leaf in leaves(condition) for signal in find_first_of_each(leaf, all_signals)}


def count_signal(condition: Condition, earlier: Iterable[SignalLike], signal: SignalLike) -> Counted:
    """Return whether the signal counts if it arrives after the earlier signals."""
    leaves_of_waitpoint = [leaf for leaf in leaves(condition) if signal.waitpoint in keys_of(leaf)]
    if not leaves_of_waitpoint:
        return Counted.NOT_IN_CONDITION
    if not any(_fits(leaf, signal) for leaf in leaves_of_waitpoint):
        return Counted.NOT_MATCHED
    return Counted.YES if signal.id in find_counting(condition, [*earlier, signal]) else Counted.NOTHING_NEW


def needed_keys(condition: Condition, signals: Iterable[SignalLike]) -> set[str]:
    """Return the keys of the waitpoints that satisfied a condition.

    For an `AnyOf`, return only the keys of its satisfied members.
    """
    all_signals = list(signals)
    members = condition.members if isinstance(condition, AnyOf) else [condition]
    return {
        key
        for member in members
        if is_satisfied(member, all_signals)
        for leaf in leaves(member)
        for key in keys_of(leaf)
    }


def leaves(condition: Condition) -> Iterator[Single | Count]:
    """Yield the leaves that depend on signals."""
    match condition:
        case AllOf() | AnyOf():
            for member in condition.members:
                yield from leaves(member)
        case Single() | Count():
            yield condition


def keys_of(leaf: Single | Count) -> tuple[str, ...]:
    """Return the keys of a leaf's waitpoints."""
    return (leaf.waitpoint,) if isinstance(leaf, Single) else tuple(leaf.waitpoints)


def find_first_of_each(leaf: Single | Count, signals: Iterable[SignalLike]) -> list[SignalLike]:
    """Return the signals that first brought each distinct value to a leaf, up to its required number."""
    first_by_value: dict[Hashable, SignalLike] = {}
    for signal in signals:
        if signal.waitpoint in keys_of(leaf) and _fits(leaf, signal):
            first_by_value.setdefault(_distinct_value(leaf, signal), signal)
    return list(first_by_value.values())[: _required_number(leaf)]


def _required_number(leaf: Single | Count) -> int:
    return leaf.n if isinstance(leaf, Count) else 1


def _fits(leaf: Single | Count, signal: SignalLike) -> bool:
    return not isinstance(leaf.matcher, ByName) or leaf.matcher.name == signal.name


def _distinct_value(leaf: Single | Count, signal: SignalLike) -> Hashable:
    if isinstance(leaf, Single):
        return "any"
    return {"waitpoints": signal.waitpoint, "signals": signal.id, "sources": signal.source}[str(leaf.distinct)]


BLOCKED_BY = {
    SuspensionReason.WAITING_FOR_SIGNAL: BlockingReason.WAITING_FOR_SIGNAL,
    SuspensionReason.WAITING_FOR_APPROVAL: BlockingReason.WAITING_FOR_APPROVAL,
    SuspensionReason.MANUAL_PAUSE: BlockingReason.PAUSED_BY_OPERATOR,
}
