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
from pydantic import JsonValue, TypeAdapter, ValidationError
from pydantic_core import from_json

from flowfabric.core import limits
from flowfabric.core.errors import InvalidRequest
from flowfabric.sdk.annotations import EMPTY, Names, parameter_annotations
from flowfabric.sdk.errors import InputMismatch, ValueRefused
from flowfabric.sdk.forms import Form, adapter_of, concrete, form_of
from flowfabric.sdk.reasons import reason

_REPAIR = "give the parameters back their old meaning, or register version=2; then `flowfabric unhold`"
_STRAIGHT = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)


def inputs_of(fn: Callable[..., Any], namespace: Names | None = None) -> Inputs:
    """How calls of this function are stored; raises `InvalidRequest` if it cannot be a task. Annotations are looked at
    when they are first needed; `namespace` holds the names they may use besides the globals."""
    return Inputs(_task_function(fn), namespace)


class Inputs:
    """The parameters of one function, which turn a call into JSON and back."""

    def __init__(self, fn: FunctionType, namespace: Names | None) -> None:
        self._fn = fn
        self._namespace = namespace
        self._signature = inspect.signature(fn)
        self._parameters = dict(self._signature.parameters)
        kinds = {parameter.kind for parameter in self._parameters.values()}
        self._names = tuple(self._parameters)
        self._simple = kinds <= {Parameter.POSITIONAL_OR_KEYWORD}
        self._defaults = {
            name: parameter.default for name, parameter in self._parameters.items() if parameter.default is not EMPTY
        }

    def check(self) -> None:
        """Resolves the annotations; raises `InvalidRequest` for a name that is not known or a type that is no data."""
        assert self._adapter.pydantic_complete, "an adapter is built when it is made"

    def bind(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments of a call by the names of their parameters, defaults included."""
        if self._simple and len(args) <= len(self._names):
            given = dict(zip(self._names, args, strict=False))
            if kwargs.keys().isdisjoint(given):
                bound = {**self._defaults, **given, **kwargs}
                if bound.keys() == self._parameters.keys():
                    # Always in one order: the same call made in another way is the same bytes under its key.
                    return {name: bound[name] for name in self._names}
        return self._bound(args, kwargs)

    def pack(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bytes:
        """The arguments of a call as JSON; raises `ValueRefused` if one of them would not come back as it is."""
        bound = self.bind(args, kwargs)
        try:
            data = self._dump((bound,), warnings=False, by_alias=True, round_trip=True)
            same = bool(self._load(data)[0] == bound)
        except Exception:
            return self._packed_one_by_one(bound)
        if not same:
            return self._packed_one_by_one(bound)
        return self._fitting(data[1:-1])

    def unpack(self, data: bytes) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments behind their JSON, as the function takes them now; raises `InputMismatch` if it cannot."""
        try:
            stored = self._load(b"[%b]" % (data or b"{}"))[0]
            gone = from_json(data or b"{}").keys() - self._parameters.keys()
        except ValidationError as error:
            raise self._mismatch(reason(error)) from error
        except Exception as error:
            raise self._mismatch(f"{type(error).__name__}: {error}") from error
        if gone:
            raise self._mismatch(f"it has no parameter {', '.join(sorted(gone))} any more")
        return self._arguments(stored)

    def form(self, name: str) -> Form[Any]:
        """How the argument of one parameter is stored."""
        annotation = self._forms[name]
        what = f"the argument {name} of {self._fn.__name__}"
        return form_of(EMPTY if annotation is JsonValue else annotation, what=what, namespace=self._namespace)

    @cached_property
    def _forms(self) -> dict[str, Any]:
        """What is stored for each parameter; plain JSON for one without an annotation."""
        found = parameter_annotations(self._fn, self._namespace)
        return {name: _stored_as(one, found.get(name, JsonValue)) for name, one in self._parameters.items()}

    @cached_property
    def _adapter(self) -> TypeAdapter[Any]:
        fields = {name: self._field(name, concrete(form)) for name, form in self._forms.items()}
        make: Any = typing_extensions.TypedDict
        return adapter_of(make(self._fn.__name__, fields), f"the input of {self._fn.__name__}", self._namespace)

    def _field(self, name: str, form: Any) -> Any:
        one = self._parameters[name]
        has_default = one.default is not EMPTY or one.kind in (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)
        return typing_extensions.NotRequired[form] if has_default else form

    @cached_property
    def _dump(self) -> Callable[..., bytes]:
        return self._adapter.serializer.to_json

    @cached_property
    def _load(self) -> Callable[[bytes], Any]:
        return self._adapter.validator.validate_json

    def _bound(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        try:
            bound = self._signature.bind(*args, **kwargs)
        except TypeError as error:
            raise InvalidRequest("invalid_arguments", f"{self._fn.__name__}: {error}") from None
        bound.apply_defaults()
        lists = {name: list(bound.arguments[name]) for name in self._all_of(Parameter.VAR_POSITIONAL)}
        return {**bound.arguments, **lists}

    def _packed_one_by_one(self, bound: dict[str, Any]) -> bytes:
        """The same slowly, which tells the argument that is to blame."""
        parts = [b'"%b":%b' % (name.encode(), self.form(name).store(value)) for name, value in bound.items()]
        return self._fitting(b"{%b}" % b",".join(parts))

    def _fitting(self, data: bytes) -> bytes:
        if len(data) > limits.PAYLOAD_BYTES:
            refusal = limits.too_large(f"the input of {self._fn.__name__}", len(data), limits.PAYLOAD_BYTES)
            raise ValueRefused(refusal.message, code=refusal.code, **refusal.fields)
        return data

    def _arguments(self, stored: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        values = {**self._defaults, **stored} if self._defaults else stored
        if self._simple:
            return tuple([values[name] for name in self._names]), {}
        args = [values[name] for name in self._all_of(*_STRAIGHT)]
        for name in self._all_of(Parameter.VAR_POSITIONAL):
            args += values.get(name, ())
        kwargs = {name: values[name] for name in self._all_of(Parameter.KEYWORD_ONLY)}
        for name in self._all_of(Parameter.VAR_KEYWORD):
            kwargs |= values.get(name, {})
        return tuple(args), kwargs

    def _all_of(self, *kinds: Any) -> list[str]:
        return [name for name, one in self._parameters.items() if one.kind in kinds]

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
