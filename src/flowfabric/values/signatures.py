"""Reads the annotations and parameters of functions. Names in annotations are resolved on first use.

A name in an annotation may be defined after the function. Under `from __future__ import annotations`, a class that is
local to a function is visible only in that function's frame. Each decorator therefore stores `frame_namespace(frame)`,
in which the names are looked up later.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterator, Mapping, Sequence
from inspect import Parameter
from types import FrameType, FunctionType, MethodType, SimpleNamespace
from typing import Any, Never, NoReturn, Self, get_args, get_origin, get_type_hints

from flowfabric.core.errors import InvalidRequest

Namespace = Mapping[str, Any]
EMPTY = inspect.Parameter.empty

_AWAITABLES = (Coroutine, Awaitable, Generator)


class _FrameNames(Namespace):
    """A live view of a frame's locals, which includes names defined after the decorated function."""

    def __init__(self, frame: FrameType) -> None:
        self._frame = frame

    def __getitem__(self, name: str) -> Any:
        return self._frame.f_locals[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._frame.f_locals)

    def __len__(self) -> int:
        return len(self._frame.f_locals)


def frame_namespace(frame: FrameType | None) -> Namespace | None:
    """Return the local names that annotations in this frame may use, or None at module level."""
    if frame is None or frame.f_locals is frame.f_globals or frame.f_code.co_name == "<module>":
        return None
    return _FrameNames(frame)


def parameter_annotations(fn: FunctionType, namespace: Namespace | None) -> dict[str, Any]:
    """Return the annotation of every annotated parameter, by name."""
    inner = inspect.unwrap(fn)  # The annotations use names of the inner function's module, not of a decorator's module.
    written = {name: value for name, value in inner.__annotations__.items() if name != "return"}
    return _resolve_names(inner, written, namespace, f"the parameters of {fn.__qualname__}")


def return_annotation(fn: Callable[..., Any], namespace: Namespace | None = None) -> Any:
    """Return the type of the awaited result of `fn`.

    If `fn` is a class, return the class. Return EMPTY if there is no annotation.
    """
    target, owner = find_annotated(fn)
    if not isinstance(target, FunctionType):
        return target
    written = target.__annotations__.get("return", EMPTY)
    if written is EMPTY:
        return EMPTY
    annotations = _resolve_names(target, {"return": written}, namespace, f"the result of {target.__qualname__}")
    return _awaited_type(target, annotations["return"], owner)


def find_annotated(fn: Callable[..., Any]) -> tuple[Any, Any]:
    """Return the object that has the annotations of `fn`, and the class if `fn` is a method.

    The object is the function inside partials, methods and decorators, or a class. It is EMPTY if neither exists.
    """
    while isinstance(fn, functools.partial):
        fn = fn.func
    if isinstance(fn, type) or get_origin(fn) is not None:
        return fn, None
    if isinstance(fn, MethodType):
        owner = fn.__self__ if isinstance(fn.__self__, type) else type(fn.__self__)
        return find_annotated(fn.__func__)[0], owner
    if not isinstance(fn, FunctionType) and not hasattr(fn, "__wrapped__"):
        call = inspect.getattr_static(type(fn), "__call__", None)
        return (call, type(fn)) if isinstance(call, FunctionType) else (EMPTY, None)
    inner = inspect.unwrap(fn)
    return (inner, None) if isinstance(inner, FunctionType) else (EMPTY, None)


def _awaited_type(target: FunctionType, annotation: Any, owner: type | None) -> Any:
    """Return the type of the result after an await, given the return annotation."""
    if annotation is Self and owner is not None:
        return owner
    if annotation is Never or annotation is NoReturn:
        return type(None)
    if get_origin(annotation) in _AWAITABLES and not inspect.iscoroutinefunction(target):
        return get_args(annotation)[-1]
    return annotation


def _resolve_names(fn: FunctionType, written: dict[str, Any], namespace: Namespace | None, what: str) -> dict[str, Any]:
    """Evaluate the annotations, with the names of the frame, the closure and the module."""
    scope = {**_read_closure(fn), **(namespace or {})}
    holder = SimpleNamespace(__annotations__=written, __type_params__=getattr(fn, "__type_params__", ()))
    try:
        return get_type_hints(holder, fn.__globals__, scope, include_extras=True)
    except NameError as error:
        raise unresolved_annotation(what, error.name or str(error)) from error
    except Exception as error:
        message = f"the annotations of {what} cannot be evaluated: {error}"
        raise InvalidRequest("annotation_invalid", message, function=fn.__qualname__) from error


def unresolved_annotation(what: str, name: str) -> InvalidRequest:
    """Return the error for an annotation with an undefined name."""
    message = (
        f"the annotations of {what} name {name}, which is not defined; define it at the top of the module, or import "
        "it outside of `if TYPE_CHECKING`"
    )
    return InvalidRequest("annotation_unresolved", message, name=name)


def _read_closure(fn: FunctionType) -> dict[str, Any]:
    cells = zip(fn.__code__.co_freevars, fn.__closure__ or (), strict=True)
    return {name: content for name, cell in cells if (content := _read_cell(cell)) is not EMPTY}


def _read_cell(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # The variable is not assigned yet.
        return EMPTY


# `Parameters` binds the arguments of a call by name, and turns them back into a call.


_POSITIONAL = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
_VARIABLE = (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)


class Parameters:
    """The parameters of a function by name, in order.

    The values of `*args` are a list, and those of `**kwargs` are a dict.
    """

    def __init__(self, fn: FunctionType) -> None:
        self._function = fn.__name__
        self._signature = inspect.signature(fn)
        self.by_name: Mapping[str, Parameter] = self._signature.parameters
        self._names = tuple(self.by_name)
        self._is_simple = all(one.kind is Parameter.POSITIONAL_OR_KEYWORD for one in self.by_name.values())
        self._defaults = {name: one.default for name, one in self.by_name.items() if one.default is not EMPTY}

    def is_optional(self, name: str) -> bool:
        """Return True if a call may omit the parameter."""
        return name in self._defaults or self.by_name[name].kind in _VARIABLE

    def bind(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments by parameter name, defaults included, in the order of the parameters.

        Equal calls then give equal bytes, so that a submit with an idempotency key can be repeated.
        """
        if self._is_simple and len(args) <= len(self._names):
            positional = dict(zip(self._names, args, strict=False))
            if kwargs.keys().isdisjoint(positional):
                bound = {**self._defaults, **positional, **kwargs}
                if bound.keys() == self.by_name.keys():
                    return {name: bound[name] for name in self._names}
        return self._bind_by_signature(args, kwargs)

    def arguments(self, bound: Mapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the args and kwargs of a call; a missing parameter takes its default."""
        values = {**self._defaults, **bound}
        if self._is_simple:
            return tuple([values[name] for name in self._names]), {}
        args = [values[name] for name in self._names_of_kind(*_POSITIONAL)]
        for name in self._names_of_kind(Parameter.VAR_POSITIONAL):
            args += values.get(name, ())
        kwargs = {name: values[name] for name in self._names_of_kind(Parameter.KEYWORD_ONLY)}
        for name in self._names_of_kind(Parameter.VAR_KEYWORD):
            kwargs |= values.get(name, {})
        return tuple(args), kwargs

    def _bind_by_signature(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Bind the arguments by the full signature; raise `InvalidRequest` if they do not fit it."""
        try:
            bound = self._signature.bind(*args, **kwargs)
        except TypeError as error:
            raise InvalidRequest("invalid_arguments", f"{self._function}: {error}") from None
        bound.apply_defaults()
        lists = {name: list(bound.arguments[name]) for name in self._names_of_kind(Parameter.VAR_POSITIONAL)}
        return {**bound.arguments, **lists}

    def _names_of_kind(self, *kinds: Any) -> list[str]:
        return [name for name, one in self.by_name.items() if one.kind in kinds]
