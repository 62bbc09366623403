"""What the annotations of a function mean, resolved when they are needed and not before.

A name in an annotation may be defined later than the function, and under `from __future__ import annotations` a class
inside a function is only known to that function's frame. So whoever decorates a function keeps `names_of(frame)`.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterator, Mapping
from types import FrameType, FunctionType, MethodType, SimpleNamespace
from typing import Any, Never, NoReturn, Self, get_args, get_origin, get_type_hints

from flowfabric.core.errors import InvalidRequest

Names = Mapping[str, Any]
EMPTY = inspect.Parameter.empty

_PROMISES = (Coroutine, Awaitable, Generator)


class _FrameNames(Names):
    """The locals of a frame as they are when somebody looks, so that what is defined after the function counts too."""

    def __init__(self, frame: FrameType) -> None:
        self._frame = frame

    def __getitem__(self, name: str) -> Any:
        return self._frame.f_locals[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._frame.f_locals)

    def __len__(self) -> int:
        return len(self._frame.f_locals)


def names_of(frame: FrameType | None) -> Names | None:
    """The names that annotations written in this frame may use besides the globals; none at the top of a module."""
    if frame is None or frame.f_locals is frame.f_globals or frame.f_code.co_name == "<module>":
        return None
    return _FrameNames(frame)


def parameter_annotations(fn: FunctionType, namespace: Names | None) -> dict[str, Any]:
    """The annotation of every annotated parameter, by its name."""
    inner = inspect.unwrap(fn)  # A decorator may be from another module, where the names mean nothing.
    written = {name: value for name, value in inner.__annotations__.items() if name != "return"}
    return _resolved(inner, written, namespace, f"the parameters of {fn.__qualname__}")


def return_annotation(fn: Callable[..., Any], namespace: Names | None = None) -> Any:
    """What a call of `fn` answers, once awaited; EMPTY when nothing says so. A class answers itself."""
    target, owner = annotated(fn)
    if not isinstance(target, FunctionType):
        return target
    written = target.__annotations__.get("return", EMPTY)
    if written is EMPTY:
        return EMPTY
    found = _resolved(target, {"return": written}, namespace, f"the result of {target.__qualname__}")["return"]
    return _answer(target, found, owner)


def annotated(fn: Callable[..., Any]) -> tuple[Any, Any]:
    """What carries the annotations: the function inside partials, methods and decorators, a class itself, or EMPTY;
    and the class that a method belongs to."""
    while isinstance(fn, functools.partial):
        fn = fn.func
    if isinstance(fn, type) or get_origin(fn) is not None:
        return fn, None
    if isinstance(fn, MethodType):
        owner = fn.__self__ if isinstance(fn.__self__, type) else type(fn.__self__)
        return annotated(fn.__func__)[0], owner
    if not isinstance(fn, FunctionType) and not hasattr(fn, "__wrapped__"):
        call = inspect.getattr_static(type(fn), "__call__", None)
        return (call, type(fn)) if isinstance(call, FunctionType) else (EMPTY, None)
    inner = inspect.unwrap(fn)
    return (inner, None) if isinstance(inner, FunctionType) else (EMPTY, None)


def _answer(target: FunctionType, found: Any, owner: type | None) -> Any:
    """The annotation without what awaiting takes away."""
    if found is Self and owner is not None:
        return owner
    if found is Never or found is NoReturn:
        return type(None)
    if get_origin(found) in _PROMISES and not inspect.iscoroutinefunction(target):
        return get_args(found)[-1]
    return found


def _resolved(fn: FunctionType, written: dict[str, Any], namespace: Names | None, what: str) -> dict[str, Any]:
    """The annotations with every name in them looked up: in the frame, the closure and the module."""
    scope = {**_closure(fn), **(namespace or {})}
    holder = SimpleNamespace(__annotations__=written, __type_params__=getattr(fn, "__type_params__", ()))
    try:
        return get_type_hints(holder, fn.__globals__, scope, include_extras=True)
    except NameError as error:
        raise unresolved(what, error.name or str(error)) from error
    except Exception as error:
        message = f"the annotations of {what} cannot be evaluated: {error}"
        raise InvalidRequest("annotation_invalid", message, function=fn.__qualname__) from error


def unresolved(what: str, name: str) -> InvalidRequest:
    """The refusal of an annotation that nothing is known by."""
    message = (
        f"the annotations of {what} name {name}, which is not defined: define it at the top of the module, or import "
        "it outside of `if TYPE_CHECKING`"
    )
    return InvalidRequest("annotation_unresolved", message, name=name)


def _closure(fn: FunctionType) -> dict[str, Any]:
    cells = zip(fn.__code__.co_freevars, fn.__closure__ or (), strict=True)
    return {name: content for name, cell in cells if (content := _content(cell)) is not EMPTY}


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # Not assigned yet.
        return EMPTY
