"""A short digest of the arguments of a durable call, by which a re-run notices that it makes the call differently.

It is taken of canonical JSON: keys and sets sorted, dataclasses and pydantic models by their fields. What is not data
(connections, clients, clocks, functions) counts by the name of its type only, and without the module, because a module
that is run as a script has another name than when a worker imports it.
"""

from __future__ import annotations

import hashlib
import json
import operator
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from functools import lru_cache
from pathlib import PurePath
from types import MappingProxyType
from typing import Any
from uuid import UUID

from flowfabric.core.errors import InvalidRequest
from flowfabric.sdk.forms import codec_of

_HEX_DIGITS = 32
_DEPTH = 200


def arguments_digest(args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    """The digest of the arguments of one call; equal arguments have equal digests in every process."""
    call = (args, kwargs) if kwargs else (args,)
    try:
        text = _encode(call)
    except (TypeError, ValueError, RecursionError):  # Keys that are no text, or something that holds itself.
        text = _encode(_plain(call, ()))
    return hashlib.sha256(text.encode()).hexdigest()[:_HEX_DIGITS]


def _data(value: Any) -> Any:
    """What stands for something that JSON does not know."""
    kind: type = type(value)
    return _reader(kind)(value)


_encode: Callable[[Any], str] = json.JSONEncoder(sort_keys=True, separators=(",", ":"), default=_data).encode


@lru_cache(4096)
def _reader(kind: type) -> Callable[[Any], Any]:
    """How values of this class are read as data."""
    for known, reader in _KNOWN:
        if issubclass(kind, known):
            return reader
    if is_dataclass(kind):
        return _fields_of(kind)
    if hasattr(kind, "__pydantic_fields__"):
        return _model_fields
    if hasattr(kind, "__get_pydantic_core_schema__"):
        return _stored_reader(kind)
    if hasattr(kind, "__index__"):
        return operator.index
    return _type_only


def _set(value: Any) -> list[Any]:
    return sorted(_encode(_plain(item, ())) for item in value)


def _bytes(value: Any) -> list[str]:
    return ["bytes", hashlib.sha256(bytes(value)).hexdigest()]


def _member(value: Enum) -> Any:
    return value.value if isinstance(value.value, str | int | float) else value.name


def _moment(value: date | time) -> str:
    return value.isoformat()


def _model_fields(value: Any) -> dict[str, Any]:
    # Not the whole `__dict__`: a cached property is in there as soon as somebody has read it.
    own = {name: value.__dict__.get(name) for name in type(value).__pydantic_fields__}
    return {**own, **(value.__pydantic_extra__ or {})}


def _fields_of(kind: type) -> Callable[[Any], dict[str, Any]]:
    names = tuple(field.name for field in fields(kind))
    return lambda value: {name: getattr(value, name, None) for name in names}


def _stored_reader(kind: type) -> Callable[[Any], Any]:
    """For a class that says itself how it is stored: by what is stored."""
    try:
        dump = codec_of(kind, kind.__qualname__, None).dump
    except InvalidRequest:
        return _type_only

    def read(value: Any) -> Any:
        try:
            return dump((value,), warnings=False).decode()
        except Exception:
            return _type_only(value)

    return read


def _type_only(value: object) -> dict[str, str]:
    return {"type": type(value).__qualname__}


_KNOWN: tuple[tuple[Any, Callable[[Any], Any]], ...] = (
    (Enum, _member),
    (set | frozenset, _set),
    (bytes | bytearray | memoryview, _bytes),
    (datetime | date | time, _moment),
    (timedelta | Decimal | UUID | PurePath | complex, str),
    (deque | range, list),
    (MappingProxyType, dict),
)


def _plain(value: Any, holders: tuple[int, ...]) -> Any:
    """The same as JSON can write it, whatever the keys are; what holds itself or lies very deep counts by type."""
    if isinstance(value, dict | list | tuple):
        if id(value) in holders or len(holders) >= _DEPTH:
            return _type_only(value)
        inside = (*holders, id(value))
        if isinstance(value, dict):
            return sorted([_encode(_plain(key, inside)), _encode(_plain(item, inside))] for key, item in value.items())
        return [_plain(item, inside) for item in value]
    if value is None or isinstance(value, str | int | float):
        return value
    if id(value) in holders or len(holders) >= _DEPTH:
        return _type_only(value)
    found = _data(value)
    return _plain(found, (*holders, id(value)))
