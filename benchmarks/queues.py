"""How claims behave as the store fills: backlog, retained executions, routes, unroutable work, leases in flight."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.bars import Report
from benchmarks.filling import Filler
from flowfabric.engine import Engine, Submission

_TIMES = 200


@dataclass(frozen=True, slots=True)
class Store:
    """An engine on a store of its own, and how to fill that store."""

    engine: Engine
    fill: Filler


async def backlog(name: str, small: Store, large: Store, size: int, report: Report) -> None:
    """A claim's median where 1,000 executions wait, and where very many do; then with as many retained beside them."""
    await small.fill("waiting", 1_000)
    await large.fill("waiting", size)
    for what, state in ((f"{size:,} waiting", None), (f"{size:,} ended ones retained beside that", "completed")):
        if state:
            await large.fill(state, size)
        few, many = await claim_medians_ms(small.engine, large.engine)
        text = f"{name}: claim p50 is {few:.2f} ms at a backlog of 1,000 and {many:.2f} ms with {what}"
        report.at_most("B10", many / few, 1.4, f"{text}: {many / few:.2f}x")


async def unroutable(name: str, engine: Engine, report: Report) -> None:
    """A claim's median behind 10,000 more urgent executions that this worker cannot take, and without them."""
    clear, clogged = engine.within("clear"), engine.within("clogged")
    for other in (clear, clogged):
        await pile_up(other, 1_000)
    await pile_up(clogged, 10_000, requires=["gpu"], priority=9000)
    before, behind = await claim_medians_ms(clear, clogged)
    text = (
        f"{name}: claim p50 is {before:.2f} ms, and {behind:.2f} ms behind 10,000 more urgent ones that it cannot take"
    )
    report.at_least("B7", before / behind, 0.9, f"{text}: {before / behind:.2f} of the speed")


async def routing(name: str, engine: Engine, report: Report) -> None:
    """Batches of 100 that wait along one route, and along ten, by turns."""
    sets = [f"tool-{number}" for number in range(10)]
    times: dict[int, list[float]] = {1: [], 10: []}
    for _ in range(15):
        for number, kept in times.items():
            work = [Submission(kind="noop", payload=b"1", requires=[sets[place % number]]) for place in range(100)]
            began = time.perf_counter()
            await engine.executions.submit_many(work)
            leases = await engine.leases.claim(["default"], "bench", capabilities=sets, limit=100)
            await engine.leases.complete_many([(lease.fence, b"1") for lease in leases])
            kept.append(time.perf_counter() - began)
    one, ten = (statistics.median(kept) * 1000 for kept in times.values())
    text = f"{name}: 100 executions take {one:.1f} ms along one route and {ten:.1f} ms along ten"
    report.at_least("B7", one / ten, 0.9, f"{text}: {one / ten:.2f} of the speed")


async def leases_in_flight(name: str, engine: Engine, report: Report) -> None:
    """A complete of 200, with few and with 10,000 leases in flight beside it."""
    few = await _complete_200_ms(engine)
    await pile_up(engine, 10_000)
    for _ in range(10):
        await engine.leases.claim(["default"], "others", limit=1000, lease_ttl="1h")
    many = await _complete_200_ms(engine)
    text = f"{name}: complete of 200 takes {few:.1f} ms, with 10,000 leases in flight {many:.1f} ms: {many / few:.2f}x"
    report.at_most("in flight", many / few, 1.4, text)


async def claim_medians_ms(*engines: Engine) -> list[float]:
    """The median time of a claim of one on each, by turns; what was claimed is given back by completing it."""
    times: list[list[float]] = [[] for _ in engines]
    for _ in range(_TIMES):
        for engine, kept in zip(engines, times, strict=True):
            began = time.perf_counter()
            [lease] = await engine.leases.claim(["default"], "bench")
            kept.append(time.perf_counter() - began)
            await engine.leases.complete(lease.fence, b"1")
    return [statistics.median(kept) * 1000 for kept in times]


async def pile_up(engine: Engine, number: int, requires: Sequence[str] = (), priority: int = 0) -> None:
    """As many executions that wait."""
    for _ in range(number // 1000):
        work = [Submission(kind="noop", requires=requires, priority=priority) for _ in range(1000)]
        await engine.executions.submit_many(work)


async def _complete_200_ms(engine: Engine) -> float:
    times = []
    for _ in range(9):
        await engine.executions.submit_many([Submission(kind="noop") for _ in range(200)])
        leases = await engine.leases.claim(["default"], "bench", limit=200)
        began = time.perf_counter()
        await engine.leases.complete_many([(lease.fence, b"1") for lease in leases])
        times.append(time.perf_counter() - began)
    return statistics.median(times) * 1000
