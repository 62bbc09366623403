"""Groups that the surrounding code abandons, as `asyncio.timeout` and task groups do."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest

from flowfabric import (
    App,
    ExecutionFailed,
    NotFound,
    PermanentError,
    Signal,
    StepFailed,
    gather,
    race,
    settle,
    sleep,
    step,
    wait_signal,
)
from flowfabric.engine import State, StepStatus
from flowfabric.runtime.branch import BRANCH, Branch
from flowfabric.testing import Kit, sweep
from tests.end_to_end.durable.kits import begin, children_of, statuses, until_recorded

go = Signal("go", int)
Group = Callable[..., Coroutine[None, None, Any]]
GROUPS = pytest.mark.parametrize("group", [gather, settle, race])


async def wait_forever() -> None:
    await asyncio.Event().wait()


@asynccontextmanager
async def abandon_when(condition: Callable[[], Awaitable[object]]) -> AsyncIterator[None]:
    """Await `condition()` while the block runs. When it returns, cancel the block as `asyncio.timeout` would."""

    async def expire() -> None:
        await condition()
        limit.reschedule(0)

    async with asyncio.timeout(None) as limit:
        expiring = asyncio.create_task(expire())
        try:
            yield
        finally:
            expiring.cancel()


async def until_cancelled(seen: list[str], begun: Callable[[], object] = bool) -> None:
    begun()
    try:
        await wait_forever()
    except asyncio.CancelledError:
        seen.append("cancelled")
        await step(seen.append, "never")


@GROUPS
async def test_abandoned_group_ends_its_members_and_is_abandoned_in_later_runs(
    app: App, kit: Kit, group: Group
) -> None:
    seen: list[str] = []

    @app.task
    async def child() -> None:
        await sleep("10d")

    async def slow() -> None:
        seen.append("begun")
        await until_recorded(kit, "run:child")
        abandoned.set()
        await wait_forever()

    @app.task
    async def task() -> str:
        try:
            async with abandon_when(abandoned.wait):
                await group(step(slow), child.run(), wait_signal(go))
        except TimeoutError:
            seen.append("abandoned")
        await sleep("1h")
        return await step(str, "continued")

    abandoned = asyncio.Event()
    handle = await kit.start(task)
    with pytest.raises(NotFound, match="signal_not_expected"):
        await kit.signal(handle, go, 1)

    assert await children_of(kit, "child") == [State.CANCELLED]
    assert await kit.finish(handle) == "continued"
    assert seen == ["begun", "abandoned", "abandoned"]
    step_statuses = await statuses(kit, handle)
    assert step_statuses["slow"] == StepStatus.ABANDONED
    assert step_statuses[group.__name__] == StepStatus.ABANDONED


@GROUPS
async def test_branch_that_awaits_other_code_is_cancelled_with_its_group(app: App, kit: Kit, group: Group) -> None:
    seen: list[str] = []

    async def deeper() -> None:
        await gather(until_cancelled(seen, both.release), sleep("1d"))

    @app.task
    async def task() -> str:
        with suppress(TimeoutError):
            async with abandon_when(both_begun):
                await group(until_cancelled(seen, both.release), deeper())
        return "continued"

    async def both_begun() -> None:
        for _ in range(2):
            await both.acquire()

    both = asyncio.Semaphore(0)

    assert await kit.run(task) == "continued"
    assert seen == ["cancelled", "cancelled"]


async def test_group_is_abandoned_when_its_task_group_fails(app: App, kit: Kit) -> None:
    async def fail() -> None:
        raise ValueError("no")

    @app.task
    async def child() -> None:
        await sleep("10d")

    @app.task
    async def task() -> str:
        try:
            async with asyncio.TaskGroup() as task_group:
                task_group.create_task(fail())
                await gather(child.run(), step(wait_forever))
        except ExceptionGroup as failed:
            await sleep("1h")
            return str(failed.exceptions[0])
        return "succeeded"

    handle = await kit.start(task)

    assert set(await children_of(kit, "child")) <= {State.CANCELLED}
    assert await kit.finish(handle) == "no"
    assert (await statuses(kit, handle))["gather"] == StepStatus.ABANDONED


async def test_abandoning_a_group_that_is_ending_has_no_effect(app: App, kit: Kit) -> None:
    def fail() -> None:
        raise PermanentError("no")

    async def lingers() -> None:
        lingering.append(BRANCH.get())
        await wait_forever()

    async def group_ends() -> None:
        while not any(unit is not None and unit.is_dropped for unit in lingering):  # noqa: ASYNC110
            await asyncio.sleep(0)

    lingering: list[Branch | None] = []

    @app.task
    async def task() -> str:
        try:
            async with abandon_when(group_ends):
                await gather(step(fail), step(lingers))
        except (StepFailed, TimeoutError) as failed:
            await sleep("1h")
            return type(failed).__name__
        return "succeeded"

    handle = await kit.start(task)

    assert await kit.finish(handle) == "StepFailed"
    assert (await statuses(kit, handle))["lingers"] == StepStatus.ABANDONED


async def test_race_branch_that_awaits_other_code_does_not_delay_the_winner(app: App, kit: Kit) -> None:
    seen: list[str] = []

    @app.task
    async def task() -> int:
        return (await race(until_cancelled(seen), step(int, "7"))).index

    assert await kit.run(task) == 1
    assert seen == ["cancelled"]


@GROUPS
async def test_group_that_is_abandoned_while_the_run_unwinds_ends_its_members(app: App, kit: Kit, group: Group) -> None:
    seen: list[str] = []
    begun, abandoned = asyncio.Event(), asyncio.Event()

    @app.task
    async def task() -> None:
        async with abandon_when(abandoned.wait):
            await group(until_cancelled([]), until_cancelled(seen, begun.set))

    _ = await task.submit()
    run = await begin(kit)
    running = asyncio.create_task(run.run())
    await begun.wait()
    run.unwind()
    abandoned.set()

    async with asyncio.timeout(20):
        await running
    assert seen == ["cancelled"]


async def test_abandoned_group_survives_a_crash_at_every_record() -> None:
    app = App("durable.db")
    done: list[str] = []

    @app.task
    async def child() -> None:
        await sleep("10d")

    @app.task
    async def task() -> str:
        with suppress(TimeoutError):
            async with abandon_when(all_begun):
                await gather(child.run(), until_cancelled([]), step(done.append, "done"))
        await sleep("1h")
        return await step(str, "continued")

    async def all_begun() -> None:
        for path in ("run:child", "list.append"):
            await until_recorded(kits[-1], path)

    kits: list[Kit] = []

    async def program(kit: Kit) -> list[Any]:
        kits.append(kit)
        handle = await kit.start(task)
        result = await kit.finish(handle)
        return [result, *await children_of(kit, "child")]

    report = await sweep(lambda replay: Kit(app, replay=replay), program, effects=done)

    assert report.result == ["continued", State.CANCELLED]
    assert report.effects == ("done",)


@GROUPS
async def test_group_in_an_asyncio_task_is_rejected(app: App, kit: Kit, group: Group) -> None:
    @app.task
    async def task() -> None:
        await asyncio.create_task(group(step(str), until_cancelled([])))

    with pytest.raises(ExecutionFailed, match=r"group_in_raw_task.*use race\(…, sleep\(…\)\)"):
        await kit.run(task)


async def test_asyncio_wait_for_around_a_group_is_rejected_if_it_creates_a_task(app: App, kit: Kit) -> None:
    @app.task
    async def task() -> tuple[str, ...]:
        return await asyncio.wait_for(gather(step(str, "a"), step(str, "b")), 30)

    if sys.version_info >= (3, 12):
        assert await kit.run(task) == ("a", "b")
        return
    with pytest.raises(ExecutionFailed, match="group_in_raw_task"):
        await kit.run(task)


async def test_race_with_a_sleep_limits_the_time_of_a_group(app: App, kit: Kit) -> None:
    @app.task
    async def task() -> int:
        return (await race(gather(wait_signal(go), sleep("2d")), sleep("1d"))).index

    handle = await kit.start(task)

    assert await kit.finish(handle) == 1
