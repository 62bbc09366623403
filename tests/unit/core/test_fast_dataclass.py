"""Tests that the fast copy of a record equals the copy that `dataclasses.replace` makes."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from flowfabric.core.fast_dataclass import copy_unchecked, put, record, replace


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


@pytest.mark.parametrize("original", [Quick(name="a", parts=(1, 2)), Frozen("a"), Checked("a"), Large("a", 3)])
@pytest.mark.parametrize("values", [{}, {"number": 7}, {"name": " b ", "number": 8}])
def test_replace_equals_that_of_the_standard_library(original: Any, values: dict[str, Any]) -> None:
    fields_before = dataclasses.asdict(original)
    copy = replace(original, **values)
    assert (type(copy), copy) == (type(original), dataclasses.replace(original, **values))
    assert dataclasses.asdict(original) == fields_before
    assert copy is not original


@pytest.mark.parametrize("original", [Quick(name="a"), Frozen("a"), Checked("a"), Large("a")])
def test_replace_rejects_an_unknown_field(original: Any) -> None:
    with pytest.raises((TypeError, AttributeError, AssertionError)):
        replace(original, colour="red")


@pytest.mark.parametrize("original", [Quick(name="a"), Frozen("a"), Checked("a")])
def test_unchecked_copies_without_validation(original: Any) -> None:
    copy = copy_unchecked(original, name=" b ")
    assert dataclasses.asdict(copy) == dataclasses.asdict(original) | {"name": " b "}
    assert type(copy) is type(original) and original.name == "a"
    with pytest.raises(AttributeError):
        copy_unchecked(original, colour="red")
