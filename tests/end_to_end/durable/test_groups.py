"""`gather` and `settle`: concurrent calls, and how the first failure affects the others."""

from __future__ import annotations

import asyncio
import gc
import warnings
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import timedelta

import pytest

from flowfabric import (
    App,
    Completed,
    ExecutionFailed,
    Failed,
    InvalidRequest,
    NotFound,
    PermanentError,
    Signal,
    StepFailed,
    approval,
    gather,
    race,
    settle,
    sleep,
    step,
    wait_signal,
)
from flowfabric.engine import State, StepStatus
from flowfabric.testing import Kit
from tests.end_to_end.durable.kits import children_of, statuses, until_recorded

go = Signal("go", int)


def fail(why: str = "no") -> int:
    raise PermanentError(why)


async def test_gather_returns_a_tuple_in_the_order_of_its_calls(app: App, kit: Kit) -> None:
    seen: list[object] = []

    async def branch(hours: int) -> int:
        await sleep(timedelta(hours=hours))
        return hours

    @app.task
    async def task() -> None:
        seen.append(await gather(branch(3), branch(1), step(int, "2")))
        seen.append(await gather())

    await kit.run(task)

    assert seen == [(3, 1, 2), ()]


async def test_coroutine_gets_its_own_scope_and_a_call_stays_in_the_scope_of_its_creator(app: App, kit: Kit) -> None:
    async def branch() -> None:
        await step(str)
        await step(str)

    @app.task
    async def task() -> None:
        await gather(step(int), branch(), branch())
        await gather(branch(), step(int))

    handle = await kit.start(task)

    assert sorted(await kit.steps(handle)) == sorted(
        [
            *("int", "gather", "gather[1]/str", "gather[1]/str#2", "gather[2]/str", "gather[2]/str#2"),
            *("int#2", "gather#2", "gather#2[0]/str", "gather#2[0]/str#2"),
        ]
    )


async def test_groups_can_be_nested(app: App, kit: Kit) -> None:
    async def inner(number: int) -> int:
        return await step(int, str(number))

    async def outer(number: int) -> int:
        return sum(await gather(inner(number), inner(number + 1)))

    @app.task
    async def task() -> int:
        return sum(await gather(outer(1), outer(10)))

    handle = await kit.start(task)

    assert await kit.finish(handle) == 24
    assert "gather[1]/gather[0]/int" in await kit.steps(handle)


async def test_results_of_members_are_returned_in_later_runs(app: App, kit: Kit) -> None:
    done: list[str] = []

    async def branch(name: str) -> None:
        await step(done.append, name)

    @app.task
    async def task() -> None:
        await gather(branch("a"), branch("b"), step(done.append, "c"))
        await sleep("1h")

    await kit.run(task)

    assert sorted(done) == ["a", "b", "c"]


async def test_first_failure_starts_no_new_step_and_records_those_in_flight(app: App, kit: Kit) -> None:
    done: list[str] = []

    async def slow() -> None:
        await until_recorded(kit, "fail")
        done.append("slow")

    async def branch() -> None:
        await step(slow)
        await step(done.append, "never")

    @app.task
    async def task() -> str:
        try:
            await gather(branch(), step(fail))
        except StepFailed as failed:
            return failed.path
        return "succeeded"

    handle = await kit.start(task)

    assert await kit.finish(handle) == "fail"
    assert done == ["slow"]
    assert (await statuses(kit, handle))["gather[0]/slow"] == StepStatus.OK


async def test_first_failure_closes_waits_and_cancels_children(app: App, kit: Kit) -> None:
    @app.task
    async def child() -> None:
        await sleep("10d")

    async def later() -> None:
        await sleep("1h")
        await step(fail)

    @app.task
    async def task() -> None:
        try:
            await gather(child.run(), wait_signal(go), approval("refund", by="ops"), later())
        except StepFailed:
            await sleep("1d")

    handle = await kit.start(task)
    await kit.advance("2h")

    assert await children_of(kit, "child") == [State.CANCELLED]
    with pytest.raises(NotFound, match="signal_not_expected"):
        await kit.signal(handle, go, 1)
    with pytest.raises(NotFound, match="approval_not_open"):
        await kit.approve(handle, "refund", by="ops")


async def test_nested_children_of_a_dropped_branch_are_cancelled(app: App, kit: Kit) -> None:
    @app.task
    async def child() -> None:
        await sleep("10d")

    async def deep() -> None:
        await gather(child.run(), sleep("20d"))

    async def later() -> None:
        await sleep("1h")
        await step(fail)

    @app.task
    async def task() -> None:
        try:
            await gather(deep(), later())
        except StepFailed:
            await sleep("1d")

    _ = await kit.start(task)
    await kit.advance("2h")

    assert await children_of(kit, "child") == [State.CANCELLED]


async def test_first_failure_is_raised_in_every_run(app: App, kit: Kit) -> None:
    seen: list[str] = []

    async def late() -> None:
        await until_recorded(kit, "fail")
        raise PermanentError("late")

    @app.task
    async def task() -> None:
        try:
            await gather(step(late), step(fail))
        except StepFailed as failed:
            seen.append(failed.path)
        await sleep("1h")

    handle = await kit.start(task)
    await kit.finish(handle)

    assert seen == ["fail", "fail"]
    assert (await statuses(kit, handle))["late"] == StepStatus.FAILED


async def test_failure_in_the_code_of_a_branch_is_raised(app: App, kit: Kit) -> None:
    async def branch() -> None:
        await step(str)
        raise KeyError("lost")

    @app.task
    async def task() -> str:
        try:
            await gather(branch(), sleep("1d"))
        except KeyError as error:
            return str(error)
        return "succeeded"

    assert await kit.run(task) == "'lost'"


async def test_uncaught_failure_of_a_member_fails_the_execution_permanently(app: App, kit: Kit) -> None:
    @app.task
    async def task() -> None:
        await gather(step(str), step(fail))

    handle = await kit.start(task)

    with pytest.raises(ExecutionFailed, match="fail failed: PermanentError: no"):
        await kit.finish(handle)
    assert (await handle.status()).attempt_index == 0


async def test_settle_waits_for_the_others_after_a_failure(app: App, kit: Kit) -> None:
    seen: list[tuple[Completed[object] | Failed, ...]] = []

    async def later() -> str:
        await sleep("1h")
        return await step(str, "late")

    @app.task
    async def task() -> None:
        seen.append(await settle(step(fail, "a"), later(), step(int, "7"), step(fail, "b")))
        await sleep("1h")

    await kit.run(task)

    first, again = seen[-2:]
    assert first == again
    assert isinstance(first, tuple)
    assert first[1:3] == (Completed("late"), Completed(7))
    assert [outcome.error.message for outcome in first if isinstance(outcome, Failed)] == ["a", "b"]


async def test_settle_records_are_named_and_numbered_like_those_of_gather(app: App, kit: Kit) -> None:
    async def branch() -> None:
        await step(str)

    @app.task
    async def task() -> None:
        await settle(branch())
        await settle(branch())

    handle = await kit.start(task)

    assert await kit.steps(handle) == ["settle[0]/str", "settle", "settle#2[0]/str", "settle#2"]


async def test_limit_bounds_the_branches_in_flight(app: App, kit: Kit) -> None:
    running: list[int] = []
    running_counts: list[int] = []

    async def work(number: int) -> int:
        running.append(number)
        running_counts.append(len(running))
        await asyncio.sleep(0)
        running.remove(number)
        return number

    @app.task
    async def task() -> list[int]:
        return list(await gather(*(step(work, number) for number in range(6)), limit=2))

    assert await kit.run(task) == [0, 1, 2, 3, 4, 5]
    assert max(running_counts) == 2


async def test_limit_counts_waiting_branches(app: App, kit: Kit) -> None:
    async def branch() -> None:
        await sleep("1h")

    @app.task
    async def task() -> None:
        await gather(branch(), branch(), branch(), limit=1)

    handle = await kit.start(task)
    begun = kit.now()
    await kit.finish(handle)

    assert kit.now() - begun == timedelta(hours=3)


@pytest.mark.parametrize("wait", ["sleep", "backoff"])
async def test_waiting_branch_does_not_hold_the_slot(app: App, kit: Kit, wait: str) -> None:
    tried: list[str] = []

    def flaky() -> None:
        tried.append("once")
        if len(tried) == 1:
            raise ConnectionError("not yet")

    async def branch() -> None:
        await (step(flaky) if wait == "backoff" else sleep("1h"))

    @app.task
    async def task() -> None:
        await gather(branch(), sleep("10s"))

    handle = await kit.start(task)

    assert (await handle.status()).lease is None
    await kit.finish(handle)


async def test_group_rejects_awaitables_that_are_not_durable(app: App, kit: Kit) -> None:
    @app.task
    async def task() -> None:
        await gather(asyncio.get_running_loop().create_future())

    with pytest.raises(ExecutionFailed, match="a group takes durable calls, handles and coroutines, not"):
        await kit.run(task)


async def test_group_accepts_handles(app: App, kit: Kit) -> None:
    @app.task
    async def child(number: int) -> int:
        return number

    @app.task
    async def task() -> int:
        handles = [await child.submit(number) for number in range(3)]
        return sum(await gather(*handles))

    assert await kit.run(task) == 3


async def test_limit_of_zero_is_rejected(app: App, kit: Kit) -> None:
    @app.task
    async def task() -> None:
        with pytest.raises(InvalidRequest):
            await gather(limit=0)

    await kit.run(task)


async def test_approval_that_an_ended_branch_did_not_reach_need_not_be_awaited(app: App, kit: Kit) -> None:
    async def ask_after_sleep() -> None:
        pending = approval("later", by="ops")
        await sleep("2h")
        await pending

    async def fail_before_asking() -> None:
        pending = approval("never", by="ops")
        await step.options(retries=0)(int, "none")
        await pending

    @app.task
    async def task() -> list[str]:
        won = await race(sleep("1h"), ask_after_sleep())
        settled = await settle(fail_before_asking(), step(int, "1"))
        try:
            await gather(fail_before_asking(), ask_after_sleep())
        except StepFailed as failed:
            return [str(won.index), *[type(outcome).__name__ for outcome in settled], failed.path]
        return []

    assert await kit.run(task) == ["0", "Failed", "Completed", "gather[0]/int"]


async def sleep_for_a_day(number: int) -> int:
    await sleep("1d")
    return number


async def gather_too_few(count: int) -> None:
    await gather(*(sleep_for_a_day(number) for number in range(count)), limit=0)


async def gather_a_number(count: int) -> None:
    await gather(*(sleep_for_a_day(number) for number in range(count)), 7, limit=1)  # type: ignore[call-overload]


async def fail_before_the_await(count: int) -> None:
    calls = gather(*(sleep_for_a_day(number) for number in range(count)), limit=1)
    fail()
    await calls


async def suspend_before_the_await(count: int) -> None:
    calls = gather(*(sleep_for_a_day(number) for number in range(count)), limit=1)
    await sleep("1h")
    await calls


async def fail_first(count: int) -> None:
    await gather(step(fail), *(sleep_for_a_day(number) for number in range(count)), limit=1)


@pytest.mark.parametrize(
    "body", [gather_too_few, gather_a_number, fail_before_the_await, suspend_before_the_await, fail_first]
)
async def test_gather_closes_the_coroutines_that_it_never_starts(
    app: App, kit: Kit, body: Callable[[int], Awaitable[None]]
) -> None:
    @app.task(retries=0)
    async def task() -> None:
        await body(5)

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with suppress(ExecutionFailed):
            await kit.run(task)
        gc.collect()
    assert [str(warning.message) for warning in caught] == []


async def test_group_outside_of_a_task_closes_its_coroutines() -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for group in (gather, settle, race):
            with pytest.raises(InvalidRequest, match="only inside a task"):
                await group(sleep_for_a_day(1), sleep_for_a_day(2))
        gc.collect()
    assert [str(warning.message) for warning in caught] == []
