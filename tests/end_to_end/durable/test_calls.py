"""Steps, polls, sleeps and the synchronous durable calls, and their records."""

from __future__ import annotations

import asyncio
import random
import threading
from datetime import datetime, timedelta
from uuid import UUID

import pytest

from flowfabric import App, ExecutionFailed, StepFailed, changed, now, poll, rng, sleep, sleep_until, step, uuid4
from flowfabric.testing import Kit


class Oven:
    """A class whose methods are used as steps."""

    def bake(self) -> str:
        return "bread"


async def test_step_has_the_name_of_its_function(app: App, kit: Kit) -> None:
    def inner() -> int:
        return 1

    @app.task
    async def task() -> None:
        await step(inner)
        await step(Oven().bake)
        await step(lambda: None)

    handle = await kit.start(task)

    assert await kit.steps(handle) == ["inner", "Oven.bake", "<lambda>"]


async def test_step_name_can_be_set(app: App, kit: Kit) -> None:
    @step.policy(name="old_name")
    def renamed() -> int:
        return 1

    @app.task
    async def task() -> None:
        await step(renamed)
        await step.options(name="new_name")(renamed)

    handle = await kit.start(task)

    assert await kit.steps(handle) == ["old_name", "new_name"]


async def test_step_runs_when_it_is_awaited(app: App, kit: Kit) -> None:
    seen: list[str] = []

    @app.task
    async def task() -> None:
        call = step(seen.append, "ran")
        seen.append("created")
        await call

    await kit.run(task)

    assert seen == ["created", "ran"]


async def test_coroutine_function_runs_on_the_loop_and_plain_function_in_a_thread(app: App, kit: Kit) -> None:
    async def on_loop() -> bool:
        return threading.current_thread() is threading.main_thread()

    def in_thread() -> bool:
        return threading.current_thread() is threading.main_thread()

    @app.task
    async def task() -> list[bool]:
        return [await step(on_loop), await step(in_thread)]

    assert await kit.run(task) == [True, False]


async def test_recorded_result_is_returned_in_later_runs(app: App, kit: Kit) -> None:
    drawn: list[float] = []

    def draw() -> float:
        drawn.append(random.random())
        return drawn[-1]

    @app.task
    async def task() -> float:
        value = await step(draw)
        await sleep("1h")
        return value

    assert [await kit.run(task)] == drawn


async def test_recorded_failure_is_raised_in_later_runs(app: App, kit: Kit) -> None:
    tried: list[str] = []
    seen: list[str] = []

    def fail() -> None:
        tried.append("once")
        raise ValueError("no")

    @app.task
    async def task() -> None:
        try:
            await step.options(retries=0)(fail)
        except StepFailed as failed:
            seen.append(f"{failed.path} {failed.error.type} {failed.error.message}")
        await sleep("1h")

    await kit.run(task)

    assert tried == ["once"]
    assert seen == ["fail ValueError no"] * 2


async def test_first_run_gets_the_stored_value(app: App, kit: Kit) -> None:
    original = {"a": [1]}
    seen: list[bool] = []

    def make() -> dict[str, list[int]]:
        return original

    @app.task
    async def task() -> None:
        value = await step(make)
        seen.append(value == original and value is not original)

    await kit.run(task)

    assert seen == [True]


async def test_poll_calls_its_function_at_every_interval_and_leaves_one_record(app: App, kit: Kit) -> None:
    poll_times: list[datetime] = []

    def ready() -> str | None:
        poll_times.append(kit.now())
        return "here" if len(poll_times) == 4 else None

    @app.task
    async def task() -> str:
        return await poll("30s", ready)

    handle = await kit.start(task)
    begun = kit.now()

    assert await kit.finish(handle) == "here"
    assert [moment - begun for moment in poll_times] == [timedelta(seconds=30 * n) for n in range(4)]
    assert await kit.steps(handle) == ["ready"]


async def test_poll_continues_on_false_and_none_and_returns_other_empty_values(app: App, kit: Kit) -> None:
    poll_results: list[bool | int | None] = [False, None, 0]

    def ready() -> bool | int | None:
        return poll_results.pop(0)

    @app.task
    async def task() -> int:
        return await poll("30s", ready)

    assert await kit.run(task) == 0
    assert poll_results == []


async def test_poll_continues_at_its_next_due_time_after_a_crash(app: App, kit: Kit) -> None:
    poll_times: list[datetime] = []

    def ready() -> bool:
        poll_times.append(kit.now())
        return len(poll_times) == 3

    @app.task
    async def task() -> bool:
        return await poll("10m", ready)

    handle = await kit.start(task)
    begun = kit.now()
    await kit.advance("5m")
    kit.crash_after("ready")

    assert await kit.finish(handle)
    assert [moment - begun for moment in poll_times] == [timedelta(minutes=10 * n) for n in range(3)]


async def test_sleep_ends_at_its_due_time(app: App, kit: Kit) -> None:
    @app.task
    async def task() -> datetime:
        await sleep("1h")
        return now()

    handle = await kit.start(task)
    due = kit.now() + timedelta(hours=1)
    await kit.advance("59m")
    assert await kit.engine.executions.result(handle.id) is None

    assert await kit.finish(handle) == due
    assert await kit.steps(handle) == ["sleep", "now"]


async def test_changed_duration_does_not_affect_a_running_sleep(app: App, kit: Kit) -> None:
    duration = "1h"

    @app.task
    async def task() -> None:
        await sleep(duration)

    handle = await kit.start(task)
    due = kit.now() + timedelta(hours=1)
    duration = "30d"
    await kit.finish(handle)

    assert kit.now() == due


async def test_sleep_until_a_past_time_ends_immediately(app: App, kit: Kit) -> None:
    @app.task
    async def task(until: datetime) -> None:
        await sleep_until(until)

    handle = await kit.start(task, kit.now() - timedelta(days=1))

    assert await kit.engine.executions.result(handle.id) is not None


async def test_now_uuid4_and_rng_are_the_same_in_every_run(app: App, kit: Kit) -> None:
    seen: list[tuple[datetime, UUID, float]] = []

    @app.task
    async def task() -> None:
        seen.append((now(), uuid4(), rng().random()))
        await sleep("1h")

    await kit.run(task)

    assert len(seen) == 2
    assert seen[0] == seen[1]


async def test_each_call_of_now_uuid4_and_rng_returns_a_new_value(app: App, kit: Kit) -> None:
    @app.task
    async def task() -> list[datetime]:
        assert uuid4() != uuid4()
        assert rng().random() != rng().random()
        before = now()
        await sleep("1h")
        return [before, now()]

    before, after = await kit.run(task)

    assert after - before == timedelta(hours=1)


async def test_uuid4_differs_between_executions(app: App, kit: Kit) -> None:
    @app.task
    async def task() -> UUID:
        return uuid4()

    assert await kit.run(task) != await kit.run(task)


async def test_now_uuid4_and_rng_are_not_part_of_the_call_order(app: App, kit: Kit) -> None:
    is_new = False

    @app.task
    async def task() -> None:
        if is_new:
            now(), uuid4(), rng()
        await sleep("1h")

    handle = await kit.start(task)
    is_new = True
    await kit.finish(handle)

    assert sorted(await kit.steps(handle)) == ["now", "sleep"]


async def test_now_is_written_with_the_next_commit(app: App, kit: Kit) -> None:
    recorded_steps: list[list[str]] = []

    @app.task
    async def task() -> None:
        now()
        await asyncio.sleep(0)
        recorded_steps.append(await kit.steps(handle))
        await step(str)
        recorded_steps.append(await kit.steps(handle))

    handle = await task.submit()
    await kit.work()

    assert recorded_steps == [[], ["now", "str"]]


async def test_changed_is_true_for_executions_that_have_not_reached_it(app: App, kit: Kit) -> None:
    is_new = False

    @app.task
    async def task() -> list[str]:
        done = []
        if is_new and changed("audit"):
            done.append(await step(str, "audited"))
        await sleep("1h")
        if is_new and changed("report"):
            done.append(await step(str, "reported"))
        return done

    handle = await kit.start(task)
    is_new = True

    assert await kit.finish(handle) == ["reported"]
    assert await kit.run(task) == ["audited", "reported"]


async def test_changed_returns_the_same_value_in_every_run(app: App, kit: Kit) -> None:
    seen: list[bool] = []

    @app.task
    async def task() -> None:
        seen.append(changed("x"))
        await step(str)
        await sleep("1h")

    handle = await kit.start(task)
    await kit.finish(handle)

    assert seen == [True, True]
    assert await kit.steps(handle) == ["changed[x]", "str", "sleep"]


async def test_durable_call_outside_of_a_task_raises() -> None:
    with pytest.raises(Exception, match="step works only inside a task"):
        await step(str)


async def test_step_with_an_unserializable_result_fails_and_is_not_repeated(app: App, kit: Kit) -> None:
    done: list[str] = []

    def order() -> object:
        done.append("ordered")
        return object()

    @app.task
    async def task() -> None:
        await step(order)

    with pytest.raises(ExecutionFailed, match="order failed"):
        await kit.run(task)
    assert done == ["ordered"]


async def test_task_used_as_a_step_is_rejected_with_advice(app: App, kit: Kit) -> None:
    @app.task
    async def child() -> None: ...

    @app.task
    async def task() -> None:
        await step(child)  # type: ignore[call-overload]

    with pytest.raises(ExecutionFailed, match=r"`child` is a task: use await child\.run"):
        await kit.run(task)
