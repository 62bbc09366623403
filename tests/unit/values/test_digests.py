"""Tests for argument digests, which are equal for equal data in every process."""

from __future__ import annotations

import functools
import math
import os
import sqlite3
import subprocess
import sys
from collections import OrderedDict, deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum, IntEnum, StrEnum
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple
from uuid import UUID

import pytest
from pydantic import BaseModel, ConfigDict

from flowfabric.values.inputs import digest_arguments


class Color(Enum):
    RED = "red"
    BLUE = "blue"


class Size(IntEnum):
    BIG = 3


class Word(StrEnum):
    YES = "yes"


@dataclass
class Order:
    id: str
    tags: frozenset[str] = frozenset()
    client: object = None


@dataclass(slots=True)
class Slotted:
    n: int


class Model(BaseModel):
    model_config = ConfigDict(extra="allow")
    n: int


class Point(NamedTuple):
    x: int


class Client:
    def __init__(self, url: str) -> None:
        self.url = url


class OtherClient(Client):
    pass


class Ticket:
    """A class that defines its own pydantic schema, as a handle does."""

    def __init__(self, text: str) -> None:
        self.text = text

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> Any:
        from pydantic_core import core_schema as schema

        serializer = schema.plain_serializer_function_ser_schema(lambda value: value.text)
        return schema.no_info_after_validator_function(cls, schema.str_schema(), serialization=serializer)


@dataclass
class Holder:
    inside: list[Any] = field(default_factory=list)


class Indexed:
    """An integer-like class, such as array libraries define."""

    def __init__(self, n: int) -> None:
        self.n = n

    def __index__(self) -> int:
        return self.n


def _digest(*args: Any, **kwargs: Any) -> str:
    return digest_arguments(args, kwargs)


DIFFERENT: list[tuple[Any, Any]] = [
    (1, 2),
    (1, "1"),
    (1, True),
    (None, ""),
    ("a", "b"),
    (b"a", b"b"),
    (bytearray(b"a"), bytearray(b"b")),
    (memoryview(b"axa")[::2], memoryview(b"axb")[::2]),
    ([1, 2], [2, 1]),
    ({"a": 1}, {"a": 2}),
    ({1: "a"}, {1: "b"}),
    ({(1, 2): "a"}, {(1, 3): "a"}),
    ({1, 2}, {1, 3}),
    (1.5, math.nan),
    (math.inf, -math.inf),
    (Decimal("1.0"), Decimal("1.1")),
    (datetime(2026, 1, 2, tzinfo=UTC), datetime(2026, 1, 3, tzinfo=UTC)),
    (date(2026, 1, 2), date(2026, 1, 3)),
    (timedelta(1), timedelta(2)),
    (UUID(int=1), UUID(int=2)),
    (Path("a"), Path("b")),
    (Color.RED, Color.BLUE),
    (Order("a"), Order("b")),
    (Order("a", frozenset("x")), Order("a", frozenset("y"))),
    (Slotted(1), Slotted(2)),
    (Model(n=1), Model(n=2)),
    (Model(n=1), Model.model_validate({"n": 1, "more": 2})),
    (Point(1), Point(2)),
    (deque([1]), deque([2])),
    (range(3), range(4)),
    (MappingProxyType({"a": 1}), MappingProxyType({"a": 2})),
    (Ticket("a"), Ticket("b")),
    (Indexed(1), Indexed(2)),
    (Client("a"), OtherClient("a")),
    (Holder([Order("a")]), Holder([Order("b")])),
    ("\ud800", "\ud801"),
]


@pytest.mark.parametrize(("one", "other"), DIFFERENT, ids=map(str, range(len(DIFFERENT))))
def test_different_data_has_different_digests(one: Any, other: Any) -> None:
    assert _digest(one) == _digest(one)
    assert _digest(one) != _digest(other)
    assert _digest([one]) != _digest([other])
    assert _digest(x=one) != _digest(x=other)


EQUAL: list[tuple[Any, Any]] = [
    ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
    ({"a": 1, 2: 3}, {2: 3, "a": 1}),
    (OrderedDict(a=1), {"a": 1}),
    ({"x", "y", "z"}, {"z", "y", "x"}),
    ({(1, "a"), (2, "b")}, {(2, "b"), (1, "a")}),
    ({1, "a", None}, {None, "a", 1}),
    (Order("a"), Order("a")),
    (Size.BIG, 3),
    (Word.YES, "yes"),
    (Model(n=1), Model(n=1)),
]


@pytest.mark.parametrize(("one", "other"), EQUAL, ids=map(str, range(len(EQUAL))))
def test_equal_data_has_equal_digests(one: Any, other: Any) -> None:
    assert _digest(one) == _digest(other)


def test_order_of_keyword_arguments_does_not_matter() -> None:
    assert _digest(1, a=2, b=3) == _digest(1, b=3, a=2)


def test_positions_and_names_matter() -> None:
    assert len({_digest(1, 2), _digest(2, 1), _digest(1, a=2), _digest(1, b=2), _digest(1), _digest()}) == 6


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (Client("a"), Client("b")),
        (Order("a", client=Client("a")), Order("a", client=Client("b"))),
        (lambda: 1, lambda: 2),
        (object(), object()),
        (ValueError("a"), ValueError("b")),
    ],
    ids=map(str, range(5)),
)
def test_objects_that_are_not_data_count_by_type_only(one: Any, other: Any) -> None:
    assert _digest(one) == _digest(other)


def test_connection_argument_has_a_digest() -> None:
    one, other = sqlite3.connect(":memory:"), sqlite3.connect(":memory:")
    try:
        assert _digest(one, 1) == _digest(other, 1) != _digest(other, 2)
    finally:
        one.close()
        other.close()


def test_digest_does_not_consume_an_iterator() -> None:
    def numbers() -> Iterator[int]:
        yield 1

    iterator = numbers()
    _digest(iterator)
    assert list(iterator) == [1]


def test_nested_change_changes_the_digest() -> None:
    order = {"lines": [1]}
    before = _digest(order)
    order["lines"].append(2)
    assert _digest(order) != before


def test_self_referencing_object_has_a_digest() -> None:
    circle: list[Any] = [1]
    circle.append(circle)
    holder = Holder()
    holder.inside.append(holder)
    assert _digest(circle) == _digest(circle)
    assert _digest(holder) == _digest(holder)
    assert _digest(holder, 1) != _digest(holder, 2)


@pytest.mark.parametrize("depth", [300, 20_000])
def test_deeply_nested_list_has_a_digest(depth: int) -> None:
    deep: list[Any] = []
    for _ in range(depth):
        deep = [deep]
    assert _digest(deep) == _digest(deep)


def test_cached_property_of_a_model_does_not_change_its_digest() -> None:
    class Lazy(BaseModel):
        n: int

        @functools.cached_property
        def square(self) -> int:
            return self.n**2

    model = Lazy(n=3)
    before = _digest(model)
    assert model.square == 9
    assert _digest(model) == before


def test_enum_members_with_opaque_values_have_different_digests() -> None:
    class Door(Enum):
        LEFT = Client("left")
        RIGHT = Client("right")

    assert _digest(Door.LEFT) != _digest(Door.RIGHT)


def test_digest_is_the_same_for_a_script_and_its_module() -> None:
    """The same class is named `__main__.Client` in the script that submits, and by its module's name in the worker."""
    script = type("Client", (), {"__module__": "__main__"})
    assert _digest(script()) == _digest(Client("a"))


PROGRAM = """
from flowfabric.values.inputs import digest_arguments
print(digest_arguments(({"a", "b", "c", "d"}, {frozenset("xyz"): 1, 2: "b"}, b"x"), {"k": {"z": 1, "y": None}}))
"""


def test_digest_is_the_same_in_every_process() -> None:
    digests = set()
    for seed in ("1", "2", "3"):
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        command = [sys.executable, "-c", PROGRAM]
        digests.add(subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout)
    assert len(digests) == 1


def test_digest_has_its_recorded_value() -> None:
    """Digests are stored. If the algorithm changed, every running execution would diverge and be held."""
    args = (1, "a", {"x", "y"}, Order("a"), Color.RED, datetime(2026, 1, 2, tzinfo=UTC), Client("a"), b"x")
    assert _digest(*args, k=None) == "c65ef2e85a5509c3e778b987babbd7cd"
