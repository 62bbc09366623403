"""Asyncio tasks that a body leaves behind are cancelled on the loop of a worker."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from flowfabric import App, gather, sleep, step
from flowfabric.runtime.branch import track_raw_tasks
from tests.stores import TestStore, opened


@pytest.fixture
def tracking_loop(session_loop: asyncio.AbstractEventLoop) -> Iterator[None]:
    """Make the loop track the tasks of bodies, as the loop of a worker does."""
    track_raw_tasks(session_loop)
    yield
    session_loop.set_task_factory(None)


class LeftoverTask:
    """An asyncio task that runs until it is cancelled, and an inner task that it starts."""

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


@pytest.mark.usefixtures("tracking_loop")
async def test_asyncio_task_left_by_a_body_is_cancelled_and_logged(
    real_app: App, caplog: pytest.LogCaptureFixture
) -> None:
    leftover = LeftoverTask()

    @real_app.task
    async def careless() -> str:
        await leftover.begin()
        return await step(str, "done")

    with caplog.at_level(logging.WARNING, "flowfabric"):
        async with real_app.worker():
            assert await careless.run() == "done"

    assert sorted(leftover.seen) == ["inner", "outer"]
    assert (
        "careless left asyncio tasks behind, which are cancelled: LeftoverTask.inner, LeftoverTask.outer" in caplog.text
    )


@pytest.mark.usefixtures("tracking_loop")
async def test_asyncio_task_left_by_a_branch_is_cancelled_when_the_body_waits(real_app: App) -> None:
    leftover = LeftoverTask()

    async def branch() -> None:
        if not leftover.seen:
            await leftover.begin()
        await sleep(0.2)

    @real_app.task
    async def task() -> list[str]:
        await gather(branch(), sleep(0.1))
        return leftover.seen

    async with real_app.worker():
        assert sorted(await task.run()) == ["inner", "outer"]


@pytest.mark.usefixtures("tracking_loop")
async def test_asyncio_task_started_by_a_step_is_not_cancelled(real_app: App) -> None:
    may_end, kept = asyncio.Event(), list[asyncio.Task[bool]]()

    async def connect() -> None:
        kept.append(asyncio.create_task(may_end.wait()))

    @real_app.task
    async def task() -> None:
        await step(connect)

    async with real_app.worker():
        await task.run()
    may_end.set()

    assert await kept[0]


@pytest.mark.usefixtures("tracking_loop")
async def test_awaited_asyncio_tasks_are_not_logged(real_app: App, caplog: pytest.LogCaptureFixture) -> None:
    @real_app.task
    async def careful(number: int) -> list[str]:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(step(str, f"{number}.{index}")) for index in range(3)]
        return [task.result() for task in tasks]

    async with real_app.worker(concurrency=4):
        handles = await real_app.submit_many([careful.call(number) for number in range(8)])
        results = [await handle for handle in handles]

    assert results == [[f"{number}.{index}" for index in range(3)] for number in range(8)]
    assert "left asyncio tasks" not in caplog.text


def test_asyncio_tasks_on_an_unwatched_loop_are_not_cancelled(store: TestStore) -> None:
    async def main() -> bool:
        app, may_end, kept = App("never-opened.db"), asyncio.Event(), list[asyncio.Task[bool]]()

        @app.task
        async def task() -> None:
            kept.append(asyncio.create_task(may_end.wait()))

        async with opened(store) as engine:
            app.engines.adopt(engine)
            async with app.worker():
                await task.run()
        may_end.set()
        return await kept[0]

    # The tests share one event loop, which the worker of an earlier test may still watch. Use a new loop.
    with asyncio.Runner() as runner:
        assert runner.run(main())


def test_app_run_uses_its_own_loop(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    app, leftover = App(str(tmp_path / "own.db")), LeftoverTask()

    @app.task
    async def task() -> None:
        await leftover.begin()

    app.run(task)

    assert "task left asyncio tasks behind" in caplog.text
