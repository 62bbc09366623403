"""Flows: chains of ten members worked off by a few workers, and races whose losers are cancelled."""

from __future__ import annotations

import asyncio
import statistics
import time

from benchmarks.bars import Report
from flowfabric import Engine, FlowCreated, Graph, any_of

LENGTH = 10
ABREAST = 256
_CLAIMED = 200


async def chains(name: str, engine: Engine, seconds: float, report: Report) -> None:
    """Chains of ten members, 256 at once: submitted, worked off member by member, the next one in its place."""
    rate = await _chain_rate(engine, seconds)
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
    text = f"{name}: {siblings:,} siblings cancelled by the winner in {statistics.median(times):.1f} ms (p50), {worst:.1f} ms (p99)"
    report.at_most("B8", worst, most_ms, text)


async def _chain_rate(engine: Engine, seconds: float) -> float:
    ends, done, started = time.perf_counter() + seconds, 0, time.perf_counter()
    lane, ready, finished = "chains", asyncio.Event(), asyncio.Event()
    left: dict[object, int] = {}

    async def submit(number: int) -> None:
        graph = Graph("chain")
        before: tuple[str, ...] = ()
        for place in range(LENGTH):
            graph.add(f"m{place}", "link", after=before, lane=lane)
            before = (f"m{place}",)
        created = await engine.flows.submit(graph)
        left[created.flow_id] = LENGTH
        ready.set()

    async def work(fence: object, last: bool) -> None:
        nonlocal done
        await engine.leases.complete(fence, b"")  # type: ignore[arg-type]
        ready.set()

    async def claimer() -> None:
        while True:
            await ready.wait()
            ready.clear()
            while leases := await engine.leases.claim([lane], "bench", limit=_CLAIMED, lease_ttl="10m"):
                for lease in leases:
                    queue.put_nowait(lease)

    queue: asyncio.Queue[object] = asyncio.Queue()

    async def worker() -> None:
        nonlocal done
        while True:
            lease = await queue.get()
            await engine.leases.complete(lease.fence, b"")  # type: ignore[attr-defined]
            ready.set()
            done += 1
            if done % LENGTH == 0 and time.perf_counter() < ends:
                tasks.append(asyncio.create_task(submit(done)))
            if done >= LENGTH * len(tasks) and time.perf_counter() >= ends:
                finished.set()

    tasks: list[asyncio.Task[None]] = [asyncio.create_task(submit(number)) for number in range(ABREAST)]
    running = [asyncio.create_task(worker()) for _ in range(ABREAST)] + [asyncio.create_task(claimer())]
    await asyncio.wait_for(finished.wait(), 10 * seconds + 60)
    taken = time.perf_counter() - started
    for task in running:
        task.cancel()
    await asyncio.gather(*running, *tasks, return_exceptions=True)
    return done / LENGTH / taken


async def _race(engine: Engine, siblings: int, number: int):  # type: ignore[no-untyped-def]
    lane = f"race-{siblings}-{number}"
    graph = Graph("race")
    names = [f"s{place}" for place in range(siblings + 1)]
    for item in names:
        graph.add(item, "runner", lane=lane)
    graph.add("prize", "runner", lane=lane, after=names, join=any_of())
    created = await engine.flows.submit(graph)
    assert isinstance(created, FlowCreated), "it is a new flow"
    leases = await engine.leases.claim([lane], "bench", limit=1 + siblings // 2, lease_ttl="10m")
    return leases[0]
