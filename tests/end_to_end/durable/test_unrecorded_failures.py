"""A failure in the code of a branch, outside of a step, is raised in the same way in every run."""

from __future__ import annotations

from contextlib import suppress

import pytest

from flowfabric import (
    AllFailed,
    App,
    Completed,
    Failed,
    PermanentError,
    approval,
    gather,
    race,
    settle,
    sleep,
    step,
)
from flowfabric.engine import State, WaitpointState
from flowfabric.testing import Kit
from tests.end_to_end.durable.kits import children_of, statuses


def fail(why: str = "no") -> int:
    raise PermanentError(why)


async def test_settle_records_the_failure_of_a_branch(app: App, kit: Kit) -> None:
    seen: list[tuple[Completed[int] | Failed, ...]] = []
    begun: list[str] = []

    async def branch(fails: bool) -> int:
        begun.append("begun")
        number = await step(int, "7")
        if fails and begun.count("begun") == 1:
            raise KeyError("lost")
        return number

    async def later() -> int:
        await sleep("1h")
        return 8

    @app.task
    async def task() -> None:
        seen.append(await settle(branch(fails=True), later()))
        await sleep("1h")

    handle = await kit.start(task)
    await kit.finish(handle)

    [first, again] = seen[-2:]
    assert first == again
    assert first[1] == Completed(8)
    assert isinstance(first[0], Failed) and first[0].error.caused_by(KeyError)
    assert begun == ["begun"]


async def test_race_records_the_failure_of_a_branch(app: App, kit: Kit) -> None:
    failures: list[str] = []

    async def branch() -> int:
        await step(int, "7")
        failures.append("lost")
        if len(failures) == 1:
            raise KeyError("lost")
        return 7

    @app.task
    async def task() -> list[str]:
        try:
            await race(branch(), step(fail))
        except AllFailed as failed:
            await sleep("1h")
            return [failure.type for failure in failed.failures]
        return ["succeeded"]

    assert await kit.run(task) == ["KeyError", "PermanentError"]


async def test_branch_that_settled_as_completed_does_not_fail_in_a_later_run(app: App, kit: Kit) -> None:
    seen: list[bool] = []
    runs: list[str] = []

    async def branch() -> int:
        runs.append("run")
        if len(runs) == 2:
            raise KeyError("lost")
        return await step(int, "7")

    @app.task
    async def task() -> None:
        [outcome] = await settle(branch())
        seen.append(isinstance(outcome, Completed))
        await sleep("1h")

    handle = await kit.start(task)
    await kit.finish(handle)

    assert seen == [True, True]
    assert (await handle.status()).attempt_index == 1


@pytest.mark.parametrize("continues", [True, False])
async def test_caught_branch_failure_in_a_gather_ends_the_others(app: App, kit: Kit, continues: bool) -> None:
    @app.task
    async def child() -> None:
        await sleep("10d")

    async def branch() -> None:
        await sleep("1m")
        raise KeyError("lost")

    async def part() -> None:
        await gather(child.run(), approval("refund", by="ops"), branch())

    @app.task
    async def task() -> str:
        with suppress(KeyError):
            await gather(part(), sleep("20d"))
        if continues:
            await sleep("1d")
        return "continued"

    handle = await kit.start(task)
    await kit.advance("1h")

    assert await children_of(kit, "child") == [State.CANCELLED]
    approvals = [waitpoint for waitpoint in await kit.engine.waitpoints.list(handle.id) if "approval" in waitpoint.key]
    assert [waitpoint.state for waitpoint in approvals] == [WaitpointState.CLOSED]
    assert await kit.finish(handle) == "continued"
    assert (await statuses(kit, handle))["gather"] == "failed"
    assert (await handle.status()).attempt_index == 0


async def test_uncaught_branch_failure_in_a_gather_is_retried_with_the_others(app: App, kit: Kit) -> None:
    attempts: list[str] = []

    @app.task
    async def child() -> str:
        await sleep("1h")
        return "child"

    async def branch() -> str:
        attempts.append("tried")
        if len(attempts) == 1:
            raise KeyError("lost")
        return await step(str, "branch")

    @app.task
    async def task() -> tuple[str, str]:
        try:
            return await gather(child.run(), branch())
        finally:
            await step(str, "released")

    handle = await kit.start(task)

    assert await kit.finish(handle) == ("child", "branch")
    assert await children_of(kit, "child") == [State.COMPLETED]


async def test_branch_failure_caught_by_a_waiting_handler_ends_the_others_later(app: App, kit: Kit) -> None:
    runs: list[str] = []

    @app.task
    async def child() -> None:
        await sleep("10d")

    async def branch() -> None:
        await sleep("1m")
        raise KeyError("lost")

    @app.task
    async def task() -> str:
        runs.append("run")
        try:
            await gather(child.run(), branch())
        except KeyError:
            # The other calls end only after this handler, because until then it could still raise the failure again.
            await sleep("1d")
            return "continued"
        return "succeeded"

    assert await kit.run(task) == "continued"
    assert await children_of(kit, "child") == [State.CANCELLED]
    assert len(runs) == 3
