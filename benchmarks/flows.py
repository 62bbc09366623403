"""Flows: chains of ten members worked off by a few workers, and races whose losers are cancelled."""

from __future__ import annotations

import asyncio
import statistics
import time
from uuid import UUID

from benchmarks.bars import Report
from flowfabric.engine import Engine, Graph, Lease, any_of

LENGTH = 10
ABREAST = 256
_CLAIMED = 200
_LANE = "chains"


async def chains(name: str, engine: Engine, seconds: float, report: Report) -> None:
    """Chains of ten members, 256 at once: submitted, worked off member by member, the next one in its place."""
    rate = await _Chains(engine, seconds).run()
    report.at_least("B6", rate, 400, f"{name}: {rate:,.0f} chains of {LENGTH} members/s with {ABREAST} in flight")


async def races(name: str, engine: Engine, siblings: int, rounds: int, most_ms: float, report: Report) -> None:
    """From the complete of the winner to the end of all losers, half of which are under way."""
    times = []
    for number in range(rounds):
        winner = await _race(engine, siblings, number)
        began = time.perf_counter()
        await engine.leases.complete(winner.fence, b"won")
        times.append((time.perf_counter() - began) * 1000)
    worst = sorted(times)[min(len(times) - 1, int(len(times) * 0.99))]
    took = f"{statistics.median(times):.1f} ms (p50), {worst:.1f} ms (p99)"
    report.at_most("B8", worst, most_ms, f"{name}: {siblings:,} siblings cancelled by the winner in {took}")


class _Chains:
    """Chains of ten, so many at once: each is submitted anew when its last member is done, until the time is over."""

    def __init__(self, engine: Engine, seconds: float) -> None:
        self._engine = engine
        self._ends = time.perf_counter() + seconds
        self._leases: asyncio.Queue[Lease] = asyncio.Queue()
        self._ready, self._finished = asyncio.Event(), asyncio.Event()
        self._last: set[UUID] = set()
        self._open = ABREAST
        self.done = 0

    async def run(self) -> float:
        await self._submit()  # The route of the links is known from here on.
        started = time.perf_counter()
        workers = [asyncio.create_task(self._work()) for _ in range(ABREAST)]
        workers.append(asyncio.create_task(self._claim()))
        await asyncio.gather(*(self._submit() for _ in range(ABREAST - 1)))
        await self._finished.wait()
        taken = time.perf_counter() - started
        for task in workers:
            task.cancel()
        await asyncio.gather(*workers, return_exceptions=True)
        return self.done / taken

    async def _submit(self) -> None:
        graph = Graph("chain")
        for place in range(LENGTH):
            graph.add(f"m{place}", "link", after=[f"m{place - 1}"] if place else [], lane=_LANE)
        created = await self._engine.flows.submit(graph)
        self._last.add(created.members[f"m{LENGTH - 1}"])
        self._ready.set()

    async def _claim(self) -> None:
        while True:
            await self._ready.wait()
            self._ready.clear()
            for lease in await self._engine.leases.claim([_LANE], "bench", limit=_CLAIMED, lease_ttl="10m"):
                self._leases.put_nowait(lease)

    async def _work(self) -> None:
        while True:
            lease = await self._leases.get()
            await self._engine.leases.complete(lease.fence, b"")
            self._ready.set()
            if lease.execution_id in self._last:
                await self._go_on(lease.execution_id)

    async def _go_on(self, last: UUID) -> None:
        self._last.discard(last)
        self.done += 1
        if time.perf_counter() < self._ends:
            await self._submit()
            return
        self._open -= 1
        if not self._open:
            self._finished.set()


async def _race(engine: Engine, siblings: int, number: int) -> Lease:
    """The lease of one runner of a race in which half of the others run too."""
    lane = f"race-{siblings}-{number}"
    graph = Graph("race")
    names = [f"s{place}" for place in range(siblings + 1)]
    for item in names:
        graph.add(item, "runner", lane=lane)
    graph.add("prize", "runner", lane=lane, after=names, join=any_of())
    await engine.flows.submit(graph)
    leases = await engine.leases.claim([lane], "bench", limit=1 + siblings // 2, lease_ttl="10m")
    return leases[0]
