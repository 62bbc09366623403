"""Tasks of asyncio that a body leaves behind: on the loop of a worker they end with it."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import pytest

from flowfabric import App, gather, sleep, step
from flowfabric.sdk import raw_tasks


class LeftOver:
    """A task that runs until somebody cancels it, and one that it has started itself."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    async def outer(self) -> None:
        inner = asyncio.create_task(self.inner())
        try:
            await asyncio.Event().wait()
        finally:
            self.seen.append("outer")
            await inner

    async def inner(self) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            self.seen.append("inner")

    async def begin(self) -> None:
        task = asyncio.create_task(self.outer())
        task.add_done_callback(lambda _: None)
        await asyncio.sleep(0)


async def test_a_task_that_a_body_leaves_behind_is_cancelled_and_reported(
    real_app: App, caplog: pytest.LogCaptureFixture
) -> None:
    raw_tasks.watch(asyncio.get_running_loop())
    left = LeftOver()

    @real_app.task
    async def careless() -> str:
        await left.begin()
        return await step(str, "done")

    with caplog.at_level(logging.WARNING, "flowfabric"):
        async with real_app.worker():
            assert await careless.run() == "done"

    assert sorted(left.seen) == ["inner", "outer"]
    assert "careless left tasks of asyncio behind, which are cancelled: LeftOver.inner, LeftOver.outer" in caplog.text


async def test_a_task_that_a_branch_leaves_behind_is_cancelled_when_the_body_waits(real_app: App) -> None:
    raw_tasks.watch(asyncio.get_running_loop())
    left = LeftOver()

    async def branch() -> None:
        if not left.seen:
            await left.begin()
        await sleep(0.2)

    @real_app.task
    async def task() -> list[str]:
        await gather(branch(), sleep(0.1))
        return left.seen

    async with real_app.worker():
        assert sorted(await task.run()) == ["inner", "outer"]


async def test_what_a_step_starts_may_go_on(real_app: App) -> None:
    raw_tasks.watch(asyncio.get_running_loop())
    goes_on, kept = asyncio.Event(), list[asyncio.Task[bool]]()

    async def connect() -> None:
        kept.append(asyncio.create_task(goes_on.wait()))

    @real_app.task
    async def task() -> None:
        await step(connect)

    async with real_app.worker():
        await task.run()
    goes_on.set()

    assert await kept[0]


async def test_tasks_that_are_awaited_are_not_reported(real_app: App, caplog: pytest.LogCaptureFixture) -> None:
    raw_tasks.watch(asyncio.get_running_loop())

    @real_app.task
    async def careful(number: int) -> list[str]:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(step(str, f"{number}.{index}")) for index in range(3)]
        return [task.result() for task in tasks]

    async with real_app.worker(concurrency=4):
        handles = await real_app.submit_many([careful.call(number) for number in range(8)])
        found = [await handle for handle in handles]

    assert found == [[f"{number}.{index}" for index in range(3)] for number in range(8)]
    assert "left tasks" not in caplog.text


async def test_in_a_loop_of_somebody_else_tasks_go_on(real_app: App) -> None:
    goes_on, kept = asyncio.Event(), list[asyncio.Task[bool]]()

    @real_app.task
    async def task() -> None:
        kept.append(asyncio.create_task(goes_on.wait()))

    async with real_app.worker():
        await task.run()
    goes_on.set()

    assert await kept[0]


def test_app_run_has_a_loop_of_its_own(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    app, left = App(str(tmp_path / "own.db")), LeftOver()

    @app.task
    async def task() -> None:
        await left.begin()

    app.run(task)

    assert "task left tasks of asyncio behind" in caplog.text
