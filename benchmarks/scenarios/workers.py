"""Workers: idle ones, what wake-ups cost, several processes of them, and their memory."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import Any

import asyncpg

from benchmarks.bars import BOTH, POSTGRES
from benchmarks.bench import ENGINE, SDK, Bench
from benchmarks.contenders import Answer, Contender
from benchmarks.cpu import resident_mb
from benchmarks.scenarios.jobs import single_rate
from benchmarks.tasks import tasks_on
from benchmarks.workers import worker_process
from flowfabric.engine import State, connect
from tests.idle_workers import StatementCount, idle_workers, start_latencies_ms

_CLIENTS = 16
_IDLE = 16
_SLOTS = 64
_SETTLED_S = 2.0
_CHUNK = 1_000
# More than any machine gets through in a second, so that nobody waits for work.
_PER_SECOND = 6_000


async def idle(bench: Bench) -> None:
    """The statements of 16 idle workers together, each with its duties and its place in the register."""
    opening = partial(connect, await bench.store(POSTGRES, "idle"))
    with StatementCount() as statements:
        async with idle_workers(opening, _IDLE) as started, opening() as client:
            await start_latencies_ms(client, started, 1, 0)
            await asyncio.sleep(_SETTLED_S)
            before, seconds = statements.number, 4 * bench.plan.seconds
            await asyncio.sleep(seconds)
            rate = (statements.number - before) / seconds
            found = await start_latencies_ms(client, started, min(25, bench.plan.starts), 0.05)
    bench.report.judge("B11", POSTGRES, bench.figure("16 idle workers", POSTGRES, ENGINE, "statements/s", rate))
    p50 = bench.figure("submit to start, 16 idle workers", POSTGRES, ENGINE, "ms p50", statistics.median(found))
    bench.report.judge("idle start", POSTGRES, p50)


async def wakeups(bench: Bench) -> None:
    """The throughput of 16 clients with wake-ups on, somebody listening, over that with wake-ups off."""
    opening = partial(connect, await bench.store(POSTGRES, "wakeups"))
    async with opening() as on, opening(notify=False) as off, _listening(opening):
        with_them = Contender(f"{ENGINE}, wake-ups", POSTGRES, partial(single_rate, bench, POSTGRES, on, _CLIENTS))
        without = Contender(f"{ENGINE}, none", POSTGRES, partial(single_rate, bench, POSTGRES, off, _CLIENTS))
        turns = await bench.in_turns([with_them, without])
    bench.show("16 callers, one job at a time each", "jobs/s", turns)
    ours, theirs = (turns.spread(item, lambda answer: answer.rate) for item in (with_them, without))
    assert ours is not None and theirs is not None, "neither is a peer"
    bench.report.judge("wake-ups", POSTGRES, ours.over(theirs))


async def processes(bench: Bench) -> None:
    """One, two and four worker processes on a backlog: never slower together, and nothing fails or is lost."""
    lost: list[float] = []
    numbers = (1, 2, 4)
    contenders = [
        Contender(f"{SDK}, {number} process{'es' * (number > 1)}", POSTGRES, partial(_worked_off, bench, number, lost))
        for number in numbers
    ]
    turns = await bench.in_turns(contenders, rounds=min(3, bench.plan.rounds))
    bench.show("worker processes", "jobs/s", turns)
    one, *more = (turns.spread(contender, lambda answer: answer.rate) for contender in contenders)
    for number, figure in zip(numbers[1:], more, strict=True):
        assert one is not None and figure is not None, "none is a peer"
        bench.report.judge(f"B13.{number}", POSTGRES, figure.over(one))
    errors = bench.figure("worker processes", POSTGRES, SDK, "failed or lost", sum(lost))
    bench.report.judge("B13.errors", POSTGRES, errors)


async def memory(bench: Bench) -> None:
    """The memory of a worker process: idle, after many executions, and with many that are suspended."""
    for backend in BOTH:
        store = await bench.store(backend, "memory")
        async with worker_process(store, _SLOTS) as worker, tasks_on(store) as tasks:
            await tasks.trivial.run(1)
            await asyncio.sleep(min(_SETTLED_S, bench.plan.seconds))
            idle_mb = resident_mb(worker.pid)
            if idle_mb is None:
                for key in ("B16.idle", "B16.executions", "B16.suspended"):
                    bench.report.leave_out(key, backend, "this system does not tell the memory of processes")
                continue
            for first in range(0, bench.plan.executions, _CHUNK):
                number = min(_CHUNK, bench.plan.executions - first)
                handles = await tasks.app.submit_many([tasks.trivial.call(1) for _ in range(number)])
                await asyncio.gather(*handles)
            worked_mb = resident_mb(worker.pid) or 0.0
            await _suspend(tasks.app, [tasks.waiting.call() for _ in range(bench.plan.suspended)])
            suspended_mb = resident_mb(worker.pid) or 0.0
        for key, what, mb in (
            ("B16.idle", "idle worker", idle_mb),
            ("B16.executions", f"gained by {bench.plan.executions:,} executions", worked_mb - idle_mb),
            ("B16.suspended", f"gained by {bench.plan.suspended:,} suspended", suspended_mb - worked_mb),
        ):
            bench.report.judge(key, backend, bench.figure(f"memory, {what}", backend, SDK, "MB", mb))


async def _suspend(app: Any, calls: list[Any]) -> None:
    """Submits, and waits until all are suspended."""
    for first in range(0, len(calls), _CHUNK):
        await app.submit_many(calls[first : first + _CHUNK])
    engine = await app.engine()
    async with asyncio.timeout(600):
        while True:
            found = (await engine.executions.count()).get(State.SUSPENDED)
            if found is not None and found.number >= len(calls):
                return
            await asyncio.sleep(0.2)


async def _worked_off(bench: Bench, number: int, lost: list[float], seconds: float) -> Answer:
    """A backlog worked off by so many processes for so many seconds, or until nothing is left."""
    name = f"processes_{number}_{time.monotonic_ns()}"
    store = await bench.store(POSTGRES, name)
    total = max(_CHUNK, round(_PER_SECOND * seconds))
    read = bench.server(POSTGRES)
    async with tasks_on(store) as tasks, AsyncExitStack() as stack:
        engine = await tasks.app.engine()
        await engine.lanes.pause("default")
        workers = [await stack.enter_async_context(worker_process(store, _SLOTS)) for _ in range(number)]
        for first in range(0, total - 1, _CHUNK):
            await tasks.app.submit_many([tasks.trivial.call(1) for _ in range(min(_CHUNK, total - 1 - first))])
        await engine.lanes.resume("default")
        began, before = time.perf_counter(), read()
        _ = await tasks.trivial.submit(1)  # Wakes those who have looked at the paused lane.
        await asyncio.sleep(seconds)
        found, after = [await worker.ask() for worker in workers], read()
        wall_s = time.perf_counter() - began
        done = sum(count for count, _ in found)
        if done >= total:
            wall_s = max(last for _, last in found) - began
        lost.append(total - await _completed(store))
    await bench.discard(POSTGRES, name)
    used_s = None if before is None or after is None else after - before
    return Answer(max(1, done), wall_s, server_s=used_s)


async def _completed(dsn: str) -> int:
    """How many completed, counted when none is left to be worked on."""
    connection = await asyncpg.connect(dsn)
    async with asyncio.timeout(300):
        while True:
            rows = await connection.fetch("SELECT state, count(*) AS number FROM flowfabric.execution GROUP BY state")
            counts = {State(row["state"]): int(row["number"]) for row in rows}
            if all(state.is_terminal for state in counts):
                await connection.close()
                return counts.get(State.COMPLETED, 0)
            await asyncio.sleep(0.1)


@asynccontextmanager
async def _listening(opening: Any) -> AsyncIterator[None]:
    """Somebody else who waits for events and for work that does not come."""
    async with opening() as engine:
        with engine.leases.watch(["elsewhere"]):
            yield
