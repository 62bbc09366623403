"""Recorded work does not run again after waits, crashes, failures, replays and continuations."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from flowfabric import (
    App,
    Backoff,
    ExecutionFailed,
    Handle,
    Signal,
    StepFailed,
    changed,
    current,
    gather,
    logger,
    now,
    progress,
    race,
    rng,
    sleep,
    step,
    uuid4,
    wait_signal,
)
from flowfabric.engine import State
from flowfabric.testing import Kit
from tests.end_to_end.durable.kits import begin, statuses

paid = Signal("paid", int)


async def test_body_runs_from_the_top_after_a_wait_and_uses_its_records(app: App, kit: Kit) -> None:
    starts: list[int] = []
    done: list[str] = []

    @app.task
    async def task() -> None:
        starts.append(current().attempt)
        await step(done.append, "a")
        await sleep("1h")
        await step(done.append, "b")

    await kit.run(task)

    assert starts == [0, 0]
    assert done == ["a", "b"]


async def test_step_in_flight_runs_again_with_the_same_key_after_a_crash(app: App, kit: Kit) -> None:
    done: list[str] = []
    keys: list[str] = []

    def pay() -> None:
        keys.append(current().idempotency_key)

    @app.task
    async def task() -> int:
        await step(done.append, "a")
        await step(pay)
        return current().attempt

    kit.crash_before("pay")
    handle = await kit.start(task)

    assert await kit.finish(handle) == 1
    assert done == ["a"]
    assert keys == [f"{handle.id}/pay"] * 2
    assert (await handle.status()).reclaim_count == 1


async def test_recorded_step_does_not_run_again_after_a_crash(app: App, kit: Kit) -> None:
    done: list[str] = []

    @app.task
    async def task() -> None:
        await step(done.append, "a")

    kit.crash_after("list.append")
    await kit.run(task)

    assert done == ["a"]


async def test_at_most_once_step_does_not_run_again_after_a_crash(app: App, kit: Kit) -> None:
    done: list[str] = []

    @step.policy(at_most_once=True)
    def pay() -> None:
        kit.crash_before("pay")
        done.append("paid")

    @app.task
    async def task() -> str:
        try:
            await step(pay)
        except StepFailed as failed:
            return failed.error.type
        return "paid"

    assert await kit.run(task) == "StepInterrupted"
    assert done == ["paid"]


async def test_at_most_once_step_runs_once_without_a_crash(app: App, kit: Kit) -> None:
    @step.policy(at_most_once=True)
    def pay() -> str:
        return "paid"

    @app.task
    async def task() -> str:
        paid = await step(pay)
        await sleep("1h")
        return paid

    assert await kit.run(task) == "paid"


async def test_failed_body_runs_again_after_its_backoff_as_the_next_attempt(app: App, kit: Kit) -> None:
    starts: list[timedelta] = []
    done: list[str] = []
    begun = kit.now()

    @app.task(backoff=Backoff(initial="1m", jitter=False))
    async def task() -> int:
        starts.append(kit.now() - begun)
        await step(done.append, "a")
        if current().attempt == 0:
            raise KeyError("lost")
        return current().attempt

    assert await kit.run(task) == 1
    assert done == ["a"]
    assert starts == [timedelta(0), timedelta(minutes=1)]


async def test_step_with_retries_left_is_retried_in_the_same_attempt(app: App, kit: Kit) -> None:
    done: list[str] = []

    def flaky() -> None:
        done.append("tried")
        if done.count("tried") < 3:
            raise ConnectionError("not yet")

    async def branch() -> None:
        for number in range(3):
            await step(done.append, f"other {number}")
            await sleep("1s")

    @app.task(backoff=Backoff(initial="1h", jitter=False))
    async def task() -> int:
        await gather(step(flaky), branch())
        return current().attempt

    handle = await kit.start(task)
    await kit.advance("1m")
    assert done == ["tried", "other 0", "other 1", "other 2"]

    assert await kit.finish(handle) == 0
    assert done[4:] == ["tried", "tried"]


async def test_drained_run_finishes_its_step_and_continues_in_the_same_attempt(app: App, kit: Kit) -> None:
    done: list[str] = []

    async def slow() -> None:
        run.drain()
        done.append("slow")

    @app.task
    async def task() -> int:
        await step(slow)
        await step(done.append, "next")
        return current().attempt

    handle = await task.submit()
    run = await begin(kit)
    await run.run()

    assert done == ["slow"]
    assert await statuses(kit, handle) == {"slow": "ok"}
    assert (await handle.status()).state is State.WAITING
    assert await kit.finish(handle) == 0
    assert done == ["slow", "next"]


@pytest.mark.parametrize("group", [gather, race])
async def test_result_of_a_branch_that_swallows_the_drain_is_ignored(
    app: App, kit: Kit, group: Callable[..., Awaitable[Any]], caplog: pytest.LogCaptureFixture
) -> None:
    begun, is_drained, unwind_raised = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def slow() -> str:
        begun.set()
        await unwind_raised.wait()
        return "slow"

    async def careless() -> str:
        await is_drained.wait()
        try:
            return await step(str, "done")
        except BaseException:
            unwind_raised.set()
            return "swallowed"

    @app.task
    async def task() -> str:
        return str(await group(careless(), step(slow)))

    handle = await task.submit()
    run = await begin(kit)
    running = asyncio.create_task(run.run())
    await begun.wait()
    run.drain()
    is_drained.set()
    await running

    assert (await handle.status()).state is State.WAITING
    assert (await statuses(kit, handle))["slow"] == "ok"
    assert "swallowed" not in await kit.finish(handle)


async def test_body_that_swallows_the_drain_forever_is_dropped_and_continued(app: App, kit: Kit) -> None:
    begun, is_drained, unwind_raised = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def slow() -> None:
        begun.set()
        await unwind_raised.wait()

    async def careless() -> None:
        await is_drained.wait()
        for _ in range(1000):
            with suppress(BaseException):
                await step(str)
                return

    @app.task
    async def task() -> str:
        await gather(careless(), step(slow))
        return "done"

    handle = await task.submit()
    run = await begin(kit)
    running = asyncio.create_task(run.run())
    await begun.wait()
    run.drain()
    is_drained.set()
    await running
    unwind_raised.set()

    assert (await handle.status()).state is State.WAITING
    assert await kit.finish(handle) == "done"


async def test_replay_from_a_step_keeps_earlier_records(app: App, kit: Kit) -> None:
    done: list[str] = []

    @app.task
    async def task() -> int:
        for name in ("a", "b", "c"):
            await step(done.append, name)
        return current().attempt

    handle = await kit.start(task)
    await handle.replay(from_step="list.append#2")

    assert await kit.finish(handle) == 1
    assert done == ["a", "b", "c", "b", "c"]
    assert await kit.steps(handle) == ["list.append", "list.append#2", "list.append#3"]


async def test_replay_from_a_step_keeps_random_values_and_a_full_replay_does_not(app: App, kit: Kit) -> None:
    drawn: list[str] = []

    @app.task
    async def task() -> int:
        drawn.append(f"{uuid4()} {rng().random()}")
        await step(str, drawn[-1])
        await sleep("1h")
        await step(str, current().epoch)
        return current().attempt

    handle = await kit.start(task)
    await kit.finish(handle)
    for name in ("str#2", "sleep"):
        await handle.replay(from_step=name)
        await kit.finish(handle)
    assert len(set(drawn)) == 1
    await handle.replay()
    await kit.finish(handle)
    assert len(set(drawn)) == 2


async def test_continue_with_restarts_the_execution_without_records(app: App, kit: Kit) -> None:
    ids: list[UUID] = []
    drawn: list[UUID] = []

    @app.task
    async def task(turn: int = 0) -> str:
        ids.append(current().execution_id)
        drawn.append(uuid4())
        await step(str, f"turn {turn}")
        if turn < 2:
            task.continue_with(turn + 1)
        return f"after {turn}, attempt {current().attempt}"

    handle = await kit.start(task)

    assert await kit.finish(handle) == "after 2, attempt 0"
    assert ids == [handle.id] * 3
    assert len(set(drawn)) == 3
    assert await kit.steps(handle) == ["str"]
    assert (await handle.status()).generation == 2


async def test_waiter_keeps_waiting_when_the_execution_continues(app: App, kit: Kit) -> None:
    @app.task
    async def child(turn: int = 0) -> int:
        await sleep("1h")
        if turn < 2:
            child.continue_with(turn + 1)
        return turn

    @app.task
    async def parent(other: Handle[int]) -> int:
        return await other

    other = await kit.start(child)
    handle = await kit.start(parent, other)

    assert await kit.finish(handle) == 2


async def test_continuation_keeps_signals_except_consumed_ones(app: App, kit: Kit) -> None:
    @app.task(signals=[paid])
    async def task(seen: list[int]) -> list[int]:
        seen = [*seen, (await wait_signal(paid)).value]
        if len(seen) < 3:
            task.continue_with(seen)
        return seen

    handle = await task.submit([])
    for amount in (5, 6, 7):
        await kit.signal(handle, paid, amount)

    assert await kit.finish(handle) == [5, 6, 7]


async def test_task_can_only_continue_itself(app: App, kit: Kit) -> None:
    @app.task
    async def other() -> None: ...

    @app.task
    async def task() -> None:
        other.continue_with()

    with pytest.raises(ExecutionFailed, match="task can only continue as itself"):
        await kit.run(task)


async def test_current_reports_whether_the_run_is_replaying(app: App, kit: Kit) -> None:
    seen: list[list[bool]] = []

    @app.task
    async def task() -> None:
        replaying_flags = [current().replaying]
        seen.append(replaying_flags)
        await step(str)
        replaying_flags.append(current().replaying)
        await sleep("1h")
        replaying_flags.append(current().replaying)
        await step(int)
        replaying_flags.append(current().replaying)

    await kit.run(task)

    assert seen == [[False, False], [True, True, False, False]]


async def test_first_run_is_not_replaying_after_synchronous_durable_calls(app: App, kit: Kit) -> None:
    seen: dict[int, bool] = {}

    @app.task(signals=[paid])
    async def task(turn: int = 0) -> None:
        now()
        changed("new")
        seen.setdefault(turn, current().replaying)
        await wait_signal(paid)
        if turn == 0:
            task.continue_with(1)

    handle = await task.submit()
    for amount in (1, 2):
        await kit.signal(handle, paid, amount)
    await kit.finish(handle)

    assert seen == {0: False, 1: False}


async def test_logger_is_silent_while_replaying(app: App, kit: Kit, caplog: pytest.LogCaptureFixture) -> None:
    @app.task
    async def task() -> None:
        logger.info("began")
        await step(str)
        logger.info("continued")
        await sleep("1h")
        await step(int)
        logger.info("ended")

    with caplog.at_level(logging.INFO, logger.name):
        await kit.run(task)

    assert [record.message for record in caplog.records if record.name == logger.name] == [
        "began",
        "continued",
        "ended",
    ]


async def test_progress_is_ignored_while_replaying(app: App, kit: Kit) -> None:
    @app.task
    async def task() -> None:
        progress(10)
        await step(str)
        progress(50, "half")
        await step(str)
        await sleep("1h")
        await sleep("1h")

    handle = await kit.start(task)
    await kit.advance("90m")

    status = await handle.status()
    assert (status.progress_percent, status.progress_message) == (50, "half")


async def test_more_than_a_thousand_records_log_a_warning(app: App, kit: Kit, caplog: pytest.LogCaptureFixture) -> None:
    @app.task
    async def task() -> None:
        for _ in range(1_001):
            now()
        await step(str)
        await sleep("1h")
        await step(int)

    with caplog.at_level(logging.WARNING, "flowfabric"):
        await kit.run(task)

    [warning] = [record.getMessage() for record in caplog.records if "records" in record.getMessage()]
    assert "use poll for polling, continue_with for endless work" in warning


async def test_more_than_ten_thousand_records_fail_the_execution(app: App, kit: Kit) -> None:
    done: list[str] = []

    @app.task
    async def task() -> None:
        for _ in range(10_000):
            now()
        await step(done.append, "too many")

    handle = await kit.start(task)

    with pytest.raises(ExecutionFailed, match="the limit is 10000; use poll for polling, continue_with"):
        await kit.finish(handle)
    assert done == []
    assert (await handle.status()).attempt_index == 0
