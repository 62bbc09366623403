"""Tests for the arguments of a task, stored by name and checked against the current function."""

from __future__ import annotations

import functools
import json
import math
import sys
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any, Unpack

import pytest
from pydantic import BaseModel, Field
from typing_extensions import TypedDict

from flowfabric.core.errors import InvalidRequest
from flowfabric.core.validation import MAX_PAYLOAD_BYTES
from flowfabric.values import Inputs, frame_namespace, inputs_for
from flowfabric.values.errors import InputMismatch, ValueRefused

if TYPE_CHECKING:
    from fractions import Fraction as OnlyForTypeChecking

AT = datetime(2026, 1, 2, tzinfo=UTC)


@dataclass
class Order:
    id: str
    photo: bytes = b"\xff"


@dataclass
class SpecialOrder(Order):
    note: str = ""


class Item(BaseModel):
    n: int


class Named(TypedDict):
    city: str


async def refund(order: Order, times: int = 1, *, at: datetime | None = None) -> str:
    return ""


def _round_trip(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    inputs = inputs_for(fn)
    return inputs.unpack(inputs.pack(args, kwargs))


def _pack_to_json(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    return json.loads(inputs_for(fn).pack(args, kwargs))


def _unpack_after_change(
    before: Callable[..., Any], after: Callable[..., Any], *args: Any
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments that a changed function gets from a call stored before the change."""
    return inputs_for(after).unpack(inputs_for(before).pack(args, {}))


# --- Storing


def test_arguments_are_stored_by_parameter_name() -> None:
    assert _pack_to_json(refund, Order("a"), at=AT) == {
        "order": {"id": "a", "photo": "_w=="},
        "times": 1,
        "at": "2026-01-02T00:00:00Z",
    }


def test_arguments_survive_the_round_trip() -> None:
    assert _round_trip(refund, Order("a"), at=AT) == ((Order("a"), 1), {"at": AT})


def test_defaults_are_resolved_when_the_task_is_submitted() -> None:
    def before(n: int, factor: int = 2) -> None: ...
    def after(n: int, factor: int = 3) -> None: ...

    assert _unpack_after_change(before, after, 1) == ((1, 2), {})


def test_equal_calls_are_stored_as_equal_bytes() -> None:
    def task(a: int, b: str = "x", c: float = 1.5) -> None: ...

    inputs = inputs_for(task)
    calls: list[tuple[tuple[Any, ...], dict[str, Any]]]
    calls = [((1,), {}), ((), {"a": 1}), ((1, "x"), {"c": 1.5}), ((), {"c": 1.5, "b": "x", "a": 1})]
    assert {inputs.pack(args, kwargs) for args, kwargs in calls} == {b'{"a":1,"b":"x","c":1.5}'}


def test_task_without_parameters_stores_an_empty_object() -> None:
    def task() -> None: ...

    assert inputs_for(task).pack((), {}) == b"{}"
    assert inputs_for(task).unpack(b"{}") == ((), {})


def test_empty_payload_is_a_call_without_arguments() -> None:
    def task(n: int = 3) -> None: ...

    assert inputs_for(task).unpack(b"") == ((3,), {})


def test_variable_arguments_are_stored_under_their_names() -> None:
    def task(first: int, *rest: bytes, **named: Order) -> None: ...

    data = _pack_to_json(task, 1, b"a", b"b", x=Order("o", b""))
    assert data == {"first": 1, "rest": ["YQ==", "Yg=="], "named": {"x": {"id": "o", "photo": ""}}}
    assert _round_trip(task, 1, b"a", b"b", x=Order("o")) == ((1, b"a", b"b"), {"x": Order("o")})
    assert _round_trip(task, 1) == ((1,), {})


def test_unpacked_typed_dict_types_keyword_arguments() -> None:
    def task(**where: Unpack[Named]) -> None: ...

    assert _round_trip(task, city="Ulm") == ((), {"city": "Ulm"})
    with pytest.raises(ValueRefused):
        inputs_for(task).pack((), {"city": 5})


def test_positional_only_and_keyword_only_parameters_are_kept() -> None:
    def task(a: int, /, b: int, *, c: int, d: int = 4) -> None: ...

    assert _round_trip(task, 1, b=2, c=3) == ((1, 2), {"c": 3, "d": 4})
    task(*_round_trip(task, 1, b=2, c=3)[0], **_round_trip(task, 1, b=2, c=3)[1])


def test_positional_only_name_may_also_be_a_keyword_argument() -> None:
    def task(a: int, /, **named: int) -> None: ...

    assert _round_trip(task, 1, a=2) == ((1,), {"a": 2})


def test_a_parameter_without_annotation_takes_plain_json() -> None:
    def task(anything, more=None):  # type: ignore[no-untyped-def]
        ...

    assert _round_trip(task, {"a": [1, None]}) == (({"a": [1, None]}, None), {})
    with pytest.raises(ValueRefused, match=r"the argument anything of task is not annotated.*annotate it"):
        inputs_for(task).pack(((1, 2),), {})


@pytest.mark.parametrize("annotation", [Sequence[int], Iterable[int]])
def test_lists_and_tuples_fit_abstract_sequence_types(annotation: Any) -> None:
    def task(xs: Any) -> None: ...

    task.__annotations__["xs"] = annotation
    assert _round_trip(task, (1, 2)) == (([1, 2],), {})
    assert _round_trip(task, [1, 2]) == (([1, 2],), {})


def test_nan_and_infinities_are_kept() -> None:
    def task(a: float, b: list[float]) -> None: ...

    (a, b), _ = _round_trip(task, math.nan, [math.inf, math.nan])
    assert math.isnan(a) and b[0] == math.inf and math.isnan(b[1])


def test_a_parameter_may_have_any_name() -> None:
    def task(_hidden: int, model_config: int, keys: int, schema: int) -> None: ...

    assert _round_trip(task, 1, 2, 3, 4) == ((1, 2, 3, 4), {})


# --- Rejected before anything is stored


def test_invalid_argument_is_rejected_by_name() -> None:
    with pytest.raises(
        ValueRefused, match="the argument times of refund cannot be stored as int: expected int, got 'x'"
    ):
        inputs_for(refund).pack((Order("a"), "x"), {})


def test_lossy_argument_is_rejected() -> None:
    with pytest.raises(ValueRefused, match="the argument order of refund cannot be stored exactly as Order"):
        inputs_for(refund).pack((SpecialOrder("a", note="lost"),), {})


def test_constraints_are_checked() -> None:
    def task(n: Annotated[int, Field(gt=0)]) -> None: ...

    with pytest.raises(ValueRefused, match=r"the argument n of task.*greater than 0"):
        inputs_for(task).pack((0,), {})


def test_default_that_does_not_fit_its_annotation_is_rejected() -> None:
    def task(n: int = None) -> None:  # type: ignore[assignment]  # noqa: RUF013
        ...

    with pytest.raises(ValueRefused, match="the argument n of task"):
        inputs_for(task).pack((), {})


@pytest.mark.parametrize(
    ("args", "kwargs", "why"),
    [
        ((), {}, "missing a required argument: 'order'"),
        ((1, 2, 3), {}, "too many positional arguments"),
        ((1,), {"order": 2}, "multiple values for argument 'order'"),
        ((1,), {"nonsense": 2}, "got an unexpected keyword argument 'nonsense'"),
    ],
)
def test_call_that_does_not_match_the_signature_is_rejected(
    args: tuple[Any, ...], kwargs: dict[str, Any], why: str
) -> None:
    with pytest.raises(InvalidRequest) as refused:
        inputs_for(refund).pack(args, kwargs)
    assert refused.value.code == "invalid_arguments"
    assert f"refund: {why}" in str(refused.value)


@pytest.mark.parametrize(("args", "kwargs"), [((), {}), ((1, 2, 3), {}), ((1,), {"a": 2}), ((1, 2), {"c": 1})])
def test_call_that_does_not_match_a_simple_signature_is_rejected(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    def task(a: int, b: int) -> None: ...

    with pytest.raises(InvalidRequest, match="task: "):
        inputs_for(task).pack(args, kwargs)


def test_argument_passed_twice_is_rejected() -> None:
    def task(a: int, b: int = 2) -> None: ...

    with pytest.raises(InvalidRequest, match="multiple values for argument 'a'"):
        inputs_for(task).pack((1,), {"a": 2})


def test_oversized_input_is_rejected_with_the_limit() -> None:
    def task(text: str) -> None: ...

    room = MAX_PAYLOAD_BYTES - len(b'{"text":""}')
    assert len(inputs_for(task).pack(("x" * room,), {})) == MAX_PAYLOAD_BYTES
    with pytest.raises(ValueRefused, match=f"the input of task has {MAX_PAYLOAD_BYTES + 1} bytes") as refused:
        inputs_for(task).pack(("x" * (room + 1),), {})
    assert refused.value.code == "payload_too_large"


# --- The function changes between submit and run


def test_an_added_parameter_takes_its_default() -> None:
    def before(n: int) -> None: ...
    def after(n: int, added: str = "new", *more: int, keyword: bool = True, **others: int) -> None: ...

    assert _unpack_after_change(before, after, 1) == ((1, "new"), {"keyword": True})


def test_added_parameter_without_a_default_raises_input_mismatch() -> None:
    def before(n: int) -> None: ...
    def after(n: int, added: str) -> None: ...

    with pytest.raises(InputMismatch, match="does not fit after: added: Field required") as mismatch:
        _unpack_after_change(before, after, 1)
    assert mismatch.value.code == "input_mismatch"
    assert "flowfabric unhold" in str(mismatch.value)


def test_removed_parameter_raises_input_mismatch() -> None:
    def before(n: int, gone: int) -> None: ...
    def after(n: int) -> None: ...

    with pytest.raises(InputMismatch, match="it has no parameter gone"):
        _unpack_after_change(before, after, 1, 2)


def test_removed_parameter_is_not_absorbed_by_keyword_arguments() -> None:
    def before(n: int, gone: int) -> None: ...
    def after(n: int, **others: int) -> None: ...

    with pytest.raises(InputMismatch, match="it has no parameter gone"):
        _unpack_after_change(before, after, 1, 2)


def test_incompatible_parameter_type_raises_input_mismatch() -> None:
    def before(n: str) -> None: ...
    def after(n: Order) -> None: ...

    with pytest.raises(InputMismatch, match="n: Input should be"):
        _unpack_after_change(before, after, "x")


def test_widened_parameter_type_accepts_stored_arguments() -> None:
    def before(n: int) -> None: ...
    def after(n: float | str) -> None: ...

    assert _unpack_after_change(before, after, 1) == ((1.0,), {})


def test_parameters_may_change_their_order_and_kind() -> None:
    def before(a: int, b: str) -> None: ...
    def after(b: str, *, a: int) -> None: ...

    assert _unpack_after_change(before, after, 1, "x") == (("x",), {"a": 1})


@pytest.mark.parametrize("data", [b"[]", b"null", b"3", b"{", b'{"n":1},{"n":2}', b"\xff"])
def test_input_that_is_not_an_object_raises_input_mismatch(data: bytes) -> None:
    def task(n: int = 1) -> None: ...

    with pytest.raises(InputMismatch):
        inputs_for(task).unpack(data)


# --- Functions that can be tasks


class Shop:
    def method(self, n: int) -> int:
        return n

    @classmethod
    def make(cls) -> int:
        return 1

    def annotated(self: Shop) -> int:
        return 1


def _generator() -> Iterator[int]:
    yield 1


async def _async_generator() -> AsyncIterator[int]:
    yield 1


@pytest.mark.parametrize(
    ("fn", "why"),
    [
        (Shop.method, "it is a method, and self cannot be stored"),
        (Shop().method, "must be a function"),
        (Shop.make, "must be a function"),
        (vars(Shop)["make"], "must be a function"),
        (_generator, "a generator has no single result"),
        (_async_generator, "a generator has no single result"),
        (Shop, "must be a function"),
        (Shop(), "must be a function"),
        (functools.partial(refund, Order("a")), "must be a function"),
        (len, "must be a function"),
        (None, "must be a function"),
    ],
    ids=map(str, range(11)),
)
def test_unsuitable_callable_is_rejected_at_decoration(fn: Any, why: str) -> None:
    with pytest.raises(InvalidRequest, match=why) as refused:
        inputs_for(fn)
    assert refused.value.code == "invalid_task"


def test_annotated_first_parameter_named_self_is_allowed() -> None:
    def task(self: Order) -> None: ...

    assert _round_trip(task, Order("a")) == ((Order("a"),), {})


# --- Resolving annotations


def test_annotations_are_resolved_only_when_needed() -> None:
    def task(later: OnlyForTypeChecking) -> None: ...

    inputs = inputs_for(task)
    with pytest.raises(InvalidRequest, match=r"the parameters of .*task name OnlyForTypeChecking") as refused:
        inputs.check()
    assert refused.value.code == "annotation_unresolved"


def test_check_rejects_a_type_that_is_not_data() -> None:
    def task(shop: Shop) -> None: ...

    with pytest.raises(
        InvalidRequest, match="the argument shop of task cannot be stored: Shop is not a data type; use"
    ) as refused:
        inputs_for(task).check()
    assert refused.value.code == "type_not_storable"


def test_unresolved_annotation_is_not_an_input_mismatch() -> None:
    def task(later: OnlyForTypeChecking) -> None: ...

    with pytest.raises(InvalidRequest, match="OnlyForTypeChecking"):
        inputs_for(task).unpack(b'{"later":1}')
    with pytest.raises(InvalidRequest, match="OnlyForTypeChecking"):
        inputs_for(task).pack((1,), {})


def test_decorator_from_another_module_keeps_the_names_resolvable() -> None:
    other_module: dict[str, Any] = {"functools": functools}
    exec("def decorator(fn):\n    return functools.wraps(fn)(lambda *args: fn(*args))", other_module)

    def task(order: Order, n: int = 1) -> None: ...

    assert _round_trip(other_module["decorator"](task), Order("a")) == ((Order("a"), 1), {})


def test_check_accepts_storable_types() -> None:
    inputs_for(refund).check()


def _decorate(fn: Callable[..., Any]) -> Inputs:
    """Build inputs as the task decorator does, with the names of the calling frame."""
    return inputs_for(fn, frame_namespace(sys._getframe(1)))


def test_local_classes_are_resolved_even_if_defined_later() -> None:
    @_decorate
    def task(whole: Whole, item: list[Later]) -> None: ...

    @dataclass
    class Part:
        n: int

    @dataclass
    class Whole:
        parts: list[Part]

    class Later(BaseModel):
        text: str

    assert isinstance(task, Inputs)
    packed = task.pack((Whole([Part(1)]), [Later(text="x")]), {})
    assert task.unpack(packed) == ((Whole([Part(1)]), [Later(text="x")]), {})


def test_names_of_a_frame_outlive_it() -> None:
    def make() -> tuple[Inputs, type]:
        @dataclass
        class Local:
            n: int

        @_decorate
        def task(it: Local) -> None: ...

        assert isinstance(task, Inputs)
        return task, Local

    inputs, local = make()
    assert inputs.unpack(b'{"it":{"n":1}}') == ((local(1),), {})


def test_names_of_a_module_frame_are_not_copied() -> None:
    captured: list[Any] = []
    exec(compile("captured.append(frame_namespace(sys._getframe()))", "x", "exec"), {**globals(), "captured": captured})
    assert captured == [None]


def test_single_parameters_have_codecs() -> None:
    assert inputs_for(refund).parameter_codec("order").store(Order("a", b"")) == b'{"id":"a","photo":""}'
    assert inputs_for(refund).bind((Order("a"),), {"at": AT}) == {"order": Order("a"), "times": 1, "at": AT}


def test_model_may_be_an_argument() -> None:
    def task(item: Item, items: dict[str, Item]) -> None: ...

    assert _round_trip(task, Item(n=1), {"a": Item(n=2)}) == ((Item(n=1), {"a": Item(n=2)}), {})


class Money:
    """A class that is no data type."""


@dataclass
class Purchase:
    price: Money


def test_value_that_cannot_be_stored_is_reported_with_the_parameter_and_the_class_of_the_user() -> None:
    def pay(order: str, price: Money) -> None: ...

    def pay_all(order: str, *prices: Money, **extra: int) -> None: ...

    def buy(order: str, purchase: Purchase) -> None: ...

    here = __name__
    for fn, message in (
        (pay, "the argument price of pay cannot be stored: Money is not a data type; use"),
        (pay_all, f"the argument prices of pay_all cannot be stored: {here}.Money is not a data type, but a part of"),
        (buy, f"the argument purchase of buy cannot be stored: {here}.Money is not a data type, but a part of Purch"),
    ):
        with pytest.raises(InvalidRequest) as refused:
            inputs_for(fn).check()
        assert refused.value.code == "type_not_storable"
        assert refused.value.message.startswith(message)
        assert "flowfabric" not in refused.value.message and "arbitrary_types_allowed" not in refused.value.message
