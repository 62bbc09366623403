"""Groups of more children than a condition holds behave like smaller ones."""

from __future__ import annotations

import pytest

from flowfabric import AllFailed, App, Completed, ExecutionFailed, Failed, PermanentError, gather, race, settle, sleep
from flowfabric.engine import State
from flowfabric.sdk.parking import MOST_TOGETHER
from flowfabric.testing import Kit
from tests.end_to_end.durable.kits import children_of
from tests.sizes import Size


@pytest.fixture(params=[10, 100])
def number(request: pytest.FixtureRequest, size: Size) -> int:
    """How many children a group has: few enough for a condition, or too many."""
    return 10 if request.param == 10 else size.of(100, 100, 1_000)


class Bodies:
    """How often a parent's body was run, with children that sleep, succeed or fail as they are told."""

    def __init__(self, app: App) -> None:
        self.runs = 0

        @app.task
        async def child(index: int, how: str) -> int:
            if how == "sleeps":
                await sleep("10d")
            if how == "fails":
                raise PermanentError("no")
            return index

        self.child = child


async def test_the_first_failure_of_many_children_ends_a_gather_at_once(app: App, kit: Kit, number: int) -> None:
    bodies = Bodies(app)

    @app.task
    async def task() -> str:
        bodies.runs += 1
        hows = ["fails" if index == number - 3 else "sleeps" for index in range(number)]
        try:
            await gather(*(bodies.child.run(index, how) for index, how in enumerate(hows)))
        except ExecutionFailed as failed:
            return failed.error.message
        return "went well"

    handle = await kit.start(task)

    assert (await handle.status()).state is State.COMPLETED
    assert await kit.finish(handle) == "no"
    states = [(await kit.engine.executions.count())[state].number for state in (State.CANCELLED, State.FAILED)]
    assert states == [number - 1, 1]
    assert bodies.runs == 2


async def test_many_children_wake_the_parent_of_a_gather_once(app: App, kit: Kit, number: int) -> None:
    bodies = Bodies(app)

    @app.task
    async def task() -> int:
        bodies.runs += 1
        return sum(await gather(*(bodies.child.run(index, "sleeps") for index in range(number))))

    handle = await kit.start(task)

    assert await kit.finish(handle) == sum(range(number))
    assert bodies.runs == 2


async def test_the_first_success_of_many_children_wins_a_race_at_once(app: App, kit: Kit, number: int) -> None:
    bodies = Bodies(app)

    @app.task
    async def task() -> int:
        hows = ["succeeds" if index == number - 3 else "sleeps" for index in range(number)]
        return (await race(*(bodies.child.run(index, how) for index, how in enumerate(hows)))).index

    handle = await kit.start(task)

    assert await kit.finish(handle) == number - 3
    assert (await kit.engine.executions.count())[State.CANCELLED].number == number - 1


async def test_a_race_of_many_children_that_all_fail_tells_all_failures(app: App, kit: Kit, number: int) -> None:
    bodies = Bodies(app)

    @app.task
    async def task() -> int:
        bodies.runs += 1
        try:
            await race(*(bodies.child.run(index, "fails") for index in range(number)))
        except AllFailed as failed:
            return len(failed.failures)
        return 0

    assert await kit.run(task) == number
    assert bodies.runs <= (2 if number > MOST_TOGETHER else number + 1)


async def test_many_children_are_settled_each_for_itself(app: App, kit: Kit, number: int) -> None:
    bodies = Bodies(app)

    @app.task
    async def task() -> list[int]:
        bodies.runs += 1
        hows = ["fails" if index % 2 else "sleeps" for index in range(number)]
        found = await settle(*(bodies.child.run(index, how) for index, how in enumerate(hows)))
        return [sum(isinstance(item, kind) for item in found) for kind in (Completed, Failed)]

    assert await kit.run(task) == [number // 2, number // 2]
    assert bodies.runs == 2


@pytest.mark.parametrize(("limit", "winner"), [("1d", 1), ("20d", 0)])
async def test_a_group_of_many_children_can_be_raced_with_time(
    app: App, kit: Kit, number: int, limit: str, winner: int
) -> None:
    bodies = Bodies(app)

    @app.task
    async def task() -> int:
        everything = gather(*(bodies.child.run(index, "sleeps") for index in range(number)))
        return (await race(everything, sleep(limit))).index

    handle = await kit.start(task)

    assert await kit.finish(handle) == winner
    assert set(await children_of(kit, "child")) == {State.CANCELLED if winner else State.COMPLETED}


async def test_many_executions_that_are_no_children_are_gathered(app: App, kit: Kit) -> None:
    bodies, number = Bodies(app), MOST_TOGETHER + 6
    strangers = await app.submit_many([bodies.child.call(index, "sleeps") for index in range(number)])
    ids = [str(stranger.id) for stranger in strangers]

    @app.task
    async def task() -> int:
        return sum(await gather(*(bodies.child.handle(id_) for id_ in ids)))

    assert await kit.run(task) == sum(range(number))


async def test_many_branches_wait_for_a_child_each(app: App, kit: Kit) -> None:
    bodies, number = Bodies(app), MOST_TOGETHER + 6  # Each of them wakes the parent.

    async def branch(index: int) -> int:
        return await bodies.child.run(index, "sleeps")

    @app.task
    async def task() -> int:
        return sum(await gather(*(branch(index) for index in range(number))))

    assert await kit.run(task) == sum(range(number))
