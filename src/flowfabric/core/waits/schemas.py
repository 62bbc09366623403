"""Schemas of payloads, which are stored with a waitpoint so that every process can refuse a wrong payload.

A schema is a small part of JSON schema. The check knows these keywords and ignores all others:

    type                              one name or several: null, boolean, integer, number, string, array, object
    enum, anyOf, $ref                 `$ref` refers to `#/$defs/NAME`
    minimum, maximum, exclusive…      bounds of a number
    items, prefixItems                the items of an array
    properties, required,             the properties of an object. `additionalProperties` is False, or the schema of
    additionalProperties              other values

The check refuses only what surely does not fit. Like pydantic, it takes a number or a boolean that is written as a
string. It stops after a number of parts, and accepts the rest.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal, InvalidOperation
from functools import lru_cache
from typing import Any, TypeAlias

from flowfabric.core import validation
from flowfabric.core.errors import InvalidRequest

MAX_SCHEMA_BYTES = 4096
_MAX_DEPTH = 32
_MAX_PARTS = 10_000
_BOOLEANS = frozenset({"0", "off", "f", "false", "n", "no", "1", "on", "t", "true", "y", "yes"})
_REFERENCE = "#/$defs/"


DeclaredSignals: TypeAlias = Sequence[str] | Mapping[str, Any]


def parse_declared(value: DeclaredSignals) -> DeclaredSignals:
    """Return the names of declared signals, or a mapping of the names to the schemas of their payloads."""
    names = validation.names(value, "signals", maximum=validation.MAX_DECLARED_SIGNALS)
    if not isinstance(value, Mapping):
        return names
    return {name: parse_schema(value[name]) for name in names}


def parse_schema(value: object) -> str | None:
    """Return a schema as compact JSON text. The value is a mapping, its JSON text, or None for no schema."""
    if value is None:
        return None
    try:
        document = json.loads(value) if isinstance(value, str) else value
        text = json.dumps(document, separators=(",", ":"), allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        raise InvalidRequest("invalid_schema", "a schema must be a JSON object; pass a mapping") from None
    if not isinstance(document, Mapping):
        raise validation.wrong_type("schema", "a mapping", document)
    if len(text.encode()) > MAX_SCHEMA_BYTES:
        message = f"a schema may have {MAX_SCHEMA_BYTES} bytes, not {len(text.encode())}; describe less in it"
        raise InvalidRequest("invalid_schema", message, limit=MAX_SCHEMA_BYTES)
    return text


def check_payload(schema: str, payload: bytes, waitpoint: str) -> None:
    """Raise if the payload does not fit the schema of the waitpoint. The error does not repeat the payload."""
    problem = find_problem(schema, payload)
    if problem is not None:
        message = f"the payload does not fit waitpoint {waitpoint!r}: {problem}; send JSON of the awaited type"
        raise InvalidRequest("payload_mismatch", message, waitpoint=waitpoint, problem=problem)


def find_problem(schema: str, payload: bytes) -> str | None:
    """Return why a payload does not fit a schema, or None if it may fit."""
    try:
        value = json.loads(payload or b"null")
    except (json.JSONDecodeError, UnicodeDecodeError):
        return "it is not JSON"
    except (ValueError, RecursionError):
        return None  # Python cannot read a very long number or very deep JSON, but the reader may.
    return _Check(_load(schema)).find_problem(value)


@lru_cache(256)
def _load(schema: str) -> Any:
    return json.loads(schema)


class _Check:
    """One check of a value. `_parts` counts the values that are still checked."""

    def __init__(self, schema: Any) -> None:
        self._schema, self._definitions = schema, schema.get("$defs", {})
        self._parts = _MAX_PARTS

    def find_problem(self, value: Any) -> str | None:
        return next(self._problems(self._schema, value, "", _MAX_DEPTH), None)

    def _problems(self, schema: Any, value: Any, path: str, depth: int) -> Iterator[str]:
        """Yield the problems of a value. Only the first one is needed."""
        self._parts -= 1
        if not isinstance(schema, dict) or depth == 0 or self._parts <= 0:
            return
        if "$ref" in schema:
            definition = self._definitions.get(str(schema["$ref"]).removeprefix(_REFERENCE))
            yield from self._problems(definition, value, path, depth - 1)
        if "anyOf" in schema and not any(self._fits(option, value, depth - 1) for option in schema["anyOf"]):
            yield f"{path}{_name_type(value)} fits none of {len(schema['anyOf'])} types"
        if "enum" in schema and value not in schema["enum"]:
            yield f"{path}expected one of {len(schema['enum'])} values"
        types = schema.get("type")
        types = [types] if isinstance(types, str) else types
        if types is not None and not any(_has_type(kind, value) for kind in types):
            yield f"{path}expected {' or '.join(map(str, types))}, not {_name_type(value)}"
        elif isinstance(value, dict):
            yield from self._property_problems(schema, value, path, depth - 1)
        elif isinstance(value, list):
            yield from self._item_problems(schema, value, path, depth - 1)
        elif isinstance(value, int | float) and not isinstance(value, bool):
            yield from _bound_problems(schema, value, path)

    def _fits(self, schema: Any, value: Any, depth: int) -> bool:
        return next(self._problems(schema, value, "", depth), None) is None

    def _property_problems(self, schema: Any, value: Mapping[str, Any], path: str, depth: int) -> Iterator[str]:
        properties, more = schema.get("properties", {}), schema.get("additionalProperties")
        for name in schema.get("required", ()):
            if name not in value:
                yield f"{path}{name} is missing"
        for name in value:
            # Names that only the sender knows are not repeated.
            if name in properties:
                yield from self._problems(properties[name], value[name], f"{path}{name}: ", depth)
            elif more is False:
                yield f"{path}it has a property that is not expected"
            elif more is not None:
                yield from self._problems(more, value[name], f"{path}*: ", depth)

    def _item_problems(self, schema: Any, value: Sequence[Any], path: str, depth: int) -> Iterator[str]:
        first, rest = schema.get("prefixItems", ()), schema.get("items")
        for index, item in enumerate(value):
            item_schema = first[index] if index < len(first) else rest
            if item_schema is not None:
                yield from self._problems(item_schema, item, f"{path}[{index}]: ", depth)


def _bound_problems(schema: Any, value: float, path: str) -> Iterator[str]:
    if value < schema.get("minimum", value) or value > schema.get("maximum", value):
        yield f"{path}the number is out of range"
    low, high = schema.get("exclusiveMinimum"), schema.get("exclusiveMaximum")
    if (low is not None and value <= low) or (high is not None and value >= high):
        yield f"{path}the number is out of range"


def _has_type(kind: object, value: Any) -> bool:
    """Return True if a reader may read the value as this type."""
    match kind:
        case "null":
            return value is None
        case "boolean":
            return isinstance(value, int | float) or (isinstance(value, str) and value.strip().lower() in _BOOLEANS)
        case "integer":
            is_whole = not isinstance(value, float) or value.is_integer()
            return is_whole and (isinstance(value, int | float) or _is_number(value))
        case "number":
            return isinstance(value, int | float) or _is_number(value)
        case "string":
            return isinstance(value, str)
        case "array":
            return isinstance(value, list)
        case "object":
            return isinstance(value, dict)
    return True


def _is_number(value: object) -> bool:
    if not isinstance(value, str):
        return False
    try:
        Decimal(value.strip())
    except InvalidOperation:
        return False
    return True


def _name_type(value: object) -> str:
    names = {bool: "boolean", int: "integer", float: "number", str: "string", list: "array", dict: "object"}
    return names.get(type(value), "null")
