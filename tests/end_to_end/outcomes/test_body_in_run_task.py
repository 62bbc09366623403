"""In a worker, the body of an async task runs in the asyncio task of its run."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from threading import Thread
from typing import Any

import pytest

from flowfabric import App, ExecutionFailed, sleep, step
from flowfabric.engine import State
from flowfabric.runtime.branch import RunTask
from flowfabric.testing import Kit
from tests.end_to_end.durable.kits import begin, statuses


async def test_worker_frees_the_slot_of_a_body_that_swallows_every_unwind(
    real_app: App, caplog: pytest.LogCaptureFixture
) -> None:
    @real_app.task
    async def stubborn() -> None:
        while True:
            try:
                await sleep("1h")
            except BaseException:
                continue

    @real_app.task
    async def simple() -> str:
        return "done"

    with caplog.at_level(logging.ERROR, "flowfabric"):
        async with real_app.worker(concurrency=1) as worker:
            handle = await stubborn.submit()
            assert await asyncio.wait_for(simple.run(), 20) == "done"
            assert (await handle.status()).state is State.DELAYED
            assert worker.busy == 0
    assert "stubborn keeps swallowing Unwind and is abandoned" in caplog.text


async def test_cancelled_run_raises_even_if_its_body_swallows_the_cancel(app: App, kit: Kit) -> None:
    begun, seen = asyncio.Event(), list[str]()

    def work() -> None:
        seen.append("work")

    @app.task
    async def task() -> str:
        try:
            begun.set()
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            seen.append("CancelledError")
        await step(work)
        return "never"

    handle = await task.submit()
    running = await start(kit)
    await begun.wait()
    running.cancel_run()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert seen == ["CancelledError"]
    assert (await handle.status()).state is State.ACTIVE
    assert await statuses(kit, handle) == {}


@pytest.mark.parametrize("awaits", [True, False], ids=["then awaits", "then returns"])
async def test_body_that_cancels_its_own_task_fails_like_any_other(app: App, kit: Kit, awaits: bool) -> None:
    @app.task(retries=0)
    async def task() -> str:
        own = asyncio.current_task()
        assert own is not None
        own.cancel()
        if awaits:
            await asyncio.sleep(0)
        return "never"

    handle = await task.submit()
    await (await start(kit))
    with pytest.raises(ExecutionFailed, match="cancelled by its own code"):
        await handle.result(timeout=5)


async def test_timeout_inside_a_body_does_not_end_its_run(app: App, kit: Kit) -> None:
    @app.task
    async def task() -> str:
        try:
            async with asyncio.timeout(0.01):
                await asyncio.Event().wait()
        except TimeoutError:
            return "timed out"
        return "never"

    handle = await task.submit()
    await (await start(kit))
    assert await handle.result(timeout=5) == "timed out"


async def test_cancel_from_another_thread_reaches_only_the_body(real_app: App) -> None:
    runs: list[int] = []

    @real_app.task
    async def task() -> str:
        runs.append(1)
        loop, own = asyncio.get_running_loop(), asyncio.current_task()
        assert own is not None
        Thread(target=lambda: loop.call_soon_threadsafe(own.cancel)).start()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            own.uncancel()
        return "continued"

    async with real_app.worker():
        assert await asyncio.wait_for(task.run(), 20) == "continued"
    assert runs == [1]


async def test_timeout_that_code_outside_the_run_moves_does_not_end_the_run(real_app: App) -> None:
    limits: asyncio.Queue[asyncio.Timeout] = asyncio.Queue()
    runs: list[int] = []

    async def end_next_limit() -> None:
        limit = await limits.get()
        limit.reschedule(asyncio.get_running_loop().time())

    async def call() -> str:
        runs.append(1)
        try:
            async with asyncio.timeout(60) as limit:
                limits.put_nowait(limit)
                await asyncio.Event().wait()
        except TimeoutError:
            return "timed out"
        return "never"

    @real_app.task
    async def task() -> str:
        return await call()

    watching = asyncio.create_task(end_next_limit())
    async with real_app.worker():
        assert await asyncio.wait_for(task.run(), 20) == "timed out"
    await watching
    assert runs == [1]


async def start(kit: Kit) -> RunTask:
    """Run the oldest runnable execution in an asyncio task, as a worker does."""
    run = await begin(kit)

    async def work() -> None:
        await run.run()

    def take_over(rest: Coroutine[Any, Any, bool]) -> None:
        raise AssertionError("no body of these tests is cut off")

    return RunTask(work(), asyncio.get_running_loop(), take_over)
