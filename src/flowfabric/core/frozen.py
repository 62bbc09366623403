"""Frozen records that normalise themselves while they are made, quick ones, and quick copies of large ones."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar

__all__ = ["changed", "made", "put", "record", "replace", "unchecked"]
Record = TypeVar("Record")

if TYPE_CHECKING:
    from dataclasses import dataclass as record
else:
    from dataclasses import dataclass

    def record(*, frozen, slots, kw_only=False):
        """A dataclass that only the type checker keeps frozen: one that is frozen takes twice as long to make,
        and of some the engine makes dozens for every operation."""
        assert frozen, "whoever wants to change a record uses a plain dataclass"
        return dataclass(slots=slots, kw_only=kw_only, unsafe_hash=True)


def put(record: object, **values: object) -> None:
    """Sets checked values on a frozen record; for `__post_init__` only."""
    for key, value in values.items():
        object.__setattr__(record, key, value)


def replace(before: Record, /, **values: Any) -> Record:
    """A copy with these values, as `dataclasses.replace` makes it, in a tenth of the time where nothing is checked."""
    kind: Any = type(before)
    copy: Record = _way(kind)(before, values)
    return copy


@cache
def _way(kind: Any) -> Callable[[Any, dict[str, Any]], Any]:
    """How a record of this kind is copied."""
    checks = hasattr(kind, "__post_init__")
    if not checks and not hasattr(kind, "__slots__"):
        return changed
    if checks or kind.__dataclass_params__.frozen:
        return lambda before, values: dataclasses.replace(before, **values)
    return _field_by_field(kind)


def unchecked(before: Record, /, **values: Any) -> Record:
    """A copy of a record with slots with these values, which the caller has checked; nothing is checked here."""
    kind: Any = type(before)
    copy: Record = _field_by_field(kind)(before, values)
    return copy


@cache
def _field_by_field(kind: Any) -> Callable[[Any, dict[str, Any]], Any]:
    """One assignment after another is what a record costs least to make by, so these are written out for each kind."""
    line = "    put(copy, '{0}', before.{0})" if kind.__dataclass_params__.frozen else "    copy.{0} = before.{0}"
    head = "def copied(before, values):", "    copy = new(kind)"
    lines = (line.format(field.name) for field in dataclasses.fields(kind))
    tail = "    for name, value in values.items():", "        put(copy, name, value)", "    return copy"
    names: dict[str, Any] = {"new": object.__new__, "put": object.__setattr__, "kind": kind}
    exec("\n".join([*head, *lines, *tail]), names)
    copied: Callable[[Any, dict[str, Any]], Any] = names["copied"]
    return copied


def changed(before: Record, values: dict[str, Any]) -> Record:
    """A copy with these values; ten times as fast as `dataclasses.replace` for a record of many fields, which must not
    have slots nor check itself when it is made."""
    copy: Record = object.__new__(type(before))
    copy.__dict__.update(before.__dict__)
    copy.__dict__.update(values)
    assert len(copy.__dict__) == len(before.__dict__), f"{values.keys()} are not all fields of {type(before).__name__}"
    return copy


def made(kind: type[Record], values: dict[str, Any]) -> Record:
    """A record of many fields, all of which are given; it must not have slots nor check itself when it is made."""
    new: Record = object.__new__(kind)
    object.__setattr__(new, "__dict__", values)
    return new
