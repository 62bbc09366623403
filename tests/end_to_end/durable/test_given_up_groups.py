"""Groups that the code around them gives up, as `asyncio.timeout` and task groups do."""

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
from flowfabric.sdk.units import UNIT, Unit
from flowfabric.testing import Kit, sweep
from tests.end_to_end.durable.kits import children_of, statuses, until_recorded

go = Signal("go", int)
Group = Callable[..., Coroutine[None, None, Any]]
GROUPS = pytest.mark.parametrize("group", [gather, settle, race])


async def for_ever() -> None:
    await asyncio.Event().wait()


@asynccontextmanager
async def given_up_when(condition: Callable[[], Awaitable[object]]) -> AsyncIterator[None]:
    """Gives the block up, as a time limit would, as soon as the condition has come."""

    async def give_up() -> None:
        await condition()
        limit.reschedule(0)

    async with asyncio.timeout(None) as limit:
        giving_up = asyncio.create_task(give_up())
        try:
            yield
        finally:
            giving_up.cancel()


async def until_cancelled(seen: list[str], begun: Callable[[], object] = bool) -> None:
    begun()
    try:
        await for_ever()
    except asyncio.CancelledError:
        seen.append("cancelled")
        await step(seen.append, "never")


@GROUPS
async def test_a_group_given_up_ends_its_members_and_is_given_up_again_in_later_runs(
    app: App, kit: Kit, group: Group
) -> None:
    seen: list[str] = []

    @app.task
    async def child() -> None:
        await sleep("10d")

    async def slow() -> None:
        seen.append("begun")
        await until_recorded(kit, "run:child")
        given_up.set()
        await for_ever()

    @app.task
    async def task() -> str:
        try:
            async with given_up_when(given_up.wait):
                await group(step(slow), child.run(), wait_signal(go))
        except TimeoutError:
            seen.append("given up")
        await sleep("1h")
        return await step(str, "went on")

    given_up = asyncio.Event()
    handle = await kit.start(task)
    with pytest.raises(NotFound, match="signal_not_expected"):
        await kit.signal(handle, go, 1)

    assert await children_of(kit, "child") == [State.CANCELLED]
    assert await kit.finish(handle) == "went on"
    assert seen == ["begun", "given up", "given up"]
    found = await statuses(kit, handle)
    assert found["slow"] == StepStatus.ABANDONED
    assert found[group.__name__] == StepStatus.ABANDONED


@GROUPS
async def test_code_of_a_branch_that_waits_for_something_else_is_cancelled_with_its_group(
    app: App, kit: Kit, group: Group
) -> None:
    seen: list[str] = []

    async def deeper() -> None:
        await gather(until_cancelled(seen, both.release), sleep("1d"))

    @app.task
    async def task() -> str:
        with suppress(TimeoutError):
            async with given_up_when(both_begun):
                await group(until_cancelled(seen, both.release), deeper())
        return "went on"

    async def both_begun() -> None:
        for _ in range(2):
            await both.acquire()

    both = asyncio.Semaphore(0)

    assert await kit.run(task) == "went on"
    assert seen == ["cancelled", "cancelled"]


async def test_a_group_is_given_up_when_a_task_group_around_it_fails(app: App, kit: Kit) -> None:
    async def fail() -> None:
        raise ValueError("no")

    @app.task
    async def child() -> None:
        await sleep("10d")

    @app.task
    async def task() -> str:
        try:
            async with asyncio.TaskGroup() as around:
                around.create_task(fail())
                await gather(child.run(), step(for_ever))
        except ExceptionGroup as failed:
            await sleep("1h")
            return str(failed.exceptions[0])
        return "went well"

    handle = await kit.start(task)

    assert set(await children_of(kit, "child")) <= {State.CANCELLED}
    assert await kit.finish(handle) == "no"
    assert (await statuses(kit, handle))["gather"] == StepStatus.ABANDONED


async def test_whoever_gives_a_group_up_while_it_ends_comes_too_late_but_does_not_wait_for_steps(
    app: App, kit: Kit
) -> None:
    def fail() -> None:
        raise PermanentError("no")

    async def lingers() -> None:
        lingering.append(UNIT.get())
        await for_ever()

    async def group_ends() -> None:
        while not any(unit is not None and unit.is_dropped for unit in lingering):  # noqa: ASYNC110
            await asyncio.sleep(0)

    lingering: list[Unit | None] = []

    @app.task
    async def task() -> str:
        try:
            async with given_up_when(group_ends):
                await gather(step(fail), step(lingers))
        except (StepFailed, TimeoutError) as failed:
            await sleep("1h")
            return type(failed).__name__
        return "went well"

    handle = await kit.start(task)

    assert await kit.finish(handle) == "StepFailed"
    assert (await statuses(kit, handle))["lingers"] == StepStatus.ABANDONED


async def test_a_branch_of_a_race_that_waits_for_something_else_does_not_hold_the_winner_up(app: App, kit: Kit) -> None:
    seen: list[str] = []

    @app.task
    async def task() -> int:
        return (await race(until_cancelled(seen), step(int, "7"))).index

    assert await kit.run(task) == 1
    assert seen == ["cancelled"]


async def test_a_group_given_up_survives_a_crash_at_every_record() -> None:
    app = App("durable.db")
    done: list[str] = []

    @app.task
    async def child() -> None:
        await sleep("10d")

    @app.task
    async def task() -> str:
        with suppress(TimeoutError):
            async with given_up_when(all_begun):
                await gather(child.run(), until_cancelled([]), step(done.append, "done"))
        await sleep("1h")
        return await step(str, "went on")

    async def all_begun() -> None:
        for path in ("run:child", "list.append"):
            await until_recorded(kits[-1], path)

    kits: list[Kit] = []

    async def program(kit: Kit) -> list[Any]:
        kits.append(kit)
        handle = await kit.start(task)
        found = await kit.finish(handle)
        return [found, *await children_of(kit, "child")]

    swept = await sweep(lambda replay: Kit(app, replay=replay), program, effects=done)

    assert swept.result == ["went on", State.CANCELLED]
    assert swept.effects == ("done",)


@GROUPS
async def test_a_group_in_a_raw_task_is_refused(app: App, kit: Kit, group: Group) -> None:
    @app.task
    async def task() -> None:
        await asyncio.create_task(group(step(str), until_cancelled([])))

    with pytest.raises(ExecutionFailed, match=r"group_in_raw_task.*use race\(…, sleep\(…\)\)"):
        await kit.run(task)


async def test_wait_for_of_asyncio_around_a_group_is_refused_where_it_makes_a_task(app: App, kit: Kit) -> None:
    @app.task
    async def task() -> tuple[str, ...]:
        return await asyncio.wait_for(gather(step(str, "a"), step(str, "b")), 30)

    if sys.version_info >= (3, 12):
        assert await kit.run(task) == ("a", "b")
        return
    with pytest.raises(ExecutionFailed, match="group_in_raw_task"):
        await kit.run(task)


async def test_a_group_has_a_time_limit_by_a_race_with_a_sleep(app: App, kit: Kit) -> None:
    @app.task
    async def task() -> int:
        return (await race(gather(wait_signal(go), sleep("2d")), sleep("1d"))).index

    handle = await kit.start(task)

    assert await kit.finish(handle) == 1
