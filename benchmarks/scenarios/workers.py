"""Workers: idle workers, the cost of wake-ups, several processes, and memory."""

from __future__ import annotations

import asyncio
import sqlite3
import statistics
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, closing
from dataclasses import dataclass
from functools import partial
from typing import Any

import asyncpg

from benchmarks.bars import BOTH, POSTGRES, SQLITE
from benchmarks.bench import ENGINE, SDK, Bench
from benchmarks.contenders import Answer, Contender
from benchmarks.cpu import Stopwatch, resident_mb
from benchmarks.scenarios.jobs import single_rate
from benchmarks.spread import Spread
from benchmarks.tasks import tasks_on
from benchmarks.workers import AT_ENGINE, TASKS, worker_process
from flowfabric.engine import State, connect
from tests.idle_workers import StatementCount, idle_workers, start_latencies_ms

_CLIENTS = 16
_IDLE = 16
_SLOTS = 64
_SETTLED_S = 2.0
# PostgreSQL runs few statements when idle. On SQLite the file is polled often.
_TURNS_AT_REST = {POSTGRES: 4, SQLITE: 1}
_CHUNK = 1_000
# More executions than any machine completes in a second, so that no worker waits for work.
_PER_SECOND = 6_000
_PROCESSES = (1, 2, 4)


@dataclass(frozen=True, slots=True)
class _Crew:
    """A number of worker processes on a backend, running tasks or working at the engine."""

    backend: str
    level: str
    number: int

    @property
    def who(self) -> str:
        return SDK if self.level == TASKS else ENGINE

    @property
    def name(self) -> str:
        return f"{self.who}, {self.number} process{'es' * (self.number > 1)}"


async def idle(bench: Bench) -> None:
    """Measure the statements and the CPU of 16 idle workers, each with its duties and its registration."""
    for backend in BOTH:
        store = await bench.store(backend, "idle")
        rate, p50 = await _idle_engines(bench, backend, store)
        if backend == POSTGRES:
            bench.report.judge("B11", POSTGRES, rate)
            bench.report.judge("idle start", POSTGRES, p50)
        await _idle_apps(bench, backend, store)


async def wakeups(bench: Bench) -> None:
    """Measure the throughput of 16 clients with wake-ups and a listener, divided by that without wake-ups."""
    for backend in BOTH:
        opening = partial(connect, await bench.store(backend, "wakeups"))
        async with opening() as on, opening(notify=False) as off, _listening(opening):
            with_them = Contender(f"{ENGINE}, wake-ups", backend, partial(single_rate, bench, backend, on, _CLIENTS))
            without = Contender(f"{ENGINE}, none", backend, partial(single_rate, bench, backend, off, _CLIENTS))
            measure = bench.in_turns if backend == POSTGRES else bench.briefly
            turns = await measure([with_them, without])
        bench.show("16 callers, one job at a time each", "jobs/s", turns)
        ours, theirs = (turns.spread(item, lambda answer: answer.rate) for item in (with_them, without))
        assert ours is not None and theirs is not None, "only a peer may fail, and both contenders are ours"
        if backend == POSTGRES:
            bench.report.judge("wake-ups", POSTGRES, ours.over(theirs))


async def processes(bench: Bench) -> None:
    """Run one, two and four worker processes on a backlog.

    More processes must not be slower, and no execution may fail or be lost.
    """
    crews = [_Crew(POSTGRES, TASKS, number) for number in _PROCESSES]
    figures, lost = await _by_turns(bench, crews, bench.plan.seconds, min(3, bench.plan.rounds))
    for number in _PROCESSES[1:]:
        bench.report.judge(f"B13.{number}", POSTGRES, figures[number].over(figures[1]))
    bench.report.judge("B13.errors", POSTGRES, lost)
    for backend, level in ((POSTGRES, AT_ENGINE), (SQLITE, TASKS), (SQLITE, AT_ENGINE)):
        crews = [_Crew(backend, level, number) for number in ((2,) if bench.plan.is_quick else _PROCESSES)]
        await _by_turns(bench, crews, bench.plan.brief_s, 1)


async def memory(bench: Bench) -> None:
    """Measure the memory of a worker process: idle, after many executions, and with many suspended ones."""
    for backend in BOTH:
        store = await bench.store(backend, "memory")
        async with worker_process(store, _SLOTS) as worker, tasks_on(store) as tasks:
            await tasks.trivial.run(1)
            await asyncio.sleep(min(_SETTLED_S, bench.plan.seconds))
            idle_mb = resident_mb(worker.pid)
            if idle_mb is None:
                for key in ("B16.idle", "B16.executions", "B16.suspended"):
                    bench.report.leave_out(key, backend, "this system does not report the memory of processes")
                continue
            for first in range(0, bench.plan.executions, _CHUNK):
                number = min(_CHUNK, bench.plan.executions - first)
                # Of ten executions, two run as a parent and its child.
                parents = number // 10
                calls = [tasks.parent.call(1) for _ in range(parents)]
                calls += [tasks.trivial.call(1) for _ in range(number - 2 * parents)]
                await asyncio.gather(*await tasks.app.submit_many(calls))
            worked_mb = resident_mb(worker.pid) or 0.0
            await _suspend(tasks.app, [tasks.waiting.call() for _ in range(bench.plan.suspended)])
            suspended_mb = resident_mb(worker.pid) or 0.0
        for key, what, mb in (
            ("B16.idle", "idle worker", idle_mb),
            ("B16.executions", f"gained by {bench.plan.executions:,} executions", worked_mb - idle_mb),
            ("B16.suspended", f"gained by {bench.plan.suspended:,} suspended", suspended_mb - worked_mb),
        ):
            bench.report.judge(key, backend, bench.figure(f"memory, {what}", backend, SDK, "MB", mb))


async def _idle_engines(bench: Bench, backend: str, store: str) -> tuple[Spread, Spread]:
    """Return the statements per second of idle engines, and how soon one of them starts a submitted execution."""
    opening = partial(connect, store)
    with StatementCount() as statements:
        async with idle_workers(opening, _IDLE) as started, opening() as client:
            await start_latencies_ms(client, started, 1, 0)
            rate = await _at_rest(bench, backend, ENGINE, statements)
            found = await start_latencies_ms(client, started, min(25, bench.plan.starts), 0.05)
    p50 = bench.figure("submit to start, 16 idle workers", backend, ENGINE, "ms p50", statistics.median(found))
    return rate, p50


async def _idle_apps(bench: Bench, backend: str, store: str) -> None:
    """Return the statements per second of 16 idle apps with a worker each, and how soon one of them starts a task."""
    found = []
    with StatementCount() as statements:
        async with AsyncExitStack() as stack:
            for _ in range(_IDLE):
                tasks = await stack.enter_async_context(tasks_on(store))
                await stack.enter_async_context(tasks.app.worker(concurrency=_SLOTS))
            client = await stack.enter_async_context(tasks_on(store))
            await client.when.run()
            await _at_rest(bench, backend, SDK, statements)
            for _ in range(min(25, bench.plan.starts)):
                await asyncio.sleep(0.05)
                began = time.perf_counter()
                found.append((await client.when.run() - began) * 1000)
    bench.figure("submit to start, 16 idle workers", backend, SDK, "ms p50", statistics.median(found))


async def _at_rest(bench: Bench, backend: str, who: str, statements: StatementCount) -> Spread:
    """Return the statements per second while idle, and report the CPU of this process, which runs all workers."""
    await asyncio.sleep(min(_SETTLED_S, bench.plan.seconds))
    before, watch, seconds = statements.number, Stopwatch(), _TURNS_AT_REST[backend] * bench.plan.seconds
    await asyncio.sleep(seconds)
    found, used_s = statements.number - before, watch.cpu_s
    bench.figure("16 idle workers", backend, who, "ms of CPU/s", used_s * 1000 / seconds)
    return bench.figure("16 idle workers", backend, who, "statements/s", found / seconds)


async def _suspend(app: Any, calls: list[Any]) -> None:
    """Submit tasks and wait until all are suspended."""
    for first in range(0, len(calls), _CHUNK):
        await app.submit_many(calls[first : first + _CHUNK])
    engine = await app.engine()
    async with asyncio.timeout(600):
        while True:
            found = (await engine.executions.count()).get(State.SUSPENDED)
            if found is not None and found.value >= len(calls):
                return
            await asyncio.sleep(0.2)


async def _by_turns(bench: Bench, crews: list[_Crew], seconds: float, rounds: int) -> tuple[dict[int, Spread], Spread]:
    """Return the rates by number of processes, and how many executions failed or were lost."""
    lost: list[float] = []
    contenders = [Contender(crew.name, crew.backend, partial(_worked_off, bench, crew, lost)) for crew in crews]
    turns = await bench.in_turns(contenders, seconds=seconds, rounds=rounds)
    bench.show("worker processes", "jobs/s", turns)
    rates = (Spread.of(answer.rate for answer in answers) for answers in turns.answers.values())
    errors = bench.figure("worker processes", crews[0].backend, crews[0].who, "failed or lost", sum(lost))
    return {crew.number: rate for crew, rate in zip(crews, rates, strict=True)}, errors


async def _worked_off(bench: Bench, crew: _Crew, lost: list[float], seconds: float) -> Answer:
    """Let the processes work on a backlog until the time is over or the backlog is empty."""
    name = f"processes_{crew.number}_{time.monotonic_ns()}"
    store = await bench.store(crew.backend, name)
    total = max(_CHUNK, round(_PER_SECOND * seconds))
    read = bench.server(crew.backend)
    async with tasks_on(store) as tasks, AsyncExitStack() as stack:
        engine = await tasks.app.engine()
        await engine.lanes.pause("default")
        starting = (worker_process(store, _SLOTS, crew.level) for _ in range(crew.number))
        workers = [await stack.enter_async_context(worker) for worker in starting]
        for first in range(0, total - 1, _CHUNK):
            await tasks.app.submit_many([tasks.trivial.call(1) for _ in range(min(_CHUNK, total - 1 - first))])
        await engine.lanes.resume("default")
        began, before = time.perf_counter(), read()
        _ = await tasks.trivial.submit(1)  # This wakes the workers that found the lane paused.
        await asyncio.sleep(seconds)
        found, after = [await worker.ask() for worker in workers], read()
        wall_s = time.perf_counter() - began
        done = sum(count for count, _ in found)
        if done >= total:
            wall_s = max(last for _, last in found) - began
        lost.append(total - await _completed(store))
    await bench.discard(crew.backend, name)
    used_s = None if before is None or after is None else after - before
    return Answer(max(1, done), wall_s, server_s=used_s)


async def _completed(store: str) -> int:
    """Wait until no execution is active, and return the number of completed executions."""
    async with asyncio.timeout(300):
        while True:
            counts = await _counts(store)
            if all(state.is_terminal for state in counts):
                return counts.get(State.COMPLETED, 0)
            await asyncio.sleep(0.1)


async def _counts(store: str) -> dict[State, int]:
    """Return the number of executions in each state."""
    if store.startswith("postgres"):
        connection = await asyncpg.connect(store)
        rows = await connection.fetch("SELECT state, count(*) FROM flowfabric.execution GROUP BY state")
        await connection.close()
    else:
        with closing(sqlite3.connect(store)) as file:
            rows = file.execute("SELECT state, count(*) FROM ff_execution GROUP BY state").fetchall()
    return {State(state): number for state, number in rows}


@asynccontextmanager
async def _listening(opening: Any) -> AsyncIterator[None]:
    """Run an engine that waits for events and for work that never comes."""
    async with opening() as engine:
        with engine.leases.watch(["elsewhere"]):
            yield
