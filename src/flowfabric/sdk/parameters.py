"""The parameters of a function: which arguments a call gives them, and how they are handed back to it."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from inspect import Parameter
from types import FunctionType
from typing import Any

from flowfabric.core.errors import InvalidRequest
from flowfabric.sdk.annotations import EMPTY

_STRAIGHT = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
_VARIABLE = (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)


class Parameters:
    """What a function takes, by name and in order. Variable arguments are a list and a dict under their names."""

    def __init__(self, fn: FunctionType) -> None:
        self._function = fn.__name__
        self._signature = inspect.signature(fn)
        self.by_name: Mapping[str, Parameter] = self._signature.parameters
        self._names = tuple(self.by_name)
        self._is_simple = all(one.kind is Parameter.POSITIONAL_OR_KEYWORD for one in self.by_name.values())
        self._defaults = {name: one.default for name, one in self.by_name.items() if one.default is not EMPTY}

    def is_optional(self, name: str) -> bool:
        """True when a call may leave it out."""
        return name in self._defaults or self.by_name[name].kind in _VARIABLE

    def bind(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments by the names of their parameters, defaults included, always in the order of the parameters: the
        same call made in another way is the same bytes under its key."""
        if self._is_simple and len(args) <= len(self._names):
            given = dict(zip(self._names, args, strict=False))
            if kwargs.keys().isdisjoint(given):
                bound = {**self._defaults, **given, **kwargs}
                if bound.keys() == self.by_name.keys():
                    return {name: bound[name] for name in self._names}
        return self._bound_slowly(args, kwargs)

    def arguments(self, bound: Mapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """What the function is called with; a parameter that is not there takes its default."""
        values = {**self._defaults, **bound}
        if self._is_simple:
            return tuple([values[name] for name in self._names]), {}
        args = [values[name] for name in self._all_of(*_STRAIGHT)]
        for name in self._all_of(Parameter.VAR_POSITIONAL):
            args += values.get(name, ())
        kwargs = {name: values[name] for name in self._all_of(Parameter.KEYWORD_ONLY)}
        for name in self._all_of(Parameter.VAR_KEYWORD):
            kwargs |= values.get(name, {})
        return tuple(args), kwargs

    def _bound_slowly(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """The same for any signature, which also says what is wrong with a call."""
        try:
            bound = self._signature.bind(*args, **kwargs)
        except TypeError as error:
            raise InvalidRequest("invalid_arguments", f"{self._function}: {error}") from None
        bound.apply_defaults()
        lists = {name: list(bound.arguments[name]) for name in self._all_of(Parameter.VAR_POSITIONAL)}
        return {**bound.arguments, **lists}

    def _all_of(self, *kinds: Any) -> list[str]:
        return [name for name, one in self.by_name.items() if one.kind in kinds]
