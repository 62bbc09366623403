"""Ordinary Python code around durable calls: handlers, cleanup, timeouts, tasks and generators."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

import pytest

from flowfabric import (
    App,
    ExecutionFailed,
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
from tests.end_to_end.durable.kits import KitFactory, begin, statuses

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
    result = "swallowed"
    try:
        await sleep("1h")
        result = "slept"
    finally:
        return result  # noqa: B012


SwallowingBody = Callable[[], Awaitable[str]]


@pytest.mark.parametrize("body", [bare_except, except_base_exception, suppressed, return_in_finally])
async def test_swallowing_unwind_is_harmless_and_logs_a_warning(
    app: App, kit: Kit, body: SwallowingBody, caplog: pytest.LogCaptureFixture
) -> None:
    done: list[str] = []

    @app.task
    async def careless() -> str:
        result = await body()
        await step(done.append, result)
        return result

    with caplog.at_level(logging.WARNING, "flowfabric"):
        handle = await kit.start(careless)

    assert (await handle.status()).state is State.DELAYED
    assert caplog.text.count("careless swallowed Unwind") == 1
    assert await kit.finish(handle) == "slept"
    assert done == ["slept"]


async def test_cleanup_with_durable_calls_is_not_reported_as_swallowing(
    app: App, kit: Kit, caplog: pytest.LogCaptureFixture
) -> None:
    @app.task
    async def careful() -> str:
        try:
            await sleep("1h")
        finally:
            try:
                await step(str, "first")
            finally:
                await step(str, "second")
        return "slept"

    with caplog.at_level(logging.WARNING, "flowfabric"):
        assert await kit.run(careful) == "slept"

    assert "swallowed" not in caplog.text


@pytest.mark.parametrize("body", [bare_except, suppressed])
async def test_result_of_a_body_that_swallowed_unwind_is_discarded_with_a_warning(
    app: App, kit: Kit, body: SwallowingBody, caplog: pytest.LogCaptureFixture
) -> None:
    @app.task
    async def careless() -> str:
        return await body()

    with caplog.at_level(logging.WARNING, "flowfabric"):
        handle = await kit.start(careless)

    assert "careless swallowed Unwind" in caplog.text
    assert await kit.finish(handle) == "slept"


async def test_asyncio_gather_swallows_unwind_only_until_the_next_durable_call(app: App, kit: Kit) -> None:
    done, swallowed = list[str](), list[object]()

    async def first() -> str:
        if not swallowed:
            run.drain()
        return "first"

    @app.task
    async def task() -> list[str]:
        outcomes = await asyncio.gather(step(first), step(str, "second"), return_exceptions=True)
        swallowed.extend(outcome for outcome in outcomes if isinstance(outcome, BaseException))
        await step(done.append, "once")
        return [str(outcome) for outcome in outcomes]

    handle = await task.submit()
    run = await begin(kit)
    await run.run()

    assert {type(outcome) for outcome in swallowed} == {Unwind}
    assert done == []
    assert await kit.finish(handle) == ["first", "second"]
    assert done == ["once"]


async def test_code_that_swallows_unwind_forever_is_dropped(
    app: App, kit: Kit, caplog: pytest.LogCaptureFixture
) -> None:
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

    assert len(swallowed) == 100, "one warning at the wait and one at the later calls"
    assert "stubborn keeps swallowing Unwind and is abandoned" in caplog.text
    assert (await handle.status()).state is State.DELAYED


async def test_many_branches_that_unwind_together_are_not_reported_as_swallowing(
    app: App, new_kit: KitFactory, caplog: pytest.LogCaptureFixture
) -> None:
    @app.task
    async def child(number: int) -> int:
        return number

    @app.task
    async def parent() -> int:
        return sum(await gather(*(child.run(number) for number in range(120))))

    async with new_kit(app, replay="every record") as kit:
        async with asyncio.timeout(60):
            assert await kit.run(parent) == sum(range(120))
    assert "swallow" not in caplog.text


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


async def test_cleanup_in_a_step_runs_once_at_the_final_end(app: App, kit: Kit) -> None:
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


async def test_asyncio_timeout_around_a_wait_ends_with_the_run(app: App, kit: Kit) -> None:
    @app.task
    async def task() -> str:
        async with asyncio.timeout(30):
            await sleep("1h")
        return "slept"

    assert await kit.run(task) == "slept"


async def test_asyncio_wait_for_around_a_wait_is_rejected_if_it_creates_a_task(app: App, kit: Kit) -> None:
    @app.task
    async def task() -> str:
        await asyncio.wait_for(sleep("1h"), 30)
        return "slept"

    if sys.version_info >= (3, 12):
        assert await kit.run(task) == "slept"
        return
    with pytest.raises(ExecutionFailed, match="sleep waits, which your own asyncio task cannot do"):
        await kit.run(task)


async def test_wait_in_an_asyncio_task_is_rejected(app: App, kit: Kit) -> None:
    @app.task
    async def task() -> None:
        await asyncio.create_task(wait_signal(go))

    with pytest.raises(ExecutionFailed, match="signal:go waits, which your own asyncio task cannot do"):
        await kit.run(task)


async def test_step_that_asyncio_times_out_is_abandoned_in_every_run(app: App, kit: Kit) -> None:
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
            seen.append("abandoned")
        await sleep("1h")
        return await step(str, "continued")

    handle = await kit.start(task)

    assert await kit.finish(handle) == "continued"
    assert begun == ["begun"]
    assert seen == ["abandoned"] * 2
    assert (await statuses(kit, handle))["slow"] == StepStatus.ABANDONED


async def test_timeout_of_a_step_is_recorded(app: App, kit: Kit) -> None:
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
