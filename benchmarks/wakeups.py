"""What wake-ups cost and what they give: throughput with and without, idle workers, and how soon work starts."""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from benchmarks.bars import Report
from benchmarks.measure import in_turns
from flowfabric.engine import Engine
from tests.idle_workers import StatementCount, idle_workers, start_latencies_ms

_CLIENTS = 16
_WORKERS = 16
_STARTS = 100
_SETTLED_S = 2.0
Opening = Callable[..., Any]
Rate = Callable[[Engine, float, int], Awaitable[float]]


async def wake_up_cost(name: str, opening: Opening, rate: Rate, seconds: float, rounds: int, report: Report) -> None:
    """The throughput of 16 clients with wake-ups on, somebody listening, over that with wake-ups off."""
    async with opening() as on, opening(notify=False) as off, _listening(opening):
        await rate(on, 0.5, _CLIENTS)

        async def with_them(limit_s: float) -> float:
            return await rate(on, limit_s, _CLIENTS)

        async def without(limit_s: float) -> float:
            return await rate(off, limit_s, _CLIENTS)

        ratio = await in_turns(with_them, without, seconds, rounds)
    text = f"{name}: {_CLIENTS} clients make {ratio.ours:,.0f}/s with wake-ups and {ratio.theirs:,.0f}/s without"
    spread = f"{ratio.value:.2f} ({ratio.low:.2f} to {ratio.high:.2f})"
    report.at_least("wake-ups", ratio.value, 0.9, f"{text}: {spread}")


async def idle_cost(name: str, opening: Opening, seconds: float, report: Report) -> None:
    """The statements of 16 idle workers together, each with its duties and its place in the register."""
    with StatementCount() as statements:
        async with idle_workers(opening, _WORKERS) as started, opening() as client:
            await start_latencies_ms(client, started, 1, 0)
            await asyncio.sleep(_SETTLED_S)
            before = statements.number
            await asyncio.sleep(seconds)
            rate = (statements.number - before) / seconds
            found = sorted(await start_latencies_ms(client, started, _STARTS // 4, 0.05))
    report.at_most("B11", rate, 5, f"{name}: {_WORKERS} idle workers make {rate:.1f} statements/s together")
    p50 = statistics.median(found)
    report.at_most(
        "idle start", p50, 20, f"{name}: one of {_WORKERS} idle workers starts new work after {p50:.1f} ms (p50)"
    )


async def start_latency(name: str, opening: Opening, across_ms: float, report: Report) -> None:
    """From the call of submit to the claim, on one idle worker: submitted by its own engine, and by another one."""
    async with opening() as own, opening() as other, idle_workers(lambda: _kept(own), 1) as started:
        for what, engine, most in (("in process", own, 3.0), ("across", other, across_ms)):
            found = sorted(await start_latencies_ms(engine, started, _STARTS, 0.01))
            p50, p99 = statistics.median(found), found[-2]
            text = f"{name}: work starts {p50:.1f} ms after its submit, {what} (p50; p99 {p99:.1f} ms)"
            report.at_most("B4", p50, most, text)


@asynccontextmanager
async def _listening(opening: Opening) -> AsyncIterator[None]:
    """Somebody else who waits for events and for work that does not come."""
    async with opening() as engine:
        with engine.leases.watch(["elsewhere"]):
            yield


@asynccontextmanager
async def _kept(engine: Engine) -> AsyncIterator[Engine]:
    yield engine
