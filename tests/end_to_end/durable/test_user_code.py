"""What ordinary Python around durable calls comes to: handlers, clean-up, timeouts, tasks, locks, generators."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest

from flowfabric import (
    App,
    ExecutionFailed,
    InvalidRequest,
    Signal,
    StepFailed,
    Unwind,
    gather,
    sleep,
    step,
    wait_signal,
)
from flowfabric.engine import State, StepStatus
from flowfabric.testing import Kit
from tests.end_to_end.durable.kits import statuses

go = Signal("go", int)


async def test_except_exception_around_a_wait_is_not_triggered(app: App, kit: Kit) -> None:
    @app.task
    async def task() -> str:
        try:
            await sleep("1h")
        except Exception:
            return "caught"
        return "slept"

    assert await kit.run(task) == "slept"


async def bare_except() -> str:
    try:
        await sleep("1h")
    except:  # noqa: E722
        return "swallowed"
    return "slept"


async def except_base_exception() -> str:
    try:
        await sleep("1h")
    except BaseException:
        return "swallowed"
    return "slept"


async def suppressed() -> str:
    slept = False
    with suppress(BaseException):
        await sleep("1h")
        slept = True
    return "slept" if slept else "swallowed"


async def return_in_finally() -> str:
    found = "swallowed"
    try:
        await sleep("1h")
        found = "slept"
    finally:
        return found  # noqa: B012


Swallows = Callable[[], Awaitable[str]]


@pytest.mark.parametrize("swallows", [bare_except, except_base_exception, suppressed, return_in_finally])
async def test_swallowing_the_unwinding_does_no_harm_and_is_warned_about(
    app: App, kit: Kit, swallows: Swallows, caplog: pytest.LogCaptureFixture
) -> None:
    done: list[str] = []

    @app.task
    async def careless() -> str:
        found = await swallows()
        await step(done.append, found)
        return found

    handle = await kit.start(careless)
    assert (await handle.status()).state is State.DELAYED

    assert await kit.finish(handle) == "slept"
    assert done == ["slept"]


@pytest.mark.parametrize("swallows", [bare_except, suppressed])
async def test_what_a_body_comes_to_that_swallowed_the_unwinding_is_discarded_with_a_warning(
    app: App, kit: Kit, swallows: Swallows, caplog: pytest.LogCaptureFixture
) -> None:
    @app.task
    async def careless() -> str:
        return await swallows()

    with caplog.at_level(logging.WARNING, "flowfabric"):
        handle = await kit.start(careless)

    assert "careless swallowed Unwind" in caplog.text
    assert await kit.finish(handle) == "slept"


async def test_gather_of_asyncio_with_return_exceptions_swallows_only_for_a_moment(app: App, kit: Kit) -> None:
    done: list[str] = []

    @app.task
    async def task() -> None:
        await asyncio.gather(step(str), return_exceptions=True)
        await sleep("1h")
        await asyncio.gather(step(done.append, "once"), return_exceptions=True)
        await step(str)

    await kit.run(task)

    assert done == ["once"]


async def test_code_that_swallows_for_ever_is_cut_off(app: App, kit: Kit, caplog: pytest.LogCaptureFixture) -> None:
    swallowed: list[str] = []

    @app.task
    async def stubborn() -> str:
        while True:
            try:
                await sleep("1h")
                return "slept"
            except BaseException:
                swallowed.append("once")

    with caplog.at_level(logging.ERROR, "flowfabric"):
        handle = await kit.start(stubborn)

    assert len(swallowed) == 101, "at the wait, and at a hundred calls after it"
    assert "stubborn swallows Unwind for ever and is dropped" in caplog.text
    assert (await handle.status()).state is State.DELAYED


async def test_finally_and_with_run_at_every_suspension(app: App, kit: Kit) -> None:
    seen: list[str] = []

    @asynccontextmanager
    async def client() -> AsyncIterator[None]:
        seen.append("open")
        try:
            yield
        finally:
            await asyncio.sleep(0)
            seen.append("close")

    @app.task
    async def task() -> None:
        try:
            async with client():
                await sleep("1h")
        finally:
            seen.append("finally")

    await kit.run(task)

    assert seen == ["open", "close", "finally"] * 2


async def test_clean_up_in_a_step_happens_once_at_the_real_end(app: App, kit: Kit) -> None:
    done: list[str] = []

    @app.task
    async def task() -> None:
        try:
            await sleep("1h")
            await sleep("1h")
        finally:
            await step(done.append, "released")

    await kit.run(task)

    assert done == ["released"]


async def test_a_timeout_of_asyncio_around_a_wait_ends_with_the_run(app: App, kit: Kit) -> None:
    @app.task
    async def task() -> str:
        async with asyncio.timeout(30):
            await sleep("1h")
        return "slept"

    assert await kit.run(task) == "slept"


async def test_wait_for_of_asyncio_around_a_wait_is_refused_where_it_makes_a_task(app: App, kit: Kit) -> None:
    @app.task
    async def task() -> str:
        await asyncio.wait_for(sleep("1h"), 30)
        return "slept"

    if sys.version_info >= (3, 12):
        assert await kit.run(task) == "slept"
        return
    with pytest.raises(ExecutionFailed, match="sleep waits, which an asyncio task of your own cannot"):
        await kit.run(task)


async def test_a_wait_in_a_raw_task_is_refused(app: App, kit: Kit) -> None:
    @app.task
    async def task() -> None:
        await asyncio.create_task(wait_signal(go))

    with pytest.raises(ExecutionFailed, match="signal:go waits, which an asyncio task of your own cannot"):
        await kit.run(task)


async def test_a_step_given_up_by_asyncio_is_abandoned_and_given_up_again_in_later_runs(app: App, kit: Kit) -> None:
    begun: list[str] = []
    seen: list[str] = []

    async def slow() -> None:
        begun.append("begun")
        await asyncio.Event().wait()

    @app.task
    async def task() -> str:
        try:
            async with asyncio.timeout(0.01):
                await step(slow)
        except TimeoutError:
            seen.append("given up")
        await sleep("1h")
        return await step(str, "went on")

    handle = await kit.start(task)

    assert await kit.finish(handle) == "went on"
    assert begun == ["begun"]
    assert seen == ["given up"] * 2
    assert (await statuses(kit, handle))["slow"] == StepStatus.ABANDONED


async def test_a_timeout_of_the_step_itself_is_recorded(app: App, kit: Kit) -> None:
    seen: list[bool] = []

    async def slow() -> None:
        await asyncio.Event().wait()

    @app.task
    async def task() -> None:
        try:
            await step.options(timeout=0.01, retries=0)(slow)
        except StepFailed as failed:
            seen.append(failed.caused_by(TimeoutError))
        await sleep("1h")

    handle = await kit.start(task)
    await kit.finish(handle)

    assert seen == [True, True]
    assert (await statuses(kit, handle))["slow"] == StepStatus.FAILED


async def in_gather(one: Any, two: Any) -> list[str]:
    return list(await asyncio.gather(one, two))


async def in_group(one: Any, two: Any) -> list[str]:
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(one), group.create_task(two)]
    return [task.result() for task in tasks]


async def in_tasks(one: Any, two: Any) -> list[str]:
    tasks = [asyncio.create_task(one), asyncio.create_task(two)]
    return [await task for task in reversed(tasks)][::-1]


@pytest.mark.parametrize("run", [in_gather, in_group, in_tasks])
async def test_steps_may_be_awaited_in_tasks_of_asyncio(
    app: App, kit: Kit, run: Callable[[Any, Any], Awaitable[list[str]]]
) -> None:
    done: list[str] = []

    def act(what: str) -> str:
        done.append(what)
        return what

    @app.task
    async def task() -> list[str]:
        found = await run(step(act, "a"), step(act, "b"))
        await sleep("1h")
        return found

    handle = await kit.start(task)

    assert await kit.finish(handle) == ["a", "b"]
    assert sorted(done) == ["a", "b"]
    assert sorted(await kit.steps(handle)) == ["act", "act#2", "sleep"]


async def test_durable_calls_made_in_tasks_of_asyncio_are_refused(app: App, kit: Kit) -> None:
    async def branch(what: str) -> str:
        return await step(str, what)

    @app.task
    async def task() -> None:
        await asyncio.gather(branch("a"), branch("b"))

    with pytest.raises(ExecutionFailed, match=r"give the coroutine to flowfabric\.gather, settle or race"):
        await kit.run(task)


async def test_the_durable_calls_of_a_raw_task_that_is_left_over_raise(app: App, kit: Kit) -> None:
    seen: list[str] = []
    left_over: list[asyncio.Task[None]] = []
    is_left = asyncio.Event()

    async def late(call: Awaitable[object]) -> None:
        await is_left.wait()
        try:
            await call
        except Unwind:
            seen.append("raised")

    @app.task
    async def task() -> None:
        left_over.append(asyncio.create_task(late(step(seen.append, "performed"))))
        await sleep("1h")

    _ = await kit.start(task)
    is_left.set()
    await asyncio.wait(left_over, timeout=5)

    assert seen == ["raised"]


async def test_a_lock_held_across_a_wait_works_but_keeps_the_slot(app: App, kit: Kit) -> None:
    seen: list[str] = []

    async def tell() -> None:
        await kit.engine.signals.send(handle.id, "go", b"1")

    async def holder(lock: asyncio.Lock) -> None:
        async with lock:
            seen.append("held")
            await wait_signal(go)
            seen.append("heard")

    async def other(lock: asyncio.Lock) -> None:
        await step(tell)
        async with lock:
            seen.append((await handle.status()).state.value)

    @app.task(signals=[go])
    async def task() -> None:
        lock = asyncio.Lock()
        await gather(holder(lock), other(lock))

    handle = await task.submit()
    await kit.finish(handle)

    assert seen == ["held", "heard", "active"]


async def test_durable_calls_work_in_an_async_generator(app: App, kit: Kit) -> None:
    async def numbers() -> AsyncIterator[int]:
        for number in range(3):
            yield await step(int, str(number))
            await sleep("1h")

    @app.task
    async def task() -> list[int]:
        return [number async for number in numbers()]

    handle = await kit.start(task)

    assert await kit.finish(handle) == [0, 1, 2]
    assert await kit.steps(handle) == ["int", "sleep", "int#2", "sleep#2", "int#3", "sleep#3"]


async def test_every_retry_around_a_step_is_a_call_of_its_own(app: App, kit: Kit) -> None:
    tried: list[str] = []

    def flaky() -> str:
        tried.append("once")
        if len(tried) < 3:
            raise ConnectionError("not yet")
        return "went well"

    @app.task
    async def task() -> str:
        for _ in range(5):
            try:
                return await step.options(retries=0)(flaky)
            except StepFailed:
                await sleep("1s")
        return "gave up"

    handle = await kit.start(task)

    assert await kit.finish(handle) == "went well"
    assert [path for path in await kit.steps(handle) if path != "sleep"] == ["flaky", "flaky#2", "sleep#2", "flaky#3"]


async def test_a_step_cannot_contain_durable_calls(app: App, kit: Kit) -> None:
    async def nested() -> None:
        await step(str)

    @app.task
    async def task() -> None:
        try:
            await step(nested)
        except StepFailed as failed:
            raise InvalidRequest("seen", failed.error.message) from failed

    with pytest.raises(ExecutionFailed, match="a step cannot contain durable calls; call the function directly"):
        await kit.run(task)
