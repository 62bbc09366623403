"""Counters that are the same on every machine: WAL, index entries and pages of the work, and statements in series."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import astuple
from functools import partial

import asyncpg

from benchmarks.bars import BARS, POSTGRES
from benchmarks.bench import ENGINE, SDK, Bench
from benchmarks.counting import ClaimCounter, Counts, NotCountable, Series, Work, count_work
from benchmarks.scenarios.jobs import ABREAST, BATCH, cycle
from benchmarks.spread import Spread
from benchmarks.tasks import Tasks, tasks_on
from flowfabric import Handle
from flowfabric.core.executions.states import State
from flowfabric.engine import Engine, connect

_SLOTS = 256
_JOBS = 500
_STEPPED = 100
_WAITING = 40
_CHAINS = 64
_LENGTH = 10
_TIMES = 15
_UNITS = ("bytes of WAL", "WAL records", "index entries", "pages")
_PAGED = 200_000
_FIRST = 2_000


async def counters(bench: Bench) -> None:
    """Count WAL, index entries, pages and statements in series of jobs, steps, waits and members of chains."""
    try:
        await _count_work(bench)
        await _count_series(bench)
        await _count_claim_pages(bench)
    except NotCountable as error:
        for bar in BARS:
            if bar.is_counter:
                bench.report.leave_out(bar.key, POSTGRES, f"the server cannot count: {error}")


async def counts_of_work(store: str) -> dict[str, Counts]:
    """Return the counts of one job, one step, one waiting task and one member of a chain, on an empty store."""
    async with _working(store) as tasks:
        work = _Work(tasks)
        await asyncio.gather(work.job(), work.stepped(), work.wait(), work.chain(_LENGTH))
        job = (await count_work(store, partial(_together, work.job, _JOBS))).per(_JOBS)
        stepped = (await count_work(store, partial(_together, work.stepped, _STEPPED))).per(_STEPPED)
        wait = (await count_work(store, partial(work.waits, _WAITING))).per(_WAITING)
        chain = (await count_work(store, partial(_together, partial(work.chain, _LENGTH), _CHAINS))).per(_CHAINS)
    return {"job": job, "step": stepped.minus(job).per(_LENGTH), "wait": wait, "member": chain.per(_LENGTH)}


async def statements_in_series(store: str, times: int = _TIMES) -> dict[str, float]:
    """Return how many statements a job, the result after a signal, and a member of a chain wait for."""
    with Series() as series:
        async with _working(store) as tasks:
            work = _Work(tasks)
            await asyncio.gather(*(one() for one in (work.job, work.wait, partial(work.chain, _LENGTH)) * 20))
            job = await series.median(_ready(work.job), times)
            wait = await series.median(work.suspended, times)
            long = await series.median(_ready(partial(work.chain, _LENGTH)), times)
            short = await series.median(_ready(partial(work.chain, _LENGTH // 2)), times)
    return {"job": job, "wait": wait, "member": (long - short) / (_LENGTH - _LENGTH // 2)}


async def _count_work(bench: Bench) -> None:
    for name, counts in (await counts_of_work(await bench.store(POSTGRES, "counters"))).items():
        figures = [
            bench.figure(f"counters of one {name}", POSTGRES, SDK, unit, value)
            for unit, value in zip(_UNITS, astuple(counts), strict=True)
        ]
        bench.report.judge(f"B3.wal.{name}", POSTGRES, figures[0])


async def _count_series(bench: Bench) -> None:
    for name, number in (await statements_in_series(await bench.store(POSTGRES, "series"))).items():
        figure = bench.figure(f"counters of one {name}", POSTGRES, SDK, "statements in series", number)
        bench.report.judge(f"B3.trips.{name}", POSTGRES, figure)


async def _count_claim_pages(bench: Bench) -> None:
    """Compare the pages that a claimed row costs late in a long run with those near its begin."""
    first, last = await claim_pages(await bench.store(POSTGRES, "claim pages"), bench.plan.paged)
    bench.figure("claims of a long run", POSTGRES, ENGINE, "pages per row at the begin", first)
    bench.figure("claims of a long run", POSTGRES, ENGINE, f"pages per row after {bench.plan.paged:,}", last)
    figure = Spread.of([last / first])
    if bench.plan.paged >= _PAGED:
        bench.report.judge("B15.pages", POSTGRES, figure)
    else:
        bench.report.leave_out("B15.pages", POSTGRES, f"{bench.plan.paged:,} jobs only", figure)


async def claim_pages(store: str, jobs: int) -> tuple[float, float]:
    """Return the pages per claimed row after 2,000 jobs and after `jobs`, without visits of autovacuum."""
    async with connect(store) as engine, engine.reconcilers.run_in_background():
        connection = await asyncpg.connect(store)
        try:
            # Autovacuum visits a database once a minute. Whether it does so in this run is a matter of chance.
            await connection.execute("ALTER TABLE flowfabric.execution SET (autovacuum_enabled = off)")
            claims = await ClaimCounter.on(connection)
            await _work_off(engine, _FIRST)
            before = await claims.read()
            await _work_off(engine, _FIRST)
            first = (await claims.read()).per_row_since(before)
            await _work_off(engine, jobs - 3 * _FIRST)
            before = await claims.read()
            await _work_off(engine, _FIRST)
            last = (await claims.read()).per_row_since(before)
        finally:
            await connection.close()
    return first, last


async def _work_off(engine: Engine, jobs: int) -> None:
    left = jobs

    async def lane() -> None:
        nonlocal left
        while left > 0:
            left -= BATCH
            await cycle(engine, BATCH)

    await asyncio.gather(*(lane() for _ in range(ABREAST)))


class _Work:
    """The kinds of work that are counted, on the tasks of an app."""

    def __init__(self, tasks: Tasks) -> None:
        self._tasks = tasks

    async def job(self) -> None:
        """Run one trivial task."""
        await self._tasks.trivial.run(1)

    async def stepped(self) -> None:
        """Run one task with ten steps."""
        await self._tasks.ten_steps.run(1)

    async def wait(self) -> None:
        """Run one task that receives its signal soon after the submit."""
        handle = await self._tasks.waiting.submit()
        await self._signal(handle)

    async def waits(self, number: int) -> None:
        """Run tasks one after another, each of which is suspended before its signal arrives.

        With several in flight, the counts would depend on how many signals arrive before their task is suspended.
        """
        for _ in range(number):
            await (await self.suspended())()

    async def chain(self, length: int) -> None:
        """Run a flow of tasks, each of which takes the result of the previous one."""
        flow = self._tasks.app.flow("chain")
        node = flow.add(self._tasks.trivial, 1)
        for _ in range(length - 1):
            node = flow.add(self._tasks.trivial, node.result)
        await (await flow.submit())[node]

    async def suspended(self) -> Work:
        """Submit a task, wait until it is suspended, and return the work from its signal to its result."""
        handle = await self._tasks.waiting.submit()
        while (await handle.status()).state is not State.SUSPENDED:  # noqa: ASYNC110 - the counting starts after this
            await asyncio.sleep(0.002)
        return partial(self._signal, handle)

    async def _signal(self, handle: Handle[int]) -> None:
        await handle.signal(self._tasks.go, 1)
        await handle


def _ready(work: Work) -> Callable[[], Awaitable[Work]]:
    """Return a preparation that has nothing to prepare."""

    async def prepare() -> Work:
        return work

    return prepare


async def _together(work: Work, number: int) -> None:
    await asyncio.gather(*(work() for _ in range(number)))


@asynccontextmanager
async def _working(store: str) -> AsyncIterator[Tasks]:
    async with tasks_on(store) as tasks, tasks.app.worker(concurrency=_SLOTS):
        yield tasks
