"""Steps report the progress of their task, at most once a second."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

import pytest

from flowfabric import App, InvalidRequest, approval, progress, sleep, step, sync
from flowfabric.engine import Engine, Fence
from flowfabric.runtime import progress as progress_reports
from tests.end_to_end.worker.scripted_runs import until
from tests.stores import TestStore, opened


def make_app(engine: Engine) -> App:
    app = App("never-opened.db")
    app.engines.adopt(engine)
    return app


async def test_progress_works_inside_an_async_step(store: TestStore) -> None:
    seen = asyncio.Event()

    async def copy() -> str:
        progress(40, "half of the files")
        await seen.wait()
        return "copied"

    async with opened(store) as engine:
        app = make_app(engine)

        @app.task
        async def task() -> str:
            return await step(copy)

        async with app.worker():
            handle = await task.submit()

            async def is_stored() -> bool:
                status = await handle.status()
                return (status.progress_percent, status.progress_message) == (40, "half of the files")

            await until(is_stored)
            seen.set()
            assert await handle == "copied"


@pytest.mark.parametrize("report", [progress, sync.progress], ids=["progress", "sync.progress"])
async def test_progress_works_inside_a_plain_step(store: TestStore, report: Callable[[float], None]) -> None:
    seen = threading.Event()

    def copy() -> str:
        report(40)
        assert seen.wait(20)
        return "copied"

    async with opened(store) as engine:
        app = make_app(engine)

        @app.task
        def task() -> str:
            return sync.step(copy)

        async with app.worker():
            handle = await task.submit()

            async def is_stored() -> bool:
                return (await handle.status()).progress_percent == 40

            await until(is_stored)
            seen.set()
            assert await handle == "copied"


async def test_reports_of_a_step_are_stored_at_most_once_a_pause_and_the_newest_wins(
    store: TestStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress_reports, "PAUSE_S", 0.2)
    stored: list[int] = []
    is_last_stored = asyncio.Event()

    async def count() -> None:
        for percent in range(100):
            progress(percent)
            await asyncio.sleep(0)
        await is_last_stored.wait()

    async with opened(store) as engine:
        app = make_app(engine)
        store_report = engine.leases.progress

        async def note(fence: Fence, percent: int, message: str | None) -> None:
            stored.append(percent)
            await store_report(fence, percent, message)
            if percent == 99:
                is_last_stored.set()

        monkeypatch.setattr(engine.leases, "progress", note)

        @app.task
        async def task() -> None:
            await step(count)

        async with app.worker():
            await task.run()
    assert stored[-1] == 99
    assert len(stored) <= 3, "more reports than pauses"


async def test_progress_outside_of_its_range_fails_the_step(store: TestStore) -> None:
    async def copy() -> str:
        with pytest.raises(InvalidRequest, match="percent must be between 0 and 100"):
            progress(101)
        return "refused"

    async with opened(store) as engine:
        app = make_app(engine)

        @app.task
        async def task() -> str:
            return await step(copy)

        async with app.worker():
            assert await task.run() == "refused"


@pytest.mark.parametrize("is_async", [True, False], ids=["async", "plain"])
@pytest.mark.parametrize("ending", ["return", "sleep", "approval"])
async def test_last_report_of_a_step_is_stored_when_the_run_ends(
    store: TestStore, monkeypatch: pytest.MonkeyPatch, ending: str, is_async: bool
) -> None:
    monkeypatch.setattr(progress_reports, "PAUSE_S", 60)

    def upload() -> None:
        progress(10, "starting")
        progress(100, "uploaded")

    async def upload_async() -> None:
        progress(10, "starting")
        await asyncio.sleep(0.05)
        progress(100, "uploaded")

    async with opened(store) as engine:
        app = make_app(engine)

        @app.task
        async def task() -> None:
            await step(upload_async if is_async else upload)
            if ending == "sleep":
                await sleep("1h")
            elif ending == "approval":
                await approval("go", by=["ann"])

        async with app.worker():
            handle = await task.submit()

            async def is_released() -> bool:
                status = await handle.status()
                return status.progress_percent is not None and status.state != "active"

            await until(is_released)
            status = await handle.status()
    assert (status.progress_percent, status.progress_message) == (100, "uploaded")
