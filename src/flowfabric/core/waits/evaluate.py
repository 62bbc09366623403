"""Evaluation of conditions: whether signals satisfy them, whether a new signal counts, and which signals are missing.

Every Single and Count in a condition is a leaf, and needs a number of distinct values. A Single needs one matching
signal; a Count needs n distinct waitpoints, signals or sources. A signal *counts* if it brings a leaf a new value that
the leaf still needs. Signals that do not count are never read again. As long as a leaf needs more values, every signal
with a new value counts. So once all signals together bring a leaf enough values, the counting signals alone do so too.
It follows that the counting signals satisfy a condition exactly when all signals do. There are never more counting
signals than all leaves together need.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Final
from uuid import UUID

from flowfabric.core.fast_dataclass import record
from flowfabric.core.waits.conditions import (
    AllOf,
    AnyOf,
    Condition,
    Count,
    Distinct,
    OperatorOnly,
    SignalLeaf,
    Single,
    leaf_keys,
    leaves,
    matching_name,
    waitpoint_keys,
)
from flowfabric.core.waits.sources import source_name


class Counted(StrEnum):
    """Whether a signal counts towards the condition, or the reason why it does not."""

    YES = "yes"
    NOT_MATCHED = "not_matched"
    NOT_IN_CONDITION = "not_in_condition"
    NOTHING_NEW = "nothing_new"


@record(frozen=True, slots=True)
class SignalFacts:
    """The parts of a signal that conditions use. `waitpoint` is a key, and `order` is the order of acceptance."""

    id: UUID
    waitpoint: str
    name: str
    source: str
    order: int


def is_satisfied(condition: Condition, signals: Collection[SignalFacts]) -> bool:
    """Return True if the signals, in any order, satisfy the condition."""
    match condition:
        case Single() | Count():
            return len(distinct_values(condition, signals)) >= required(condition)
        case AllOf():
            return all(is_satisfied(member, signals) for member in condition.members)
        case AnyOf():
            return any(is_satisfied(member, signals) for member in condition.members)
    return False


def judge_signal(condition: Condition, counting: Iterable[SignalFacts], signal: SignalFacts) -> Counted:
    """Return whether a new signal counts, given the earlier signals that count."""
    tally = _Tally(condition)
    for earlier in counting:
        tally.add(earlier)
    return tally.add(signal)


def counting_signals(condition: Condition, signals: Iterable[SignalFacts]) -> tuple[SignalFacts, ...]:
    """Return the signals that count, in order of acceptance."""
    tally = _Tally(condition)
    in_order = sorted(signals, key=lambda signal: signal.order)
    return tuple(signal for signal in in_order if tally.add(signal) is Counted.YES)


def satisfied_keys(condition: Condition, signals: Collection[SignalFacts]) -> tuple[str, ...]:
    """Return the keys of the waitpoints that satisfied the condition; a suspension with `keep` closes only these.

    For an AnyOf, these are the keys in its satisfied members; for any other satisfied condition, all its keys.
    """
    members = condition.members if isinstance(condition, AnyOf) else (condition,)
    met = (member for member in members if is_satisfied(member, signals))
    return tuple(dict.fromkeys(key for member in met for key in waitpoint_keys(member)))


def signal_limits(condition: Condition) -> dict[str, int]:
    """Return, for each key of the condition, how many signals at that waitpoint can count."""
    limits: dict[str, int] = {}
    for leaf in _signal_leaves(condition):
        each = 1 if isinstance(leaf, Count) and leaf.distinct is Distinct.WAITPOINTS else required(leaf)
        for key in leaf_keys(leaf):
            limits[key] = limits.get(key, 0) + each
    return limits


def unfilled_keys(condition: Condition, signals: Collection[SignalFacts]) -> set[str]:
    """Return the keys of the waitpoints at which more signals than these could count."""
    return {
        key
        for leaf in _signal_leaves(condition)
        if len(distinct_values(leaf, signals)) < required(leaf)
        for key in leaf_keys(leaf)
    }


def distinct_values(leaf: SignalLeaf, signals: Iterable[SignalFacts]) -> set[Hashable]:
    """Return the distinct values that the signals bring to a leaf."""
    return {_distinct_value(leaf, signal) for signal in signals if _covers(leaf, signal) and _matches(leaf, signal)}


def required(leaf: SignalLeaf) -> int:
    """Return how many distinct values a leaf needs."""
    return leaf.n if isinstance(leaf, Count) else 1


class _Tally:
    """The distinct values that each leaf of a condition already has."""

    def __init__(self, condition: Condition) -> None:
        self._leaves: list[tuple[SignalLeaf, set[Hashable]]] = [(leaf, set()) for leaf in _signal_leaves(condition)]

    def add(self, signal: SignalFacts) -> Counted:
        covering = [(leaf, items) for leaf, items in self._leaves if _covers(leaf, signal)]
        if not covering:
            return Counted.NOT_IN_CONDITION
        matched = [(leaf, items) for leaf, items in covering if _matches(leaf, signal)]
        if not matched:
            return Counted.NOT_MATCHED
        gaining = [
            (leaf, items)
            for leaf, items in matched
            if len(items) < required(leaf) and _distinct_value(leaf, signal) not in items
        ]
        for leaf, values in gaining:
            values.add(_distinct_value(leaf, signal))
        return Counted.YES if gaining else Counted.NOTHING_NEW


def _signal_leaves(condition: Condition) -> list[SignalLeaf]:
    return [leaf for _, leaf in leaves(condition) if isinstance(leaf, Single | Count)]


def _covers(leaf: SignalLeaf, signal: SignalFacts) -> bool:
    return signal.waitpoint in leaf_keys(leaf)


def _matches(leaf: SignalLeaf, signal: SignalFacts) -> bool:
    return matching_name(leaf) in (None, signal.name)


def _distinct_value(leaf: SignalLeaf, signal: SignalFacts) -> Hashable:
    """Return the value that a matching signal brings to a leaf; all signals bring a Single the same value."""
    if isinstance(leaf, Single):
        return True
    match leaf.distinct:
        case Distinct.WAITPOINTS:
            return signal.waitpoint
        case Distinct.SIGNALS:
            return signal.id
    return signal.source


# These functions describe the progress of a condition in words.

APPROVE: Final = "approve"
REJECT: Final = "reject"
_MAX_NAMES = 5


@record(frozen=True, slots=True, kw_only=True)
class ApprovalProgress:
    """Progress of an approval: who has decided, and who must still decide.

    `required` approvals satisfy it. `rejections` is how many rejections end the approval, or None if rejections do not
    count.
    """

    name: str | None
    required: int
    rejections: int | None
    approved: tuple[str, ...]
    rejected: tuple[str, ...]
    undecided: tuple[str, ...]

    @property
    def result(self) -> str | None:
        """Who approved or rejected it, for use in a sentence, or None if the approval is not decided."""
        if len(self.approved) >= self.required:
            return f"{join_names(self.approved)} approved it"
        is_rejected = self.rejections is not None and len(self.rejected) >= self.rejections
        return f"{join_names(self.rejected)} rejected it" if is_rejected else None

    @property
    def counts(self) -> str:
        """The number of approvals, and who has decided, as in `1 of 2 (ops approved; finance has not decided)`."""
        undecided = f"{join_names(self.undecided)} {'has' if len(self.undecided) == 1 else 'have'} not decided"
        parts = [
            f"{join_names(self.approved)} approved" if self.approved else "",
            f"{join_names(self.rejected)} rejected" if self.rejected else "",
            undecided if self.undecided else "",
        ]
        decisions = "; ".join(part for part in parts if part) or "no decision yet"
        return f"{len(self.approved)} of {self.required} ({decisions})"

    def __str__(self) -> str:
        named = "" if self.name is None else f' "{self.name}"'
        return f"approval{named}: {self.counts}"


def approval_progress(
    condition: Condition, signals: Collection[SignalFacts], approvers: Mapping[str, str] | None = None
) -> ApprovalProgress | None:
    """Return the progress of a condition that counts the sources of approvals; None for any other condition.

    `approvers` maps the key of a waitpoint to the approver that its token was made for.
    """
    counts = _approval_counts(condition)
    if counts is None:
        return None
    approve, reject = counts
    approvers = approvers or {}
    approved = _deciders(approve, signals, approvers)
    rejected = _deciders(reject, signals, approvers) if reject else ()
    declared = dict.fromkeys(approvers[key] for key in approve.waitpoints if key in approvers)
    return ApprovalProgress(
        name=_approval_name(approve.waitpoints, approvers),
        required=approve.n,
        rejections=reject.n if reject else None,
        approved=approved,
        rejected=rejected,
        undecided=tuple(approver for approver in declared if approver not in {*approved, *rejected}),
    )


def _approval_counts(condition: Condition) -> tuple[Count, Count | None] | None:
    """Return the two Count conditions of an approval, for approvals and for rejections; None for other conditions."""
    match condition:
        case Count(distinct=Distinct.SOURCES):
            return condition, None
        case AnyOf(members=(Count(distinct=Distinct.SOURCES) as approve, Count(distinct=Distinct.SOURCES) as reject)):
            names = (matching_name(approve), matching_name(reject))
            if names == (APPROVE, REJECT) and approve.waitpoints == reject.waitpoints:
                return approve, reject
    return None


def is_approval(condition: Condition) -> bool:
    """Return True if the condition waits for enough approvals or enough rejections on the same waitpoints."""
    return isinstance(condition, AnyOf) and _approval_counts(condition) is not None


def find_approval(condition: Condition, key: str) -> Condition | None:
    """Return the part of the condition that is an approval with this waitpoint, or None if there is no such part."""
    if is_approval(condition) and key in waitpoint_keys(condition):
        return condition
    members = condition.members if isinstance(condition, AllOf | AnyOf) else ()
    return next((found for member in members if (found := find_approval(member, key)) is not None), None)


def _deciders(count: Count, signals: Iterable[SignalFacts], approvers: Mapping[str, str]) -> tuple[str, ...]:
    decisions = [signal for signal in signals if _covers(count, signal) and _matches(count, signal)]
    names = (approvers.get(signal.waitpoint) or source_name(signal.source) for signal in decisions)
    return tuple(dict.fromkeys(names))


def _approval_name(keys: Sequence[str], approvers: Mapping[str, str]) -> str | None:
    """Return the approval's name from its keys: `refund` for `approval:refund[ops]` and `approval:refund[legal]`."""
    stems = {key.removesuffix(f"[{approvers[key]}]") if key in approvers else key for key in keys}
    return stems.pop().rpartition("approval:")[2] if len(stems) == 1 else None


def missing_signals(
    condition: Condition,
    signals: Collection[SignalFacts],
    approvers: Mapping[str, str] | None = None,
    engine_signals: Mapping[str, str] | None = None,
) -> tuple[str, ...]:
    """Return one line for each thing that must still happen, or no lines if the signals satisfy the condition.

    `approvers` maps the key of a waitpoint to its approver. If `approvers` is given, a Count of sources at waitpoints
    without an approver is marked as not verified. `engine_signals` maps the key of each waitpoint that the engine
    itself signals, for a child or a timer, to a description.
    """
    return _missing_lines(condition, signals, _Labels(approvers, engine_signals or {}))


@record(frozen=True, slots=True)
class _Labels:
    """The approvers of waitpoints by key, and descriptions by key of the waitpoints that the engine signals."""

    approvers: Mapping[str, str] | None
    engine_signals: Mapping[str, str]


def _missing_lines(condition: Condition, signals: Collection[SignalFacts], labels: _Labels) -> tuple[str, ...]:
    if is_satisfied(condition, signals):
        return ()
    if isinstance(condition, AllOf):
        return tuple(line for member in condition.members for line in _missing_lines(member, signals, labels))
    return (_describe_missing(condition, signals, labels),)


def _describe_missing(condition: Condition, signals: Collection[SignalFacts], labels: _Labels) -> str:
    """Describe in one line what must still happen to satisfy a condition."""
    match condition:
        case AllOf():
            missing = [member for member in condition.members if not is_satisfied(member, signals)]
            return " and ".join(_in_brackets(member, _describe_missing(member, signals, labels)) for member in missing)
        case AnyOf():
            if is_approval(condition):
                return str(approval_progress(condition, signals, labels.approvers))
            ways = [member for member in condition.members if not _is_early_end(member, condition, labels)]
            return " or ".join(_in_brackets(member, _describe_missing(member, signals, labels)) for member in ways)
        case Single():
            fed = labels.engine_signals.get(condition.waitpoint)
            return fed or f'{_describe_signal(condition)} on waitpoint "{condition.waitpoint}"'
        case Count():
            return _describe_count(condition, signals, labels) + _describe_trust(condition, labels.approvers)
        case OperatorOnly():
            return "an operator to resume it"
    return "its timeout"


def _is_early_end(member: Condition, whole: AnyOf, labels: _Labels) -> bool:
    """Return True for a Count of failed children, which descriptions omit if `whole` also counts all ended children."""
    if not isinstance(member, Count) or matching_name(member) is None:
        return False
    others = [other for other in whole.members if isinstance(other, Count) and matching_name(other) is None]
    is_fed = all(key in labels.engine_signals for key in member.waitpoints)
    return is_fed and any(other.waitpoints == member.waitpoints for other in others)


def _in_brackets(member: Condition, text: str) -> str:
    """Put a compound member in brackets, so that the order of `and` and `or` is clear."""
    compound = isinstance(member, AllOf | AnyOf) and len(member.members) > 1 and not is_approval(member)
    return f"({text})" if compound else text


def _describe_count(count: Count, signals: Collection[SignalFacts], labels: _Labels) -> str:
    present = distinct_values(count, signals)
    missing = f"{required(count) - len(present)} more of {count.n}"
    name = matching_name(count)
    named = "" if name is None else f' "{name}"'
    if count.distinct is Distinct.WAITPOINTS:
        keys = [key for key in count.waitpoints if key not in present]
        if all(key in labels.engine_signals for key in keys):
            return f"{missing} children{' to end as' + named if named else ''}: {join_names(keys, quote=True)}"
        return f"{_describe_signal(count)} on {missing} waitpoints: {join_names(keys, quote=True)}"
    on = join_names(count.waitpoints, quote=True)
    if count.distinct is Distinct.SIGNALS:
        return f"{missing} signals{named} on {on}"
    return f"{missing} sources{' of signal' + named if named else ''} on {on}"


def _describe_trust(count: Count, approvers: Mapping[str, str] | None) -> str:
    if count.distinct is not Distinct.SOURCES or approvers is None:
        return ""
    unverified = [key for key in count.waitpoints if key not in approvers]
    if not unverified:
        return ""
    some = "" if len(unverified) == len(count.waitpoints) else f" on {join_names(unverified, quote=True)}"
    return f" (sources{some} are not verified)"


def _describe_signal(leaf: SignalLeaf) -> str:
    name = matching_name(leaf)
    return "a signal" if name is None else f'signal "{name}"'


def join_names(names: Sequence[str], *, quote: bool = False) -> str:
    """Join names for a sentence, as in `a, b and c`. For a long list, show five names and the number of the others."""
    words = [f'"{name}"' if quote else name for name in names[:_MAX_NAMES]]
    if len(names) > _MAX_NAMES:
        words.append(f"{len(names) - _MAX_NAMES} more")
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)
