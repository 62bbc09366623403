"""Failures of a branch's own code, which no step has recorded: what the function sees of them stays the same."""

from __future__ import annotations

from flowfabric import AllFailed, App, Completed, Failed, PermanentError, race, settle, sleep, step
from flowfabric.testing import Kit


def fail(why: str = "no") -> int:
    raise PermanentError(why)


async def test_settle_records_the_accident_of_a_branch(app: App, kit: Kit) -> None:
    seen: list[tuple[Completed[int] | Failed, ...]] = []
    begun: list[str] = []

    async def branch(fails: bool) -> int:
        begun.append("begun")
        found = await step(int, "7")
        if fails and begun.count("begun") == 1:
            raise KeyError("lost")
        return found

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


async def test_a_race_records_the_accident_of_a_branch(app: App, kit: Kit) -> None:
    accidents: list[str] = []

    async def branch() -> int:
        await step(int, "7")
        accidents.append("lost")
        if len(accidents) == 1:
            raise KeyError("lost")
        return 7

    @app.task
    async def task() -> list[str]:
        try:
            await race(branch(), step(fail))
        except AllFailed as failed:
            await sleep("1h")
            return [failure.type for failure in failed.failures]
        return ["went well"]

    assert await kit.run(task) == ["KeyError", "PermanentError"]


async def test_a_branch_that_was_settled_well_does_not_fail_in_a_later_run(app: App, kit: Kit) -> None:
    seen: list[bool] = []
    runs: list[str] = []

    async def branch() -> int:
        runs.append("run")
        if len(runs) == 2:
            raise KeyError("lost")
        return await step(int, "7")

    @app.task
    async def task() -> None:
        [found] = await settle(branch())
        seen.append(isinstance(found, Completed))
        await sleep("1h")

    handle = await kit.start(task)
    await kit.finish(handle)

    assert seen == [True, True]
    assert (await handle.status()).attempt_index == 1
