"""Claims as the store fills: backlog, retained executions, routes, unroutable work, leases in flight."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from benchmarks.bars import BOTH, POSTGRES
from benchmarks.bench import ENGINE, SDK, Bench
from benchmarks.filling import Filler, postgres_filler, sqlite_filler
from benchmarks.spread import Spread
from benchmarks.tasks import Tasks, tasks_on
from flowfabric import Call
from flowfabric.engine import Engine, Submission, connect

_TIMES = 200
_FEW = 1_000
_UNROUTABLE = 10_000
_CLAIM = "ms p50"
_SETS = [f"tool-{number}" for number in range(10)]
_SLOTS = 256
_STARTS = 40
_REFILL = 100


@dataclass(frozen=True, slots=True)
class Routed:
    """How to create a job that requires a capability, and how to run a batch of such jobs."""

    who: str
    describe: Callable[[str], Any]
    perform: Callable[[list[Any]], Awaitable[object]]


@dataclass(frozen=True, slots=True)
class Store:
    """An engine on its own store, with the address of the store and the function that fills it."""

    engine: Engine
    address: str
    fill: Filler


async def backlog(bench: Bench) -> None:
    """Measure the median time of a claim with 1,000 waiting executions, and with very many.

    Measure the claim again after adding equally many retained executions. Measure the rate of a worker in the same way.
    The worker's 1,000 executions are in a separate store, because the rows that it leaves behind would slow the claims.
    """
    for backend in BOTH:
        async with AsyncExitStack() as stack:
            stores = []
            for name in ("small", "worked off", "large"):
                address = await bench.store(backend, name)
                engine = await stack.enter_async_context(connect(address))
                stores.append(_fillable(backend, engine, address))
            await _backlog(bench, backend, *stores)


async def routing(bench: Bench) -> None:
    """Measure batches of 100 on one route and on ten, and claims behind 10,000 unroutable executions."""
    for backend in BOTH:
        store = await bench.store(backend, "routing")
        async with connect(store) as engine:
            one, ten = await _routes_ms(bench, backend, Routed(ENGINE, _submission, partial(_cycle, engine)))
            bench.report.judge("B7.sets", backend, one.over(ten))
            clear, clogged = engine.for_namespace("clear"), engine.for_namespace("clogged")
            for other in (clear, clogged):
                await pile_up(other, _FEW + _TIMES * bench.plan.rounds)
            await pile_up(clogged, _UNROUTABLE, requires=["gpu"], priority=9000)
            before, behind = await claim_medians_ms(bench, clear, clogged)
            bench.figure("claim, nothing unroutable", backend, ENGINE, _CLAIM, *before.values)
            bench.figure("claim behind 10,000 unroutable", backend, ENGINE, _CLAIM, *behind.values)
            bench.report.judge("B7.unroutable", backend, before.over(behind))
        await _tasks_routed(bench, backend, store)


async def leases(bench: Bench) -> None:
    """Measure how long completing 200 executions takes, with few and with 10,000 other leases in flight.

    The measurements alternate between two stores.
    """
    for backend in BOTH:
        stores = [await bench.store(backend, name) for name in ("few leases", "many leases")]
        async with connect(stores[0]) as clear, connect(stores[1]) as crowded:
            await pile_up(crowded, 10_000)
            for _ in range(10):
                await crowded.leases.claim(["default"], "others", limit=1000, lease_ttl="1h")
            engines = clear, crowded
            rounds = [[await _complete_200_ms(engine) for engine in engines] for _ in range(bench.plan.rounds)]
        few, many = (Spread.of(medians) for medians in zip(*rounds, strict=True))
        bench.figure("complete of 200", backend, ENGINE, _CLAIM, *few.values)
        bench.figure("complete of 200, 10,000 leases in flight", backend, ENGINE, _CLAIM, *many.values)
        bench.report.judge("in flight", backend, many.over(few))


async def claim_medians_ms(bench: Bench, *engines: Engine) -> list[Spread]:
    """Return the median time of a claim on each store, in alternating rounds. Claimed executions are completed."""
    rounds = [await _claim_medians_ms(engines, _times(bench)) for _ in range(bench.plan.rounds)]
    return [Spread.of(medians) for medians in zip(*rounds, strict=True)]


async def pile_up(engine: Engine, number: int, requires: Sequence[str] = (), priority: int = 0) -> None:
    """Store the given number of waiting executions."""
    for first in range(0, number, 1000):
        size = min(1000, number - first)
        work = [Submission(kind="noop", requires=requires, priority=priority) for _ in range(size)]
        await engine.executions.submit_many(work)


def _fillable(backend: str, engine: Engine, address: str) -> Store:
    if backend == POSTGRES:
        return Store(engine, address, postgres_filler(engine, address, "flowfabric"))
    return Store(engine, address, sqlite_filler(engine, address))


async def _backlog(bench: Bench, backend: str, small: Store, worked_off: Store, large: Store) -> None:
    size = bench.plan.backlog
    for store in (small, worked_off):
        await store.fill("waiting", _FEW)
    await large.fill("waiting", size)
    for key, what, state in (
        ("B10.backlog", f"{size:,} waiting", None),
        ("B10.retained", f"{size:,} waiting and as many retained", "completed"),
    ):
        if state:
            await large.fill(state, size)
        rounds = []
        for _ in range(bench.plan.rounds):
            rounds.append(await _claim_medians_ms((small.engine, large.engine), _times(bench)))
            await small.fill("waiting", _times(bench))  # Every round claims the executions that it measures.
        few, many = (Spread.of(medians) for medians in zip(*rounds, strict=True))
        bench.figure("claim, 1,000 waiting", backend, ENGINE, _CLAIM, *few.values)
        bench.figure(f"claim, {what}", backend, ENGINE, _CLAIM, *many.values)
        bench.report.judge(key, backend, many.over(few))
        await _tasks_worked_off(bench, backend, (worked_off, "1,000 waiting"), (large, what))


async def _tasks_worked_off(bench: Bench, backend: str, *stores: tuple[Store, str]) -> None:
    """Return the rate of a worker on each store. The stores take turns."""
    rates: list[list[float]] = [[] for _ in stores]
    for _ in range(min(2, bench.plan.rounds)):
        for (store, _), kept in zip(stores, rates, strict=True):
            kept.append(await _worked_off_rate(store.address, bench.plan.brief_s))
    for (_, what), kept in zip(stores, rates, strict=True):
        bench.figure(f"worker, {what}", backend, SDK, "jobs/s", *kept)


async def _worked_off_rate(store: str, seconds: float) -> float:
    """Return the jobs per second of a worker on a lane that is refilled as it is emptied."""
    done, noted = 0, asyncio.Event()

    def note() -> None:
        nonlocal done
        done += 1
        noted.set()

    async with tasks_on(store, namespace="default", note=note) as tasks, asyncio.timeout(seconds + 60):
        async with tasks.app.worker(concurrency=_SLOTS):
            await noted.wait()
            began, first, filled = time.perf_counter(), done, 0
            while time.perf_counter() - began < seconds:
                await noted.wait()
                noted.clear()
                if done - filled >= _REFILL:
                    filled += await _submit(tasks, done - filled)
            rate = (done - first) / (time.perf_counter() - began)
        await _submit(tasks, done - filled)
    return rate


async def _submit(tasks: Tasks, number: int) -> int:
    await tasks.app.submit_many([tasks.trivial.call(1) for _ in range(number)])
    return number


async def _routes_ms(bench: Bench, backend: str, jobs: Routed) -> list[Spread]:
    """Return the median time of a batch on one route and on ten, in every round."""
    rounds = [await _route_medians_ms(bench, jobs) for _ in range(bench.plan.rounds)]
    one, ten = (Spread.of(medians) for medians in zip(*rounds, strict=True))
    bench.figure("100 jobs along one capability set", backend, jobs.who, _CLAIM, *one.values)
    bench.figure("100 jobs along ten capability sets", backend, jobs.who, _CLAIM, *ten.values)
    return [one, ten]


async def _route_medians_ms(bench: Bench, jobs: Routed) -> list[float]:
    times: dict[int, list[float]] = {1: [], 10: []}
    for _ in range(5 if bench.plan.is_quick else 15):
        for number, kept in times.items():
            work = [jobs.describe(_SETS[place % number]) for place in range(100)]
            began = time.perf_counter()
            await jobs.perform(work)
            kept.append(time.perf_counter() - began)
    return [statistics.median(kept) * 1000 for kept in times.values()]


def _submission(required: str) -> Submission:
    return Submission(kind="noop", payload=b"1", requires=[required])


async def _cycle(engine: Engine, work: list[Submission]) -> None:
    await engine.executions.submit_many(work)
    claimed = await engine.leases.claim(["default"], "bench", capabilities=_SETS, limit=len(work))
    await engine.leases.complete_many([(lease.fence, b"1") for lease in claimed])


async def _tasks_routed(bench: Bench, backend: str, store: str) -> None:
    """Measure batches of tasks from submit to result, and the start of one task behind 10,000 that need a missing
    capability.
    """
    async with tasks_on(store) as tasks, tasks.app.worker(concurrency=_SLOTS, capabilities=_SETS):
        requiring = {name: tasks.trivial.options(requires=[name]) for name in _SETS}

        async def perform(calls: list[Call[int]]) -> None:
            await asyncio.gather(*await tasks.app.submit_many(calls))

        await _routes_ms(bench, backend, Routed(SDK, lambda name: requiring[name].call(1), perform))
    async with _working(store, "clear tasks") as clear, _working(store, "clogged tasks") as clogged:
        unroutable = clogged.trivial.options(requires=["gpu"], priority=9000)
        for _ in range(0, _UNROUTABLE, _FEW):
            await clogged.app.submit_many([unroutable.call(1) for _ in range(_FEW)])
        rounds = [await _start_medians_ms(bench, clear, clogged) for _ in range(bench.plan.rounds)]
    before, behind = zip(*rounds, strict=True)
    bench.figure("submit to start, nothing unroutable", backend, SDK, _CLAIM, *before)
    bench.figure("submit to start behind 10,000 unroutable", backend, SDK, _CLAIM, *behind)


async def _start_medians_ms(bench: Bench, *apps: Tasks) -> list[float]:
    times: list[list[float]] = [[] for _ in apps]
    for _ in range(min(_STARTS, bench.plan.starts)):
        for tasks, kept in zip(apps, times, strict=True):
            began = time.perf_counter()
            kept.append(await tasks.when.run() - began)
    return [statistics.median(kept) * 1000 for kept in times]


@asynccontextmanager
async def _working(store: str, namespace: str) -> AsyncIterator[Tasks]:
    async with tasks_on(store, namespace=namespace) as tasks, tasks.app.worker(concurrency=_SLOTS):
        yield tasks


def _times(bench: Bench) -> int:
    return 20 if bench.plan.is_quick else _TIMES


async def _claim_medians_ms(engines: Sequence[Engine], number: int) -> list[float]:
    times: list[list[float]] = [[] for _ in engines]
    for _ in range(number):
        for engine, kept in zip(engines, times, strict=True):
            began = time.perf_counter()
            [lease] = await engine.leases.claim(["default"], "bench")
            kept.append(time.perf_counter() - began)
            await engine.leases.complete(lease.fence, b"1")
    return [statistics.median(kept) * 1000 for kept in times]


async def _complete_200_ms(engine: Engine) -> float:
    times = []
    for _ in range(9):
        await engine.executions.submit_many([Submission(kind="noop") for _ in range(200)])
        claimed = await engine.leases.claim(["default"], "bench", limit=200)
        began = time.perf_counter()
        await engine.leases.complete_many([(lease.fence, b"1") for lease in claimed])
        times.append(time.perf_counter() - began)
    return statistics.median(times) * 1000
