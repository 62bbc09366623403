"""What is stored is what comes back: every rule for single values, by type."""

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
from flowfabric.core.limits import PAYLOAD_BYTES
from flowfabric.sdk.errors import ValueRefused
from flowfabric.sdk.values import Form, form_of, return_form

if TYPE_CHECKING:
    from fractions import Fraction as OnlyForTheChecker

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


class WrittenOtherwise(BaseModel):
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


def _form(annotation: object) -> Form[Any]:
    return form_of(annotation, what="the result of f")


KEPT: list[tuple[object, object]] = [
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
    (WrittenOtherwise, WrittenOtherwise(class_="first")),
    (Base64, Base64(data=b"\xff")),
    (dict[str, Any], {"a": [1, None, {"b": 2.5}]}),
    (object, {"a": [1]}),
]


@pytest.mark.parametrize(("annotation", "value"), KEPT)
def test_a_value_comes_back_as_it_was(annotation: object, value: object) -> None:
    form = _form(annotation)
    stored = form.stored(value)
    assert stored.lossy is None
    assert stored.value == value
    assert form.restore(stored.data) == value
    assert form.store(value) == stored.data


def test_an_enum_comes_back_as_its_member() -> None:
    assert _form(Color).restore(_form(Color).store(Color.RED)) is Color.RED


def test_what_the_first_run_sees_is_the_restored_value() -> None:
    original = Order("o")
    assert _form(Order).stored(original).value is not original


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
def test_the_stored_form_is_plain_json(annotation: object, value: object, text: bytes) -> None:
    assert _form(annotation).store(value) == text


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
def test_a_value_that_equals_nothing_comes_back_without_a_complaint(annotation: object, value: object) -> None:
    assert _form(annotation).stored(value).lossy is None


class Loud:
    """An object whose comparison fails, as that of arrays does."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __eq__(self, other: object) -> bool:
        raise ValueError("the truth of it is ambiguous")

    __hash__ = None  # type: ignore[assignment]

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> Any:
        from pydantic_core import core_schema as schema

        shown = schema.plain_serializer_function_ser_schema(lambda value: value.text)
        return schema.no_info_after_validator_function(cls, schema.str_schema(), serialization=shown)


def test_a_comparison_that_fails_is_a_loss_and_not_a_crash() -> None:
    stored = _form(Loud).stored(Loud("a"))
    assert stored.value.text == "a"
    assert stored.lossy is not None


def test_a_text_that_looks_like_a_date_is_a_loss_where_both_may_come_back() -> None:
    stored = _form(datetime | str).stored("2026-01-02T00:00:00Z")
    assert isinstance(stored.value, datetime)
    assert stored.lossy is not None and "comes back as" in stored.lossy
    assert _form(datetime | str).stored("tomorrow").lossy is None


def test_sets_are_written_in_one_order() -> None:
    """Or a submit that is repeated under its key by another process would contradict itself."""

    @dataclass
    class Tagged:
        tags: set[str]
        numbers: dict[str, frozenset[int]]

    value = Tagged({"pear", "apple", "fig"}, {"a": frozenset({3, 1, 2})})
    text = b'{"tags":["apple","fig","pear"],"numbers":{"a":[1,2,3]}}'
    assert _form(Tagged).store(value) == text
    assert _form(Tagged).restore(text) == value
    assert _form(set[bytes] | int).store({b"\xff", b"a"}) == b'["_w==","YQ=="]'
    assert _form(set[Color]).stored({Color.RED}).value == {Color.RED}


# --- What is refused


REFUSED: list[tuple[object, object, str]] = [
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


@pytest.mark.parametrize(("annotation", "value", "why"), REFUSED)
def test_a_value_that_does_not_fit_is_refused_with_the_reason(annotation: object, value: object, why: str) -> None:
    form = _form(annotation)
    with pytest.raises(ValueRefused) as refused:
        form.stored(value)
    assert why in str(refused.value)
    assert "the result of f" in str(refused.value)
    assert refused.value.code == "value_refused"


def test_a_model_with_binary_bytes_is_told_which_settings_it_needs() -> None:
    with pytest.raises(ValueRefused, match="ser_json_bytes='base64' and val_json_bytes='base64' in its model_config"):
        _form(Binary).store(Binary(data=b"\xff"))


def test_a_model_keeps_its_own_way_with_bytes_that_are_text() -> None:
    assert _form(Binary).store(Binary(data=b"text")) == b'{"data":"text"}'


def test_a_model_with_nan_is_told_which_setting_it_needs() -> None:
    with pytest.raises(ValueRefused, match="ser_json_inf_nan='strings'"):
        _form(Measured).store(Measured(value=math.nan))


def test_a_circle_is_refused() -> None:
    circle: list[Any] = []
    circle.append(circle)
    with pytest.raises(ValueRefused):
        _form(list[Any]).store(circle)


def test_an_integer_beyond_reading_is_refused() -> None:
    with pytest.raises(ValueRefused):
        _form(int).store(10**5000)


def test_a_value_over_the_limit_is_refused_with_the_limit() -> None:
    form = _form(str)
    assert len(form.store("x" * (PAYLOAD_BYTES - 2))) == PAYLOAD_BYTES
    with pytest.raises(ValueRefused, match=f"the limit is {PAYLOAD_BYTES}; store the data elsewhere") as refused:
        form.stored("x" * (PAYLOAD_BYTES - 1))
    assert refused.value.code == "payload_too_large"
    assert refused.value.fields["size"] == PAYLOAD_BYTES + 1


def test_a_form_may_have_a_limit_of_its_own() -> None:
    form = form_of(str, what="the signal paid", limit=10)
    assert form.store("12345678") == b'"12345678"'
    with pytest.raises(ValueRefused, match="the signal paid has 11 bytes, the limit is 10"):
        form.store("123456789")


# --- What comes back changed


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
def test_a_value_that_comes_back_changed_is_told(annotation: object, value: object) -> None:
    stored = _form(annotation).stored(value)
    assert stored.lossy is not None
    assert "the result of f does not survive as" in stored.lossy
    assert "comes back as" in stored.lossy
    assert stored.value == _form(annotation).restore(stored.data)


@pytest.mark.parametrize(("annotation", "value"), LOSSY)
def test_store_refuses_what_would_come_back_changed(annotation: object, value: object) -> None:
    with pytest.raises(ValueRefused, match="does not survive"):
        _form(annotation).store(value)


@pytest.mark.parametrize("annotation", [Sequence[int], Iterable[int], Collection[int]])
@pytest.mark.parametrize("value", [[1, 2], (1, 2)])
def test_any_sequence_may_stand_where_any_is_asked_for(annotation: object, value: Sequence[int]) -> None:
    stored = _form(annotation).stored(value)
    assert (stored.value, stored.lossy) == ([1, 2], None)


def test_a_union_is_read_in_its_own_order() -> None:
    """`A | B` and `B | A` are equal, so forms must not be kept by the annotation alone."""
    assert type(_form(A | B).restore(b'{"n":1}')) is A
    assert type(_form(B | A).restore(b'{"n":1}')) is B


# --- Reading


@pytest.mark.parametrize("data", [b'"x"', b"{", b"", b"1,2", b'{"n":1}'])
def test_what_does_not_fit_the_annotation_cannot_be_read(data: bytes) -> None:
    with pytest.raises(ValueRefused, match="the result of f cannot be read as int") as refused:
        _form(int).restore(data)
    assert refused.value.code == "value_unreadable"


def test_constraints_hold_for_what_comes_from_elsewhere() -> None:
    with pytest.raises(ValueRefused, match="greater than 0"):
        form_of(Annotated[int, Field(gt=0)], what="the payload").restore(b"-1")


def test_the_reason_names_the_place_and_stays_short() -> None:
    with pytest.raises(ValueRefused) as refused:
        _form(list[Node]).restore(b'[{"name":1},{"name":2},{"name":3},{"name":4},{"name":5}]')
    assert "0.name: Input should be a valid string" in str(refused.value)
    assert str(refused.value).endswith("and 2 more")


# --- Without an annotation


@pytest.mark.parametrize("value", [None, True, 3, 2.5, "x", [1, [None]], {"a": {"b": []}}])
def test_without_an_annotation_plain_json_is_kept(value: object) -> None:
    form = return_form(lambda: value)
    assert form.stored(value).value == value


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
def test_without_an_annotation_anything_else_is_refused(value: object) -> None:
    def untyped():  # type: ignore[no-untyped-def]
        return value

    with pytest.raises(ValueRefused, match="annotate the return type") as refused:
        return_form(untyped).stored(value)
    assert "the result of untyped" in str(refused.value)


# --- The result of what


async def _async_order() -> Order:
    return Order("o")


def _order(order_id: str) -> Order:
    return Order(order_id)


def _promise() -> Coroutine[Any, Any, bytes]:
    raise NotImplementedError


def _awaitable() -> Awaitable[bytes]:
    raise NotImplementedError


async def _factory() -> Awaitable[bytes]:
    raise NotImplementedError


def _never() -> NoReturn:
    raise NotImplementedError


def _nothing() -> None: ...


@functools.wraps(_order)
def _wrapper(*args: Any) -> Any:
    return _order(*args)


@functools.lru_cache
def _kept(order_id: str) -> Order:
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
    (_kept, Order),
    (_promise, bytes),
    (_awaitable, bytes),
    (_nothing, type(None)),
    (_never, type(None)),
    (Decimal, Decimal),
    (Order, Order),
    (Color, Color),
    (list[int], list[int]),
]


@pytest.mark.parametrize(("fn", "annotation"), CALLABLES, ids=map(str, range(len(CALLABLES))))
def test_the_result_type_is_found_whatever_makes_it_callable(fn: Any, annotation: object) -> None:
    assert return_form(fn).annotation == annotation


def test_self_is_the_class_whose_method_it_is() -> None:
    found = [return_form(builder.next).annotation for builder in (Builder(), SpecialBuilder(), Builder())]
    assert found == [Builder, SpecialBuilder, Builder]


def test_only_the_promise_that_awaiting_keeps_is_taken_away() -> None:
    with pytest.raises(InvalidRequest, match="the result of _factory cannot be stored"):
        return_form(_factory)


def test_a_class_used_as_a_step_is_its_own_type() -> None:
    assert return_form(Decimal).restore(b'"1.10"') == Decimal("1.10")


@pytest.mark.parametrize("fn", ["Hello, {}!".format, len, {}.get, lambda: 1])
def test_what_cannot_be_annotated_answers_plain_json(fn: Callable[..., Any]) -> None:
    assert return_form(fn).store("Hello") == b'"Hello"'


def test_annotations_are_resolved_once_per_function() -> None:
    assert return_form(_order) is return_form(_order)
    assert return_form(Shop().find) is return_form(Shop().find)
    assert return_form(functools.partial(_order, "x")) is return_form(_order)


def test_a_name_that_only_the_checker_knows_is_told() -> None:
    def half() -> OnlyForTheChecker:
        raise NotImplementedError

    with pytest.raises(InvalidRequest, match="OnlyForTheChecker, which is not defined") as refused:
        return_form(half)
    assert refused.value.code == "annotation_unresolved"


def test_parameters_that_only_the_checker_knows_do_not_matter_for_a_result() -> None:
    def fine(x: OnlyForTheChecker) -> int:
        raise NotImplementedError

    assert return_form(fine).annotation is int


def test_a_type_that_is_no_data_is_refused_before_anything_runs() -> None:
    def connect() -> Shop:
        return Shop()

    with pytest.raises(InvalidRequest, match="the result of connect cannot be stored: Shop is no type of data") as no:
        return_form(connect)
    assert no.value.code == "type_not_storable"


def test_an_annotation_that_is_no_type_is_refused() -> None:
    def odd() -> None: ...

    odd.__annotations__["return"] = "1 +"
    with pytest.raises(InvalidRequest) as refused:
        return_form(odd)
    assert refused.value.code == "annotation_invalid"


def test_a_class_inside_a_function_is_found_with_the_names_of_the_frame() -> None:
    @dataclass
    class Part:
        n: int

    @dataclass
    class Whole:
        parts: list[Part]

    def build() -> Whole:
        raise NotImplementedError

    form = return_form(build, {"Part": Part, "Whole": Whole})
    assert form.restore(b'{"parts":[{"n":1}]}') == Whole([Part(1)])


def test_a_class_inside_a_function_is_found_in_the_closure() -> None:
    @dataclass
    class Part:
        n: int

    def build() -> Part:
        return Part(1)

    assert return_form(build).annotation is Part
