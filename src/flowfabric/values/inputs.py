"""The arguments of a task as one JSON object, with the parameter names as keys.

Defaults are filled in at submit, so a later change of a default does not affect submitted executions. The function may
have changed between the submit and the run. A new parameter then takes its default. A removed or incompatible parameter
raises `InputMismatch`, which holds the execution instead of failing it.
"""

from __future__ import annotations

import hashlib
import inspect
import json
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from functools import cached_property, lru_cache
from inspect import Parameter
from operator import index, methodcaller
from pathlib import PurePath
from types import FunctionType, MappingProxyType
from typing import Any, Unpack, get_args, get_origin
from uuid import UUID

import typing_extensions
from pydantic import JsonValue, ValidationError
from pydantic_core import from_json

from flowfabric.core import validation
from flowfabric.core.errors import InvalidRequest
from flowfabric.values import guards
from flowfabric.values.codecs import (
    Codec,
    ValueCodec,
    build_checked_codec,
    codec_for,
    concrete_type,
    describe_error,
    find_codec,
)
from flowfabric.values.errors import InputMismatch, ValueRefused
from flowfabric.values.signatures import EMPTY, Namespace, Parameters, parameter_annotations

_REPAIR = "restore the old parameters or register version=2, then run `flowfabric unhold`"


def inputs_for(fn: Callable[..., Any], namespace: Namespace | None = None) -> Inputs:
    """Return the inputs of a function; raise `InvalidRequest` if it cannot be a task.

    Annotations are resolved on first use. They may use the names in `namespace` and the globals of the function.
    """
    return Inputs(_check_task_function(fn), namespace)


class Inputs:
    """The parameters of one function, with methods that convert its arguments to JSON and back."""

    def __init__(self, fn: FunctionType, namespace: Namespace | None) -> None:
        self._fn = fn
        self._namespace = namespace
        self._parameters = Parameters(fn)

    def check(self) -> None:
        """Resolve the annotations; raise `InvalidRequest` for an undefined name or a type that cannot be stored."""
        assert self._codec, "building the codec resolves the annotations"

    def bind(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments of a call by parameter name, defaults included."""
        return self._parameters.bind(args, kwargs)

    def pack(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bytes:
        """Return the arguments of a call as JSON.

        Raise `ValueRefused` if restoring an argument would yield a different value.
        """
        bound = self.bind(args, kwargs)
        dump, load = self._codec
        try:
            data = dump((bound,), warnings=False, by_alias=True, round_trip=True)
            same = bool(load(data)[0] == bound)
        except BaseException:
            return self._pack_separately(bound)
        if not same:
            return self._pack_separately(bound)
        return self._check_size(data[1:-1])

    def unpack(self, data: bytes) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments parsed from JSON; raise `InputMismatch` if the function does not accept them."""
        load = self._codec.load  # Outside the `try`: an unresolvable annotation is not an error in the input.
        try:
            stored = load(b"[%b]" % (data or b"{}"))[0]
            removed = from_json(data or b"{}").keys() - self._parameters.by_name.keys()
        except ValidationError as error:
            raise self._make_mismatch(describe_error(error)) from error
        except BaseException as error:
            raise self._make_mismatch(f"{guards.type_name(error)}: {guards.text_of(error) or '?'}") from error
        if removed:
            raise self._make_mismatch(f"it has no parameter {', '.join(sorted(removed))}")
        return self._parameters.arguments(stored)

    def parameter_codec(self, name: str) -> ValueCodec[Any]:
        """Return the codec of one parameter."""
        annotation = self._stored_types[name]
        what = f"the argument {name} of {self._fn.__name__}"
        return codec_for(EMPTY if annotation is JsonValue else annotation, what=what, namespace=self._namespace)

    @cached_property
    def _stored_types(self) -> dict[str, Any]:
        """The type as which each parameter is stored; a parameter without an annotation is stored as plain JSON."""
        annotations = parameter_annotations(self._fn, self._namespace)
        by_name = self._parameters.by_name
        return {name: _get_stored_type(by_name[name], annotations.get(name, JsonValue)) for name in by_name}

    @cached_property
    def _codec(self) -> Codec:
        fields: dict[str, Any] = {name: concrete_type(stored) for name, stored in self._stored_types.items()}
        for name in filter(self._parameters.is_optional, fields):
            fields[name] = typing_extensions.NotRequired[fields[name]]
        make_type: Any = typing_extensions.TypedDict
        name = self._fn.__name__
        try:
            return build_checked_codec(make_type(name, fields), f"the input of {name}", self._namespace)
        except InvalidRequest:
            for parameter in fields:
                self.parameter_codec(parameter)  # Raise an error that names the parameter.
            raise

    def _pack_separately(self, bound: dict[str, Any]) -> bytes:
        """Pack each argument separately, so that an error names the argument that caused it."""
        parts = [b'"%b":%b' % (name.encode(), self.parameter_codec(name).store(value)) for name, value in bound.items()]
        return self._check_size(b"{%b}" % b",".join(parts))

    def _check_size(self, data: bytes) -> bytes:
        if len(data) > validation.MAX_PAYLOAD_BYTES:
            refusal = validation.too_large(f"the input of {self._fn.__name__}", len(data), validation.MAX_PAYLOAD_BYTES)
            raise ValueRefused(refusal.message, code=refusal.code, **refusal.fields)
        return data

    def _make_mismatch(self, why: str) -> InputMismatch:
        name = self._fn.__name__
        return InputMismatch(f"the stored input does not fit {name}: {why}; {_REPAIR}", function=name, reason=why)


def _get_stored_type(parameter: Parameter, annotation: Any) -> Any:
    if parameter.kind is Parameter.VAR_POSITIONAL:
        return list[annotation]
    if parameter.kind is not Parameter.VAR_KEYWORD:
        return annotation
    if get_origin(annotation) in (Unpack, typing_extensions.Unpack):
        return get_args(annotation)[0]
    return dict[str, annotation]


def _check_task_function(fn: object) -> FunctionType:
    """Return the function; raise `InvalidRequest` if it cannot be a task."""
    if not isinstance(fn, FunctionType):
        raise _make_invalid_task(type(fn).__name__, "a task must be a function defined with def or async def")
    if inspect.isgeneratorfunction(fn) or inspect.isasyncgenfunction(fn):
        raise _make_invalid_task(fn.__qualname__, "a generator has no single result to store; return a list")
    first = next(iter(inspect.signature(fn).parameters.values()), None)
    if first is not None and first.name in ("self", "cls") and first.annotation is EMPTY:
        raise _make_invalid_task(fn.__qualname__, f"it is a method, and {first.name} cannot be stored; use a function")
    return fn


def _make_invalid_task(name: str, why: str) -> InvalidRequest:
    return InvalidRequest("invalid_task", f"{name} cannot be a task: {why}", function=name)


# These functions compute digests of the arguments of durable calls. A re-run compares them to detect a changed call.
#
# A digest is computed from canonical JSON, in which keys and sets are sorted and dataclasses and pydantic models are
# objects with their fields. Connections, clients, clocks and functions are not data, so the digest uses only the name
# of their type. The module of the type is omitted, because it is `__main__` in a script but has another name in a
# worker.


_HEX_DIGITS = 32
_MAX_DEPTH = 200


def digest_arguments(args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    """Return the digest of a call's arguments; equal arguments have equal digests in every process."""
    call = (args, kwargs) if kwargs else (args,)
    try:
        text = _encode(call)
    except BaseException:  # A key is not a string, a value contains itself, or its code raises.
        text = _encode(_to_plain(call, ()))
    return hashlib.sha256(text.encode()).hexdigest()[:_HEX_DIGITS]


class ChangedArguments:
    """Finds functions that change their arguments, by comparing the digests from before and after a call.

    A second digest for every call would slow steps down. So only the calls 1, 2, 4, 8 and so on of each function are
    compared, and only if an argument can change. A function that was found once is not compared again.
    """

    def __init__(self) -> None:
        self._calls: dict[tuple[str, str], int] = {}

    def found(
        self, function: tuple[str, str], before: str | None, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> bool:
        """Return True if this call is compared, and its arguments no longer have the digest `before`."""
        number = self._calls.get(function, 1)
        if number == _FOUND:
            return False
        if len(self._calls) >= _MAX_FUNCTIONS:
            self._calls.clear()
        self._calls[function] = number + 1
        is_due = number & (number - 1) == 0
        if not is_due or before is None or _are_immutable(args, kwargs) or digest_arguments(args, kwargs) == before:
            return False
        self._calls[function] = _FOUND
        return True


_FOUND = -1
_MAX_FUNCTIONS = 10_000
_IMMUTABLE = frozenset(
    {bool, bytes, complex, date, datetime, Decimal, float, int, str, time, timedelta, type(None), UUID}
)


def _are_immutable(args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    return all(type(value) in _IMMUTABLE for value in (*args, *kwargs.values()))


def _to_data(value: Any) -> Any:
    """Return a JSON substitute for a value that the encoder does not support."""
    kind: type = type(value)
    return _find_reader(kind)(value)


_encode: Callable[[Any], str] = json.JSONEncoder(sort_keys=True, separators=(",", ":"), default=_to_data).encode


@lru_cache(4096)
def _find_reader(kind: type) -> Callable[[Any], Any]:
    """Return the function that converts values of this class to data for the JSON encoder."""
    for base, reader in _READERS:
        if issubclass(kind, base):
            return reader
    if is_dataclass(kind):
        return _make_dataclass_reader(kind)
    if hasattr(kind, "__pydantic_fields__"):
        return _read_model
    if hasattr(kind, "__get_pydantic_core_schema__"):
        return _make_schema_reader(kind)
    if hasattr(kind, "__index__"):
        return index
    return _read_type_name


def _read_set(value: Any) -> list[Any]:
    return sorted(_encode(_to_plain(item, ())) for item in value)


def _read_bytes(value: Any) -> list[str]:
    return ["bytes", hashlib.sha256(bytes(value)).hexdigest()]


def _read_member(value: Enum) -> Any:
    return value.value if isinstance(value.value, str | int | float) else value.name


def _read_model(value: Any) -> dict[str, Any]:
    # `__dict__` also holds cached properties once they have been read, so take only the fields.
    own = {name: value.__dict__.get(name) for name in type(value).__pydantic_fields__}
    return {**own, **(value.__pydantic_extra__ or {})}


def _make_dataclass_reader(kind: type) -> Callable[[Any], dict[str, Any]]:
    names = tuple(field.name for field in fields(kind))
    return lambda value: {name: getattr(value, name, None) for name in names}


def _make_schema_reader(kind: type) -> Callable[[Any], Any]:
    """Return a function that converts values to JSON by the pydantic schema of their class."""
    try:
        dump = find_codec(kind, kind.__qualname__, None).dump
    except InvalidRequest:
        return _read_type_name

    def read(value: Any) -> Any:
        try:
            return dump((value,), warnings=False).decode()
        except Exception:
            return _read_type_name(value)

    return read


def _read_type_name(value: object) -> dict[str, str]:
    return {"type": guards.qualified_name(type(value))}


_READERS: tuple[tuple[Any, Callable[[Any], Any]], ...] = (
    (Enum, _read_member),
    (set | frozenset, _read_set),
    (bytes | bytearray | memoryview, _read_bytes),
    (datetime | date | time, methodcaller("isoformat")),
    (timedelta | Decimal | UUID | PurePath | complex, str),
    (deque | range, list),
    (MappingProxyType, dict),
)


def _to_plain(value: Any, holders: tuple[int, ...]) -> Any:
    """Convert a value to plain JSON, even if it has keys that are not strings.

    A container that contains itself or is nested too deeply is replaced by its type.
    """
    if value is None or isinstance(value, str | int | float):
        return value
    if id(value) in holders or len(holders) >= _MAX_DEPTH:
        return _read_type_name(value)
    inside = (*holders, id(value))
    try:
        if isinstance(value, list | tuple):
            return [_to_plain(item, inside) for item in value]
        if isinstance(value, dict):
            pairs = ((_to_plain(key, inside), _to_plain(item, inside)) for key, item in value.items())
            return sorted([_encode(key), _encode(item)] for key, item in pairs)
        return _to_plain(_to_data(value), inside)
    except BaseException:  # Code of the value's class raises.
        return _read_type_name(value)
