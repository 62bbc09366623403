"""The JSON form of a condition, in which it is stored, shown and accepted.

    {"type": "single", "waitpoint": "payment", "name": "paid"}
    {"type": "count", "n": 2, "distinct": "sources", "waitpoints": ["ops", "finance"], "name": "approve"}
    {"type": "all_of", "members": [...]}        {"type": "any_of", "members": [...]}
    {"type": "operator_only"}                   {"type": "timeout_only"}

`name` is the matcher; without it, any signal matches.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from flowfabric.core import validation
from flowfabric.core.errors import InvalidRequest
from flowfabric.core.waits.conditions import (
    MAX_NESTING,
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

# Required and optional fields of each type.
_FIELDS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "single": (("waitpoint",), ("name",)),
    "count": (("n", "distinct", "waitpoints"), ("name",)),
    "all_of": (("members",), ()),
    "any_of": (("members",), ()),
    "operator_only": ((), ()),
    "timeout_only": ((), ()),
}
_CLASSES: dict[str, Callable[..., Condition]] = {
    "single": Single,
    "count": Count,
    "all_of": AllOf,
    "any_of": AnyOf,
    "operator_only": OperatorOnly,
    "timeout_only": TimeoutOnly,
}


def to_json(condition: Condition) -> dict[str, Any]:
    """Return the condition as a JSON object; equal conditions have equal objects."""
    match condition:
        case Single():
            return {"type": "single", "waitpoint": condition.waitpoint, **_name_of(condition)}
        case Count():
            how = {"n": condition.n, "distinct": str(condition.distinct), "waitpoints": list(condition.waitpoints)}
            return {"type": "count", **how, **_name_of(condition)}
        case AllOf() | AnyOf():
            kind = "all_of" if isinstance(condition, AllOf) else "any_of"
            return {"type": kind, "members": [to_json(member) for member in condition.members]}
        case OperatorOnly():
            return {"type": "operator_only"}
        case TimeoutOnly():
            return {"type": "timeout_only"}


def from_json(value: object) -> Condition:
    """Return the condition parsed from JSON. An error names the invalid member by its path."""
    return _read(value, "", 1)


def _read(value: object, path: str, level: int) -> Condition:
    kind, fields = _check_fields(value, path)
    if "members" in fields:
        fields["members"] = _read_members(fields["members"], path, level)
    try:
        return _CLASSES[kind](**fields)
    except InvalidRequest as error:
        inner = str(error.fields.get("path", ""))
        place = _below(path, inner) if inner else path
        message = f"{path}: {error.message}" if path else error.message
        raise InvalidRequest(error.code, message, **{**error.fields, "path": place}) from None


def _read_members(value: object, path: str, level: int) -> list[Condition]:
    # Check the level before descending, so that hostile nesting stops here.
    if level > MAX_NESTING:
        message = f"{path}: the condition nests deeper than {MAX_NESTING} levels; flatten it"
        raise InvalidRequest("condition_depth_exceeded", message, path=path, depth=level, limit=MAX_NESTING)
    if not isinstance(value, list | tuple):
        place = _below(path, "members")
        raise validation.wrong_type(place, "a list of conditions", value, path=path, field="members")
    return [_read(item, _below(path, f"members[{index}]"), level + 1) for index, item in enumerate(value)]


def _check_fields(value: object, path: str) -> tuple[str, dict[str, Any]]:
    place = path or "a condition"
    if not isinstance(value, Mapping):
        raise validation.wrong_type(place, "an object with a type", value, path=path, field=path or "condition")
    kind = value.get("type")
    if not isinstance(kind, str) or kind not in _FIELDS:
        shown = validation.preview(kind) if "type" in value else "absent"
        message = f"{place}: type must be one of {', '.join(_FIELDS)}, not {shown}"
        raise InvalidRequest("invalid_choice", message, path=path, field="type")
    needed, optional = _FIELDS[kind]
    for key in value:
        if key not in ("type", *needed, *optional):
            raise validation.unknown_field(f"{place}: {kind}", key, ["type", *needed, *optional], path=path)
    for key in needed:
        if key not in value:
            raise InvalidRequest("missing_field", f"{place}: {kind} needs the field {key}", path=path, field=key)
    fields = {key: item for key, item in value.items() if key not in ("type", "name")}
    return kind, fields | ({"matcher": value["name"]} if "name" in value else {})


def _below(path: str, part: str) -> str:
    return f"{path}.{part}" if path else part


def _name_of(leaf: SignalLeaf) -> dict[str, str]:
    name = matching_name(leaf)
    return {} if name is None else {"name": name}
