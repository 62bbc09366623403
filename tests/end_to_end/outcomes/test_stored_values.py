"""Values in the store: inputs, results of steps and tasks, and their handling when code changes."""

from __future__ import annotations

import functools
import json
import logging
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from threading import Lock
from typing import Any

import pytest

from flowfabric import App, ExecutionFailed, Handle, InvalidRequest, StepFailed, ValueRefused, sleep, step
from flowfabric.testing import Kit
from tests.end_to_end.outcomes.conftest import KitFactory
from tests.stores import TestStore


@dataclass
class Order:
    """A dataclass with fields of several types."""

    id: str
    total: Decimal
    at: datetime
    raw: bytes = b"\xff"
    ratio: float = float("inf")


@dataclass
class GiftOrder(Order):
    """An order with a field that its base class does not have."""

    greeting: str = "hello"


ORDER = Order("o-17", Decimal("1.10"), datetime(2030, 1, 1, tzinfo=UTC))


async def test_inputs_are_stored_as_an_object_keyed_by_parameter_name(app: App, kit: Kit) -> None:
    @app.task
    async def task(first: int, *rest: int, last: str = "z", **more: bool) -> str:
        return f"{first} {rest} {last} {more}"

    handle = await kit.start(task, 1, 2, 3, flag=True)

    stored = json.loads((await handle.status()).payload)
    assert stored == {"first": 1, "rest": [2, 3], "last": "z", "more": {"flag": True}}
    assert await handle == "1 (2, 3) z {'flag': True}"


async def test_default_is_resolved_when_the_task_is_submitted(new_kit: KitFactory) -> None:
    old, new = App("x.db"), App("x.db")

    @old.task(name="refund")
    async def refund_once(amount: int = 1) -> int:
        return amount

    @new.task(name="refund")
    async def refund(amount: int = 2) -> int:
        return amount

    async with new_kit(old):
        handle = await refund_once.options(delay="1h").submit()
    async with new_kit(new) as kit:
        assert await kit.finish(refund.handle(handle.id)) == 1


async def test_added_parameter_takes_its_default(new_kit: KitFactory) -> None:
    old, new = App("x.db"), App("x.db")

    @old.task(name="refund")
    async def refund_once(order: str) -> str:
        await sleep("1h")
        return order

    @new.task
    async def refund(order: str, note: str = "none") -> str:
        await sleep("1h")
        return f"{order} {note}"

    async with new_kit(old) as kit:
        handle = await kit.start(refund_once, "o-17")
    async with new_kit(new) as kit:
        assert await kit.finish(refund.handle(handle.id)) == "o-17 none"


async def test_removed_or_retyped_parameter_holds_the_execution_until_repaired(
    new_kit: KitFactory,
) -> None:
    old, removed, typed = App("x.db"), App("x.db"), App("x.db")

    @old.task(name="refund")
    async def refund_once(order: str) -> str:
        await sleep("1h")
        return order

    @removed.task(name="refund")
    async def without() -> None: ...

    @typed.task(name="refund")
    async def with_number(order: int) -> None: ...

    async with new_kit(old) as kit:
        handle = await kit.start(refund_once, "o-17")
    for app in (removed, typed):
        async with new_kit(app) as kit:
            await kit.advance("1h")
            status = await app.handle(handle.id).status()
            assert status.hold_reason == "input_mismatch"
            assert "order" in (status.hold_report or "")
            assert status.attempt_index == 0
            await app.handle(handle.id).unhold()
    async with new_kit(old) as kit:
        assert await kit.finish(refund_once.handle(handle.id)) == "o-17"


async def test_annotations_may_name_classes_of_the_enclosing_function(app: App, memory_kit: Kit) -> None:
    @dataclass
    class Local:
        number: int

    @app.task
    async def task(item: Local) -> Local:
        def double() -> Local:
            return Local(2 * item.number)

        return await step(double)

    assert await memory_kit.run(task, Local(2)) == Local(4)


async def test_unresolvable_annotations_raise_when_the_worker_starts(real_app: App) -> None:
    @real_app.task
    async def task(item: Missing) -> None:  # type: ignore[name-defined]  # noqa: F821
        ...

    with pytest.raises(InvalidRequest, match="Missing"):
        async with real_app.worker():
            pass


async def test_rich_values_round_trip_through_inputs_steps_and_results(app: App, kit: Kit) -> None:
    seen: list[Order] = []

    def priced(order: Order) -> Order:
        return order

    @app.task
    async def task(order: Order) -> Order:
        seen.append(await step(priced, order))
        await sleep("1h")
        return seen[-1]

    assert await kit.run(task, ORDER) == ORDER
    assert seen == [ORDER, ORDER]


async def test_lossy_input_is_rejected_before_anything_is_stored(app: App, kit: Kit) -> None:
    @app.task
    async def task(order: Order) -> None: ...

    with pytest.raises(ValueRefused):
        _ = await task.submit(GiftOrder("o-17", Decimal(1), ORDER.at))
    with pytest.raises(ValueRefused):
        _ = await task.submit("no order")  # type: ignore[arg-type]
    assert (await kit.engine.executions.list()).items == ()


async def test_child_with_invalid_input_is_not_submitted(app: App, kit: Kit) -> None:
    @app.task
    async def child(order: Order) -> None: ...

    @app.task(retries=0)
    async def parent() -> None:
        await child.run("no order")  # type: ignore[arg-type]

    with pytest.raises(ExecutionFailed, match="ValueRefused"):
        await kit.run(parent)
    assert [item.kind for item in (await kit.engine.executions.list()).items] == ["parent"]


async def test_result_that_cannot_be_decoded_is_a_final_failure_with_the_reason(app: App, memory_kit: Kit) -> None:
    calls: list[str] = []

    def negative() -> Order:
        calls.append("once")
        return "no order"  # type: ignore[return-value]

    @app.task
    async def task() -> str:
        try:
            await step(negative)
        except StepFailed as failed:
            return failed.error.message
        return ""

    assert "Order" in await memory_kit.run(task)
    assert calls == ["once"]


def gift() -> Order:
    """Return an order that loses a field when it is stored."""
    return GiftOrder("o-17", Decimal(1), ORDER.at)


async def test_result_that_changes_when_stored_is_an_error_in_the_kit(app: App, memory_kit: Kit) -> None:
    @app.task
    async def task() -> None:
        await step(gift)

    with pytest.raises(ExecutionFailed, match="gift"):
        await memory_kit.run(task)


async def test_result_that_changes_when_stored_logs_one_warning_per_step_in_production(
    real_app: App, store: TestStore, caplog: pytest.LogCaptureFixture
) -> None:
    # The warning is logged once per process, so each test uses a different name.
    name = f"wrapped-{store.name}"

    @real_app.task(name=name)
    async def wrapped() -> str:
        await step(gift)
        return type(await step(gift)).__name__

    with caplog.at_level(logging.WARNING, "flowfabric"):
        async with real_app.worker():
            for _ in range(2):
                assert await (await wrapped.submit()).result(timeout=20) == "Order"

    assert caplog.text.count(f"The result of gift in {name} changes when it is stored") == 1


async def test_step_without_a_return_annotation_stores_only_plain_json(app: App, memory_kit: Kit) -> None:
    def plain(value: Any):  # type: ignore[no-untyped-def]
        return value

    @app.task(retries=0)
    async def task() -> list[str]:
        messages = []
        for value in ((1, 2), ORDER, ORDER.at):
            try:
                await step(plain, value)
            except StepFailed as failed:
                messages.append(failed.error.message)
        assert await step(plain, {"a": [1, None, "b"]}) == {"a": [1, None, "b"]}
        return messages

    messages = await memory_kit.run(task)

    assert len(messages) == 3
    assert all("annotate the return type" in message for message in messages)


async def test_result_types_of_classes_partials_and_bound_methods_are_known(app: App, kit: Kit) -> None:
    class Till:
        def total(self, tax: Decimal) -> Decimal:
            return ORDER.total + tax

    seen: list[Decimal] = []

    @app.task
    async def task() -> None:
        till = Till()
        seen.append(await step(Decimal, "1"))
        seen.append(await step(till.total, Decimal(1)))
        seen.append(await step(functools.partial(till.total, Decimal(2))))
        await sleep("1h")

    await kit.run(task)

    assert seen == [Decimal(1), Decimal("2.10"), Decimal("3.10")] * 2


async def test_task_with_a_result_that_cannot_be_stored_fails(app: App, kit: Kit) -> None:
    bodies: list[str] = []

    @app.task
    async def task() -> int:
        bodies.append("once")
        return "no number"  # type: ignore[return-value]

    with pytest.raises(ExecutionFailed, match="ValueRefused"):
        await kit.run(task)
    assert bodies == ["once"]


async def test_arguments_of_steps_are_not_stored(app: App, kit: Kit) -> None:
    def use(lock: Any, word: str) -> str:
        with lock:
            return word[::-1]

    @app.task
    async def task() -> str:
        result = await step(use, Lock(), "secret")
        await sleep("1h")
        return result

    handle = await kit.start(task)
    records = b"".join([item.payload for item in await kit.engine.executions.steps(handle.id)])

    assert b"secret" not in records
    assert await kit.finish(handle) == "terces"


async def test_step_that_changes_its_arguments_is_an_error_in_the_kit(app: App, memory_kit: Kit) -> None:
    def append(items: list[int]) -> None:
        items.append(1)

    @app.task
    async def task() -> None:
        await step(append, [])

    with pytest.raises(ExecutionFailed, match="append changed its arguments"):
        await memory_kit.run(task)


async def test_handle_may_be_an_argument_a_step_result_and_a_field(app: App, kit: Kit) -> None:
    @dataclass
    class Ticket:
        job: Handle[int]

    @app.task
    async def double(number: int) -> int:
        return 2 * number

    async def order(number: int) -> Ticket:
        return Ticket(await double.submit(number))

    @app.task
    async def collect(job: Handle[int]) -> int:
        return await job

    @app.task
    async def parent() -> int:
        ticket = await step(order, 2)
        return await collect.run(ticket.job) + await ticket.job

    assert await kit.run(parent) == 4 + 4
