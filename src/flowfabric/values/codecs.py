"""Codecs that convert a value to JSON and back, as the annotation of the value requires.

    store     dump, restore, compare with the original     refuses a value that would change, before it is written
    restore   validate                                     checks constraints on values from other programs too

Each value is dumped in a one-element tuple, and the brackets are removed. Pydantic does not apply the configuration of
a `TypeAdapter` to a bare dataclass or TypedDict, but applies it to a dataclass or TypedDict inside a tuple. The
configuration writes bytes as base64, and NaN and infinities as strings. A pydantic model keeps its own configuration.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from decimal import Decimal
from functools import lru_cache
from types import FunctionType
from typing import Any, Generic, NamedTuple, TypeVar, get_args, get_origin
from weakref import WeakKeyDictionary

from pydantic import ConfigDict, JsonValue, PydanticUndefinedAnnotation, TypeAdapter, ValidationError
from pydantic.errors import PydanticErrorMixin
from pydantic_core import PydanticSerializationUnexpectedValue, SchemaSerializer, core_schema

from flowfabric.core import validation
from flowfabric.core.errors import InvalidRequest
from flowfabric.values.errors import ValueRefused
from flowfabric.values.guards import guarded, preview, qualified_name, text_of, type_name
from flowfabric.values.signatures import EMPTY, Namespace, find_annotated, return_annotation, unresolved_annotation

# These functions treat values as equivalent if `==` is False only because of NaN or a class without `__eq__`.


_MAX_DEPTH = 50


def is_equivalent(one: Any, other: Any, depth: int = _MAX_DEPTH) -> bool:
    """Return True if both values have the same type, and are equal or have equivalent parts.

    The comparison is slow, so the codec makes it only if `==` returned False.
    """
    if type(one) is not type(other) or depth == 0:
        return _is_equal(one, other)
    if isinstance(one, float | complex | Decimal) and one != one:
        return other != other if not isinstance(one, complex) else _is_equivalent_complex(one, other)
    parts, others = _get_parts(one), _get_parts(other)
    if parts is None or others is None:
        return _is_equal(one, other)
    return parts.keys() == others.keys() and all(is_equivalent(parts[key], others[key], depth - 1) for key in parts)


def _is_equal(one: Any, other: Any) -> bool:
    return guarded(lambda: bool(one == other), otherwise=False)


def _is_equivalent_complex(one: complex, other: complex) -> bool:
    pairs = ((one.real, other.real), (one.imag, other.imag))
    return all(a == b or (math.isnan(a) and math.isnan(b)) for a, b in pairs)


def _get_parts(value: Any) -> dict[Any, Any] | None:
    """Return the parts of a container or object by key, or None for a scalar value."""
    if isinstance(value, dict):
        return value
    if isinstance(value, list | tuple):
        return dict(enumerate(value))
    if is_dataclass(value):
        return {field.name: getattr(value, field.name, None) for field in fields(value)}
    if getattr(type(value), "__eq__", None) is object.__eq__ or hasattr(value, "__pydantic_fields_set__"):
        return getattr(value, "__dict__", None)
    return None


# These functions write short error messages, which replace pydantic's long report.


_MAX_PROBLEMS = 3
_MAX_CHARACTERS = 500
_UNEXPECTED = re.compile(r"Expected `(?P<kind>.+?)`.*?input_value=(?P<value>.*), input_type=(?P<type>\w+)\]")
_OWN_BYTES = (
    "a pydantic model with binary bytes needs ser_json_bytes='base64' and val_json_bytes='base64' in its model_config"
)
_OWN_FLOATS = "a pydantic model with NaN or infinities needs ser_json_inf_nan='strings' in its model_config"


def describe_error(error: BaseException) -> str:
    """Return a short description of the error, with a remedy for some common causes."""
    if type(error) is ValidationError:
        return _describe_validation_error(error)
    text = text_of(error) or type_name(error)
    if matches := list(_UNEXPECTED.finditer(text)):
        text = "; ".join(f"expected {m['kind']}, got {m['value']} ({m['type']})" for m in matches[:_MAX_PROBLEMS])
    if "invalid utf-8" in text:
        text = f"{text}; {_OWN_BYTES}"
    return text[:_MAX_CHARACTERS]


def _describe_validation_error(error: ValidationError) -> str:
    problems = error.errors(include_url=False)
    parts = [f"{_format_location(problem['loc'])}{problem['msg']}" for problem in problems[:_MAX_PROBLEMS]]
    if len(problems) > _MAX_PROBLEMS:
        parts.append(f"and {len(problems) - _MAX_PROBLEMS} more")
    if any(problem["type"] == "float_type" and problem["input"] is None for problem in problems):
        parts.append(_OWN_FLOATS)
    return "; ".join(parts)[:_MAX_CHARACTERS]


def _format_location(loc: tuple[int | str, ...]) -> str:
    """Return the dotted location of a problem in the value.

    The first part, the index in the outer tuple, is omitted.
    """
    return "".join(f"{part}: " if number == len(loc) else f"{part}." for number, part in enumerate(loc[1:], start=2))


CONFIG = ConfigDict(
    ser_json_bytes="base64", val_json_bytes="base64", ser_json_inf_nan="strings", allow_inf_nan=True, defer_build=True
)
_CORE_CONFIG = core_schema.CoreConfig(
    ser_json_bytes="base64", val_json_bytes="base64", ser_json_inf_nan="strings", allow_inf_nan=True
)
# Schema keys whose content comes from the user. That content is copied unchanged, even if it looks like a schema.
_USER_KEYS = frozenset({"cls", "config", "default", "default_factory", "expected", "function", "members", "metadata"})


class Codec(NamedTuple):
    """A pair of functions that convert a one-element tuple to JSON and back."""

    dump: Callable[..., bytes]
    load: Callable[[bytes], Any]


def build_codec(storage_type: Any, namespace: Mapping[str, Any]) -> Codec:
    """Build the codec of a type; resolve its forward references in the namespace."""
    adapter: TypeAdapter[Any] = TypeAdapter(tuple[storage_type], config=CONFIG)
    adapter.rebuild(force=True, _types_namespace=dict(namespace))
    return Codec(_build_serializer(adapter).to_json, adapter.validator.validate_json)


def _build_serializer(adapter: TypeAdapter[Any]) -> Any:
    sets: list[Any] = []
    ordered = _sort_sets_in_schema(adapter.core_schema, sets)
    return SchemaSerializer(ordered, _CORE_CONFIG) if sets else adapter.serializer


def _sort_sets_in_schema(node: Any, sets: list[Any]) -> Any:
    """Return a copy of a pydantic schema that writes sets in sorted order. Append the schema of each set to `sets`."""
    if isinstance(node, list | tuple):
        return type(node)(_sort_sets_in_schema(part, sets) for part in node)
    if not isinstance(node, dict):
        return node
    new = {key: part if key in _USER_KEYS else _sort_sets_in_schema(part, sets) for key, part in node.items()}
    if node.get("type") in ("set", "frozenset") and "serialization" not in node:
        sets.append(node)
        list_schema = core_schema.list_schema(new.get("items_schema"))
        new["serialization"] = core_schema.plain_serializer_function_ser_schema(
            _sort_set, return_schema=list_schema, when_used="json"
        )
    return new


def _sort_set(value: Any) -> list[Any]:
    if not isinstance(value, set | frozenset):
        details = f"input_value={value!r}, input_type={type(value).__name__}"
        raise PydanticSerializationUnexpectedValue(f"Expected `set` [{details}]")
    return sorted(value, key=repr)


T = TypeVar("T")

_MAX_CACHED_CODECS = 1024


@dataclass(slots=True)
class StoredValue(Generic[T]):
    """The JSON of a value and the value restored from it.

    `difference` describes how the two values differ, if they do.
    """

    data: bytes
    value: T
    difference: str | None


class ValueCodec(Generic[T]):
    """The codec for values of one annotation. If `annotation` is EMPTY, the codec accepts only plain JSON."""

    __slots__ = ("_dump", "_limit", "_load", "annotation", "what")

    def __init__(self, annotation: Any, codec: Codec, what: str, limit: int) -> None:
        self.annotation = annotation
        self.what = what
        self._limit = limit
        self._dump, self._load = codec

    def store(self, value: T) -> bytes:
        """Return the value as JSON; raise `ValueRefused` if restoring it would yield a different value."""
        stored = self.store_value(value)
        if stored.difference is not None:
            raise ValueRefused(stored.difference, what=self.what)
        return stored.data

    def store_value(self, value: T) -> StoredValue[T]:
        """Return the value as JSON, with the restored value and how that differs from the original.

        Raise `ValueRefused` if the value cannot be written or read at all.
        """
        try:
            # Turning warnings into errors makes a dump slow, so that is done only after this dump failed.
            data = self._dump((value,), warnings=False, by_alias=True, round_trip=True)
            restored = self._load(data)[0]
            same = bool(restored == value)
        except BaseException as error:
            return self._store_after_error(value, error)
        if len(data) - 2 > self._limit:
            raise self._make_too_large(len(data) - 2)
        if same:
            return StoredValue(data[1:-1], restored, None)
        return self._compare(data, value, restored)

    def restore(self, data: bytes) -> T:
        """Return the value parsed from JSON; raise `ValueRefused` if it does not fit the annotation."""
        try:
            value: T = self._load(b"[%b]" % data)[0]
        except BaseException as error:
            message = f"{self.what} cannot be read as {format_type(self.annotation)}: {describe_error(error)}"
            raise ValueRefused(message, code="value_unreadable", what=self.what) from error
        return value

    def _compare(self, data: bytes, value: T, restored: T) -> StoredValue[T]:
        """Accept an equivalent restored value. Raise if the value has the wrong type; describe any other difference."""
        if guarded(lambda: self._is_equivalent(value, restored), otherwise=False):
            return StoredValue(data[1:-1], restored, None)
        try:
            self._dump((value,), warnings="error", by_alias=True, round_trip=True)
        except BaseException as error:
            raise self._make_refusal(value, error) from error
        if self.annotation is EMPTY:
            raise self._make_not_plain(value)
        return StoredValue(data[1:-1], restored, self._describe_difference(value, restored))

    def _is_equivalent(self, value: T, restored: T) -> bool:
        if is_equivalent(value, restored):
            return True
        return _is_abstract(self.annotation) and is_equivalent([*_list_items(value)], restored)

    def _store_after_error(self, value: T, error: BaseException) -> StoredValue[T]:
        """Dump and load the value again after an error.

        Raise if this fails too; if not, the first error came from `==`.
        """
        try:
            data, restored = self._dump_and_load(value)
        except BaseException as cause:
            raise self._make_refusal(value, cause) from cause
        if len(data) - 2 > self._limit:
            raise self._make_too_large(len(data) - 2) from error
        return self._compare(data, value, restored)

    def _dump_and_load(self, value: T) -> tuple[bytes, T]:
        """Dump and load the value by alias; if that fails, by field name.

        Some models can read only one of these forms.
        """
        try:
            data = self._dump((value,), warnings="error", by_alias=True, round_trip=True)
            return data, self._load(data)[0]
        except BaseException:
            try:
                data = self._dump((value,), warnings="error", by_alias=False, round_trip=True)
                return data, self._load(data)[0]
            except BaseException:
                pass
            raise  # The error by alias is more useful than the error by field name.

    def _make_refusal(self, value: object, error: BaseException) -> ValueRefused:
        if self.annotation is EMPTY:
            return self._make_not_plain(value)
        message = f"{self.what} cannot be stored as {format_type(self.annotation)}: {describe_error(error)}"
        return ValueRefused(message, what=self.what)

    def _make_not_plain(self, value: object) -> ValueRefused:
        advice = "annotate the return type" if self.what.startswith("the result") else "annotate it"
        message = f"{self.what} is not annotated and {_format_value(value)} is not plain JSON; {advice}"
        return ValueRefused(message, what=self.what)

    def _make_too_large(self, size: int) -> ValueRefused:
        refusal = validation.too_large(self.what, size, self._limit)
        return ValueRefused(refusal.message, code=refusal.code, size=size, limit=self._limit, what=self.what)

    def _describe_difference(self, value: object, restored: object) -> str:
        change = f"{_format_value(value)} is restored as {_format_value(restored)}"
        return f"{self.what} cannot be stored exactly as {format_type(self.annotation)}: {change}"


def codec_for(
    annotation: Any, *, what: str, namespace: Namespace | None = None, limit: int = validation.MAX_PAYLOAD_BYTES
) -> ValueCodec[Any]:
    """Return the codec for an annotation; raise `InvalidRequest` if its values cannot be stored.

    Error messages call the value `what`. Forward references in the annotation are resolved in `namespace`.
    """
    return ValueCodec(annotation, find_codec(annotation, what, namespace), what, limit)


def return_codec(fn: Callable[..., Any], namespace: Namespace | None = None) -> ValueCodec[Any]:
    """Return the codec for the results of a callable. Codecs are cached per function or class."""
    if isinstance(fn, FunctionType) and (codec := _return_codecs.get(fn)) is not None:
        return codec
    key, owner = find_annotated(fn)
    if key is EMPTY or not isinstance(key, FunctionType | type):
        return _make_return_codec(fn, key, namespace)
    cache_key = fn if isinstance(fn, FunctionType) else key
    codec = _return_codecs.get(cache_key)
    if codec is None:
        codec = _make_return_codec(fn, key, namespace)
        if owner is None or codec.annotation is not owner:  # In a subclass, `Self` is a different class.
            _return_codecs[cache_key] = codec
    return codec


def find_codec(annotation: Any, what: str, namespace: Namespace | None) -> Codec:
    """Return the shared codec of an annotation; raise `InvalidRequest` if its values cannot be stored."""
    storage_type = concrete_type(annotation)
    try:
        # Unions with the same members in a different order compare equal, so the text is part of the cache key.
        return _build_shared_codec(storage_type, repr(storage_type))
    except PydanticUndefinedAnnotation as error:
        if namespace is None:
            raise unresolved_annotation(what, str(error.name)) from error
    except TypeError:  # The type is not hashable, or it is not a type; `build_checked_codec` raises the right error.
        pass
    except Exception as error:
        raise _make_not_storable(storage_type, what, error) from error
    return build_checked_codec(storage_type, what, namespace)


def concrete_type(annotation: Any) -> Any:
    """Return the type to pass to pydantic.

    An iterable becomes a sequence, because pydantic would restore it as a generator that can be read only once.
    """
    if annotation is EMPTY:
        return JsonValue
    if get_origin(annotation) in (Iterable, Collection):
        return Sequence[get_args(annotation)]  # type: ignore[misc]
    return annotation


def _is_abstract(annotation: Any) -> bool:
    """Return True if the annotation accepts any sequence, so that a tuple may be restored as a list."""
    return get_origin(annotation) in (Iterable, Collection, Sequence)


def _list_items(value: object) -> Sequence[Any]:
    return value if isinstance(value, list | tuple) else ()


def build_checked_codec(storage_type: Any, what: str, namespace: Namespace | None) -> Codec:
    """Build a codec without caching it; raise `InvalidRequest` if the type cannot be stored."""
    try:
        return build_codec(storage_type, namespace or {})
    except PydanticUndefinedAnnotation as error:
        raise unresolved_annotation(what, str(error.name)) from error
    except Exception as error:
        raise _make_not_storable(storage_type, what, error) from error


@lru_cache(_MAX_CACHED_CODECS)
def _build_shared_codec(storage_type: Any, text: str) -> Codec:
    return build_codec(storage_type, {})


def _make_return_codec(fn: Callable[..., Any], key: Any, namespace: Namespace | None) -> ValueCodec[Any]:
    name = getattr(key if key is not EMPTY else fn, "__qualname__", type(fn).__qualname__)
    what = f"the result of {name.rpartition('<locals>.')[2]}"
    return codec_for(return_annotation(fn, namespace), what=what, namespace=namespace)


def _make_not_storable(storage_type: Any, what: str, error: Exception) -> InvalidRequest:
    reason = (error.message if isinstance(error, PydanticErrorMixin) else repr(error)).splitlines()[0]
    culprit, named = _UNSUPPORTED.search(reason), format_type(storage_type)
    if culprit is None:
        problem = f"{named} is not a data type ({reason})"
    else:
        # Pydantic advises settings of a model, but the class is the user's, or that of a library.
        kind = culprit["kind"].rpartition("<locals>.")[2]
        is_whole = kind == named or kind.endswith(f".{named}")
        problem = f"{named if is_whole else kind} is not a data type" + ("" if is_whole else f", but a part of {named}")
    message = f"{what} cannot be stored: {problem}; use plain types, dataclasses or pydantic models"
    return InvalidRequest("type_not_storable", message, what=what)


_UNSUPPORTED = re.compile(r"schema for <class '(?P<kind>[^']+)'>")


def format_type(annotation: Any) -> str:
    """Return an annotation as it is written in source code."""
    return annotation.__qualname__ if type(annotation) is type else str(annotation).replace("typing.", "")


def _format_value(value: object) -> str:
    text, kind = preview(value), qualified_name(type(value))
    return f"{text[:100]}… ({kind})" if len(text) > 100 else f"{text} ({kind})"


_return_codecs: WeakKeyDictionary[Any, ValueCodec[Any]] = WeakKeyDictionary()
