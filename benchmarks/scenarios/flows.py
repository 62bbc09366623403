"""Flows: chains of ten members completed by a few workers, and races whose losers are cancelled."""

from __future__ import annotations

import asyncio
import time
from functools import partial
from uuid import UUID

from benchmarks.bars import BOTH, POSTGRES
from benchmarks.bench import ENGINE, SDK, Bench
from benchmarks.contenders import Answer, Contender, p50, p99
from benchmarks.peers.protocol import Request
from flowfabric.engine import Engine, Graph, Lease, any_of, connect

LENGTH = 10
ABREAST = 256
SIBLINGS = (10, 100, 1_000)
_CLAIMED = 200
_LANE = "chains"


async def chains(bench: Bench) -> None:
    """Run chains of ten members, 256 in flight. A new chain replaces each finished chain."""
    for backend in BOTH:
        async with connect(await bench.store(backend, "chains")) as engine:
            ours = Contender(ENGINE, backend, partial(_chains, engine, bench.some(ABREAST)))
            request = Request("chains", "", in_flight=bench.some(ABREAST))
            tasks, before = bench.sdk(request, backend), bench.before(request, backend)
            turns = await bench.in_turns([ours, tasks, *before], rounds=min(3, bench.plan.rounds))
            bench.show(f"chains of ten, {bench.some(ABREAST)} in flight", "chains/s", turns)
            figure = turns.spread(ours, lambda answer: answer.rate)
            if backend == POSTGRES and figure is not None:
                bench.report.judge("B6", backend, figure)
                bench.judge_before("B6.before", backend, turns.of([tasks, *before]))


async def races(bench: Bench) -> None:
    """Measure the time from the winner's end to the end of all losers, half of which are active.

    Also measure a race of tasks.
    """
    for backend in BOTH:
        async with connect(await bench.store(backend, "races")) as engine:
            for siblings in SIBLINGS:
                ours = Contender(ENGINE, backend, partial(_races, engine, siblings, bench.plan.races))
                turns = await bench.in_turns([ours], rounds=1)
                name = f"any-of race, {siblings:,} losers cancelled"
                bench.show(name, "ms p50", turns, p50, less=True)
                bench.show(name, "ms p99", turns, p99, less=True)
                figure = turns.spread(ours, p99)
                if backend == POSTGRES and figure is not None and siblings > SIBLINGS[0]:
                    bench.report.judge(f"B8.{siblings}", backend, figure)
        for siblings in SIBLINGS[:2] if bench.plan.is_quick else SIBLINGS:
            racing = bench.sdk(Request("race", "", number=siblings), backend, f"{SDK}, submit to result")
            turns = await bench.in_turns([racing], rounds=1)
            bench.show(f"race of {siblings:,} children", "ms p50", turns, p50, less=True)


async def _chains(engine: Engine, abreast: int, seconds: float) -> Answer:
    running = _Chains(engine, abreast, seconds)
    rate = await running.run()
    return Answer(running.done, running.done / rate)


async def _races(engine: Engine, siblings: int, rounds: int, _: float) -> Answer:
    times = []
    for number in range(rounds):
        winner = await _race(engine, siblings, number)
        began = time.perf_counter()
        await engine.leases.complete(winner.fence, b"won")
        times.append((time.perf_counter() - began) * 1000)
    return Answer(rounds, sum(times) / 1000, times)


class _Chains:
    """A fixed number of chains of ten members.

    When the last member of a chain completes, the chain is submitted again.
    """

    def __init__(self, engine: Engine, abreast: int, seconds: float) -> None:
        self._engine = engine
        self._abreast = abreast
        self._ends = time.perf_counter() + seconds
        self._leases: asyncio.Queue[Lease] = asyncio.Queue()
        self._ready, self._finished = asyncio.Event(), asyncio.Event()
        self._last: set[UUID] = set()
        self._open = abreast
        self.done = 0

    async def run(self) -> float:
        await self._submit()  # The first submit stores the route of the members, which all later submits then find.
        started = time.perf_counter()
        workers = [asyncio.create_task(self._work()) for _ in range(self._abreast)]
        workers.append(asyncio.create_task(self._claim()))
        await asyncio.gather(*(self._submit() for _ in range(self._abreast - 1)))
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
    """Return the lease of one member of a race in which half of the other members are active."""
    lane = f"race-{siblings}-{number}"
    graph = Graph("race")
    names = [f"s{place}" for place in range(siblings + 1)]
    for item in names:
        graph.add(item, "runner", lane=lane)
    graph.add("prize", "runner", lane=lane, after=names, join=any_of())
    await engine.flows.submit(graph)
    leases = await engine.leases.claim([lane], "bench", limit=1 + siblings // 2, lease_ttl="10m")
    return leases[0]
