"""Copies of records are those that the standard library makes."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from flowfabric.core.frozen import put, record, replace, unchecked


@record(frozen=True, slots=True, kw_only=True)
class Quick:
    name: str
    number: int = 0
    parts: tuple[int, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True)
class Frozen:
    name: str
    number: int = 0


@dataclasses.dataclass(frozen=True, slots=True)
class Checked:
    name: str
    number: int = 0

    def __post_init__(self) -> None:
        put(self, name=self.name.strip())


@dataclasses.dataclass
class Large:
    name: str
    number: int = 0


@pytest.mark.parametrize("before", [Quick(name="a", parts=(1, 2)), Frozen("a"), Checked("a"), Large("a", 3)])
@pytest.mark.parametrize("values", [{}, {"number": 7}, {"name": " b ", "number": 8}])
def test_a_copy_is_that_of_the_standard_library(before: Any, values: dict[str, Any]) -> None:
    kept = dataclasses.asdict(before)
    copy = replace(before, **values)
    assert (type(copy), copy) == (type(before), dataclasses.replace(before, **values))
    assert dataclasses.asdict(before) == kept
    assert copy is not before


@pytest.mark.parametrize("before", [Quick(name="a"), Frozen("a"), Checked("a"), Large("a")])
def test_a_field_that_is_not_there_is_refused(before: Any) -> None:
    with pytest.raises((TypeError, AttributeError, AssertionError)):
        replace(before, colour="red")


@pytest.mark.parametrize("before", [Quick(name="a"), Frozen("a"), Checked("a")])
def test_what_was_checked_before_is_copied_as_it_is(before: Any) -> None:
    copy = unchecked(before, name=" b ")
    assert dataclasses.asdict(copy) == dataclasses.asdict(before) | {"name": " b "}
    assert type(copy) is type(before) and before.name == "a"
    with pytest.raises(AttributeError):
        unchecked(before, colour="red")
