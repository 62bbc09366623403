"""How the arguments of a task are stored: one JSON object, by the names of the parameters.

Defaults are filled in when the task is submitted, so a default that changes later does not change what was submitted.
When the input is read, the function may have moved on: a parameter that is new takes its default, one that is gone or
means something else is an `InputMismatch`, which holds the execution instead of failing it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from inspect import Parameter
from types import FunctionType
from typing import Any, Unpack, get_args, get_origin

import typing_extensions
from pydantic import JsonValue, ValidationError
from pydantic_core import from_json

from flowfabric.core import limits
from flowfabric.core.errors import InvalidRequest
from flowfabric.sdk.annotations import EMPTY, Names, parameter_annotations
from flowfabric.sdk.codecs import Codec
from flowfabric.sdk.errors import InputMismatch, ValueRefused
from flowfabric.sdk.forms import Form, concrete, form_of, fresh_codec
from flowfabric.sdk.parameters import Parameters
from flowfabric.sdk.reasons import reason

_REPAIR = "give the parameters back their old meaning, or register version=2; then `flowfabric unhold`"


def inputs_of(fn: Callable[..., Any], namespace: Names | None = None) -> Inputs:
    """How calls of this function are stored; raises `InvalidRequest` if it cannot be a task. Annotations are looked at
    when they are first needed; `namespace` holds the names they may use besides the globals."""
    return Inputs(_task_function(fn), namespace)


class Inputs:
    """The parameters of one function, which turn a call into JSON and back."""

    def __init__(self, fn: FunctionType, namespace: Names | None) -> None:
        self._fn = fn
        self._namespace = namespace
        self._parameters = Parameters(fn)

    def check(self) -> None:
        """Resolves the annotations; raises `InvalidRequest` for a name that is not known or a type that is no data."""
        assert self._codec, "it is resolved by being made"

    def bind(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments of a call by the names of their parameters, defaults included."""
        return self._parameters.bind(args, kwargs)

    def pack(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bytes:
        """The arguments of a call as JSON; raises `ValueRefused` if one of them would not come back as it is."""
        bound = self.bind(args, kwargs)
        dump, load = self._codec
        try:
            data = dump((bound,), warnings=False, by_alias=True, round_trip=True)
            same = bool(load(data)[0] == bound)
        except Exception:
            return self._packed_one_by_one(bound)
        if not same:
            return self._packed_one_by_one(bound)
        return self._fitting(data[1:-1])

    def unpack(self, data: bytes) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments behind their JSON, as the function takes them now; raises `InputMismatch` if it cannot."""
        load = self._codec.load  # Outside: a type that cannot be resolved is no fault of the input.
        try:
            stored = load(b"[%b]" % (data or b"{}"))[0]
            gone = from_json(data or b"{}").keys() - self._parameters.by_name.keys()
        except ValidationError as error:
            raise self._mismatch(reason(error)) from error
        except Exception as error:
            raise self._mismatch(f"{type(error).__name__}: {error}") from error
        if gone:
            raise self._mismatch(f"it has no parameter {', '.join(sorted(gone))} any more")
        return self._parameters.arguments(stored)

    def form(self, name: str) -> Form[Any]:
        """How the argument of one parameter is stored."""
        annotation = self._forms[name]
        what = f"the argument {name} of {self._fn.__name__}"
        return form_of(EMPTY if annotation is JsonValue else annotation, what=what, namespace=self._namespace)

    @cached_property
    def _forms(self) -> dict[str, Any]:
        """What is stored for each parameter; plain JSON for one without an annotation."""
        found = parameter_annotations(self._fn, self._namespace)
        return {name: _stored_as(one, found.get(name, JsonValue)) for name, one in self._parameters.by_name.items()}

    @cached_property
    def _codec(self) -> Codec:
        fields = {name: self._field(name, concrete(form)) for name, form in self._forms.items()}
        make: Any = typing_extensions.TypedDict
        return fresh_codec(make(self._fn.__name__, fields), f"the input of {self._fn.__name__}", self._namespace)

    def _field(self, name: str, form: Any) -> Any:
        return typing_extensions.NotRequired[form] if self._parameters.is_optional(name) else form

    def _packed_one_by_one(self, bound: dict[str, Any]) -> bytes:
        """The same slowly, which tells the argument that is to blame."""
        parts = [b'"%b":%b' % (name.encode(), self.form(name).store(value)) for name, value in bound.items()]
        return self._fitting(b"{%b}" % b",".join(parts))

    def _fitting(self, data: bytes) -> bytes:
        if len(data) > limits.PAYLOAD_BYTES:
            refusal = limits.too_large(f"the input of {self._fn.__name__}", len(data), limits.PAYLOAD_BYTES)
            raise ValueRefused(refusal.message, code=refusal.code, **refusal.fields)
        return data

    def _mismatch(self, why: str) -> InputMismatch:
        name = self._fn.__name__
        return InputMismatch(f"the stored input does not fit {name}: {why}; {_REPAIR}", function=name)


def _stored_as(parameter: Parameter, annotation: Any) -> Any:
    if parameter.kind is Parameter.VAR_POSITIONAL:
        return list[annotation]
    if parameter.kind is not Parameter.VAR_KEYWORD:
        return annotation
    if get_origin(annotation) in (Unpack, typing_extensions.Unpack):
        return get_args(annotation)[0]
    return dict[str, annotation]


def _task_function(fn: object) -> FunctionType:
    """The function itself, if it can be a task."""
    if not isinstance(fn, FunctionType):
        raise _no_task(type(fn).__name__, "a task must be a function defined with def or async def")
    if inspect.isgeneratorfunction(fn) or inspect.isasyncgenfunction(fn):
        raise _no_task(fn.__qualname__, "a generator has no one result to store; return a list")
    first = next(iter(inspect.signature(fn).parameters.values()), None)
    if first is not None and first.name in ("self", "cls") and first.annotation is EMPTY:
        raise _no_task(fn.__qualname__, f"it is a method, and {first.name} cannot be stored; use a function")
    return fn


def _no_task(name: str, why: str) -> InvalidRequest:
    return InvalidRequest("invalid_task", f"{name} cannot be a task: {why}", function=name)
