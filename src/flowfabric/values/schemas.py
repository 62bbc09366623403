"""Schemas of annotations, by which a process that does not know the Python type can refuse a wrong payload.

The schema is derived from pydantic's core schema, because that also has the parts that read other input than the
type suggests, such as a validator that runs before the type is checked. Such a part becomes the empty schema, which
accepts everything. So a schema never refuses JSON that the annotation accepts.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from enum import Enum
from functools import lru_cache
from typing import Any, TypeAlias

from pydantic import TypeAdapter

from flowfabric.core.waits.schemas import MAX_SCHEMA_BYTES
from flowfabric.values.codecs import CONFIG, concrete_type

Schema: TypeAlias = dict[str, Any]

_MAX_CACHED_SCHEMAS = 1024
_COERCES = "coerce_numbers_to_str"
_FORBID = "forbid"
_TYPES: Mapping[str, str | list[str]] = {
    "none": "null", "bool": "boolean", "str": "string", "bytes": "string", "uuid": "string", "url": "string",
    "int": "integer", "float": "number", "decimal": "number", "date": ["string", "number"],
    "time": ["string", "number"], "datetime": ["string", "number"], "timedelta": ["string", "number"],
}  # fmt: skip
_BOUNDS = {"ge": "minimum", "le": "maximum", "gt": "exclusiveMinimum", "lt": "exclusiveMaximum"}
# Nodes that check the input by the schema inside them before they do anything else.
_WRAPPERS = {
    "function-after": "schema", "custom-error": "schema", "json-or-python": "json_schema",
    "lax-or-strict": "lax_schema", "dataclass": "schema",
}  # fmt: skip


def schema_for(annotation: Any) -> str | None:
    """Return the schema of an annotation as JSON text, or None if it is too large or would accept everything."""
    storage_type = concrete_type(annotation)
    try:
        return _cached_schema(storage_type, repr(storage_type))
    except Exception:
        # The annotation is not hashable, or pydantic cannot describe it. The wait checks the payload instead.
        return None


@lru_cache(_MAX_CACHED_SCHEMAS)
def _cached_schema(storage_type: Any, text: str) -> str | None:
    adapter: TypeAdapter[Any] = TypeAdapter(tuple[storage_type], config=CONFIG)
    adapter.rebuild(force=True)
    schema = _Builder(adapter.core_schema).build_root()
    document = json.dumps(schema, separators=(",", ":"), allow_nan=False)
    return document if schema and len(document.encode()) <= MAX_SCHEMA_BYTES else None


class _Builder:
    """Builds the schema of the only item of a tuple, which is how a codec describes a value."""

    def __init__(self, root: Any) -> None:
        definitions = root["definitions"] if root["type"] == "definitions" else ()
        self._root = root["schema"] if root["type"] == "definitions" else root
        self._definitions = {node["ref"]: (str(number), node) for number, node in enumerate(definitions)}
        self._used: dict[str, Schema] = {}
        self._coerces = _mentions(root, _COERCES)

    def build_root(self) -> Schema:
        schema = self._build(self._root["items_schema"][0])
        return schema | ({"$defs": self._used} if self._used else {})

    def _build(self, node: Any) -> Schema:
        kind = node["type"]
        if kind in _WRAPPERS:
            schema = self._build(node[_WRAPPERS[kind]])
            return _close(schema, node) if kind == "dataclass" else schema
        if kind == "str" and self._coerces:
            return {}
        if kind in _TYPES:
            bounds = {name: node[key] for key, name in _BOUNDS.items() if type(node.get(key)) in (int, float)}
            return {"type": _TYPES[kind], **bounds}
        builder: Callable[[Any], Schema] | None = getattr(self, f"_{kind.replace('-', '_')}", None)
        return {} if builder is None else builder(node)

    def _definition_ref(self, node: Any) -> Schema:
        name, definition = self._definitions[node["schema_ref"]]
        if name not in self._used:
            self._used[name] = {}
            self._used[name] = self._build(definition)
        return {"$ref": f"#/$defs/{name}"}

    def _default(self, node: Any) -> Schema:
        return {} if node.get("on_error", "raise") != "raise" else self._build(node["schema"])

    def _nullable(self, node: Any) -> Schema:
        return {"anyOf": [self._build(node["schema"]), {"type": "null"}]}

    def _union(self, node: Any) -> Schema:
        choices = [choice[0] if isinstance(choice, tuple) else choice for choice in node["choices"]]
        return {"anyOf": [self._build(choice) for choice in choices]}

    def _tagged_union(self, node: Any) -> Schema:
        return {"anyOf": [self._build(choice) for choice in node["choices"].values()]}

    def _literal(self, node: Any) -> Schema:
        expected = node["expected"]
        is_plain = all(type(value) in (str, int, bool, type(None)) for value in expected)
        return {"enum": list(expected)} if is_plain else {}

    def _enum(self, node: Any) -> Schema:
        values = [member.value for member in node["members"]]
        finds_others = "_missing_" in {name for cls in node["cls"].__mro__ for name in vars(cls) if cls is not Enum}
        is_plain = not finds_others and all(type(value) is str for value in values)
        return {"enum": values} if is_plain else {}

    def _list(self, node: Any) -> Schema:
        items = self._build(node["items_schema"]) if "items_schema" in node else {}
        return {"type": "array"} | ({"items": items} if items else {})

    _set = _frozenset = _list

    def _tuple(self, node: Any) -> Schema:
        items = [self._build(item) for item in node["items_schema"]]
        if "variadic_item_index" not in node:
            return {"type": "array", "prefixItems": items}
        return {"type": "array", "items": items[0]} if len(items) == 1 else {"type": "array"}

    def _dict(self, node: Any) -> Schema:
        values = self._build(node["values_schema"]) if "values_schema" in node else {}
        return {"type": "object"} | ({"additionalProperties": values} if values else {})

    def _model(self, node: Any) -> Schema:
        return {} if node.get("custom_init") else _close(self._build(node["schema"]), node)

    def _model_fields(self, node: Any) -> Schema:
        return self._object(node, node["fields"], lambda field: field["schema"]["type"] != "default")

    def _dataclass_args(self, node: Any) -> Schema:
        fields = {field["name"]: field for field in node["fields"]}
        return self._object(
            node, fields, lambda field: field["schema"]["type"] != "default" and field.get("init") is not False
        )

    def _typed_dict(self, node: Any) -> Schema:
        total = node.get("total", True)
        return self._object(node, node["fields"], lambda field: field.get("required", total))

    def _object(self, node: Any, fields: Mapping[str, Any], is_required: Callable[[Any], bool]) -> Schema:
        """Return the schema of an object. The check ignores fields that have other names in JSON."""
        named = {name: field for name, field in fields.items() if "validation_alias" not in field}
        parts = {name: self._field(field) for name, field in named.items()}
        required = [name for name, field in named.items() if is_required(field)]
        schema: Schema = {"type": "object", "properties": parts} | ({"required": required} if required else {})
        if len(named) < len(fields):
            return schema | {"additionalProperties": {}}
        return _close(schema, node)

    def _field(self, field: Any) -> Schema:
        return {} if field.get("init") is False else self._build(field["schema"])


def _close(schema: Schema, node: Any) -> Schema:
    """Return the schema of an object that accepts no other properties, if the node forbids them."""
    config = node.get("config") or {}
    is_closed = _FORBID in (node.get("extra_behavior"), config.get("extra_fields_behavior"))
    if not is_closed or "properties" not in schema or "additionalProperties" in schema:
        return schema
    return schema | {"additionalProperties": False}


def _mentions(node: Any, key: str) -> bool:
    """Return True if a part of a core schema has this key with a true value."""
    if isinstance(node, dict):
        return bool(node.get(key)) or any(_mentions(part, key) for name, part in node.items() if name != "metadata")
    return isinstance(node, list | tuple) and any(_mentions(part, key) for part in node)
