"""The readable form of a condition, in which it is stored, shown and accepted back.

    {"type": "single", "waitpoint": "payment", "name": "paid"}
    {"type": "count", "n": 2, "distinct": "sources", "waitpoints": ["ops", "finance"], "name": "approve"}
    {"type": "all_of", "members": [...]}        {"type": "any_of", "members": [...]}
    {"type": "operator_only"}                   {"type": "timeout_only"}

`name` is the matcher; without it any signal matches.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from typing import Any

from flowfabric.core import limits
from flowfabric.core.conditions import (
    NESTING,
    AllOf,
    AnyOf,
    Condition,
    Count,
    OperatorOnly,
    SignalLeaf,
    Single,
    TimeoutOnly,
    matching_name,
)
from flowfabric.core.errors import InvalidRequest

# What each type must and may have beside its type.
_FIELDS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "single": (("waitpoint",), ("name",)),
    "count": (("n", "distinct", "waitpoints"), ("name",)),
    "all_of": (("members",), ()),
    "any_of": (("members",), ()),
    "operator_only": ((), ()),
    "timeout_only": ((), ()),
}


def to_json(condition: Condition) -> dict[str, Any]:
    """The condition as a JSON object; equal conditions have equal ones."""
    match condition:
        case Single():
            return {"type": "single", "waitpoint": condition.waitpoint, **_name_of(condition)}
        case Count():
            how = {"n": condition.n, "distinct": str(condition.distinct), "waitpoints": list(condition.waitpoints)}
            return {"type": "count", **how, **_name_of(condition)}
        case AllOf():
            return {"type": "all_of", "members": [to_json(member) for member in condition.members]}
        case AnyOf():
            return {"type": "any_of", "members": [to_json(member) for member in condition.members]}
        case OperatorOnly():
            return {"type": "operator_only"}
        case TimeoutOnly():
            return {"type": "timeout_only"}


def from_json(value: object) -> Condition:
    """The condition behind its JSON form; an error names the offending member by its path."""
    return _read(value, "", 1)


def _read(value: object, path: str, level: int) -> Condition:
    kind, fields = _known_fields(value, path)
    match kind:
        case "single":
            return _made(path, lambda: Single(fields["waitpoint"], fields.get("name")))
        case "count":
            how = (fields["n"], fields["distinct"], fields["waitpoints"], fields.get("name"))
            return _made(path, lambda: Count(*how))
        case "all_of":
            all_members = _read_members(fields["members"], path, level)
            return _made(path, lambda: AllOf(all_members))
        case "any_of":
            any_members = _read_members(fields["members"], path, level)
            return _made(path, lambda: AnyOf(any_members))
        case "operator_only":
            return OperatorOnly()
    return TimeoutOnly()


def _read_members(value: object, path: str, level: int) -> list[Condition]:
    # The level is checked before anything below it is looked at, so that hostile nesting ends here.
    if level > NESTING:
        message = f"{path}: conditions nest at most {NESTING} levels deep, this is level {level}; flatten it"
        raise InvalidRequest("condition_depth_exceeded", message, path=path, depth=level, limit=NESTING)
    if not isinstance(value, list | tuple):
        place = _below(path, "members")
        message = f"{place} must be a list of conditions, not {type(value).__name__}"
        raise InvalidRequest("invalid_type", message, path=path, field="members", got=type(value).__name__)
    return [_read(item, _below(path, f"members[{index}]"), level + 1) for index, item in enumerate(value)]


def _known_fields(value: object, path: str) -> tuple[str, dict[str, Any]]:
    place = path or "a condition"
    if not isinstance(value, Mapping):
        message = f"{place} must be an object with a type, not {type(value).__name__}"
        raise InvalidRequest("invalid_type", message, path=path, got=type(value).__name__)
    kind = value.get("type")
    if not isinstance(kind, str) or kind not in _FIELDS:
        shown = limits.shown(kind) if "type" in value else "absent"
        message = f"{place}: type must be one of {', '.join(_FIELDS)}, it is {shown}"
        raise InvalidRequest("invalid_choice", message, path=path, field="type")
    needed, optional = _FIELDS[kind]
    for key in value:
        if key not in ("type", *needed, *optional):
            raise _unknown_field(key, kind, path)
    for key in needed:
        if key not in value:
            raise InvalidRequest("missing_field", f"{place}: {kind} needs {key}", path=path, field=key)
    return kind, dict(value)


def _unknown_field(key: object, kind: str, path: str) -> InvalidRequest:
    known = [name for names in _FIELDS[kind] for name in names]
    nearest = difflib.get_close_matches(str(key)[:60], known, n=1)
    hint = f"; did you mean {nearest[0]}?" if nearest else f"; known are {', '.join(['type', *known])}"
    message = f"{path or 'a condition'}: {kind} has no field {limits.shown(key)}{hint}"
    return InvalidRequest("unknown_field", message, path=path, field=str(key)[:60])


def _made(path: str, make: Callable[[], Condition]) -> Condition:
    """What `make` makes; its errors, which see only the record itself, are told with their place in the whole."""
    try:
        return make()
    except InvalidRequest as error:
        inner = str(error.fields.get("path", ""))
        place = _below(path, inner) if inner else path
        message = f"{path}: {error.message}" if path else error.message
        raise InvalidRequest(error.code, message, **{**error.fields, "path": place}) from None


def _below(path: str, part: str) -> str:
    return f"{path}.{part}" if path else part


def _name_of(leaf: SignalLeaf) -> dict[str, str]:
    name = matching_name(leaf)
    return {} if name is None else {"name": name}
