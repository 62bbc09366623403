"""What writes and reads the values of one type. Sets are written sorted, so that equal values are equal bytes in every
process: a submit that is repeated under its key is compared by them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from pydantic import ConfigDict, TypeAdapter
from pydantic_core import PydanticSerializationUnexpectedValue, SchemaSerializer, core_schema

_CONFIG = ConfigDict(
    ser_json_bytes="base64", val_json_bytes="base64", ser_json_inf_nan="strings", allow_inf_nan=True, defer_build=True
)
_CORE_CONFIG = core_schema.CoreConfig(
    ser_json_bytes="base64", val_json_bytes="base64", ser_json_inf_nan="strings", allow_inf_nan=True
)
# Where a schema holds what is the user's, which may look like anything.
_FOREIGN = frozenset({"cls", "config", "default", "default_factory", "expected", "function", "members", "metadata"})


class Codec(NamedTuple):
    """Turns a tuple of one value into JSON and back."""

    dump: Callable[..., bytes]
    load: Callable[[bytes], Any]


def codec(form: Any, namespace: Mapping[str, Any]) -> Codec:
    """What writes and reads values of this type; forward references in it may use the names of the namespace."""
    adapter: TypeAdapter[Any] = TypeAdapter(tuple[form], config=_CONFIG)
    adapter.rebuild(force=True, _types_namespace=dict(namespace))
    return Codec(_serializer(adapter).to_json, adapter.validator.validate_json)


def _serializer(adapter: TypeAdapter[Any]) -> Any:
    sets: list[Any] = []
    ordered = _with_ordered_sets(adapter.core_schema, sets)
    return SchemaSerializer(ordered, _CORE_CONFIG) if sets else adapter.serializer


def _with_ordered_sets(node: Any, sets: list[Any]) -> Any:
    """A copy of the schema that writes sets sorted; collects the sets that it found."""
    if isinstance(node, list | tuple):
        return type(node)(_with_ordered_sets(part, sets) for part in node)
    if not isinstance(node, dict):
        return node
    new = {key: part if key in _FOREIGN else _with_ordered_sets(part, sets) for key, part in node.items()}
    if node.get("type") in ("set", "frozenset") and "serialization" not in node:
        sets.append(node)
        items = core_schema.list_schema(new.get("items_schema"))
        new["serialization"] = core_schema.plain_serializer_function_ser_schema(
            _ordered, return_schema=items, when_used="json"
        )
    return new


def _ordered(value: Any) -> list[Any]:
    if not isinstance(value, set | frozenset):
        found = f"input_value={value!r}, input_type={type(value).__name__}"
        raise PydanticSerializationUnexpectedValue(f"Expected `set` [{found}]")
    return sorted(value, key=repr)
