"""The arguments of a task are stored by name, and fit what the function has become, or hold it."""

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
from flowfabric.core.limits import PAYLOAD_BYTES
from flowfabric.sdk.errors import InputMismatch, ValueRefused
from flowfabric.sdk.values import Inputs, inputs_of, names_of

if TYPE_CHECKING:
    from fractions import Fraction as OnlyForTheChecker

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


def _call(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    inputs = inputs_of(fn)
    return inputs.unpack(inputs.pack(args, kwargs))


def _stored(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    return json.loads(inputs_of(fn).pack(args, kwargs))


def _after(before: Callable[..., Any], after: Callable[..., Any], *args: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """What a changed function gets of a call that was stored before."""
    return inputs_of(after).unpack(inputs_of(before).pack(args, {}))


# --- Storing


def test_arguments_are_an_object_by_parameter_name() -> None:
    assert _stored(refund, Order("a"), at=AT) == {
        "order": {"id": "a", "photo": "_w=="},
        "times": 1,
        "at": "2026-01-02T00:00:00Z",
    }


def test_arguments_come_back_as_they_were() -> None:
    assert _call(refund, Order("a"), at=AT) == ((Order("a"), 1), {"at": AT})


def test_defaults_are_resolved_when_the_task_is_submitted() -> None:
    def before(n: int, factor: int = 2) -> None: ...
    def after(n: int, factor: int = 3) -> None: ...

    assert _after(before, after, 1) == ((1, 2), {})


def test_the_same_call_is_the_same_bytes_however_it_is_made() -> None:
    def task(a: int, b: str = "x", c: float = 1.5) -> None: ...

    inputs = inputs_of(task)
    ways: list[tuple[tuple[Any, ...], dict[str, Any]]]
    ways = [((1,), {}), ((), {"a": 1}), ((1, "x"), {"c": 1.5}), ((), {"c": 1.5, "b": "x", "a": 1})]
    assert {inputs.pack(args, kwargs) for args, kwargs in ways} == {b'{"a":1,"b":"x","c":1.5}'}


def test_a_task_without_parameters_is_an_empty_object() -> None:
    def task() -> None: ...

    assert inputs_of(task).pack((), {}) == b"{}"
    assert inputs_of(task).unpack(b"{}") == ((), {})


def test_an_empty_payload_is_a_call_without_arguments() -> None:
    def task(n: int = 3) -> None: ...

    assert inputs_of(task).unpack(b"") == ((3,), {})


def test_variable_arguments_are_stored_under_their_names() -> None:
    def task(first: int, *rest: bytes, **named: Order) -> None: ...

    data = _stored(task, 1, b"a", b"b", x=Order("o", b""))
    assert data == {"first": 1, "rest": ["YQ==", "Yg=="], "named": {"x": {"id": "o", "photo": ""}}}
    assert _call(task, 1, b"a", b"b", x=Order("o")) == ((1, b"a", b"b"), {"x": Order("o")})
    assert _call(task, 1) == ((1,), {})


def test_named_arguments_may_be_typed_one_by_one() -> None:
    def task(**where: Unpack[Named]) -> None: ...

    assert _call(task, city="Ulm") == ((), {"city": "Ulm"})
    with pytest.raises(ValueRefused):
        inputs_of(task).pack((), {"city": 5})


def test_positional_only_and_keyword_only_parameters_keep_their_places() -> None:
    def task(a: int, /, b: int, *, c: int, d: int = 4) -> None: ...

    assert _call(task, 1, b=2, c=3) == ((1, 2), {"c": 3, "d": 4})
    task(*_call(task, 1, b=2, c=3)[0], **_call(task, 1, b=2, c=3)[1])


def test_a_positional_only_name_may_appear_among_the_named_arguments() -> None:
    def task(a: int, /, **named: int) -> None: ...

    assert _call(task, 1, a=2) == ((1,), {"a": 2})


def test_a_parameter_without_annotation_takes_plain_json() -> None:
    def task(anything, more=None):  # type: ignore[no-untyped-def]
        ...

    assert _call(task, {"a": [1, None]}) == (({"a": [1, None]}, None), {})
    with pytest.raises(ValueRefused, match=r"the argument anything of task is not annotated.*annotate it"):
        inputs_of(task).pack(((1, 2),), {})


@pytest.mark.parametrize("annotation", [Sequence[int], Iterable[int]])
def test_any_sequence_may_be_given_where_any_is_asked_for(annotation: Any) -> None:
    def task(xs: Any) -> None: ...

    task.__annotations__["xs"] = annotation
    assert _call(task, (1, 2)) == (([1, 2],), {})
    assert _call(task, [1, 2]) == (([1, 2],), {})


def test_nan_and_infinities_are_kept() -> None:
    def task(a: float, b: list[float]) -> None: ...

    (a, b), _ = _call(task, math.nan, [math.inf, math.nan])
    assert math.isnan(a) and b[0] == math.inf and math.isnan(b[1])


def test_a_parameter_may_have_any_name() -> None:
    def task(_hidden: int, model_config: int, keys: int, schema: int) -> None: ...

    assert _call(task, 1, 2, 3, 4) == ((1, 2, 3, 4), {})


# --- Refusing before anything is stored


def test_a_wrong_argument_is_refused_by_its_name() -> None:
    with pytest.raises(
        ValueRefused, match="the argument times of refund cannot be stored as int: expected int, got 'x'"
    ):
        inputs_of(refund).pack((Order("a"), "x"), {})


def test_an_argument_that_would_come_back_changed_is_refused() -> None:
    with pytest.raises(ValueRefused, match="the argument order of refund does not survive as Order"):
        inputs_of(refund).pack((SpecialOrder("a", note="lost"),), {})


def test_constraints_are_checked() -> None:
    def task(n: Annotated[int, Field(gt=0)]) -> None: ...

    with pytest.raises(ValueRefused, match=r"the argument n of task.*greater than 0"):
        inputs_of(task).pack((0,), {})


def test_a_default_that_does_not_fit_its_annotation_is_refused() -> None:
    def task(n: int = None) -> None:  # type: ignore[assignment]  # noqa: RUF013
        ...

    with pytest.raises(ValueRefused, match="the argument n of task"):
        inputs_of(task).pack((), {})


@pytest.mark.parametrize(
    ("args", "kwargs", "why"),
    [
        ((), {}, "missing a required argument: 'order'"),
        ((1, 2, 3), {}, "too many positional arguments"),
        ((1,), {"order": 2}, "multiple values for argument 'order'"),
        ((1,), {"nonsense": 2}, "got an unexpected keyword argument 'nonsense'"),
    ],
)
def test_a_call_that_the_function_would_not_take_is_refused(
    args: tuple[Any, ...], kwargs: dict[str, Any], why: str
) -> None:
    with pytest.raises(InvalidRequest) as refused:
        inputs_of(refund).pack(args, kwargs)
    assert refused.value.code == "invalid_arguments"
    assert f"refund: {why}" in str(refused.value)


@pytest.mark.parametrize(("args", "kwargs"), [((), {}), ((1, 2, 3), {}), ((1,), {"a": 2}), ((1, 2), {"c": 1})])
def test_a_simple_call_that_the_function_would_not_take_is_refused(
    args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    def task(a: int, b: int) -> None: ...

    with pytest.raises(InvalidRequest, match="task: "):
        inputs_of(task).pack(args, kwargs)


def test_an_argument_given_twice_is_refused_even_if_nothing_is_missing() -> None:
    def task(a: int, b: int = 2) -> None: ...

    with pytest.raises(InvalidRequest, match="multiple values for argument 'a'"):
        inputs_of(task).pack((1,), {"a": 2})


def test_an_input_over_the_limit_is_refused_with_the_limit() -> None:
    def task(text: str) -> None: ...

    room = PAYLOAD_BYTES - len(b'{"text":""}')
    assert len(inputs_of(task).pack(("x" * room,), {})) == PAYLOAD_BYTES
    with pytest.raises(ValueRefused, match=f"the input of task has {PAYLOAD_BYTES + 1} bytes") as refused:
        inputs_of(task).pack(("x" * (room + 1),), {})
    assert refused.value.code == "payload_too_large"


# --- The function moves on


def test_an_added_parameter_takes_its_default() -> None:
    def before(n: int) -> None: ...
    def after(n: int, added: str = "new", *more: int, keyword: bool = True, **others: int) -> None: ...

    assert _after(before, after, 1) == ((1, "new"), {"keyword": True})


def test_an_added_parameter_without_a_default_holds() -> None:
    def before(n: int) -> None: ...
    def after(n: int, added: str) -> None: ...

    with pytest.raises(InputMismatch, match="does not fit after: added: Field required") as held:
        _after(before, after, 1)
    assert held.value.code == "input_mismatch"
    assert "flowfabric unhold" in str(held.value)


def test_a_removed_parameter_holds() -> None:
    def before(n: int, gone: int) -> None: ...
    def after(n: int) -> None: ...

    with pytest.raises(InputMismatch, match="no parameter gone any more"):
        _after(before, after, 1, 2)


def test_a_removed_parameter_is_not_swallowed_by_variable_arguments() -> None:
    def before(n: int, gone: int) -> None: ...
    def after(n: int, **others: int) -> None: ...

    with pytest.raises(InputMismatch, match="no parameter gone any more"):
        _after(before, after, 1, 2)


def test_a_parameter_that_means_something_else_holds() -> None:
    def before(n: str) -> None: ...
    def after(n: Order) -> None: ...

    with pytest.raises(InputMismatch, match="n: Input should be"):
        _after(before, after, "x")


def test_a_parameter_that_was_widened_still_fits() -> None:
    def before(n: int) -> None: ...
    def after(n: float | str) -> None: ...

    assert _after(before, after, 1) == ((1.0,), {})


def test_parameters_may_change_their_order_and_kind() -> None:
    def before(a: int, b: str) -> None: ...
    def after(b: str, *, a: int) -> None: ...

    assert _after(before, after, 1, "x") == (("x",), {"a": 1})


@pytest.mark.parametrize("data", [b"[]", b"null", b"3", b"{", b'{"n":1},{"n":2}', b"\xff"])
def test_an_input_that_is_no_object_holds(data: bytes) -> None:
    def task(n: int = 1) -> None: ...

    with pytest.raises(InputMismatch):
        inputs_of(task).unpack(data)


# --- What can be a task


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
        (_generator, "a generator has no one result"),
        (_async_generator, "a generator has no one result"),
        (Shop, "must be a function"),
        (Shop(), "must be a function"),
        (functools.partial(refund, Order("a")), "must be a function"),
        (len, "must be a function"),
        (None, "must be a function"),
    ],
    ids=map(str, range(11)),
)
def test_what_cannot_be_a_task_is_refused_at_decoration(fn: Any, why: str) -> None:
    with pytest.raises(InvalidRequest, match=why) as refused:
        inputs_of(fn)
    assert refused.value.code == "invalid_task"


def test_a_first_parameter_called_self_may_be_data_if_it_says_so() -> None:
    def task(self: Order) -> None: ...

    assert _call(task, Order("a")) == ((Order("a"),), {})


# --- When annotations are looked at


def test_annotations_are_not_looked_at_before_they_are_needed() -> None:
    def task(later: OnlyForTheChecker) -> None: ...

    inputs = inputs_of(task)
    with pytest.raises(InvalidRequest, match=r"the parameters of .*task name OnlyForTheChecker") as refused:
        inputs.check()
    assert refused.value.code == "annotation_unresolved"


def test_check_refuses_a_type_that_is_no_data() -> None:
    def task(shop: Shop) -> None: ...

    with pytest.raises(InvalidRequest, match="the input of task cannot be stored") as refused:
        inputs_of(task).check()
    assert refused.value.code == "type_not_storable"


def test_what_cannot_be_resolved_is_no_fault_of_the_input() -> None:
    def task(later: OnlyForTheChecker) -> None: ...

    with pytest.raises(InvalidRequest, match="OnlyForTheChecker"):
        inputs_of(task).unpack(b'{"later":1}')
    with pytest.raises(InvalidRequest, match="OnlyForTheChecker"):
        inputs_of(task).pack((1,), {})


def test_a_decorator_of_another_module_does_not_hide_the_names() -> None:
    elsewhere: dict[str, Any] = {"functools": functools}
    exec("def decorator(fn):\n    return functools.wraps(fn)(lambda *args: fn(*args))", elsewhere)

    def task(order: Order, n: int = 1) -> None: ...

    assert _call(elsewhere["decorator"](task), Order("a")) == ((Order("a"), 1), {})


def test_check_passes_what_can_be_stored() -> None:
    inputs_of(refund).check()


def _decorated(fn: Callable[..., Any]) -> Inputs:
    """What a decorator does: it keeps the names of the frame that it stands in."""
    return inputs_of(fn, names_of(sys._getframe(1)))


def test_classes_inside_a_function_are_found_even_if_defined_later() -> None:
    @_decorated
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


def test_a_frame_that_has_ended_still_has_its_names() -> None:
    def make() -> tuple[Inputs, type]:
        @dataclass
        class Local:
            n: int

        @_decorated
        def task(it: Local) -> None: ...

        assert isinstance(task, Inputs)
        return task, Local

    inputs, local = make()
    assert inputs.unpack(b'{"it":{"n":1}}') == ((local(1),), {})


def test_at_the_top_of_a_module_the_globals_are_enough() -> None:
    found: list[Any] = []
    exec(compile("found.append(names_of(sys._getframe()))", "x", "exec"), {**globals(), "found": found})
    assert found == [None]


def test_single_parameters_have_forms_too() -> None:
    assert inputs_of(refund).form("order").store(Order("a", b"")) == b'{"id":"a","photo":""}'
    assert inputs_of(refund).bind((Order("a"),), {"at": AT}) == {"order": Order("a"), "times": 1, "at": AT}


def test_a_model_is_an_argument_like_any_other() -> None:
    def task(item: Item, items: dict[str, Item]) -> None: ...

    assert _call(task, Item(n=1), {"a": Item(n=2)}) == ((Item(n=1), {"a": Item(n=2)}), {})
