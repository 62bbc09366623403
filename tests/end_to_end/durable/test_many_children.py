"""Groups of more children than a condition can hold behave like smaller groups."""

from __future__ import annotations

import pytest

from flowfabric import AllFailed, App, Completed, ExecutionFailed, Failed, PermanentError, gather, race, settle, sleep
from flowfabric.engine import State
from flowfabric.runtime.waits import MAX_OPEN_WAITS
from flowfabric.testing import Kit
from tests.end_to_end.durable.kits import children_of
from tests.sizes import Size


@pytest.fixture(params=[10, 100])
def number(request: pytest.FixtureRequest, size: Size) -> int:
    """Return how many children a test starts: first few enough for one condition, then too many."""
    return 10 if request.param == 10 else size.of(100, 100, 1_000)


class ChildTask:
    """A child task that sleeps, fails or succeeds depending on its argument. Tests count the parent's runs here."""

    def __init__(self, app: App) -> None:
        self.runs = 0

        @app.task
        async def child(index: int, behaviour: str) -> int:
            if behaviour == "sleeps":
                await sleep("10d")
            if behaviour == "fails":
                raise PermanentError("no")
            return index

        self.child = child


async def test_first_failure_of_many_children_ends_a_gather_immediately(app: App, kit: Kit, number: int) -> None:
    children = ChildTask(app)

    @app.task
    async def task() -> str:
        children.runs += 1
        behaviours = ["fails" if index == number - 3 else "sleeps" for index in range(number)]
        try:
            await gather(*(children.child.run(index, behaviour) for index, behaviour in enumerate(behaviours)))
        except ExecutionFailed as failed:
            return failed.error.message
        return "succeeded"

    handle = await kit.start(task)

    assert (await handle.status()).state is State.COMPLETED
    assert await kit.finish(handle) == "no"
    states = [(await kit.engine.executions.count())[state].value for state in (State.CANCELLED, State.FAILED)]
    assert states == [number - 1, 1]
    assert children.runs == 2


async def test_many_children_of_a_gather_wake_the_parent_once(app: App, kit: Kit, number: int) -> None:
    children = ChildTask(app)

    @app.task
    async def task() -> int:
        children.runs += 1
        return sum(await gather(*(children.child.run(index, "sleeps") for index in range(number))))

    handle = await kit.start(task)

    assert await kit.finish(handle) == sum(range(number))
    assert children.runs == 2


async def test_first_success_of_many_children_wins_a_race_immediately(app: App, kit: Kit, number: int) -> None:
    children = ChildTask(app)

    @app.task
    async def task() -> int:
        behaviours = ["succeeds" if index == number - 3 else "sleeps" for index in range(number)]
        return (await race(*(children.child.run(index, behaviour) for index, behaviour in enumerate(behaviours)))).index

    handle = await kit.start(task)

    assert await kit.finish(handle) == number - 3
    assert (await kit.engine.executions.count())[State.CANCELLED].value == number - 1


async def test_race_of_many_failing_children_raises_all_failures(app: App, kit: Kit, number: int) -> None:
    children = ChildTask(app)

    @app.task
    async def task() -> int:
        children.runs += 1
        try:
            await race(*(children.child.run(index, "fails") for index in range(number)))
        except AllFailed as failed:
            return len(failed.failures)
        return 0

    assert await kit.run(task) == number
    assert children.runs <= (2 if number > MAX_OPEN_WAITS else number + 1)


async def test_settle_returns_an_outcome_for_each_of_many_children(app: App, kit: Kit, number: int) -> None:
    children = ChildTask(app)

    @app.task
    async def task() -> list[int]:
        children.runs += 1
        behaviours = ["fails" if index % 2 else "sleeps" for index in range(number)]
        outcomes = await settle(*(children.child.run(index, behaviour) for index, behaviour in enumerate(behaviours)))
        return [sum(isinstance(outcome, kind) for outcome in outcomes) for kind in (Completed, Failed)]

    assert await kit.run(task) == [number // 2, number // 2]
    assert children.runs == 2


@pytest.mark.parametrize(("limit", "winner"), [("1d", 1), ("20d", 0)])
async def test_group_of_many_children_can_race_with_a_sleep(
    app: App, kit: Kit, number: int, limit: str, winner: int
) -> None:
    children = ChildTask(app)

    @app.task
    async def task() -> int:
        all_children = gather(*(children.child.run(index, "sleeps") for index in range(number)))
        return (await race(all_children, sleep(limit))).index

    handle = await kit.start(task)

    assert await kit.finish(handle) == winner
    assert set(await children_of(kit, "child")) == {State.CANCELLED if winner else State.COMPLETED}


async def test_gather_accepts_many_executions_that_are_not_children(app: App, kit: Kit) -> None:
    children, number = ChildTask(app), MAX_OPEN_WAITS + 6
    handles = await app.submit_many([children.child.call(index, "sleeps") for index in range(number)])
    ids = [str(handle_.id) for handle_ in handles]

    @app.task
    async def task() -> int:
        return sum(await gather(*(children.child.handle(id_) for id_ in ids)))

    assert await kit.run(task) == sum(range(number))


async def test_many_branches_can_each_wait_for_a_child(app: App, kit: Kit) -> None:
    children, number = ChildTask(app), MAX_OPEN_WAITS + 6  # Each child that ends wakes the parent.

    async def branch(index: int) -> int:
        return await children.child.run(index, "sleeps")

    @app.task
    async def task() -> int:
        return sum(await gather(*(branch(index) for index in range(number))))

    assert await kit.run(task) == sum(range(number))
