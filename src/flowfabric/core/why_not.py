"""What a condition still waits for, in words for people."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from flowfabric.core.conditions import (
    AllOf,
    AnyOf,
    Condition,
    Count,
    Distinct,
    OperatorOnly,
    SignalLeaf,
    Single,
    matching_name,
)
from flowfabric.core.evaluating import SignalFacts, items_of, satisfied, wanted

_SHOWN = 3


def why_not(
    condition: Condition, signals: Collection[SignalFacts], approver_bound: Collection[str] | None = None
) -> tuple[str, ...]:
    """What is missing, one line per thing that must still happen; nothing if the signals satisfy the condition.

    Told which waitpoints have an approver, it says of a count of sources on others that it takes them on trust.
    """
    if satisfied(condition, signals):
        return ()
    if isinstance(condition, AllOf):
        return tuple(line for member in condition.members for line in why_not(member, signals, approver_bound))
    return (_missing(condition, signals, approver_bound),)


def _missing(condition: Condition, signals: Collection[SignalFacts], approver_bound: Collection[str] | None) -> str:
    """What an unsatisfied condition lacks, as one line."""
    match condition:
        case AllOf():
            lacking = [member for member in condition.members if not satisfied(member, signals)]
            return " and ".join(_enclosed(member, _missing(member, signals, approver_bound)) for member in lacking)
        case AnyOf():
            ways = [_enclosed(member, _missing(member, signals, approver_bound)) for member in condition.members]
            return " or ".join(ways)
        case Single():
            return f"{_signal(condition)} on {condition.waitpoint!r}"
        case Count():
            return _missing_items(condition, signals) + _on_trust(condition, approver_bound)
        case OperatorOnly():
            return "an operator's resume"
    return "the timeout"


def _enclosed(member: Condition, text: str) -> str:
    """Brackets around what has several parts, so that nobody must know whether `and` or `or` comes first."""
    return f"({text})" if isinstance(member, AllOf | AnyOf) and len(member.members) > 1 else text


def _missing_items(count: Count, signals: Collection[SignalFacts]) -> str:
    items = items_of(count, signals)
    more = wanted(count) - len(items)
    name = matching_name(count)
    named = "" if name is None else f" named {name!r}"
    match count.distinct:
        case Distinct.WAITPOINTS:
            left = [key for key in count.waitpoints if key not in items]
            return f"{_signal(count)} on {more} more of {_listed(left)} ({count.n} waitpoints needed)"
        case Distinct.SIGNALS:
            return f"{more} more of {count.n} signals{named} on {_listed(count.waitpoints)}"
    sent = f" with a signal{named}" if named else ""
    return f"{more} more of {count.n} distinct sources{sent} on {_listed(count.waitpoints)}"


def _on_trust(count: Count, approver_bound: Collection[str] | None) -> str:
    if count.distinct is not Distinct.SOURCES or approver_bound is None:
        return ""
    trusted = [key for key in count.waitpoints if key not in approver_bound]
    if not trusted:
        return ""
    return " (sources on trust)" if len(trusted) == len(count.waitpoints) else f" (on trust on {_listed(trusted)})"


def _signal(leaf: SignalLeaf) -> str:
    name = matching_name(leaf)
    return "any signal" if name is None else f"a signal named {name!r}"


def _listed(keys: Sequence[str]) -> str:
    shown = ", ".join(repr(key) for key in keys[:_SHOWN])
    return shown if len(keys) <= _SHOWN else f"{shown} and {len(keys) - _SHOWN} more"
