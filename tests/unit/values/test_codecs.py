"""Tests for the round trip of single values through their codecs, by type."""

from __future__ import annotations

import functools
import math
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum, IntEnum, StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Generic, Literal, NamedTuple, NoReturn, Self, TypeVar
from uuid import UUID
from zoneinfo import ZoneInfo

import pytest
from pydantic import BaseModel, ConfigDict, Field
from typing_extensions import TypedDict

from flowfabric.core.errors import InvalidRequest
from flowfabric.core.validation import MAX_PAYLOAD_BYTES
from flowfabric.values import ValueCodec, codec_for, return_codec
from flowfabric.values.errors import ValueRefused

if TYPE_CHECKING:
    from fractions import Fraction as OnlyForTypeChecking

T = TypeVar("T")


class Color(Enum):
    RED = "red"


class Size(IntEnum):
    BIG = 3


class Word(StrEnum):
    YES = "yes"


@dataclass
class Line:
    sku: str
    photo: bytes = b"\xff\x00"
    weight: float = math.inf


@dataclass(frozen=True, slots=True)
class Order:
    id: str
    lines: tuple[Line, ...] = ()
    paid: datetime | None = None
    extra: dict[str, Decimal] = field(default_factory=dict)


@dataclass
class SpecialOrder(Line):
    note: str = ""


@dataclass(eq=False)
class NeverEqual:
    n: float


@dataclass
class Page(Generic[T]):
    items: list[T]
    after: str | None = None


class Node(BaseModel):
    name: str
    parent: Node | None = None


class Aliased(BaseModel):
    class_: str = Field(alias="class")


class WrittenUnderAlias(BaseModel):
    class_: str = Field(serialization_alias="class")


class Binary(BaseModel):
    data: bytes


class Base64(BaseModel):
    model_config = ConfigDict(ser_json_bytes="base64", val_json_bytes="base64")
    data: bytes


class Measured(BaseModel):
    value: float


class Point(NamedTuple):
    x: int
    raw: bytes


class Movie(TypedDict, total=False):
    name: str
    raw: bytes


class A(BaseModel):
    n: int


class B(BaseModel):
    n: int


def _make_codec(annotation: object) -> ValueCodec[Any]:
    return codec_for(annotation, what="the result of f")


ROUND_TRIPS: list[tuple[object, object]] = [
    (None, None),
    (bool, True),
    (int, 10**60),
    (float, 0.1),
    (float, math.inf),
    (float, -math.inf),
    (str, "ü\x00\U0001f600"),
    (bytes, b"\xff\x00"),
    (Decimal, Decimal("1.10")),
    (datetime, datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=UTC)),
    (datetime, datetime(2026, 1, 2, 3, 4, 5, 6)),  # noqa: DTZ001
    (datetime, datetime(2026, 1, 2, tzinfo=timezone(timedelta(hours=5, minutes=30)))),
    (datetime, datetime(2026, 7, 2, tzinfo=ZoneInfo("Europe/Berlin"))),
    (date, date(2026, 1, 2)),
    (time, time(3, 4, 5, 6)),
    (timedelta, timedelta(days=-3, microseconds=7)),
    (UUID, UUID(int=5)),
    (Path, Path("a/b")),
    (set[int], {3, 1, 2}),
    (frozenset[str], frozenset({"a", "b"})),
    (Color, Color.RED),
    (Size, Size.BIG),
    (Word, Word.YES),
    (Literal["a", 1], 1),
    (Annotated[int, Field(gt=0)], 5),
    (list[bytes], [b"\xff", b""]),
    (tuple[int, str], (1, "a")),
    (tuple[int, ...], (1, 2, 3)),
    (dict[int, bytes], {1: b"\xff"}),
    (dict[UUID, Color], {UUID(int=1): Color.RED}),
    (Mapping[str, int], {"a": 1}),
    (Sequence[int], [1, 2]),
    (int | str | None, "5"),
    (int | str | None, 5),
    (bytes | None, b"\xff"),
    (date | datetime, datetime(2026, 1, 2, tzinfo=UTC)),
    (Line, Line("x")),
    (Order, Order("o", (Line("x"), Line("y", b"", 1.5)), datetime(2026, 1, 2, tzinfo=UTC), {"a": Decimal("0.1")})),
    (list[Order | Line], [Order("o"), Line("x")]),
    (Page[int], Page([1, 2])),
    (Page[Line], Page([Line("x")], "y")),
    (Point, Point(1, b"\xff")),
    (Movie, {"name": "x", "raw": b"\xff"}),
    (Movie, {}),
    (Node, Node(name="a", parent=Node(name="b"))),
    (Aliased, Aliased.model_validate({"class": "first"})),
    (WrittenUnderAlias, WrittenUnderAlias(class_="first")),
    (Base64, Base64(data=b"\xff")),
    (dict[str, Any], {"a": [1, None, {"b": 2.5}]}),
    (object, {"a": [1]}),
]


@pytest.mark.parametrize(("annotation", "value"), ROUND_TRIPS)
def test_value_survives_the_round_trip(annotation: object, value: object) -> None:
    codec = _make_codec(annotation)
    stored = codec.store_value(value)
    assert stored.difference is None
    assert stored.value == value
    assert codec.restore(stored.data) == value
    assert codec.store(value) == stored.data


def test_enum_is_restored_as_its_member() -> None:
    assert _make_codec(Color).restore(_make_codec(Color).store(Color.RED)) is Color.RED


def test_first_run_gets_the_restored_value() -> None:
    original = Order("o")
    assert _make_codec(Order).store_value(original).value is not original


@pytest.mark.parametrize(
    ("annotation", "value", "text"),
    [
        (float, math.nan, b'"NaN"'),
        (float, math.inf, b'"Infinity"'),
        (list[float], [1.0, math.nan], b'[1.0,"NaN"]'),
        (bytes, b"\xff", b'"_w=="'),
        (Decimal, Decimal("1.10"), b'"1.10"'),
        (Line, Line("x", b"\xff", -math.inf), b'{"sku":"x","photo":"_w==","weight":"-Infinity"}'),
        (Movie, {"raw": b"\xff"}, b'{"raw":"_w=="}'),
        (None, None, b"null"),
    ],
)
def test_stored_value_is_plain_json(annotation: object, value: object, text: bytes) -> None:
    assert _make_codec(annotation).store(value) == text


@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        (float, math.nan),
        (list[float], [1.0, math.nan]),
        (dict[str, Line], {"a": Line("x", weight=math.nan)}),
        (Decimal, Decimal("NaN")),
        (complex, complex(1, math.nan)),
        (NeverEqual, NeverEqual(1.0)),
    ],
)
def test_value_unequal_to_itself_is_not_reported_as_lossy(annotation: object, value: object) -> None:
    assert _make_codec(annotation).store_value(value).difference is None


class AmbiguousComparison:
    """A class whose comparison fails, as the comparison of two arrays does."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __eq__(self, other: object) -> bool:
        raise ValueError("the truth of it is ambiguous")

    __hash__ = None  # type: ignore[assignment]

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> Any:
        from pydantic_core import core_schema as schema

        serializer = schema.plain_serializer_function_ser_schema(lambda value: value.text)
        return schema.no_info_after_validator_function(cls, schema.str_schema(), serialization=serializer)


def test_failing_comparison_is_reported_as_lossy() -> None:
    stored = _make_codec(AmbiguousComparison).store_value(AmbiguousComparison("a"))
    assert stored.value.text == "a"
    assert stored.difference is not None


def test_date_like_text_is_lossy_for_a_union_with_datetime() -> None:
    stored = _make_codec(datetime | str).store_value("2026-01-02T00:00:00Z")
    assert isinstance(stored.value, datetime)
    assert stored.difference is not None and "is restored as" in stored.difference
    assert _make_codec(datetime | str).store_value("tomorrow").difference is None


def test_sets_are_stored_in_sorted_order() -> None:
    """A process that repeats a submit of another process under the same key must store the same bytes."""

    @dataclass
    class Tagged:
        tags: set[str]
        numbers: dict[str, frozenset[int]]

    value = Tagged({"pear", "apple", "fig"}, {"a": frozenset({3, 1, 2})})
    text = b'{"tags":["apple","fig","pear"],"numbers":{"a":[1,2,3]}}'
    assert _make_codec(Tagged).store(value) == text
    assert _make_codec(Tagged).restore(text) == value
    assert _make_codec(set[bytes] | int).store({b"\xff", b"a"}) == b'["_w==","YQ=="]'
    assert _make_codec(set[Color]).store_value({Color.RED}).value == {Color.RED}


# --- Rejected values


REJECTED: list[tuple[object, object, str]] = [
    (int, "5", "expected int, got '5' (str)"),
    (int, 1.5, "expected int, got 1.5 (float)"),
    (list[int], (1, 2), "expected list[int], got (1, 2) (tuple)"),
    (None, 5, "expected none, got 5 (int)"),
    (Annotated[int, Field(gt=0)], -1, "greater than 0"),
    (dict[tuple[int, int], int], {(1, 2): 1}, "valid array"),
    (str, "\ud800", "surrogates not allowed"),
    (Any, object(), "unknown type"),
    (Callable[[], int], print, "unknown type"),
    (Order, Line("x"), "Order"),
    (set[int], [1], "expected set, got [1] (list)"),
    (set[int], {"a"}, "expected int, got 'a' (str)"),
]


@pytest.mark.parametrize(("annotation", "value", "reason"), REJECTED)
def test_unfit_value_is_rejected_with_a_reason(annotation: object, value: object, reason: str) -> None:
    codec = _make_codec(annotation)
    with pytest.raises(ValueRefused) as refused:
        codec.store_value(value)
    assert reason in str(refused.value)
    assert "the result of f" in str(refused.value)
    assert refused.value.code == "value_refused"


def test_model_with_binary_bytes_is_rejected_with_the_required_settings() -> None:
    with pytest.raises(ValueRefused, match="ser_json_bytes='base64' and val_json_bytes='base64' in its model_config"):
        _make_codec(Binary).store(Binary(data=b"\xff"))


def test_model_stores_bytes_of_text_by_its_own_settings() -> None:
    assert _make_codec(Binary).store(Binary(data=b"text")) == b'{"data":"text"}'


def test_model_with_nan_is_rejected_with_the_required_setting() -> None:
    with pytest.raises(ValueRefused, match="ser_json_inf_nan='strings'"):
        _make_codec(Measured).store(Measured(value=math.nan))


def test_self_referencing_list_is_rejected() -> None:
    circle: list[Any] = []
    circle.append(circle)
    with pytest.raises(ValueRefused):
        _make_codec(list[Any]).store(circle)


def test_integer_too_long_to_parse_is_rejected() -> None:
    with pytest.raises(ValueRefused):
        _make_codec(int).store(10**5000)


def test_oversized_value_is_rejected_with_the_limit() -> None:
    codec = _make_codec(str)
    assert len(codec.store("x" * (MAX_PAYLOAD_BYTES - 2))) == MAX_PAYLOAD_BYTES
    with pytest.raises(ValueRefused, match=f"the limit is {MAX_PAYLOAD_BYTES}; store the data elsewhere") as refused:
        codec.store_value("x" * (MAX_PAYLOAD_BYTES - 1))
    assert refused.value.code == "payload_too_large"
    assert refused.value.fields["size"] == MAX_PAYLOAD_BYTES + 1


def test_codec_may_have_its_own_limit() -> None:
    codec = codec_for(str, what="the signal paid", limit=10)
    assert codec.store("12345678") == b'"12345678"'
    with pytest.raises(ValueRefused, match="the signal paid has 11 bytes, the limit is 10"):
        codec.store("123456789")


# --- Lossy values


LOSSY: list[tuple[object, object]] = [
    (Line, SpecialOrder("x", note="lost")),
    (A | B, B(n=1)),
    (Any, (1, 2)),
    (Any, Line("x", b"", 1.0)),
    (dict[str, Any], {"at": datetime(2026, 1, 2, tzinfo=UTC)}),
    (dict[Any, int], {1: 2}),
    (Movie, {"name": "x", "unknown": 1}),
    (object, {1, 2}),
]


@pytest.mark.parametrize(("annotation", "value"), LOSSY)
def test_value_changed_by_the_round_trip_is_reported_as_lossy(annotation: object, value: object) -> None:
    stored = _make_codec(annotation).store_value(value)
    assert stored.difference is not None
    assert "the result of f cannot be stored exactly as" in stored.difference
    assert "is restored as" in stored.difference
    assert stored.value == _make_codec(annotation).restore(stored.data)


@pytest.mark.parametrize(("annotation", "value"), LOSSY)
def test_store_rejects_lossy_values(annotation: object, value: object) -> None:
    with pytest.raises(ValueRefused, match="cannot be stored exactly"):
        _make_codec(annotation).store(value)


@pytest.mark.parametrize("annotation", [Sequence[int], Iterable[int], Collection[int]])
@pytest.mark.parametrize("value", [[1, 2], (1, 2)])
def test_lists_and_tuples_fit_abstract_sequence_types(annotation: object, value: Sequence[int]) -> None:
    stored = _make_codec(annotation).store_value(value)
    assert (stored.value, stored.difference) == ([1, 2], None)


def test_union_members_are_tried_in_their_order() -> None:
    """`A | B` and `B | A` are equal, so codecs must not be cached by the annotation alone."""
    assert type(_make_codec(A | B).restore(b'{"n":1}')) is A
    assert type(_make_codec(B | A).restore(b'{"n":1}')) is B


# --- Restoring


@pytest.mark.parametrize("data", [b'"x"', b"{", b"", b"1,2", b'{"n":1}'])
def test_restore_rejects_data_that_does_not_fit_the_annotation(data: bytes) -> None:
    with pytest.raises(ValueRefused, match="the result of f cannot be read as int") as refused:
        _make_codec(int).restore(data)
    assert refused.value.code == "value_unreadable"


def test_restore_checks_constraints() -> None:
    with pytest.raises(ValueRefused, match="greater than 0"):
        codec_for(Annotated[int, Field(gt=0)], what="the payload").restore(b"-1")


def test_error_names_the_place_and_stays_short() -> None:
    with pytest.raises(ValueRefused) as refused:
        _make_codec(list[Node]).restore(b'[{"name":1},{"name":2},{"name":3},{"name":4},{"name":5}]')
    assert "0.name: Input should be a valid string" in str(refused.value)
    assert str(refused.value).endswith("and 2 more")


# --- Without an annotation


@pytest.mark.parametrize("value", [None, True, 3, 2.5, "x", [1, [None]], {"a": {"b": []}}])
def test_unannotated_result_may_be_plain_json(value: object) -> None:
    codec = return_codec(lambda: value)
    assert codec.store_value(value).value == value


@pytest.mark.parametrize(
    "value",
    [
        (1, 2),
        [(1,)],
        Line("x"),
        Node(name="x"),
        datetime(2026, 1, 2, tzinfo=UTC),
        b"x",
        {1},
        {1: 2},
        Decimal(1),
        math.nan,
        [math.inf],
        Color.RED,
        UUID(int=1),
        object(),
        print,
    ],
)
def test_unannotated_result_must_be_plain_json(value: object) -> None:
    def untyped():  # type: ignore[no-untyped-def]
        return value

    with pytest.raises(ValueRefused, match="annotate the return type") as refused:
        return_codec(untyped).store_value(value)
    assert "the result of untyped" in str(refused.value)


# --- Codecs of results


async def _async_order() -> Order:
    return Order("o")


def _order(order_id: str) -> Order:
    return Order(order_id)


def _coroutine() -> Coroutine[Any, Any, bytes]:
    raise NotImplementedError


def _awaitable() -> Awaitable[bytes]:
    raise NotImplementedError


async def _coroutine_of_awaitable() -> Awaitable[bytes]:
    raise NotImplementedError


def _never() -> NoReturn:
    raise NotImplementedError


def _nothing() -> None: ...


@functools.wraps(_order)
def _wrapper(*args: Any) -> Any:
    return _order(*args)


@functools.lru_cache
def _cached_order(order_id: str) -> Order:
    return Order(order_id)


class Shop:
    def find(self) -> Order:
        return Order("o")

    @classmethod
    def open(cls) -> Line:
        return Line("x")

    @staticmethod
    def close() -> bytes:
        return b""

    def __call__(self) -> Decimal:
        return Decimal(1)


@dataclass
class Builder:
    n: int = 0

    def next(self) -> Self:
        return self


class SpecialBuilder(Builder):
    pass


CALLABLES: list[tuple[Any, object]] = [
    (_async_order, Order),
    (_order, Order),
    (functools.partial(_order, "x"), Order),
    (functools.partial(functools.partial(Shop().find)), Order),
    (Shop().find, Order),
    (Shop.open, Line),
    (Shop.close, bytes),
    (Shop(), Decimal),
    (_wrapper, Order),
    (_cached_order, Order),
    (_coroutine, bytes),
    (_awaitable, bytes),
    (_nothing, type(None)),
    (_never, type(None)),
    (Decimal, Decimal),
    (Order, Order),
    (Color, Color),
    (list[int], list[int]),
]


@pytest.mark.parametrize(("fn", "annotation"), CALLABLES, ids=map(str, range(len(CALLABLES))))
def test_return_codec_finds_the_result_type_of_every_callable(fn: Any, annotation: object) -> None:
    assert return_codec(fn).annotation == annotation


def test_self_annotation_is_the_class_of_the_bound_object() -> None:
    annotations = [return_codec(builder.next).annotation for builder in (Builder(), SpecialBuilder(), Builder())]
    assert annotations == [Builder, SpecialBuilder, Builder]


def test_only_one_awaitable_is_unwrapped() -> None:
    with pytest.raises(InvalidRequest, match="the result of _coroutine_of_awaitable cannot be stored"):
        return_codec(_coroutine_of_awaitable)


def test_class_used_as_a_step_is_its_own_result_type() -> None:
    assert return_codec(Decimal).restore(b'"1.10"') == Decimal("1.10")


@pytest.mark.parametrize("fn", ["Hello, {}!".format, len, {}.get, lambda: 1])
def test_callable_without_annotations_returns_plain_json(fn: Callable[..., Any]) -> None:
    assert return_codec(fn).store("Hello") == b'"Hello"'


def test_annotations_are_resolved_once_per_function() -> None:
    assert return_codec(_order) is return_codec(_order)
    assert return_codec(Shop().find) is return_codec(Shop().find)
    assert return_codec(functools.partial(_order, "x")) is return_codec(_order)


def test_name_defined_only_for_type_checking_is_reported() -> None:
    def untyped_at_runtime() -> OnlyForTypeChecking:
        raise NotImplementedError

    with pytest.raises(InvalidRequest, match="OnlyForTypeChecking, which is not defined") as refused:
        return_codec(untyped_at_runtime)
    assert refused.value.code == "annotation_unresolved"


def test_unresolved_parameter_annotation_does_not_affect_the_result() -> None:
    def count(x: OnlyForTypeChecking) -> int:
        raise NotImplementedError

    assert return_codec(count).annotation is int


def test_type_that_is_not_data_is_rejected_before_a_run() -> None:
    def connect() -> Shop:
        return Shop()

    with pytest.raises(
        InvalidRequest, match="the result of connect cannot be stored: Shop is not a data type"
    ) as refused:
        return_codec(connect)
    assert refused.value.code == "type_not_storable"


def test_annotation_that_is_not_a_type_is_rejected() -> None:
    def misannotated() -> None: ...

    misannotated.__annotations__["return"] = "1 +"
    with pytest.raises(InvalidRequest) as refused:
        return_codec(misannotated)
    assert refused.value.code == "annotation_invalid"


def test_local_class_is_resolved_with_the_names_of_the_frame() -> None:
    @dataclass
    class Part:
        n: int

    @dataclass
    class Whole:
        parts: list[Part]

    def build() -> Whole:
        raise NotImplementedError

    codec = return_codec(build, {"Part": Part, "Whole": Whole})
    assert codec.restore(b'{"parts":[{"n":1}]}') == Whole([Part(1)])


def test_local_class_is_resolved_in_the_closure() -> None:
    @dataclass
    class Part:
        n: int

    def build() -> Part:
        return Part(1)

    assert return_codec(build).annotation is Part
