"""Asyncio tasks, locks and generators around durable calls."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
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
from flowfabric.engine import State
from flowfabric.testing import Kit

go = Signal("go", int)


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
async def test_steps_may_be_awaited_in_asyncio_tasks(
    app: App, kit: Kit, run: Callable[[Any, Any], Awaitable[list[str]]]
) -> None:
    done: list[str] = []

    def act(what: str) -> str:
        done.append(what)
        return what

    @app.task
    async def task() -> list[str]:
        results = await run(step(act, "a"), step(act, "b"))
        await sleep("1h")
        return results

    handle = await kit.start(task)

    assert await kit.finish(handle) == ["a", "b"]
    assert sorted(done) == ["a", "b"]
    assert sorted(await kit.steps(handle)) == ["act", "act#2", "sleep"]


async def test_durable_calls_created_in_asyncio_tasks_are_rejected(app: App, kit: Kit) -> None:
    async def branch(what: str) -> str:
        return await step(str, what)

    @app.task
    async def task() -> None:
        await asyncio.gather(branch("a"), branch("b"))

    with pytest.raises(ExecutionFailed, match=r"pass the coroutine to flowfabric\.gather, settle or race"):
        await kit.run(task)


async def test_durable_calls_of_a_leftover_asyncio_task_raise(app: App, kit: Kit) -> None:
    seen: list[str] = []
    left_over: list[asyncio.Task[None]] = []
    run_ended = asyncio.Event()

    async def late(call: Awaitable[object]) -> None:
        await run_ended.wait()
        try:
            await call
        except Unwind:
            seen.append("raised")

    @app.task
    async def task() -> None:
        left_over.append(asyncio.create_task(late(step(seen.append, "ran"))))
        await sleep("1h")

    _ = await kit.start(task)
    run_ended.set()
    await asyncio.wait(left_over, timeout=5)

    assert seen == ["raised"]


async def test_lock_held_across_a_wait_keeps_the_slot(app: App, kit: Kit) -> None:
    seen: list[str] = []

    async def send_signal() -> None:
        await kit.engine.signals.send(handle.id, "go", b"1")

    async def holder(lock: asyncio.Lock) -> None:
        async with lock:
            seen.append("held")
            await wait_signal(go)
            seen.append("received")

    async def other(lock: asyncio.Lock) -> None:
        await step(send_signal)
        async with lock:
            seen.append((await handle.status()).state.value)

    @app.task(signals=[go])
    async def task() -> None:
        lock = asyncio.Lock()
        await gather(holder(lock), other(lock))

    handle = await task.submit()
    await kit.finish(handle)

    assert seen == ["held", "received", "active"]


class LogWaiter(logging.Handler):
    """Sets an event when a log message contains a text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.text = text
        self.logged = asyncio.Event()

    def emit(self, record: logging.LogRecord) -> None:
        if self.text in record.getMessage():
            self.logged.set()


async def test_lock_held_across_a_wait_logs_a_warning_after_a_lease_term(app: App, kit: Kit) -> None:
    @app.task(signals=[go])
    async def locked() -> str:
        lock = asyncio.Lock()

        async def branch() -> str:
            async with lock:
                return "received" if lock.locked() and (await wait_signal(go)).value else "not received"

        return ", ".join(await gather(branch(), branch()))

    log_waiter = LogWaiter("locked keeps its slot while gather[0]/signal:go waits; is a lock held across a wait?")
    logging.getLogger("flowfabric").addHandler(log_waiter)
    handle = await locked.submit()
    working = asyncio.create_task(kit.work())
    await asyncio.wait_for(log_waiter.logged.wait(), 20)
    await kit.engine.signals.send(handle.id, "go", b"1")
    await kit.engine.signals.send(handle.id, "go", b"1")
    await working
    logging.getLogger("flowfabric").removeHandler(log_waiter)

    assert await kit.finish(handle) == "received, received"


async def test_branch_that_abandoned_a_wait_counts_as_active(app: App, kit: Kit) -> None:
    states: list[State] = []
    wait_abandoned = asyncio.Event()

    async def read_states() -> None:
        states.extend([(await handle.status()).state for _ in range(10)])

    async def impatient() -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(0.01):
                await wait_signal(go)
        wait_abandoned.set()
        await step(read_states)

    async def other() -> None:
        await step(wait_abandoned.wait)
        await sleep("1h")

    @app.task(signals=[go])
    async def task() -> None:
        await gather(impatient(), other())

    handle = await task.submit()
    await kit.work()

    assert set(states) == {State.ACTIVE}


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


async def test_every_retry_around_a_step_is_a_separate_call(app: App, kit: Kit) -> None:
    tried: list[str] = []

    def flaky() -> str:
        tried.append("once")
        if len(tried) < 3:
            raise ConnectionError("not yet")
        return "succeeded"

    @app.task
    async def task() -> str:
        for _ in range(5):
            try:
                return await step.options(retries=0)(flaky)
            except StepFailed:
                await sleep("1s")
        return "exhausted"

    handle = await kit.start(task)

    assert await kit.finish(handle) == "succeeded"
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
