"""Whether signals satisfy a condition, and whether one more signal adds anything to it.

Every leaf that looks at signals wants a number of distinct items: a Single wants one match, a Count wants n waitpoints,
signals or sources. A signal *counts* if it brings a leaf an item that it has not got and still wants. Signals that do
not count need never be read again: as long as a leaf wants more, the counting signals hold every item that all signals
hold, and once it has enough, they hold enough too. So the counting signals satisfy a condition exactly when all signals
do, and there are never more of them than all leaves together want.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable
from enum import StrEnum
from uuid import UUID

from flowfabric.core.conditions import (
    AllOf,
    AnyOf,
    Condition,
    Count,
    Distinct,
    SignalLeaf,
    Single,
    keys_of,
    leaf_keys,
    leaves,
    matching_name,
)
from flowfabric.core.frozen import record


class Counted(StrEnum):
    """Whether a signal counts towards the condition, and if not, why."""

    YES = "yes"
    NOT_MATCHED = "not_matched"
    NOT_IN_CONDITION = "not_in_condition"
    NOTHING_NEW = "nothing_new"


@record(frozen=True, slots=True)
class SignalFacts:
    """What a condition sees of a signal: its id, its waitpoint's key, its name, its source, its place in acceptance."""

    id: UUID
    waitpoint: str
    name: str
    source: str
    order: int


def satisfied(condition: Condition, signals: Collection[SignalFacts]) -> bool:
    """True if the signals satisfy the condition; their order does not matter."""
    match condition:
        case Single() | Count():
            return len(items_of(condition, signals)) >= wanted(condition)
        case AllOf():
            return all(satisfied(member, signals) for member in condition.members)
        case AnyOf():
            return any(satisfied(member, signals) for member in condition.members)
    return False


def counts(condition: Condition, counting: Iterable[SignalFacts], signal: SignalFacts) -> Counted:
    """Whether a signal counts, after those that have counted so far."""
    tally = _Tally(condition)
    for earlier in counting:
        tally.add(earlier)
    return tally.add(signal)


def counting_signals(condition: Condition, signals: Iterable[SignalFacts]) -> tuple[SignalFacts, ...]:
    """Those of the signals that count, in the order of their acceptance."""
    tally = _Tally(condition)
    in_order = sorted(signals, key=lambda signal: signal.order)
    return tuple(signal for signal in in_order if tally.add(signal) is Counted.YES)


def most_counting(condition: Condition) -> int:
    """How many signals can count towards the condition at most."""
    return sum(wanted(leaf) for leaf in _signal_leaves(condition))


def satisfied_keys(condition: Condition, signals: Collection[SignalFacts]) -> tuple[str, ...]:
    """The keys of the waitpoints that close when a resume keeps the rest: those of the satisfied members of an AnyOf at
    the root, or all of another condition that is satisfied."""
    members = condition.members if isinstance(condition, AnyOf) else (condition,)
    met = (member for member in members if satisfied(member, signals))
    return tuple(dict.fromkeys(key for member in met for key in keys_of(member)))


def items_of(leaf: SignalLeaf, signals: Iterable[SignalFacts]) -> set[Hashable]:
    """The distinct items that the signals bring to a leaf."""
    return {_item(leaf, signal) for signal in signals if _looks_at(leaf, signal) and _matches(leaf, signal)}


def wanted(leaf: SignalLeaf) -> int:
    """How many distinct items satisfy a leaf."""
    return leaf.n if isinstance(leaf, Count) else 1


class _Tally:
    """The items that the leaves of a condition have got so far."""

    def __init__(self, condition: Condition) -> None:
        self._leaves: list[tuple[SignalLeaf, set[Hashable]]] = [(leaf, set()) for leaf in _signal_leaves(condition)]

    def add(self, signal: SignalFacts) -> Counted:
        concerned = [(leaf, items) for leaf, items in self._leaves if _looks_at(leaf, signal)]
        if not concerned:
            return Counted.NOT_IN_CONDITION
        matched = [(leaf, items) for leaf, items in concerned if _matches(leaf, signal)]
        if not matched:
            return Counted.NOT_MATCHED
        gaining = [
            (leaf, items) for leaf, items in matched if len(items) < wanted(leaf) and _item(leaf, signal) not in items
        ]
        for leaf, items in gaining:
            items.add(_item(leaf, signal))
        return Counted.YES if gaining else Counted.NOTHING_NEW


def _signal_leaves(condition: Condition) -> list[SignalLeaf]:
    return [leaf for _, leaf in leaves(condition) if isinstance(leaf, Single | Count)]


def _looks_at(leaf: SignalLeaf, signal: SignalFacts) -> bool:
    return signal.waitpoint in leaf_keys(leaf)


def _matches(leaf: SignalLeaf, signal: SignalFacts) -> bool:
    return matching_name(leaf) in (None, signal.name)


def _item(leaf: SignalLeaf, signal: SignalFacts) -> Hashable:
    """What a matching signal brings to a leaf; to a Single all of them bring the same."""
    if isinstance(leaf, Single):
        return True
    match leaf.distinct:
        case Distinct.WAITPOINTS:
            return signal.waitpoint
        case Distinct.SIGNALS:
            return signal.id
    return signal.source
