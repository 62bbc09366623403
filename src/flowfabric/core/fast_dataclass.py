"""Dataclasses that are cheap to create and copy, and a function that sets fields of frozen dataclasses."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar

__all__ = ["copy_with", "make", "put", "record", "replace", "copy_unchecked"]
Record = TypeVar("Record")

if TYPE_CHECKING:
    from dataclasses import dataclass as record
else:
    from dataclasses import dataclass

    def record(*, frozen, slots, kw_only=False):
        """Make a dataclass that only the type checker treats as frozen.

        A really frozen dataclass takes twice as long to create, and each operation creates dozens of records.
        """
        assert frozen, "use a plain dataclass for mutable records"
        return dataclass(slots=slots, kw_only=kw_only, unsafe_hash=True)


def put(record: object, **values: object) -> None:
    """Set fields of a frozen record; for use in `__post_init__` only."""
    for key, value in values.items():
        object.__setattr__(record, key, value)


def replace(before: Record, /, **values: Any) -> Record:
    """Return a copy with new values, like `dataclasses.replace`, but ten times as fast for records without checks."""
    kind: Any = type(before)
    copy: Record = _copier(kind)(before, values)
    return copy


@cache
def _copier(kind: Any) -> Callable[[Any, dict[str, Any]], Any]:
    """Return the fastest function that copies a record of this class."""
    checks = hasattr(kind, "__post_init__")
    if not checks and not hasattr(kind, "__slots__"):
        return copy_with
    if checks or kind.__dataclass_params__.frozen:
        return lambda before, values: dataclasses.replace(before, **values)
    return _compile_copier(kind)


def copy_unchecked(before: Record, /, **values: Any) -> Record:
    """Return a copy with values that the caller has validated; `__post_init__` does not run."""
    kind: Any = type(before)
    copy: Record = _compile_copier(kind)(before, values)
    return copy


@cache
def _compile_copier(kind: Any) -> Callable[[Any, dict[str, Any]], Any]:
    """Compile a copy function with one assignment per field, which is the fastest way to copy a record with slots."""
    line = "    put(copy, '{0}', before.{0})" if kind.__dataclass_params__.frozen else "    copy.{0} = before.{0}"
    head = "def copy_fields(before, values):", "    copy = new(kind)"
    lines = (line.format(field.name) for field in dataclasses.fields(kind))
    tail = "    for name, value in values.items():", "        put(copy, name, value)", "    return copy"
    names: dict[str, Any] = {"__name__": __name__, "new": object.__new__, "put": object.__setattr__, "kind": kind}
    exec("\n".join([*head, *lines, *tail]), names)
    copy_fields: Callable[[Any, dict[str, Any]], Any] = names["copy_fields"]
    return copy_fields


def copy_with(before: Record, values: dict[str, Any]) -> Record:
    """Return a copy with new values, ten times as fast as `dataclasses.replace` for a large record.

    The class must have neither slots nor `__post_init__`.
    """
    copy: Record = object.__new__(type(before))
    copy.__dict__.update(before.__dict__)
    copy.__dict__.update(values)
    assert len(copy.__dict__) == len(before.__dict__), f"{values.keys()} are not all fields of {type(before).__name__}"
    return copy


def make(kind: type[Record], values: dict[str, Any]) -> Record:
    """Return a record built from a dict with all its fields. The class must have neither slots nor `__post_init__`."""
    new: Record = object.__new__(kind)
    object.__setattr__(new, "__dict__", values)
    return new
