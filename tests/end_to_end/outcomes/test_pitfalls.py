"""What people do by mistake, and what comes of it."""

from __future__ import annotations

import asyncio
import contextvars
import random
import time
import uuid
from collections.abc import Callable
from typing import Any

import pytest

from flowfabric import (
    App,
    Completed,
    Diverged,
    ExecutionFailed,
    Handle,
    StepFailed,
    current,
    now,
    rng,
    sleep,
    step,
    uuid4,
)
from flowfabric.engine import State
from flowfabric.testing import Kit
from tests.end_to_end.durable.kits import begin

TRACE: contextvars.ContextVar[str] = contextvars.ContextVar("trace", default="empty")


def echo(value: Any) -> Any:
    return value


class CardDeclined(Exception):
    """An exception of the user's own."""


async def test_a_loop_in_another_order_is_held_with_the_report(app: App, kit: Kit) -> None:
    order = ["a", "b"]

    @app.task
    async def task() -> dict[str, str]:
        found = {name: await step(echo, name) for name in order}
        await sleep("1h")
        return found

    handle = await kit.start(task)
    order.reverse()

    with pytest.raises(Diverged, match="its arguments are not those that were recorded"):
        await kit.finish(handle)
    assert (await handle.status()).hold_reason == "diverged"


async def test_without_the_check_a_loop_in_another_order_swaps_results() -> None:
    app = App("never-opened.db", arguments="off")
    order = ["a", "b"]

    @app.task
    async def task() -> dict[str, str]:
        found = {name: await step(echo, name) for name in order}
        await sleep("1h")
        return found

    async with Kit(app) as unchecked:
        handle = await unchecked.start(task)
        order.reverse()
        assert await unchecked.finish(handle) == {"b": "a", "a": "b"}


async def test_with_keys_or_sorted_a_loop_may_come_in_any_order(app: App, kit: Kit) -> None:
    order = ["a", "b"]

    @app.task
    async def task() -> dict[str, str]:
        keyed = {name: await step.options(key=name)(echo, name) for name in order}
        ordered = {name: await step(echo, name) for name in sorted(order)}
        await sleep("1h")
        return keyed | ordered

    handle = await kit.start(task)
    order.reverse()

    assert await kit.finish(handle) == {"a": "a", "b": "b"}


UNSTEADY: dict[str, Callable[[], object]] = {
    "time.time": time.time_ns,
    "random": random.random,
    "uuid4": lambda: str(uuid.uuid4()),
}


@pytest.mark.parametrize("source", UNSTEADY)
async def test_a_clock_or_chance_in_an_argument_is_found_at_the_first_forced_replay(app: App, source: str) -> None:
    @app.task
    async def task() -> None:
        await step(echo, UNSTEADY[source]())
        await sleep("1h")

    async with Kit(app, replay="suspensions") as kit:
        with pytest.raises(Diverged, match="arguments"):
            await kit.run(task)


async def test_chance_that_decides_a_branch_is_found_at_a_replay(app: App) -> None:
    drawn: list[int] = []

    @app.task
    async def task() -> None:
        drawn.append(len(drawn))
        await (step(str) if drawn[-1] % 2 else step(int))

    async with Kit(app, replay="every record") as kit:
        with pytest.raises(Diverged, match=r"> 0 int +str"):
            await kit.run(task)


async def test_a_clock_or_chance_that_decides_nothing_is_harmless(app: App) -> None:
    @app.task
    async def task() -> str:
        _ = time.time(), random.random(), uuid.uuid4()
        return await step(str, "fine")

    async with Kit(app, replay="every record") as kit:
        assert await kit.run(task) == "fine"


async def test_our_own_clock_and_chance_may_decide_and_be_arguments(app: App) -> None:
    @app.task
    async def task() -> str:
        await step(echo, now().isoformat())
        await step(echo, str(uuid4()))
        await (step(int) if rng().random() < 0.5 else step(str))
        return "fine"

    async with Kit(app, replay="every record") as kit:
        assert await kit.run(task) == "fine"


async def test_an_effect_outside_of_a_step_happens_again_at_each_run(app: App, kit: Kit) -> None:
    asked: list[str] = []

    async def ask() -> None:
        await asyncio.sleep(0)
        asked.append("asked")

    @app.task
    async def task() -> None:
        await ask()
        await sleep("1h")

    await kit.run(task)

    assert asked == ["asked"] * 2


async def test_a_step_made_but_not_awaited_fails_at_the_end_with_its_path(app: App, kit: Kit) -> None:
    paid: list[str] = []

    @app.task
    async def task() -> None:
        _ = step(paid.append, "paid")

    handle = await kit.start(task)
    with pytest.raises(ExecutionFailed, match=r"made but never awaited: list\.append"):
        await kit.finish(handle)
    assert paid == []
    assert (await handle.status()).attempt_index == 0


async def test_a_class_that_is_not_declared_is_seen_as_a_failed_step_that_says_how_to_catch_it(
    app: App, kit: Kit
) -> None:
    async def charge() -> None:
        raise CardDeclined("no funds")

    @app.task(retries=0)
    async def task() -> str:
        try:
            await step(charge)
        except CardDeclined:
            return "never"
        except StepFailed as failed:
            return str(failed)
        return "nothing"

    assert (await kit.run(task)).endswith("declare raises=[CardDeclined] to catch it by class")


async def test_a_failed_step_is_final_when_it_is_seen(app: App, kit: Kit) -> None:
    tried: list[int] = []
    seen: list[int] = []

    def flaky() -> int:
        tried.append(len(tried))
        if len(tried) < 3:
            raise ConnectionError
        return len(tried)

    @app.task(retries=2)
    async def task() -> int:
        try:
            return await step(flaky)
        except StepFailed:
            seen.append(len(tried))
            raise

    assert await kit.run(task) == 3
    assert seen == []


async def test_a_renamed_step_diverges_unless_it_keeps_its_old_name(app: App, kit: Kit) -> None:
    def look_up() -> str:
        return "found"

    def search() -> str:
        return "found again"

    fn = look_up

    @app.task
    async def task() -> str:
        found = await step(fn)
        await sleep("1h")
        return found

    handle = await kit.start(task)
    fn = search
    with pytest.raises(Diverged, match=r"> 0 look_up +search"):
        await kit.finish(handle)

    fn = step.policy(name="look_up")(search)
    await handle.unhold()
    assert await kit.finish(handle) == "found"


async def test_a_lambda_is_told_apart_by_order_only_unless_it_is_given_a_name(app: App, kit: Kit) -> None:
    @app.task
    async def task() -> list[int]:
        return [await step(lambda: 1), await step(lambda: 2), await step.options(name="three")(lambda: 3)]

    handle = await kit.start(task)

    assert await handle == [1, 2, 3]
    assert await kit.steps(handle) == ["<lambda>", "<lambda>#2", "three"]


async def test_a_result_over_a_mebibyte_is_a_final_failure_that_names_the_limit(app: App, kit: Kit) -> None:
    downloads: list[str] = []

    def download() -> str:
        downloads.append("once")
        return "x" * (2**20 + 1)

    @app.task
    async def task() -> str:
        return await step(download)

    with pytest.raises(ExecutionFailed, match="the limit is 1048576; store the data elsewhere and pass its address"):
        await kit.run(task)
    assert downloads == ["once"]


async def test_a_child_that_nobody_awaits_goes_on_and_the_records_of_its_parent_name_it(app: App, kit: Kit) -> None:
    @app.task
    async def child() -> str:
        await sleep("1h")
        return "done"

    @app.task
    async def parent() -> Handle[str]:
        return await child.submit()

    handle = await kit.start(parent)
    left = await handle.result()

    assert (await handle.status()).state is State.COMPLETED
    assert await kit.finish(child.handle(left.id)) == "done"
    assert isinstance(await child.handle(left.id).outcome(), Completed)
    [recorded] = await kit.engine.executions.steps(handle.id)
    assert recorded.name == "submit:child"
    assert str(left.id).encode() in recorded.payload


async def test_the_writes_of_an_old_run_are_refused_and_its_epoch_is_older(app: App, kit: Kit) -> None:
    in_step, goes_on = asyncio.Event(), asyncio.Event()
    epochs: list[int] = []

    async def work() -> str:
        epochs.append(current().epoch)
        number = len(epochs)
        if number == 1:
            in_step.set()
            await goes_on.wait()
        return f"by number {number}"

    @app.task
    async def task() -> str:
        return await step(work)

    handle = await task.submit()
    old = await begin(kit)
    performing = asyncio.create_task(old.perform())
    await in_step.wait()
    await kit.engine.operator.revoke_lease(handle.id)
    assert await kit.finish(handle) == "by number 2"
    goes_on.set()
    await performing

    assert old.loss is not None, "the store has refused what the old run recorded"
    assert await handle == "by number 2"
    [recorded] = await kit.engine.executions.steps(handle.id)
    assert b"by number 2" in recorded.payload
    assert epochs[0] < epochs[1]


async def test_a_run_starts_with_an_empty_context_and_tags_travel(app: App, kit: Kit) -> None:
    TRACE.set("of the test")

    @app.task
    async def task() -> list[str]:
        found = TRACE.get()
        TRACE.set("of the run")
        await sleep("1h")
        return [found, current().tags["trace.id"]]

    assert await kit.run(task.options(tags={"trace.id": "t-1"})) == ["empty", "t-1"]


async def test_a_run_by_a_worker_starts_with_an_empty_context(real_app: App) -> None:
    TRACE.set("of the test")

    @real_app.task
    async def asynchronous() -> str:
        return TRACE.get()

    @real_app.task
    def plain() -> str:
        return TRACE.get()

    async with real_app.worker():
        for task in (asynchronous, plain):
            assert await (await task.submit()).result(timeout=20) == "empty"
