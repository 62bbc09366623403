"""Waits: the round trip suspend, signal, resumed claim; signals to one execution; how late a timeout is."""

from __future__ import annotations

import asyncio
import statistics
import time
from datetime import UTC, datetime

from benchmarks.bars import Report
from flowfabric.engine import Engine, Lease, Policy, Single, Submission, Suspended

IN_FLIGHT = 64
_NEVER = Single("answer", "never")


async def round_trips(name: str, engine: Engine, seconds: float, report: Report) -> None:
    """One execution after another, then 64 at once that a few workers claim for."""
    [lease] = await _leases(engine, 1)
    times = []
    for number in range(60):
        began = time.perf_counter()
        await _signal(engine, lease, f"alone-{number}")
        [lease] = await engine.leases.claim(["default"], "bench")
        times.append(time.perf_counter() - began)
    alone_ms = statistics.median(times) * 1000
    text = f"{name}: suspend, signal and resumed claim take {alone_ms:.2f} ms (p50) one at a time"
    report.at_most("B5", alone_ms, 6, text)
    await engine.leases.complete(lease.fence)
    rate = await _together(engine, seconds)
    report.at_least("B5", rate, 1000, f"{name}: {rate:,.0f} such round trips/s with {IN_FLIGHT} in flight")


async def many_signals(name: str, engine: Engine, number: int, report: Report) -> None:
    """Signals to one execution that do not end its wait: the second half must not be slower than the first."""
    created = await engine.executions.submit("noop", policy=Policy(max_signals=2 * number))
    lease = await engine.leases.claim_execution(created.id, "bench")
    suspended = await engine.leases.suspend(lease.fence, ["answer"], _NEVER)
    assert isinstance(suspended, Suspended), "nothing has come yet"
    token = suspended.token("answer")
    assert token is not None, "a fresh waitpoint has a token"
    halves = []
    for _ in range(2):
        began = time.perf_counter()
        for _ in range(number // 2):
            await engine.signals.deliver(token, "other")
        halves.append(time.perf_counter() - began)
    text = f"{name}: {number:,} signals to one execution, the second half took {halves[1] / halves[0]:.2f} of the first"
    report.at_most("B14", halves[1] / halves[0], 1.3, text)
    await engine.operator.cancel(created.id)


async def timeouts(name: str, engine: Engine, number: int, report: Report) -> None:
    """How late the timeout of a suspension is applied by the duties of an idle engine."""
    late = []
    async with engine.reconcilers.running():
        for _ in range(number):
            [lease] = await _leases(engine, 1)
            await engine.leases.suspend(lease.fence, ["answer"], timeout=0.05, on_timeout="expire")
            due = (await engine.executions.describe(lease.execution_id)).suspension
            outcome = await engine.executions.wait(lease.execution_id, timeout=10)
            assert due is not None and due.timeout_at is not None and outcome is not None, "it timed out"
            late.append((outcome.ended_at - due.timeout_at).total_seconds() * 1000)
    assert min(late) >= 0, "a timer never fires early"
    worst = sorted(late)[int(len(late) * 0.99)]
    text = f"{name}: the timeout of a suspension is {statistics.median(late):.1f} ms late (p50), {worst:.1f} ms (p99)"
    report.at_most("timers", worst, 100, text)


async def _together(engine: Engine, seconds: float) -> float:
    ends, done = time.perf_counter() + seconds, 0
    leases: asyncio.Queue[Lease] = asyncio.Queue()
    for lease in await _leases(engine, IN_FLIGHT):
        leases.put_nowait(lease)
    started, resumed = time.perf_counter(), asyncio.Event()

    async def caller(place: int) -> None:
        nonlocal done
        while time.perf_counter() < ends:
            lease = await leases.get()
            await _signal(engine, lease, f"{place}-{done}")
            resumed.set()
            done += 1

    async def claimer() -> None:
        while True:
            await resumed.wait()
            resumed.clear()
            for lease in await engine.leases.claim(["default"], "bench", limit=IN_FLIGHT):
                leases.put_nowait(lease)

    claiming = asyncio.create_task(claimer())
    await asyncio.gather(*(caller(place) for place in range(IN_FLIGHT)))
    taken = time.perf_counter() - started
    claiming.cancel()
    await asyncio.gather(claiming, return_exceptions=True)
    return done / taken


async def _signal(engine: Engine, lease: Lease, key: str) -> None:
    """Suspends under a key and ends the wait."""
    suspended = await engine.leases.suspend(lease.fence, ["answer"], key=key)
    assert isinstance(suspended, Suspended), "nothing has come yet"
    token = suspended.token("answer")
    assert token is not None, "a fresh waitpoint has a token"
    await engine.signals.deliver(token, "yes", b"1", created_at=datetime.now(UTC))


async def _leases(engine: Engine, number: int) -> list[Lease]:
    await engine.executions.submit_many([Submission(kind="noop") for _ in range(number)])
    return await engine.leases.claim(["default"], "bench", limit=number, lease_ttl="1h")
