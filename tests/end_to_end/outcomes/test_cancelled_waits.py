"""A cancel request is raised at every kind of wait, in groups and after crashes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from flowfabric import (
    App,
    CancelRequested,
    Handle,
    Signal,
    Task,
    approval,
    current,
    gather,
    poll,
    race,
    settle,
    sleep,
    step,
    sync,
    wait_signal,
)
from flowfabric.testing import Kit

GO = Signal("go", int)


def never_ready() -> bool:
    return False


def always_fails() -> None:
    raise ConnectionError


WAITS: dict[str, Callable[[Task[[], None]], Any]] = {
    "sleep": lambda child: sleep("1h"),
    "signal": lambda child: wait_signal(GO),
    "approval": lambda child: approval("ask", by="ann"),
    "poll": lambda child: poll("1m", never_ready),
    "child": lambda child: child.run(),
    "step in backoff": lambda child: step(always_fails),
    "gather": lambda child: gather(sleep("1h"), child.run()),
    "settle": lambda child: settle(sleep("1h"), child.run()),
    "race": lambda child: race(sleep("1h"), child.run()),
}


@pytest.mark.parametrize("wait", WAITS)
async def test_cancel_request_is_raised_at_every_kind_of_wait_and_again_after_a_crash(
    app: App, kit: Kit, wait: str
) -> None:
    requests: list[str] = []
    cleaned: list[str] = []

    @app.task
    async def child() -> None:
        await sleep("1d")

    @app.task
    async def task() -> str:
        try:
            await WAITS[wait](child)
        except CancelRequested:
            requests.append(wait)
            await step.options(name="clean")(cleaned.append, "clean")
            return "cleaned up"
        return "never requested"

    handle = await kit.start(task)
    kit.crash_after("clean")
    await handle.cancel(grace="1d")

    assert await kit.finish(handle) == "cleaned up"
    assert requests == [wait] * 2
    assert cleaned == ["clean"]


@pytest.mark.parametrize("group", [gather, race, settle], ids=["gather", "race", "settle"])
async def test_step_that_finishes_during_a_cancel_request_changes_nothing_after_a_crash(
    app: App, group: Callable[..., Any]
) -> None:
    in_step = asyncio.Event()
    requests: list[str] = []

    async def hurry() -> str:
        in_step.set()
        async with asyncio.timeout(20):
            while not current().cancelled:  # noqa: ASYNC110 - a step polls this flag
                await asyncio.sleep(0)
        return "just in time"

    @app.task
    async def task() -> str:
        try:
            await group(step(hurry), sleep("1h"))
        except CancelRequested:
            requests.append("requested")
            await step.options(name="clean")(str)
            return "cleaned up"
        return "never requested"

    @app.task
    async def canceller(other: Handle[str]) -> None:
        await in_step.wait()
        await other.cancel(grace="1d")

    async with Kit(app, concurrency=2) as kit:
        kit.crash_after("clean")
        handle = await task.submit()
        _ = await kit.start(canceller, handle)

        assert await kit.finish(handle) == "cleaned up"
    assert requests == ["requested"] * 2


async def test_cancel_request_is_raised_in_a_group_of_a_plain_function(app: App, kit: Kit) -> None:
    @app.task
    def task() -> str:
        try:
            sync.gather(lambda: sync.sleep("1h"), lambda: sync.sleep("2h"))
        except CancelRequested:
            return "requested"
        return "never requested"

    handle = await kit.start(task)
    await handle.cancel(grace="1m")

    assert await kit.finish(handle) == "requested"
