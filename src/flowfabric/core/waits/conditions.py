"""Conditions over the signals of waitpoints, which a suspended execution waits for.

    Single(waitpoint, matcher)                a matching signal has arrived at the waitpoint
    AllOf(members), AnyOf(members)            every member holds; at least one does
    Count(n, distinct, waitpoints, matcher)   matching signals have n distinct waitpoints, signals or sources
    OperatorOnly()                            no signal ends the wait, only an operator's resume
    TimeoutOnly()                             no signal ends the wait, only the timeout

A condition has at most 4 levels of AllOf, AnyOf and Count, 64 leaves and 64 waitpoints. The sum of all `n` is at most
1,000. Each condition checks these limits when it is created. `validate` makes the checks that depend on the suspension.
An error names the invalid member by its path, such as `members[0].members[1]`. The path starts at the condition that
was created or checked; an empty path means that condition itself.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from flowfabric.core import validation
from flowfabric.core.errors import InvalidRequest
from flowfabric.core.fast_dataclass import put

MAX_NESTING = 4
MAX_LEAVES = 64
MAX_WAITPOINTS = 64
MAX_TOTAL_N = 1000


class Distinct(StrEnum):
    """The part of a signal that must differ from earlier signals for the signal to count."""

    WAITPOINTS = "waitpoints"
    SIGNALS = "signals"
    SOURCES = "sources"


@dataclass(frozen=True, slots=True)
class ByName:
    """Matches signals with this name."""

    name: str

    def __post_init__(self) -> None:
        put(self, name=validation.name(self.name, "name"))


@dataclass(frozen=True, slots=True)
class AnySignal:
    """Matches every signal."""


Matcher = ByName | AnySignal


@dataclass(frozen=True, slots=True)
class Single:
    """Holds when a matching signal has arrived at the waitpoint. A string matches by name, None matches any signal."""

    waitpoint: str
    matcher: Matcher | str | None = None

    def __post_init__(self) -> None:
        put(self, waitpoint=validation.name(self.waitpoint, "waitpoint"), matcher=_matcher(self.matcher))


@dataclass(frozen=True, slots=True)
class Count:
    """Holds when matching signals on the waitpoints have `n` distinct waitpoints, signals or sources."""

    n: int
    distinct: Distinct | str
    waitpoints: Sequence[str]
    matcher: Matcher | str | None = None

    def __post_init__(self) -> None:
        put(
            self,
            n=_number(self.n),
            distinct=validation.parse_choice(Distinct, self.distinct, "distinct", path=""),
            waitpoints=_waitpoints(self.waitpoints),
            matcher=_matcher(self.matcher),
        )
        if self.distinct is Distinct.WAITPOINTS and self.n > len(self.waitpoints):
            number = len(self.waitpoints)
            message = f"n is {self.n} but there are only {number} waitpoints; lower n or add waitpoints"
            raise InvalidRequest("count_exceeds_waitpoint_set", message, path="", n=self.n, waitpoints=number)


@dataclass(frozen=True, slots=True)
class AllOf:
    """Holds when every member holds."""

    members: Sequence[Condition]

    def __post_init__(self) -> None:
        put(self, members=_members(self.members))
        if not self.members:
            raise InvalidRequest("allof_empty_members", "AllOf needs at least one member; add one", path="")
        _check_size(self)


@dataclass(frozen=True, slots=True)
class AnyOf:
    """Holds when at least one member holds."""

    members: Sequence[Condition]

    def __post_init__(self) -> None:
        put(self, members=_members(self.members))
        if not self.members:
            raise InvalidRequest("anyof_empty_members", "AnyOf needs at least one member; add one", path="")
        _check_size(self)


@dataclass(frozen=True, slots=True)
class OperatorOnly:
    """No signal satisfies this condition: an operator resumes the execution, or the timeout ends the wait."""


@dataclass(frozen=True, slots=True)
class TimeoutOnly:
    """No signal satisfies this condition: only the timeout ends the wait, so a timeout is required."""


SignalLeaf = Single | Count
Leaf = Single | Count | OperatorOnly | TimeoutOnly
Condition = Single | Count | AllOf | AnyOf | OperatorOnly | TimeoutOnly


def validate(
    condition: Condition,
    bound_keys: Collection[str],
    *,
    has_timeout: bool,
    approvers: Mapping[str, str] | None = None,
) -> None:
    """Raise unless a suspension that binds these waitpoints can wait for the condition.

    `approvers` maps the key of a waitpoint to its approver. If the condition names no waitpoint, the suspension may
    bind any waitpoints; their signals are stored but do not end the wait.
    """
    if not isinstance(condition, Condition):
        kinds = "Single, Count, AllOf, AnyOf, OperatorOnly or TimeoutOnly"
        raise validation.wrong_type("condition", kinds, condition, path="")
    _check_size(condition)
    for path, leaf in leaves(condition):
        if isinstance(leaf, TimeoutOnly) and not has_timeout:
            message = _prefix_path(path, "TimeoutOnly without a timeout never ends; set a timeout")
            raise InvalidRequest("timeout_only_without_deadline", message, path=path)
        _check_sources(path, leaf, approvers or {})
    _check_bindings(condition, bound_keys)


def leaves(condition: Condition) -> Iterator[tuple[str, Leaf]]:
    """Yield every leaf with its path, from left to right."""
    for path, _, node in _walk(condition):
        if not isinstance(node, AllOf | AnyOf):
            yield path, node


def waitpoint_keys(condition: Condition) -> tuple[str, ...]:
    """Return the keys of the waitpoints in the condition, without duplicates, in order."""
    return tuple(dict.fromkeys(key for _, leaf in leaves(condition) for key in leaf_keys(leaf)))


def leaf_keys(leaf: Leaf) -> Sequence[str]:
    """Return the keys of the waitpoints of a leaf."""
    match leaf:
        case Single():
            return (leaf.waitpoint,)
        case Count():
            return leaf.waitpoints
    return ()


def matching_name(leaf: SignalLeaf) -> str | None:
    """Return the signal name that a leaf requires; None if any signal matches."""
    return leaf.matcher.name if isinstance(leaf.matcher, ByName) else None


def required_signal_names(condition: Condition, key: str) -> tuple[str, ...] | None:
    """Return the signal names that the condition needs at a waitpoint; None means any, an empty tuple none."""
    names: dict[str, None] = {}
    for _, leaf in leaves(condition):
        if isinstance(leaf, Single | Count) and key in leaf_keys(leaf):
            name = matching_name(leaf)
            if name is None:
                return None
            names[name] = None
    return tuple(names)


def _walk(condition: Condition, path: str = "", above: int = 0) -> Iterator[tuple[str, int, Condition]]:
    """Yield every node with its path and nesting level, parents first, so that a check can stop early."""
    level = above if isinstance(condition, Single | OperatorOnly | TimeoutOnly) else above + 1
    yield path, level, condition
    if isinstance(condition, AllOf | AnyOf):
        for index, member in enumerate(condition.members):
            yield from _walk(member, f"{path}.members[{index}]" if path else f"members[{index}]", level)


def _check_size(condition: Condition) -> None:
    leaf_count, total, keys = 0, 0, set[str]()
    for path, level, node in _walk(condition):
        if level > MAX_NESTING:
            message = _prefix_path(path, f"the condition nests deeper than {MAX_NESTING} levels; flatten it")
            raise InvalidRequest("condition_depth_exceeded", message, path=path, depth=level, limit=MAX_NESTING)
        if isinstance(node, AllOf | AnyOf):
            continue
        leaf_count, total = leaf_count + 1, total + (node.n if isinstance(node, Count) else 0)
        keys.update(leaf_keys(node))
        if leaf_count > MAX_LEAVES:
            raise InvalidRequest("too_many_leaves", _prefix_path(path, _TOO_MANY_LEAVES), path=path, limit=MAX_LEAVES)
        if total > MAX_TOTAL_N:
            raise InvalidRequest("count_n_too_large", _prefix_path(path, _N_TOO_LARGE), path=path, limit=MAX_TOTAL_N)
        if len(keys) > MAX_WAITPOINTS:
            message = _prefix_path(path, _TOO_MANY_WAITPOINTS)
            raise InvalidRequest("too_many_waitpoints", message, path=path, limit=MAX_WAITPOINTS)


def _check_bindings(condition: Condition, bound_keys: Collection[str]) -> None:
    if len(bound_keys) > MAX_WAITPOINTS:
        raise InvalidRequest("too_many_waitpoints", _TOO_MANY_WAITPOINTS, path="", limit=MAX_WAITPOINTS)
    for path, leaf in leaves(condition):
        for key in leaf_keys(leaf):
            if key not in bound_keys:
                shown = validation.preview(key)
                message = _prefix_path(path, f"waitpoint {shown} is not bound by this suspension; bind it")
                raise InvalidRequest("waitpoint_not_bound", message, path=path, waitpoint=key)
    named = waitpoint_keys(condition)
    unused = tuple(key for key in bound_keys if key not in named) if named else ()
    if unused:
        message = f"waitpoint {validation.preview(unused[0])} is bound but not used in the condition; remove it"
        raise InvalidRequest("waitpoint_not_used", message, path="", waitpoints=unused)


def _check_sources(path: str, leaf: Leaf, approvers: Mapping[str, str]) -> None:
    """Raise if a Count of sources needs more distinct sources than there are approvers for its waitpoints."""
    if not isinstance(leaf, Count) or leaf.distinct is not Distinct.SOURCES:
        return
    sources = {approvers.get(key) for key in leaf.waitpoints}
    if None not in sources and leaf.n > len(sources):
        problem = f"n is {leaf.n} but the waitpoints have only {len(sources)} approvers; lower n or add approvers"
        message = _prefix_path(path, problem)
        raise InvalidRequest("count_exceeds_sources", message, path=path, n=leaf.n, sources=len(sources))


def _matcher(value: object) -> Matcher:
    match value:
        case None:
            return AnySignal()
        case str():
            return ByName(value)
        case ByName() | AnySignal():
            return value
    raise validation.wrong_type("matcher", "a signal name, None, ByName or AnySignal", value, path="")


def _number(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise validation.wrong_type("n", "an integer", value, path="")
    if value < 1:
        raise InvalidRequest("count_n_zero", "n must be at least 1", path="", field="n")
    if value > MAX_TOTAL_N:
        raise InvalidRequest("count_n_too_large", _N_TOO_LARGE, path="", field="n", limit=MAX_TOTAL_N)
    return value


def _waitpoints(value: object) -> tuple[str, ...]:
    items = _sequence(value, "waitpoints", "a list of keys")
    if not items:
        message = "Count needs at least one waitpoint; add one"
        raise InvalidRequest("count_waitpoints_empty", message, path="", field="waitpoints")
    # Duplicates are dropped. A list that is far too long is not read to its end.
    unique = dict.fromkeys(
        validation.name(item, f"waitpoints[{index}]") for index, item in enumerate(items[: validation.MAX_BATCH])
    )
    if len(unique) > MAX_WAITPOINTS or len(items) > validation.MAX_BATCH:
        limits = {"field": "waitpoints", "limit": MAX_WAITPOINTS}
        raise InvalidRequest("too_many_waitpoints", _TOO_MANY_WAITPOINTS, path="", **limits)
    return tuple(unique)


def _members(value: object) -> tuple[Condition, ...]:
    members: list[Condition] = []
    for index, item in enumerate(_sequence(value, "members", "a list of conditions")):
        path = f"members[{index}]"
        if not isinstance(item, Condition):
            raise validation.wrong_type(path, "a condition", item, path=path)
        if index >= MAX_LEAVES:
            raise InvalidRequest("too_many_leaves", _prefix_path(path, _TOO_MANY_LEAVES), path=path, limit=MAX_LEAVES)
        members.append(item)
    return tuple(members)


def _sequence(value: object, field: str, expected: str) -> Sequence[object]:
    if isinstance(value, str | bytes) or not isinstance(value, Sequence):
        raise validation.wrong_type(field, expected, value, path="")
    return value


def _prefix_path(path: str, message: str) -> str:
    return f"{path}: {message}" if path else message


_N_TOO_LARGE = f"the n of all Counts add up to more than {MAX_TOTAL_N}; wait in several steps"
_TOO_MANY_WAITPOINTS = f"the condition has more than {MAX_WAITPOINTS} waitpoints; wait in several steps"
_TOO_MANY_LEAVES = f"the condition has more than {MAX_LEAVES} leaves; wait for children, or use a Count"
