"""Frozen records that normalise themselves while they are made."""

from __future__ import annotations


def put(record: object, **values: object) -> None:
    """Sets checked values on a frozen record; for `__post_init__` only."""
    for key, value in values.items():
        object.__setattr__(record, key, value)
