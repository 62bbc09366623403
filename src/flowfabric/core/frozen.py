"""Frozen records that normalise themselves while they are made, and quick copies of large ones."""

from __future__ import annotations

from typing import Any, TypeVar

Record = TypeVar("Record")


def put(record: object, **values: object) -> None:
    """Sets checked values on a frozen record; for `__post_init__` only."""
    for key, value in values.items():
        object.__setattr__(record, key, value)


def changed(record: Record, values: dict[str, Any]) -> Record:
    """A copy with these values; ten times as fast as `dataclasses.replace` for a record of many fields, which must not
    have slots nor check itself when it is made."""
    copy: Record = object.__new__(type(record))
    copy.__dict__.update(record.__dict__)
    copy.__dict__.update(values)
    assert len(copy.__dict__) == len(record.__dict__), f"{values.keys()} are not all fields of {type(record).__name__}"
    return copy
