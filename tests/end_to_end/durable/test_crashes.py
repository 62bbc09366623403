"""Groups and waits come to the same, and leave nothing open behind, wherever a run is killed."""

from __future__ import annotations

import pytest

from flowfabric import (
    App,
    PermanentError,
    Signal,
    StepFailed,
    approval,
    callback,
    gather,
    now,
    poll,
    race,
    settle,
    sleep,
    step,
    wait_signal,
)
from flowfabric.engine import WaitpointKind, WaitpointState
from flowfabric.testing import Kit, sweep
from tests.end_to_end.durable.kits import NewKit, children_of

paid = Signal("paid", int)


async def left_open(kit: Kit, kind: str) -> list[str]:
    """The waitpoints of all executions of a kind that still take signals."""
    page = await kit.engine.executions.list(kind=kind)
    found = [item for execution in page.items for item in await kit.engine.waitpoints.list(execution.id)]
    open_ = [item for item in found if item.state is not WaitpointState.CLOSED]
    return [item.key for item in open_ if item.kind is WaitpointKind.ADDRESSED]


def fail() -> None:
    raise PermanentError("no")


async def test_a_race_and_what_it_ends(app: App) -> None:
    done: list[str] = []

    @app.task
    async def child() -> None:
        await sleep("10d")

    async def late() -> str:
        await sleep("1h")
        await step(done.append, "late")
        return "late"

    @app.task
    async def task() -> str:
        won = await race(child.run(), wait_signal(paid), approval("refund", by="ops"), late())
        await step(done.append, "after")
        await sleep("1h")
        return f"{won.index} {won.value}"

    async def program(kit: Kit) -> object:
        handle = await kit.start(task)
        await kit.advance("90m")
        return await left_open(kit, "task"), await kit.finish(handle), await children_of(kit, "child")

    swept = await sweep(app, program, effects=done)

    assert swept.result == ([], "3 late", ["cancelled"])
    assert swept.crashes >= 10


async def test_a_gather_that_fails_and_what_it_ends(app: App) -> None:
    done: list[str] = []

    @app.task
    async def child() -> None:
        await sleep("10d")

    async def late() -> None:
        await step(done.append, "before")
        await sleep("1h")
        await step(fail)

    @app.task
    async def task() -> str:
        try:
            await gather(child.run(), wait_signal(paid), late())
        except StepFailed as failed:
            await step(done.append, "undone")
            await sleep("1h")
            return failed.path
        return "went well"

    async def program(kit: Kit) -> object:
        handle = await kit.start(task)
        await kit.advance("90m")
        return await left_open(kit, "task"), await kit.finish(handle), await children_of(kit, "child")

    swept = await sweep(app, program, effects=done)

    assert swept.result == ([], "gather[2]/fail", ["cancelled"])


@pytest.mark.long
async def test_waits_side_by_side(app: App) -> None:
    done: list[str] = []
    tokens: set[str] = set()

    @app.task
    async def double(number: int) -> int:
        return 2 * number

    async def answered() -> int:
        reply = callback("export", int, timeout="1d")
        tokens.add(await reply.token())
        await step(done.append, "asked")
        answer = await reply
        return getattr(answer, "value", -1)

    async def polled() -> int:
        return await poll("10m", ready)

    def ready() -> int | None:
        return 7 if "outside" in done else None

    @app.task(signals=[paid])
    async def task() -> list[object]:
        begun = now()
        one, two, three = await gather(answered(), polled(), settle(wait_signal(paid), double.run(4), step(fail)))
        await step(done.append, "ended")
        return [one, two, [type(item).__name__ for item in three], now() >= begun]

    async def program(kit: Kit) -> object:
        tokens.clear()
        handle = await kit.start(task)
        await kit.signal(handle, paid, 3)
        [token] = tokens
        await kit.advance("15m")
        await app.signal(token, "callback", 5)
        await kit.work()
        done.append("outside")
        return await kit.finish(handle)

    swept = await sweep(app, program, effects=done)

    assert swept.result == [5, 7, ["Completed", "Completed", "Failed"], True]


@pytest.mark.parametrize("path", ["race", "late"])
async def test_a_crash_of_a_race_leaves_nothing_open_on_any_store(app: App, new_kit: NewKit, path: str) -> None:
    async def late() -> str:
        await sleep("1h")
        return await step.options(name="late")(str, "late")

    @app.task
    async def task() -> str:
        won = await race(wait_signal(paid), late())
        await sleep("1h")
        return str(won.value)

    async with new_kit(app) as kit:
        kit.crash_after("race[1]/late" if path == "late" else "race")
        handle = await kit.start(task)
        await kit.advance("90m")

        assert await left_open(kit, "task") == []
        assert await kit.finish(handle) == "late"
