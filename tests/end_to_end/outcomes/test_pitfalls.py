"""Common mistakes in tasks and their consequences."""

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
    """An exception class of the user."""


async def test_loop_in_another_order_is_held_with_a_report(app: App, kit: Kit) -> None:
    order = ["a", "b"]

    @app.task
    async def task() -> dict[str, str]:
        results = {name: await step(echo, name) for name in order}
        await sleep("1h")
        return results

    handle = await kit.start(task)
    order.reverse()

    with pytest.raises(Diverged, match="its arguments differ from the recorded ones"):
        await kit.finish(handle)
    assert (await handle.status()).hold_reason == "diverged"


async def test_loop_in_another_order_swaps_results_without_the_argument_check() -> None:
    app = App("never-opened.db", arguments="off")
    order = ["a", "b"]

    @app.task
    async def task() -> dict[str, str]:
        results = {name: await step(echo, name) for name in order}
        await sleep("1h")
        return results

    async with Kit(app) as unchecked:
        handle = await unchecked.start(task)
        order.reverse()
        assert await unchecked.finish(handle) == {"b": "a", "a": "b"}


async def test_loop_with_keys_or_sorted_items_may_run_in_any_order(app: App, kit: Kit) -> None:
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


NONDETERMINISTIC: dict[str, Callable[[], object]] = {
    "time.time": time.time_ns,
    "random": random.random,
    "uuid4": lambda: str(uuid.uuid4()),
}


@pytest.mark.parametrize("source", NONDETERMINISTIC)
async def test_time_or_randomness_in_an_argument_is_detected_at_the_first_forced_replay(app: App, source: str) -> None:
    @app.task
    async def task() -> None:
        await step(echo, NONDETERMINISTIC[source]())
        await sleep("1h")

    async with Kit(app, replay="suspensions") as kit:
        with pytest.raises(Diverged, match="arguments"):
            await kit.run(task)


async def test_random_control_flow_is_detected_at_a_replay(app: App) -> None:
    drawn: list[int] = []

    @app.task
    async def task() -> None:
        drawn.append(len(drawn))
        await (step(str) if drawn[-1] % 2 else step(int))

    async with Kit(app, replay="every record") as kit:
        with pytest.raises(Diverged, match=r"> 0 int +str"):
            await kit.run(task)


async def test_time_and_randomness_without_consequences_are_harmless(app: App) -> None:
    @app.task
    async def task() -> str:
        _ = time.time(), random.random(), uuid.uuid4()
        return await step(str, "fine")

    async with Kit(app, replay="every record") as kit:
        assert await kit.run(task) == "fine"


async def test_durable_now_uuid4_and_rng_may_be_used_anywhere(app: App) -> None:
    @app.task
    async def task() -> str:
        await step(echo, now().isoformat())
        await step(echo, str(uuid4()))
        await (step(int) if rng().random() < 0.5 else step(str))
        return "fine"

    async with Kit(app, replay="every record") as kit:
        assert await kit.run(task) == "fine"


async def test_effect_outside_of_a_step_is_repeated_in_each_run(app: App, kit: Kit) -> None:
    requests: list[str] = []

    async def ask() -> None:
        await asyncio.sleep(0)
        requests.append("asked")

    @app.task
    async def task() -> None:
        await ask()
        await sleep("1h")

    await kit.run(task)

    assert requests == ["asked"] * 2


async def test_step_that_is_never_awaited_fails_the_execution_with_its_path(app: App, kit: Kit) -> None:
    paid: list[str] = []

    @app.task
    async def task() -> None:
        _ = step(paid.append, "paid")

    handle = await kit.start(task)
    with pytest.raises(ExecutionFailed, match=r"made but never awaited: list\.append"):
        await kit.finish(handle)
    assert paid == []
    assert (await handle.status()).attempt_index == 0


async def test_undeclared_class_is_raised_as_step_failed_with_advice(app: App, kit: Kit) -> None:
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


async def test_step_failed_is_raised_only_after_the_last_retry(app: App, kit: Kit) -> None:
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


async def test_renamed_step_diverges_unless_it_keeps_its_old_name(app: App, kit: Kit) -> None:
    def look_up() -> str:
        return "found"

    def search() -> str:
        return "found again"

    fn = look_up

    @app.task
    async def task() -> str:
        result = await step(fn)
        await sleep("1h")
        return result

    handle = await kit.start(task)
    fn = search
    with pytest.raises(Diverged, match=r"> 0 look_up +search"):
        await kit.finish(handle)

    fn = step.policy(name="look_up")(search)
    await handle.unhold()
    assert await kit.finish(handle) == "found"


async def test_lambdas_are_identified_by_order_unless_named(app: App, kit: Kit) -> None:
    @app.task
    async def task() -> list[int]:
        return [await step(lambda: 1), await step(lambda: 2), await step.options(name="three")(lambda: 3)]

    handle = await kit.start(task)

    assert await handle == [1, 2, 3]
    assert await kit.steps(handle) == ["<lambda>", "<lambda>#2", "three"]


async def test_result_over_a_mebibyte_is_a_final_failure_that_names_the_limit(app: App, kit: Kit) -> None:
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


async def test_child_that_is_not_awaited_continues_and_is_in_the_records_of_its_parent(app: App, kit: Kit) -> None:
    @app.task
    async def child() -> str:
        await sleep("1h")
        return "done"

    @app.task
    async def parent() -> Handle[str]:
        return await child.submit()

    handle = await kit.start(parent)
    child_handle = await handle.result()

    assert (await handle.status()).state is State.COMPLETED
    assert await kit.finish(child.handle(child_handle.id)) == "done"
    assert isinstance(await child.handle(child_handle.id).outcome(), Completed)
    [record] = await kit.engine.executions.steps(handle.id)
    assert record.name == "submit:child"
    assert str(child_handle.id).encode() in record.payload


async def test_writes_of_an_old_run_are_rejected_and_its_epoch_is_older(app: App, kit: Kit) -> None:
    in_step, may_finish = asyncio.Event(), asyncio.Event()
    epochs: list[int] = []

    async def work() -> str:
        epochs.append(current().epoch)
        number = len(epochs)
        if number == 1:
            in_step.set()
            await may_finish.wait()
        return f"by number {number}"

    @app.task
    async def task() -> str:
        return await step(work)

    handle = await task.submit()
    old = await begin(kit)
    running = asyncio.create_task(old.run())
    await in_step.wait()
    await kit.engine.operator.revoke_lease(handle.id)
    assert await kit.finish(handle) == "by number 2"
    may_finish.set()
    await running

    assert old.loss is not None, "the store must reject the records of the old run"
    assert await handle == "by number 2"
    [record] = await kit.engine.executions.steps(handle.id)
    assert b"by number 2" in record.payload
    assert epochs[0] < epochs[1]


async def test_run_starts_with_an_empty_context_and_has_its_tags(app: App, kit: Kit) -> None:
    TRACE.set("of the test")

    @app.task
    async def task() -> list[str]:
        trace = TRACE.get()
        TRACE.set("of the run")
        await sleep("1h")
        return [trace, current().tags["trace.id"]]

    assert await kit.run(task.options(tags={"trace.id": "t-1"})) == ["empty", "t-1"]


async def test_run_by_a_worker_starts_with_an_empty_context(real_app: App) -> None:
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
