"""Groups and waits have the same result and leave nothing open after a crash at any record."""

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
from tests.end_to_end.durable.kits import KitFactory, children_of

paid = Signal("paid", int)


async def open_waitpoints(kit: Kit, kind: str) -> list[str]:
    """Return the keys of the waitpoints that still accept signals, for all executions of a kind."""
    page = await kit.engine.executions.list(kind=kind)
    waitpoints = [waitpoint for execution in page.items for waitpoint in await kit.engine.waitpoints.list(execution.id)]
    open_ = [waitpoint for waitpoint in waitpoints if waitpoint.state is not WaitpointState.CLOSED]
    return [waitpoint.key for waitpoint in open_ if waitpoint.kind is WaitpointKind.ADDRESSED]


def fail() -> None:
    raise PermanentError("no")


async def test_race_ends_its_losers_despite_a_crash_at_any_record(app: App) -> None:
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
        return await open_waitpoints(kit, "task"), await kit.finish(handle), await children_of(kit, "child")

    report = await sweep(app, program, effects=done)

    assert report.result == ([], "3 late", ["cancelled"])
    assert report.crashes >= 10


async def test_failed_gather_ends_its_members_despite_a_crash_at_any_record(app: App) -> None:
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
        return "succeeded"

    async def program(kit: Kit) -> object:
        handle = await kit.start(task)
        await kit.advance("90m")
        return await open_waitpoints(kit, "task"), await kit.finish(handle), await children_of(kit, "child")

    report = await sweep(app, program, effects=done)

    assert report.result == ([], "gather[2]/fail", ["cancelled"])


@pytest.mark.long
async def test_concurrent_waits_have_the_same_result_after_a_crash_at_any_record(app: App) -> None:
    done: list[str] = []
    tokens: set[str] = set()

    @app.task
    async def double(number: int) -> int:
        return 2 * number

    async def wait_for_callback() -> int:
        reply = callback("export", int, timeout="1d")
        tokens.add(await reply.token())
        await step(done.append, "asked")
        reply_outcome = await reply
        return getattr(reply_outcome, "value", -1)

    async def poll_until_ready() -> int:
        return await poll("10m", ready)

    def ready() -> int | None:
        return 7 if "outside" in done else None

    @app.task(signals=[paid])
    async def task() -> list[object]:
        begun = now()
        one, two, three = await gather(
            wait_for_callback(), poll_until_ready(), settle(wait_signal(paid), double.run(4), step(fail))
        )
        await step(done.append, "ended")
        return [one, two, [type(outcome).__name__ for outcome in three], now() >= begun]

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

    report = await sweep(app, program, effects=done)

    assert report.result == [5, 7, ["Completed", "Completed", "Failed"], True]


@pytest.mark.parametrize("path", ["race", "late"])
async def test_crash_of_a_race_leaves_nothing_open_on_any_store(app: App, new_kit: KitFactory, path: str) -> None:
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

        assert await open_waitpoints(kit, "task") == []
        assert await kit.finish(handle) == "late"
