"""How claims behave as the store fills: backlog, retained executions, routes, unroutable work, leases in flight."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.bars import BOTH, POSTGRES
from benchmarks.bench import ENGINE, Bench
from benchmarks.filling import Filler, postgres_filler, sqlite_filler
from benchmarks.spread import Spread
from flowfabric.engine import Engine, Submission, connect

_TIMES = 200
_FEW = 1_000
_UNROUTABLE = 10_000
_CLAIM = "ms p50"


@dataclass(frozen=True, slots=True)
class Store:
    """An engine on a store of its own, and how to fill that store."""

    engine: Engine
    fill: Filler


async def backlog(bench: Bench) -> None:
    """A claim's median where 1,000 executions wait, and where very many do; then with as many retained beside them."""
    for backend in BOTH:
        names = [await bench.store(backend, name) for name in ("small", "large")]
        async with connect(names[0]) as few, connect(names[1]) as many:
            small, large = (_fillable(backend, *pair) for pair in ((few, names[0]), (many, names[1])))
            await _backlog(bench, backend, small, large)


async def routing(bench: Bench) -> None:
    """Batches of 100 that wait along one route and along ten; claims behind 10,000 that this worker cannot take."""
    for backend in BOTH:
        async with connect(await bench.store(backend, "routing")) as engine:
            rounds = [await _routes_ms(bench, engine) for _ in range(bench.plan.rounds)]
            one, ten = (Spread.of(medians) for medians in zip(*rounds, strict=True))
            bench.figure("100 jobs along one capability set", backend, ENGINE, _CLAIM, *one.values)
            bench.figure("100 jobs along ten capability sets", backend, ENGINE, _CLAIM, *ten.values)
            bench.report.judge("B7.sets", backend, one.over(ten))
            clear, clogged = engine.within("clear"), engine.within("clogged")
            for other in (clear, clogged):
                await pile_up(other, _FEW + _TIMES * bench.plan.rounds)
            await pile_up(clogged, _UNROUTABLE, requires=["gpu"], priority=9000)
            before, behind = await claim_medians_ms(bench, clear, clogged)
            bench.figure("claim, nothing unroutable", backend, ENGINE, _CLAIM, *before.values)
            bench.figure("claim behind 10,000 unroutable", backend, ENGINE, _CLAIM, *behind.values)
            bench.report.judge("B7.unroutable", backend, before.over(behind))


async def leases(bench: Bench) -> None:
    """A complete of 200, with few and with 10,000 leases in flight beside it."""
    for backend in BOTH:
        async with connect(await bench.store(backend, "leases")) as engine:
            few = await _complete_200_ms(engine)
            await pile_up(engine, 10_000)
            for _ in range(10):
                await engine.leases.claim(["default"], "others", limit=1000, lease_ttl="1h")
            many = await _complete_200_ms(engine)
        bench.figure("complete of 200", backend, ENGINE, _CLAIM, few)
        bench.figure("complete of 200, 10,000 leases in flight", backend, ENGINE, _CLAIM, many)
        bench.report.judge("in flight", backend, Spread.of([many / few]))


async def claim_medians_ms(bench: Bench, *engines: Engine) -> list[Spread]:
    """The median time of a claim of one on each, by turns, in every round; what was claimed is completed."""
    rounds = [await _claim_medians_ms(engines, _times(bench)) for _ in range(bench.plan.rounds)]
    return [Spread.of(medians) for medians in zip(*rounds, strict=True)]


async def pile_up(engine: Engine, number: int, requires: Sequence[str] = (), priority: int = 0) -> None:
    """As many executions that wait."""
    for first in range(0, number, 1000):
        size = min(1000, number - first)
        work = [Submission(kind="noop", requires=requires, priority=priority) for _ in range(size)]
        await engine.executions.submit_many(work)


def _fillable(backend: str, engine: Engine, name: str) -> Store:
    if backend == POSTGRES:
        return Store(engine, postgres_filler(engine, name, "flowfabric"))
    return Store(engine, sqlite_filler(engine, name))


async def _backlog(bench: Bench, backend: str, small: Store, large: Store) -> None:
    size = bench.plan.backlog
    await small.fill("waiting", _FEW)
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
            await small.fill("waiting", _times(bench))  # Every round takes what it measures.
        few, many = (Spread.of(medians) for medians in zip(*rounds, strict=True))
        bench.figure("claim, 1,000 waiting", backend, ENGINE, _CLAIM, *few.values)
        bench.figure(f"claim, {what}", backend, ENGINE, _CLAIM, *many.values)
        bench.report.judge(key, backend, many.over(few))


async def _routes_ms(bench: Bench, engine: Engine) -> list[float]:
    """The medians of a batch along one route and along ten."""
    sets = [f"tool-{number}" for number in range(10)]
    times: dict[int, list[float]] = {1: [], 10: []}
    for _ in range(5 if bench.plan.is_quick else 15):
        for number, kept in times.items():
            work = [Submission(kind="noop", payload=b"1", requires=[sets[place % number]]) for place in range(100)]
            began = time.perf_counter()
            await engine.executions.submit_many(work)
            claimed = await engine.leases.claim(["default"], "bench", capabilities=sets, limit=100)
            await engine.leases.complete_many([(lease.fence, b"1") for lease in claimed])
            kept.append(time.perf_counter() - began)
    return [statistics.median(kept) * 1000 for kept in times.values()]


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
