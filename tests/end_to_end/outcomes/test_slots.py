"""A waiting execution holds no slot, no thread and almost no memory."""

from __future__ import annotations

import asyncio
import gc
import resource
import sys
from dataclasses import dataclass
from pathlib import Path
from weakref import WeakSet

import pytest

from flowfabric import App, Received, Signal, gather, step, sync, wait_signal
from flowfabric.engine import Engine, State
from flowfabric.runtime.run import TaskRun
from flowfabric.testing import Kit
from flowfabric.worker.worker import Worker
from tests.sizes import Size

GO = Signal("go", int)
# The memory that one suspended execution may use. A leaked run would hold about a hundred blocks and many thousands of
# bytes. The limits are above zero because some ids stay in memory for a while.
MAX_BLOCKS_PER_SUSPENDED = 4
MAX_BYTES_PER_SUSPENDED = 2_000
# Extra memory that is allowed because a pool may open a connection at any time, and each connection has its caches.
BLOCKS_OF_CONNECTIONS = 4_000
BYTES_OF_CONNECTIONS = 4_000_000


def register_tasks(app: App, colour: str) -> None:
    """Register `waits`, which waits for a signal, and `works`, which does not."""

    @app.task(name="works")
    async def works(number: int) -> int:
        return 2 * number

    if colour == "async":

        @app.task(name="waits", signals=[GO])
        async def waits(number: int) -> int:
            match await wait_signal(GO):
                case Received(value=value):
                    return number + value

    else:

        @app.task(name="waits", signals=[GO])
        def waits_sync(number: int) -> int:
            match sync.wait_signal(GO):
                case Received(value=value):
                    return number + value


async def until_suspended(engine: Engine, number: int) -> None:
    """Wait until `number` executions are suspended."""

    async with asyncio.timeout(20 + number / 20):
        while await count_suspended(engine) != number:  # noqa: ASYNC110 - only the store knows
            await asyncio.sleep(0.05)


async def until_idle(worker: Worker) -> None:
    """Wait until no slot is in use, since a thread ends shortly after its execution is suspended."""

    async with asyncio.timeout(10):
        while worker.busy:  # noqa: ASYNC110 - the worker has no event for this
            await asyncio.sleep(0.01)


async def count_suspended(engine: Engine) -> int:
    """Return the number of suspended executions."""
    suspended_count = (await engine.executions.count()).get(State.SUSPENDED)
    return 0 if suspended_count is None else suspended_count.value


@pytest.mark.parametrize("colour", ["async", "sync"])
async def test_waiting_execution_holds_no_slot(real_app: App, real_engine: Engine, size: Size, colour: str) -> None:
    number = size.of(500, 10_000 if colour == "async" else 1_000, 10_000)
    register_tasks(real_app, colour)
    waits, works = real_app.tasks["waits"], real_app.tasks["works"]
    handles = await real_app.submit_many([waits.call(index) for index in range(number)])

    async with real_app.worker(concurrency=4) as worker:
        await until_suspended(real_engine, number)
        await until_idle(worker)
        others = await real_app.submit_many([works.call(index) for index in range(50)])
        assert [await other.result(timeout=60) for other in others] == [2 * index for index in range(50)]
        for index in (0, number // 2, number - 1):
            await handles[index].signal(GO, 1)
            assert await handles[index].result(timeout=60) == index + 1
    assert await count_suspended(real_engine) == number - 3


@dataclass(frozen=True)
class Memory:
    """The memory of the process: allocated blocks and resident bytes."""

    blocks: int
    resident: int

    @classmethod
    def now(cls) -> Memory:
        gc.collect()
        pages = int(Path("/proc/self/statm").read_text().split()[1]) if sys.platform == "linux" else 0
        return cls(sys.getallocatedblocks(), pages * resource.getpagesize())


def runs_in_memory() -> list[TaskRun]:
    """Return all runs in memory, including leftovers of other tests."""
    return [run for run in gc.get_objects() if isinstance(run, TaskRun)]


@pytest.mark.parametrize("colour", ["async", pytest.param("sync", marks=pytest.mark.long)])
async def test_suspended_executions_leave_nothing_in_memory(
    real_app: App, real_engine: Engine, size: Size, colour: str
) -> None:
    number = size.of(60, 2_500 if colour == "async" else 250, 2_500)
    register_tasks(real_app, colour)

    async def suspend_more(total: int) -> Memory:
        """Suspend more executions, `total` in all, and return the memory in use."""
        calls = [real_app.tasks["waits"].call(index) for index in range(number)]
        await real_app.submit_many(calls)
        await until_suspended(real_engine, total)
        await until_idle(worker)
        return Memory.now()

    others = WeakSet(runs_in_memory())
    async with real_app.worker(concurrency=16) as worker:
        # Pools and caches grow during the first rounds.
        warm = [await suspend_more(round_ * number) for round_ in (1, 2, 3)]
        last = await suspend_more(4 * number)
        # Only the most recent runs may still be in memory, because they have not quite ended.
        assert len([run for run in runs_in_memory() if run not in others]) <= 2 * 16
    assert last.blocks - warm[-1].blocks < BLOCKS_OF_CONNECTIONS + MAX_BLOCKS_PER_SUSPENDED * number
    assert last.resident - warm[-1].resident < BYTES_OF_CONNECTIONS + MAX_BYTES_PER_SUSPENDED * number


@pytest.mark.parametrize("colour", ["async", "sync"])
async def test_body_of_a_parent_of_a_hundred_children_runs_at_most_three_times(real_app: App, colour: str) -> None:
    bodies: list[str] = []

    @real_app.task
    async def square(number: int) -> int:
        return number * number

    @real_app.task
    async def parent() -> int:
        bodies.append("run")
        return sum(await gather(*(square.run(number) for number in range(100))))

    @real_app.task
    def plain_parent() -> int:
        bodies.append("run")
        handles = real_app.sync.submit_many([square.call(number) for number in range(100)])
        return sum(sync.gather(*(handle.result for handle in handles)))

    async with real_app.worker(concurrency=4):
        handle = await (parent if colour == "async" else plain_parent).submit()
        assert await handle.result(timeout=60) == sum(number * number for number in range(100))
    assert len(bodies) <= 3


async def test_ended_run_is_freed_without_garbage_collection(app: App, memory_kit: Kit) -> None:
    @app.task
    async def task() -> int:
        return await step(int, "7") + await step(int, "8")

    @app.task
    async def parent() -> tuple[int, int]:
        await step(str)
        return await gather(step(int, "7"), step(int, "8"))

    await memory_kit.run(task)
    gc.collect()
    others = WeakSet(runs_in_memory())
    gc.disable()
    try:
        await memory_kit.run(task)
        await memory_kit.run(parent)
        assert [run.task.name for run in runs_in_memory() if run not in others] == []
    finally:
        gc.enable()


async def test_workers_of_two_apps_on_one_store_run_only_their_own_kinds(real_app: App, real_engine: Engine) -> None:
    other_app, seen = App("never-opened.db"), list[str]()
    other_app.engines.adopt(real_engine)

    @real_app.task
    async def ours(number: int) -> str:
        seen.append(await step(str, "ours"))
        return f"ours {number}"

    @other_app.task
    async def theirs(number: int) -> str:
        seen.append(await step(str, "theirs"))
        return f"theirs {number}"

    async with real_app.worker(concurrency=2), other_app.worker(concurrency=2):
        handles = [*[await ours.submit(n) for n in range(3)], *[await theirs.submit(n) for n in range(3)]]
        results = [await handle.result(timeout=60) for handle in handles]
    assert results == [f"{name} {n}" for name in ("ours", "theirs") for n in range(3)]
    assert sorted(seen) == ["ours"] * 3 + ["theirs"] * 3
