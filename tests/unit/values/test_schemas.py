"""Test the schemas of annotations: they refuse clear mistakes, and never JSON that the annotation accepts."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum, IntEnum
from typing import Annotated, Any, Literal, NamedTuple
from uuid import UUID

import pytest
from pydantic import (
    AliasChoices,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    HttpUrl,
    RootModel,
    field_validator,
    model_validator,
)
from typing_extensions import TypedDict

from flowfabric.core.errors import FlowFabricError
from flowfabric.core.waits.schemas import MAX_SCHEMA_BYTES, find_problem
from flowfabric.values import codec_for
from flowfabric.values.schemas import schema_for


class Color(Enum):
    RED = "red"


class Level(IntEnum):
    LOW = 1


class Lenient(Enum):
    KNOWN = "known"

    @classmethod
    def _missing_(cls, value: object) -> Lenient:
        return cls.KNOWN


@dataclass
class Payment:
    cents: int
    note: str | None = None
    tags: list[str] = field(default_factory=list)


@dataclass
class Node:
    value: int
    next: Node | None = None


class Order(BaseModel):
    model_config = ConfigDict(extra="forbid")
    number: Annotated[int, Field(gt=0)]
    color: Color = Color.RED


class Aliased(BaseModel):
    model_config = ConfigDict(extra="forbid")
    number: int = Field(validation_alias=AliasChoices("number", "no"))


class Coercing(BaseModel):
    model_config = ConfigDict(coerce_numbers_to_str=True)
    name: str


class Before(BaseModel):
    cents: int

    @field_validator("cents", mode="before")
    @classmethod
    def read(cls, value: Any) -> Any:
        return len(value) if isinstance(value, list) else value


class Whole(BaseModel):
    cents: int

    @model_validator(mode="before")
    @classmethod
    def read(cls, value: Any) -> Any:
        return {"cents": value} if isinstance(value, int) else value


class Point(NamedTuple):
    x: int


class Options(TypedDict, total=False):
    limit: int


class Cat(BaseModel):
    kind: Literal["cat"]


class Dog(BaseModel):
    kind: Literal["dog"]
    age: int


Pet = Annotated[Cat | Dog, Field(discriminator="kind")]
TYPES: list[Any] = [
    int, float, bool, str, bytes, None, Any, Decimal, UUID, datetime, date, time, timedelta, HttpUrl, Color, Level,
    Lenient, Payment, Node, Order, Aliased, Coercing, Before, Whole, Point, Options, Pet, RootModel[int], complex,
    list[int], set[str], tuple[int, str], tuple[int, ...], dict[str, int], Mapping[str, float], Sequence[bool],
    int | None, int | list[str], Literal["a", 1, None], Annotated[int, Field(ge=3, le=5)],
    Annotated[int, BeforeValidator(lambda value: 1)], Annotated[str, Field(max_length=2)], list[Payment],
]  # fmt: skip
VALUES: list[Any] = [
    None, True, False, 0, 1, 3, -7, 1.0, 1.5, 10**400, "", "1", " 1 ", "1.0", "1_0", "1.5", "1e3", "nan", "inf",
    "-Infinity", "true", "Yes", "off", "red", "known", "a", "x", "cat", "AAAA", "2026-11-18", "2026-11-18T10:00:00Z",
    "10:00", "P1D", "12345678-1234-5678-1234-567812345678", "https://shop.example/", [], [1], ["1"], [1, "a"],
    ["a", 1], [True], [[1]], {}, {"cents": 1}, {"cents": "1"}, {"cents": "x"}, {"cents": None}, {"cents": [1, 2]},
    {"cents": 1, "note": 2}, {"cents": 1, "more": 2}, {"cents": 1, "tags": ["a"]}, {"cents": 1, "tags": [1]},
    {"value": 1, "next": {"value": 2}}, {"value": 1, "next": {"value": {}}}, {"number": 1}, {"number": 0}, {"no": 1},
    {"number": 1, "color": "red"}, {"number": 1, "color": "blue"}, {"number": 1, "more": 1}, {"name": 5},
    {"name": "x"}, {"limit": 1}, {"limit": "x"}, {"x": 1}, {"kind": "cat"}, {"kind": "dog"}, {"kind": "cow"},
    {"kind": "dog", "age": 3}, [{"cents": 1}], [{"cents": {}}],
]  # fmt: skip


@pytest.mark.parametrize("annotation", TYPES, ids=range(len(TYPES)))
def test_schema_never_refuses_json_that_the_annotation_accepts(annotation: Any) -> None:
    codec, schema = codec_for(annotation, what="it"), schema_for(annotation)
    payloads = [json.dumps(value).encode() for value in VALUES]
    payloads += [b"", b"NaN", b"-Infinity", b'"\\ud83d\\ude00"', b'{"cents": 1, "cents": 2}', b" 1 "]
    if schema is None:
        return
    for payload in payloads:
        try:
            codec.restore(payload or b"null")
        except FlowFabricError:
            continue
        assert find_problem(schema, payload) is None, payload


@pytest.mark.parametrize(
    ("annotation", "payload", "problem"),
    [
        (int, b'"x"', "expected integer, not string"),
        (int, b"1.5", "expected integer, not number"),
        (int, b"", "expected integer, not null"),
        (int, b"not JSON", "it is not JSON"),
        (int, b"1, 2", "it is not JSON"),
        (int, b'"\xff"', "it is not JSON"),
        (str, b"1", "expected string, not integer"),
        (bool, b'"maybe"', "expected boolean, not string"),
        (Color, b'"blue"', "expected one of 1 values"),
        (Payment, b"[]", "expected object, not array"),
        (Payment, b"{}", "cents is missing"),
        (Payment, b'{"cents": "x"}', "cents: expected integer, not string"),
        (Payment, b'{"cents": 1, "tags": [1]}', "tags: [0]: expected string, not integer"),
        (Payment, b'{"cents": 1, "note": 2}', "note: integer fits none of 2 types"),
        (Node, b'{"value": 1, "next": {}}', "next: object fits none of 2 types"),
        (Order, b'{"number": 0}', "number: the number is out of range"),
        (Order, b'{"number": 1, "secret": 2}', "it has a property that is not expected"),
        (dict[str, int], b'{"secret": []}', "*: expected integer, not array"),
        (list[int], b"{}", "expected array, not object"),
        (tuple[int, str], b"[1, 2]", "[1]: expected string, not integer"),
        (datetime, b"null", "expected string or number, not null"),
        (Decimal, b'"much"', "expected number, not string"),
        (int | None, b'"x"', "string fits none of 2 types"),
    ],
)
def test_schema_refuses_what_surely_does_not_fit(annotation: Any, payload: bytes, problem: str) -> None:
    schema = schema_for(annotation)
    assert schema is not None
    assert find_problem(schema, payload) == problem


def test_type_without_a_useful_schema_has_none() -> None:
    many = Literal[tuple(f"value {number}" for number in range(MAX_SCHEMA_BYTES))]  # type: ignore[valid-type]
    for annotation in (Any, many, object, Annotated[int, BeforeValidator(lambda value: value)]):
        assert schema_for(annotation) is None


def test_check_of_a_large_payload_is_bounded() -> None:
    schema = schema_for(list[int])
    assert schema is not None
    assert find_problem(schema, json.dumps([*range(20_000), "x"]).encode()) is None
    assert find_problem(schema, b"[" * 100_000 + b"]" * 100_000) is None
