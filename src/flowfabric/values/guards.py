"""Reads of user's objects that never raise.

A class can replace `__str__`, `__class__`, `args`, `__cause__` and other attributes of its exceptions by code that
raises. The functions below read the attributes that the interpreter has stored, or return a substitute.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from types import TracebackType
from typing import Any, TypeVar

T = TypeVar("T")
_FINAL_MARK = "_flowfabric_final"
_UNKNOWN = "?"
# The descriptors of the interpreter, which a subclass cannot replace.
_OWN: dict[str, Any] = {
    name: BaseException.__dict__[name] for name in ("args", "__cause__", "__context__", "__traceback__")
}
_SUPPRESS_CONTEXT: Any = BaseException.__dict__["__suppress_context__"]
_EXCEPTIONS: Any = BaseExceptionGroup.__dict__["exceptions"]
_NAME: Any = type.__dict__["__name__"]
_QUALNAME: Any = type.__dict__["__qualname__"]
_MRO: Any = type.__dict__["__mro__"]


def guarded(read: Callable[[], T], otherwise: T) -> T:
    """Return what `read` returns, or `otherwise` if code of the user raises."""
    try:
        return read()
    except BaseException:
        return otherwise


def is_a(value: object, *classes: type) -> bool:
    """Return True if the class of the value is one of `classes` or a subclass. A replaced `__class__` has no effect."""
    try:
        return issubclass(type(value), classes)
    except BaseException:  # A metaclass of the user raises.
        return any(base is kind for base in bases_of(type(value)) for kind in classes)


def bases_of(kind: type) -> tuple[type, ...]:
    """Return a class and its base classes."""
    bases: tuple[type, ...] = _MRO.__get__(kind)
    return bases


def type_name(value: object) -> str:
    """Return the name of the value's class."""
    return str(_NAME.__get__(type(value)))


def qualified_name(kind: type) -> str:
    """Return the qualified name of a class."""
    return str(_QUALNAME.__get__(kind))


def text_of(value: object) -> str | None:
    """Return the value as text, or None if its `__str__` raises."""
    # A subclass of `str` could raise later, so make it a plain text here.
    return guarded(lambda: "".join((str(value),)), None)


def preview(value: object) -> str:
    """Return the value as it is written in code, or `?` if its `__repr__` raises."""
    return guarded(lambda: "".join((repr(value),)), _UNKNOWN)


def args_of(error: BaseException) -> tuple[Any, ...]:
    """Return the arguments of an exception."""
    args: tuple[Any, ...] = _OWN["args"].__get__(error)
    return args


def context_of(error: BaseException) -> BaseException | None:
    """Return the exception during whose handling this one was raised."""
    context: BaseException | None = _OWN["__context__"].__get__(error)
    return context


def cause_of(error: BaseException) -> BaseException | None:
    """Return the exception that led to this one: its cause, or its context unless that is suppressed."""
    cause: BaseException | None = _OWN["__cause__"].__get__(error)
    return cause if cause is not None or _SUPPRESS_CONTEXT.__get__(error) else context_of(error)


def set_cause(error: BaseException, cause: BaseException | None) -> None:
    """Set the cause of an exception."""
    _OWN["__cause__"].__set__(error, cause)


def traceback_of(error: BaseException) -> TracebackType | None:
    """Return the traceback of an exception."""
    traceback: TracebackType | None = _OWN["__traceback__"].__get__(error)
    return traceback


def set_traceback(error: BaseException, traceback: TracebackType | None) -> None:
    """Set the traceback of an exception."""
    _OWN["__traceback__"].__set__(error, traceback)


def add_note(error: BaseException, note: str) -> None:
    """Add a note to an exception, unless code of the user raises."""
    guarded(lambda: BaseException.add_note(error, note), None)


def members_of(error: BaseException) -> tuple[BaseException, ...]:
    """Return the exceptions in a group, or nothing if the exception is not a group."""
    members: tuple[BaseException, ...] = _EXCEPTIONS.__get__(error) if is_a(error, BaseExceptionGroup) else ()
    return members


def mark_final(error: BaseException) -> None:
    """Mark an exception whose failure is recorded, so that it is not retried."""
    guarded(lambda: object.__setattr__(error, _FINAL_MARK, True), None)


def is_marked_final(error: BaseException) -> bool:
    """Return True if the exception is marked as final."""
    return guarded(lambda: bool(object.__getattribute__(error, _FINAL_MARK)), otherwise=False)


def contains(errors: Collection[BaseException], error: BaseException) -> bool:
    """Return True if the same exception is in the collection. Its `__eq__` is not called."""
    return any(each is error for each in errors)


def has_own_class(error: BaseException) -> bool:
    """Return False if `__class__` raises or names another class. Futures cannot hold such an exception."""
    return guarded(lambda: error.__class__ is type(error), otherwise=False)
