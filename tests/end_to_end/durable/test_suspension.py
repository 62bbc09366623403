"""When a function is suspended, what wakes it, and how it unwinds."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from flowfabric import (
    App,
    Backoff,
    ExecutionFailed,
    PermanentError,
    Signal,
    StepFailed,
    Unwind,
    approval,
    current,
    gather,
    poll,
    race,
    sleep,
    step,
    wait_signal,
)
from flowfabric.engine import State
from flowfabric.testing import Kit
from tests.end_to_end.durable.kits import KitFactory, statuses

first = Signal("first", int)
second = Signal("second", int)


async def test_branch_in_a_step_or_a_plain_await_keeps_the_lease(app: App, kit: Kit) -> None:
    states: list[State] = []

    async def read_state() -> None:
        states.append((await kit.engine.executions.describe(current().execution_id)).state)

    async def await_then_read_state() -> None:
        await asyncio.sleep(0)
        await read_state()

    @app.task
    async def task() -> None:
        await gather(sleep("1h"), step(read_state), await_then_read_state())

    handle = await kit.start(task)

    assert states == [State.ACTIVE, State.ACTIVE]
    assert (await handle.status()).state is State.DELAYED


async def test_execution_that_only_sleeps_is_delayed_until_its_earliest_due_time(app: App, kit: Kit) -> None:
    async def branch() -> None:
        await sleep("2h")

    @app.task
    async def task() -> None:
        await gather(branch(), sleep("3h"), sleep("1h"))

    handle = await kit.start(task)

    status = await handle.status()
    assert status.state is State.DELAYED
    assert status.ready_at is not None
    assert status.ready_at - kit.now() == timedelta(hours=1)


async def test_one_suspension_carries_every_wait_record_and_due_time(app: App, kit: Kit) -> None:
    @app.task
    async def child() -> None:
        await sleep("1d")

    @app.task(signals=[first])
    async def task() -> None:
        await gather(wait_signal(first), wait_signal(second), approval("refund", by="ops"), child.run(), sleep("1h"))

    handle = await kit.start(task)

    status = await handle.status()
    assert status.state is State.SUSPENDED
    assert {waitpoint.key.rpartition(":")[2] for waitpoint in status.waitpoints} >= {"first", "second", "refund[ops]"}
    assert set(await statuses(kit, handle)) == {
        "signal:first",
        "signal:second",
        "approval:refund",
        "run:child",
        "sleep",
    }
    runs = kit.hooks.runs
    await kit.advance("1h")
    assert kit.hooks.runs > runs, "the earliest due time must wake the execution"


async def test_wait_that_is_already_met_keeps_the_lease(app: App, kit: Kit) -> None:
    epochs: list[int] = []

    @app.task(signals=[first])
    async def task() -> int:
        epochs.append(current().epoch)
        value = (await wait_signal(first)).value
        epochs.append(current().epoch)
        return value

    handle = await task.submit()
    await kit.signal(handle, first, 4)

    assert await kit.finish(handle) == 4
    assert epochs == [epochs[0]] * 2


async def test_members_of_one_gather_wake_together(app: App, kit: Kit) -> None:
    runs: list[str] = []

    @app.task(signals=[first, second])
    async def task() -> int:
        runs.append("run")
        one, two = await gather(wait_signal(first), wait_signal(second))
        return one.value + two.value

    handle = await kit.start(task)
    await kit.signal(handle, first, 1)
    assert len(runs) == 1
    await kit.signal(handle, second, 2)

    assert await kit.finish(handle) == 3
    assert len(runs) == 2


async def test_each_branch_wakes_separately(app: App, kit: Kit) -> None:
    done: list[str] = []

    async def branch(signal: Signal[int]) -> None:
        await wait_signal(signal)
        await step(done.append, signal.name)

    @app.task(signals=[first, second])
    async def task() -> None:
        await gather(branch(first), branch(second))

    handle = await kit.start(task)
    await kit.signal(handle, second, 1)
    assert done == ["second"]
    await kit.signal(handle, first, 2)
    await kit.finish(handle)

    assert done == ["second", "first"]


async def test_each_member_of_a_race_wakes_separately(app: App, kit: Kit) -> None:
    @app.task(signals=[first, second])
    async def task() -> int:
        return (await race(wait_signal(first), wait_signal(second))).index

    handle = await kit.start(task)
    await kit.signal(handle, second, 1)

    assert await kit.finish(handle) == 1


async def test_poll_and_step_in_backoff_wake_separately(app: App, kit: Kit) -> None:
    calls: list[str] = []

    def ready() -> bool:
        calls.append("poll")
        return len(calls) > 5

    def flaky() -> None:
        calls.append("step")
        if calls.count("step") == 1:
            raise ConnectionError("not yet")

    @app.task(signals=[first], backoff=Backoff(initial="10s", jitter=False))
    async def task() -> None:
        await gather(wait_signal(first), poll("10s", ready), step(flaky))

    handle = await kit.start(task)
    await kit.advance("15s")

    assert sorted(calls) == ["poll", "poll", "step", "step"]
    await kit.signal(handle, first, 1)
    await kit.finish(handle)


async def test_parent_of_a_hundred_children_runs_twice(app: App, kit: Kit) -> None:
    runs: list[str] = []

    @app.task
    async def child(number: int) -> int:
        return number

    @app.task
    async def task() -> int:
        runs.append("run")
        return sum(await gather(*(child.run(number) for number in range(100))))

    assert await kit.run(task) == sum(range(100))
    assert len(runs) == 2


@pytest.mark.parametrize("number", [3, 60])
async def test_parent_wakes_when_one_of_its_children_fails(app: App, kit: Kit, number: int) -> None:
    @app.task
    async def child(place: int) -> None:
        if place == 1:
            raise PermanentError("no")
        await sleep("10d")

    @app.task
    async def task() -> None:
        await gather(*(child.run(place) for place in range(number)))

    handle = await kit.start(task)
    begun = kit.now()

    with pytest.raises(ExecutionFailed, match="no"):
        await kit.finish(handle)
    assert kit.now() == begun


async def test_unwind_leaves_the_function_from_the_inside_out(app: App, kit: Kit) -> None:
    unwound: list[str] = []

    async def branch(name: str) -> None:
        try:
            await sleep("1h")
        except BaseException as error:
            unwound.append(f"{name} {type(error).__name__}")
            raise

    async def outer() -> None:
        try:
            await gather(branch("a"), branch("b"))
        except BaseException as error:
            unwound.append(f"outer {type(error).__name__}")
            raise

    @app.task
    async def task() -> None:
        try:
            await outer()
        finally:
            unwound.append("task")

    _ = await kit.start(task)

    assert sorted(unwound[:2]) == ["a Unwind", "b Unwind"]
    assert unwound[2:] == ["outer Unwind", "task"]
    assert not issubclass(Unwind, Exception | asyncio.CancelledError)


async def test_cleanup_may_await_while_the_function_unwinds(app: App, kit: Kit) -> None:
    unwound: list[str] = []

    @app.task
    async def task() -> None:
        try:
            await sleep("1h")
        finally:
            await asyncio.sleep(0)
            unwound.append("awaited")

    await kit.run(task)

    assert unwound == ["awaited", "awaited"]


async def test_durable_calls_raise_while_unwinding_and_the_outcome_is_ignored(app: App, kit: Kit) -> None:
    done: list[str] = []

    @app.task
    async def task() -> str:
        try:
            await sleep("1h")
        except Unwind:
            for _ in range(3):
                try:
                    await step(done.append, "ran")
                except Unwind:
                    done.append("unwound")
            raise KeyError("ignored") from None
        return "slept"

    handle = await kit.start(task)
    assert done == ["unwound"] * 3
    status = await handle.status()
    assert (status.state, status.last_failure) == (State.DELAYED, None)

    assert await kit.finish(handle) == "slept"


async def test_sleep_can_end_while_another_branch_works(app: App, kit: Kit) -> None:
    async def long() -> None:
        kit.clock.advance(0.5)
        await asyncio.Event().wait()

    @app.task
    async def task() -> int:
        return (await race(sleep(0.05), step(long))).index

    assert await kit.run(task) == 0


async def test_too_many_waits_are_rejected(app: App, kit: Kit) -> None:
    @app.task
    async def task() -> None:
        await gather(*(approval(f"a{number}", by="ops") for number in range(65)))

    with pytest.raises(ExecutionFailed, match="65 waits at once are too many, the limit is 64; use children"):
        await kit.run(task)


@pytest.mark.parametrize("replay", ["suspensions", "every record"])
async def test_forced_replays_do_not_change_the_result(app: App, new_kit: KitFactory, replay: str) -> None:
    done: list[str] = []

    async def branch(name: str) -> str:
        await step(done.append, f"{name} 1")
        await sleep("1h")
        return await step("{} 2".format, name)

    @app.task(signals=[first])
    async def task() -> list[str]:
        try:
            values = await gather(branch("a"), branch("b"))
            winner = await race(wait_signal(first), sleep("10d"))
        except StepFailed:
            return []
        return [*values, str(winner.index)]

    async with new_kit(app, replay=replay) as kit:
        handle = await kit.start(task)
        await kit.advance("2h")
        await kit.signal(handle, first, 1)

        assert await kit.finish(handle) == ["a 2", "b 2", "0"]
    assert sorted(done) == ["a 1", "b 1"]
