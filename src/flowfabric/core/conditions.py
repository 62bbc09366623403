"""What a suspended execution waits for: conditions over the signals of its waitpoints.

    Single(waitpoint, matcher)                a signal that matches has come to the waitpoint
    AllOf(members), AnyOf(members)            every member holds; at least one does
    Count(n, distinct, waitpoints, matcher)   signals that match brought n distinct waitpoints, signals or sources
    OperatorOnly()                            no signal ends the wait, only an operator's resume
    TimeoutOnly()                             no signal ends the wait, only the timeout

A condition is small: at most 4 levels of AllOf, AnyOf and Count, 64 leaves, 64 waitpoints, and all n together at most
1,000. Every record checks this when it is made, so a condition that exists is sound; `validate` adds what only the
suspension knows. An error names the offending member by its path, such as `members[0].members[1]`, as seen from the
record that was being made or checked; the empty path is that record itself.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from flowfabric.core import limits
from flowfabric.core.errors import InvalidRequest
from flowfabric.core.frozen import put

NESTING = 4
LEAVES = 64
WAITPOINTS = 64
TOTAL_N = 1000


class Distinct(StrEnum):
    """What must differ for a signal to count once more."""

    WAITPOINTS = "waitpoints"
    SIGNALS = "signals"
    SOURCES = "sources"


@dataclass(frozen=True, slots=True)
class ByName:
    """Matches the signals of exactly this name."""

    name: str

    def __post_init__(self) -> None:
        put(self, name=limits.name(self.name, "name"))


@dataclass(frozen=True, slots=True)
class AnySignal:
    """Matches every signal."""


Matcher = ByName | AnySignal


@dataclass(frozen=True, slots=True)
class Single:
    """Holds when a matching signal has come to the waitpoint. A text matches by name, none matches any signal."""

    waitpoint: str
    matcher: Matcher | str | None = None

    def __post_init__(self) -> None:
        put(self, waitpoint=limits.name(self.waitpoint, "waitpoint"), matcher=_matcher(self.matcher))


@dataclass(frozen=True, slots=True)
class Count:
    """Holds when matching signals on the waitpoints have brought `n` distinct waitpoints, signals or sources."""

    n: int
    distinct: Distinct | str
    waitpoints: Sequence[str]
    matcher: Matcher | str | None = None

    def __post_init__(self) -> None:
        put(
            self,
            n=_number(self.n),
            distinct=_distinct(self.distinct),
            waitpoints=_waitpoints(self.waitpoints),
            matcher=_matcher(self.matcher),
        )
        if self.distinct is Distinct.WAITPOINTS and self.n > len(self.waitpoints):
            message = f"{self.n} distinct waitpoints are wanted of only {len(self.waitpoints)}; lower n or name more"
            fields = {"n": self.n, "waitpoints": len(self.waitpoints)}
            raise InvalidRequest("count_exceeds_waitpoint_set", message, path="", **fields)


@dataclass(frozen=True, slots=True)
class AllOf:
    """Holds when every member does."""

    members: Sequence[Condition]

    def __post_init__(self) -> None:
        put(self, members=_members(self.members))
        if not self.members:
            raise InvalidRequest("allof_empty_members", "AllOf needs at least one member", path="")
        _check_size(self)


@dataclass(frozen=True, slots=True)
class AnyOf:
    """Holds when at least one member does."""

    members: Sequence[Condition]

    def __post_init__(self) -> None:
        put(self, members=_members(self.members))
        if not self.members:
            raise InvalidRequest("anyof_empty_members", "AnyOf needs at least one member", path="")
        _check_size(self)


@dataclass(frozen=True, slots=True)
class OperatorOnly:
    """Never holds by signals: an operator resumes the execution, or the timeout ends the wait."""


@dataclass(frozen=True, slots=True)
class TimeoutOnly:
    """Never holds by signals: the timeout ends the wait, so there must be one."""


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
    """Raises unless a suspension that binds these waitpoints can wait for the condition.

    `approvers` names the source of the waitpoints that are bound to one. A condition that names no waitpoint may bind
    any: signals to them are kept and change nothing.
    """
    if not isinstance(condition, Condition):
        message = f"a condition must be one of the records of this module, not {type(condition).__name__}"
        raise InvalidRequest("invalid_type", message, path="", got=type(condition).__name__)
    _check_size(condition)
    for path, leaf in leaves(condition):
        if isinstance(leaf, TimeoutOnly) and not has_timeout:
            message = _at(path, "TimeoutOnly without a timeout would wait for ever; give the suspension a timeout")
            raise InvalidRequest("timeout_only_without_deadline", message, path=path)
        _check_sources(path, leaf, approvers or {})
    _check_bindings(condition, bound_keys)


def leaves(condition: Condition) -> Iterator[tuple[str, Leaf]]:
    """Every leaf with its path, from left to right."""
    for path, _, node in _walk(condition):
        if not isinstance(node, AllOf | AnyOf):
            yield path, node


def keys_of(condition: Condition) -> tuple[str, ...]:
    """The keys of the waitpoints that the condition names, each once, in the order of their first mention."""
    return tuple(dict.fromkeys(key for _, leaf in leaves(condition) for key in leaf_keys(leaf)))


def leaf_keys(leaf: Leaf) -> Sequence[str]:
    """The keys of the waitpoints whose signals a leaf looks at."""
    match leaf:
        case Single():
            return (leaf.waitpoint,)
        case Count():
            return leaf.waitpoints
    return ()


def matching_name(leaf: SignalLeaf) -> str | None:
    """The name that a signal must have for a leaf, or None if any will do."""
    return leaf.matcher.name if isinstance(leaf.matcher, ByName) else None


def required_signal_names(condition: Condition, key: str) -> tuple[str, ...] | None:
    """The names of the signals that can help on a waitpoint: None means any, an empty tuple that none can."""
    names: dict[str, None] = {}
    for _, leaf in leaves(condition):
        if isinstance(leaf, Single | Count) and key in leaf_keys(leaf):
            name = matching_name(leaf)
            if name is None:
                return None
            names[name] = None
    return tuple(names)


def _walk(condition: Condition, path: str = "", above: int = 0) -> Iterator[tuple[str, int, Condition]]:
    """Every node with its path and its level of nesting, parents first, so that a check can stop before it descends."""
    level = above if isinstance(condition, Single | OperatorOnly | TimeoutOnly) else above + 1
    yield path, level, condition
    if isinstance(condition, AllOf | AnyOf):
        for index, member in enumerate(condition.members):
            yield from _walk(member, f"{path}.members[{index}]" if path else f"members[{index}]", level)


def _check_size(condition: Condition) -> None:
    leaf_count, total, keys = 0, 0, set[str]()
    for path, level, node in _walk(condition):
        if level > NESTING:
            message = _at(path, f"conditions nest at most {NESTING} levels deep, this is level {level}; flatten it")
            raise InvalidRequest("condition_depth_exceeded", message, path=path, depth=level, limit=NESTING)
        if isinstance(node, AllOf | AnyOf):
            continue
        leaf_count, total = leaf_count + 1, total + (node.n if isinstance(node, Count) else 0)
        keys.update(leaf_keys(node))
        if leaf_count > LEAVES:
            raise InvalidRequest("too_many_leaves", _at(path, _TOO_LEAFY), path=path, limit=LEAVES)
        if total > TOTAL_N:
            raise InvalidRequest("count_n_too_large", _at(path, _TOO_LARGE), path=path, limit=TOTAL_N)
        if len(keys) > WAITPOINTS:
            raise InvalidRequest("too_many_waitpoints", _at(path, _TOO_MANY), path=path, limit=WAITPOINTS)


def _check_bindings(condition: Condition, bound_keys: Collection[str]) -> None:
    if len(bound_keys) > WAITPOINTS:
        raise InvalidRequest("too_many_waitpoints", _TOO_MANY, path="", limit=WAITPOINTS)
    for path, leaf in leaves(condition):
        for key in leaf_keys(leaf):
            if key not in bound_keys:
                message = _at(path, f"waitpoint {limits.shown(key)} is not bound by this suspension; bind it")
                raise InvalidRequest("waitpoint_not_bound", message, path=path, waitpoint=key)
    named = keys_of(condition)
    unused = tuple(key for key in bound_keys if key not in named) if named else ()
    if unused:
        message = f"waitpoint {limits.shown(unused[0])} is bound but the condition does not name it; leave it out"
        raise InvalidRequest("waitpoint_not_used", message, path="", waitpoints=unused)


def _check_sources(path: str, leaf: Leaf, approvers: Mapping[str, str]) -> None:
    """A count of sources on waitpoints that all have their approver can reach no more than there are approvers."""
    if not isinstance(leaf, Count) or leaf.distinct is not Distinct.SOURCES:
        return
    if any(key not in approvers for key in leaf.waitpoints):
        return
    reachable = len({approvers[key] for key in leaf.waitpoints})
    if leaf.n > reachable:
        message = _at(path, f"{leaf.n} distinct sources are wanted, these waitpoints have {reachable} approvers")
        raise InvalidRequest("count_exceeds_sources", message, path=path, n=leaf.n, sources=reachable)


def _matcher(value: object) -> Matcher:
    match value:
        case None:
            return AnySignal()
        case str():
            return ByName(value)
        case ByName() | AnySignal():
            return value
    message = f"a matcher must be a signal's name, None, ByName or AnySignal, not {type(value).__name__}"
    raise InvalidRequest("invalid_type", message, path="", field="matcher", got=type(value).__name__)


def _number(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        message = f"n must be a whole number, not {type(value).__name__}"
        raise InvalidRequest("invalid_type", message, path="", field="n", got=type(value).__name__)
    if value < 1:
        raise InvalidRequest("count_n_zero", "n must be at least 1, or nothing would be waited for", path="", field="n")
    if value > TOTAL_N:
        raise InvalidRequest("count_n_too_large", _TOO_LARGE, path="", field="n", limit=TOTAL_N)
    return value


def _distinct(value: object) -> Distinct:
    if isinstance(value, str) and value in tuple(Distinct):
        return Distinct(value)
    message = f"distinct must be one of {', '.join(Distinct)}, not {limits.shown(value)}"
    raise InvalidRequest("invalid_choice", message, path="", field="distinct")


def _waitpoints(value: object) -> tuple[str, ...]:
    items = _sequence(value, "waitpoints", "a list of keys")
    if not items:
        message = "a Count needs at least one waitpoint to count on"
        raise InvalidRequest("count_waitpoints_empty", message, path="", field="waitpoints")
    # Repeats are dropped below; a list that is absurdly long is not even read.
    unique = dict.fromkeys(
        limits.name(item, f"waitpoints[{index}]") for index, item in enumerate(items[: limits.BATCH])
    )
    if len(unique) > WAITPOINTS or len(items) > limits.BATCH:
        raise InvalidRequest("too_many_waitpoints", _TOO_MANY, path="", field="waitpoints", limit=WAITPOINTS)
    return tuple(unique)


def _members(value: object) -> tuple[Condition, ...]:
    members: list[Condition] = []
    for index, item in enumerate(_sequence(value, "members", "a list of conditions")):
        path = f"members[{index}]"
        if not isinstance(item, Condition):
            message = f"{path} must be a condition, not {type(item).__name__}"
            raise InvalidRequest("invalid_type", message, path=path, got=type(item).__name__)
        if index >= LEAVES:
            raise InvalidRequest("too_many_leaves", _at(path, _TOO_LEAFY), path=path, limit=LEAVES)
        members.append(item)
    return tuple(members)


def _sequence(value: object, field: str, wanted: str) -> Sequence[object]:
    if isinstance(value, str | bytes) or not isinstance(value, Sequence):
        message = f"{field} must be {wanted}, not {type(value).__name__}"
        raise InvalidRequest("invalid_type", message, path="", field=field, got=type(value).__name__)
    return value


def _at(path: str, message: str) -> str:
    return f"{path}: {message}" if path else message


_TOO_LARGE = f"the n of all Counts together must be at most {TOTAL_N}; wait in several steps"
_TOO_MANY = f"a condition has at most {WAITPOINTS} waitpoints"
_TOO_LEAFY = f"a condition has at most {LEAVES} leaves; wait for children, or use a Count"
