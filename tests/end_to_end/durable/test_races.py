"""`race` returns the first success and ends the other calls."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from flowfabric import (
    AllFailed,
    App,
    ExecutionFailed,
    NotFound,
    PermanentError,
    RaceResult,
    Received,
    Signal,
    current,
    race,
    settle,
    sleep,
    step,
    wait_signal,
)
from flowfabric.engine import State, StepStatus
from flowfabric.testing import Kit
from tests.end_to_end.durable.kits import children_of, statuses

go = Signal("go", int)


def fail(why: str = "no") -> int:
    raise PermanentError(why)


async def after(hours: int) -> int:
    await sleep(timedelta(hours=hours))
    return hours


async def test_first_success_wins(app: App, kit: Kit) -> None:
    seen: list[RaceResult[int]] = []

    @app.task
    async def task() -> None:
        seen.append(await race(after(3), after(1), after(2)))

    handle = await kit.start(task)
    begun = kit.now()
    await kit.finish(handle)

    assert seen == [RaceResult(1, 1)]
    assert kit.now() - begun == timedelta(hours=1)
    assert await kit.steps(handle) == ["race[0]/sleep", "race[1]/sleep", "race[2]/sleep", "race"]


async def test_race_ignores_failures_while_others_may_succeed(app: App, kit: Kit) -> None:
    @app.task
    async def task() -> int:
        return (await race(step(fail), after(1))).index

    assert await kit.run(task) == 1


async def test_race_raises_all_failures_in_order_if_all_calls_fail(app: App, kit: Kit) -> None:
    seen: list[list[str]] = []

    async def later() -> int:
        await sleep("1h")
        return await step(fail, "late")

    @app.task
    async def task() -> None:
        try:
            await race(later(), step(fail, "early"))
        except AllFailed as failed:
            seen.append([failure.message for failure in failed.failures])
        await sleep("1h")

    await kit.run(task)

    assert seen == [["late", "early"]] * 2


async def test_race_without_a_winner_fails_the_execution_permanently(app: App, kit: Kit) -> None:
    @app.task
    async def task() -> None:
        await race(step(fail, "a"), step(fail, "b"))

    handle = await kit.start(task)

    with pytest.raises(ExecutionFailed, match="all 2 calls of the race failed"):
        await kit.finish(handle)
    assert (await handle.status()).attempt_index == 0


async def test_steps_of_losers_are_cancelled_and_abandoned(app: App, kit: Kit) -> None:
    seen: list[str] = []

    async def slow() -> None:
        seen.append("begun")
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            seen.append("cancelled")
            raise

    @app.task
    async def task() -> int:
        winner = await race(step(slow), step(int, "7"))
        await sleep("1h")
        return winner.index

    handle = await kit.start(task)

    assert await kit.finish(handle) == 1
    assert seen == ["begun", "cancelled"]
    assert (await statuses(kit, handle))["slow"] == StepStatus.ABANDONED


async def test_waits_of_losers_are_closed(app: App, kit: Kit) -> None:
    @app.task
    async def task() -> int:
        winner = await race(wait_signal(go), after(1))
        await sleep("1d")
        return winner.index

    handle = await kit.start(task)
    await kit.advance("2h")

    with pytest.raises(NotFound, match="signal_not_expected"):
        await kit.signal(handle, go, 1)
    assert await kit.finish(handle) == 1


async def test_declared_signal_that_no_loser_consumed_is_kept(app: App, kit: Kit) -> None:
    @app.task(signals=[go])
    async def task() -> int:
        await race(wait_signal(go), after(1))
        await sleep("1d")
        return (await wait_signal(go)).value

    handle = await kit.start(task)
    await kit.advance("2h")
    await kit.signal(handle, go, 4)

    assert await kit.finish(handle) == 4


async def test_children_of_losers_are_cancelled(app: App, kit: Kit) -> None:
    @app.task
    async def child(hours: int) -> int:
        return await after(hours)

    @app.task
    async def task() -> int:
        return (await race(child.run(5), child.run(1), child.run(9))).value

    assert await kit.run(task) == 1
    assert sorted(await children_of(kit, "child")) == [State.CANCELLED, State.CANCELLED, State.COMPLETED]


async def test_detached_loser_is_cancelled(app: App, kit: Kit) -> None:
    @app.task
    async def child(hours: int) -> int:
        return await after(hours)

    @app.task
    async def task() -> int:
        return (await race(child.options(detached=True).run(5), child.run(1), child.run(9))).value

    assert await kit.run(task) == 1
    assert sorted(await children_of(kit, "child")) == [State.CANCELLED, State.CANCELLED, State.COMPLETED]


@pytest.mark.parametrize("group", [race, settle])
async def test_nested_group_that_lost_is_skipped_in_later_runs(app: App, kit: Kit, group: Any) -> None:
    @app.task
    async def child(hours: int) -> int:
        return await after(hours)

    @app.task
    async def task() -> int:
        inner = group(child.run(5), after(6), group(child.run(7), after(8)))
        winner = await race(inner, child.run(1))
        await sleep("10h")
        await sleep("10h")
        return winner.value

    assert await kit.run(task) == 1
    assert sorted(await children_of(kit, "child")) == [State.CANCELLED, State.CANCELLED, State.COMPLETED]


@pytest.mark.parametrize("moment", ["before", "after"])
async def test_losers_are_cancelled_despite_a_crash_when_the_race_is_decided(app: App, kit: Kit, moment: str) -> None:
    @app.task
    async def child(hours: int) -> int:
        return await after(hours)

    @app.task
    async def task() -> int:
        winner = await race(child.run(5), child.run(1))
        await sleep("1d")
        return winner.value

    (kit.crash_before if moment == "before" else kit.crash_after)("race")
    handle = await kit.start(task)
    await kit.advance("2h")

    assert sorted(await children_of(kit, "child")) == [State.CANCELLED, State.COMPLETED]
    assert await kit.finish(handle) == 1


async def test_only_the_winning_branch_runs_in_later_runs(app: App, kit: Kit) -> None:
    runs: list[str] = []

    async def branch(name: str, hours: int) -> str:
        runs.append(name)
        await sleep(timedelta(hours=hours))
        return name

    @app.task
    async def task() -> str:
        winner = await race(branch("slow", 5), branch("fast", 1))
        await sleep("1d")
        return winner.value

    handle = await kit.start(task)
    await kit.advance("2h")
    runs.clear()
    await kit.advance("2d")

    assert await kit.finish(handle) == "fast"
    assert runs == ["fast"]
    assert await kit.steps(handle) == ["race[0]/sleep", "race[1]/sleep", "race", "sleep"]


async def test_signal_that_wins_a_race_ends_a_long_step_immediately(app: App, kit: Kit) -> None:
    async def long() -> None:
        await kit.engine.signals.send(current().execution_id, "go", b"5")
        await asyncio.Event().wait()

    @app.task(signals=[go])
    async def task() -> int:
        winner = await race(wait_signal(go), step(long))
        assert isinstance(winner.value, Received)
        return winner.value.value

    assert await kit.run(task) == 5


async def test_empty_race_is_rejected(app: App, kit: Kit) -> None:
    @app.task
    async def task() -> None:
        await race()

    with pytest.raises(ExecutionFailed, match="a race needs at least one call"):
        await kit.run(task)
