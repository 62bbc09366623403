"""The contract's speed on both backends, as ratios to the same statements without us, and the queue under load.

Run it with `python3 dev.py bench [--seconds 3] [--rounds 3] [--quick]`. PostgreSQL is a throw-away server with fsync
switched on; SQLite is a file in the temporary folder with synchronous=FULL. Both acknowledge durably.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import platform
import sys
import tempfile
from collections.abc import Coroutine
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks.bars import Report
from benchmarks.filling import postgres_filler, sqlite_filler
from benchmarks.flows import chains, races
from benchmarks.functions import durable_functions
from benchmarks.measure import Ratio, Stopwatch, in_turns, server_cpu_s
from benchmarks.peers import pgbench_rate, pgbench_script, raw_sqlite_rate
from benchmarks.queues import Store, backlog, leases_in_flight, routing, unroutable
from benchmarks.waits import many_signals, round_trips, timeouts
from benchmarks.wakeups import idle_cost, start_latency, wake_up_cost
from flowfabric.engine import Engine, Lease, Submission, connect
from flowfabric.worker.event_loop import new_event_loop
from tests.postgres_server import postgres_server

# A small server's own memory and log; fsync and full_page_writes as they must be for work that matters.
SERVER = {"fsync": "on", "full_page_writes": "on", "shared_buffers": "512MB", "max_wal_size": "4GB"}
BATCH = 100
ABREAST = 4
IN_FLIGHT = 256
SCHEMA = "flowfabric"


@dataclass(frozen=True, slots=True)
class Plan:
    """How long each figure is measured, how often ratios take turns, and how much is piled up."""

    seconds: float
    rounds: int
    backlog: int
    signals: int
    timeouts: int
    races: int


async def cycle(engine: Engine, size: int) -> int:
    """A batch through its whole life: submitted, claimed, completed; answers how many it completed."""
    await engine.executions.submit_many([Submission(kind="noop", payload=b"1") for _ in range(size)])
    leases = await engine.leases.claim(["default"], "bench", limit=size)
    return len(await engine.leases.complete_many([(lease.fence, b"1") for lease in leases]))


async def batch_rate(engine: Engine, seconds: float) -> float:
    """Executions per second through batches of 100, four abreast."""
    watch, done = Stopwatch(), 0

    async def lane() -> None:
        nonlocal done
        while watch.wall_s < seconds:
            finished = await cycle(engine, BATCH)
            done += finished  # Not `done += await …`, which would read it before the others have added theirs.

    await asyncio.gather(*(lane() for _ in range(ABREAST)))
    return done / watch.wall_s


async def single_rate(engine: Engine, seconds: float, callers: int = IN_FLIGHT) -> float:
    """Executions per second when so many callers submit and complete one at a time, and one worker claims for all."""
    watch, done = Stopwatch(), 0
    ready: asyncio.Queue[Lease] = asyncio.Queue()

    async def caller() -> None:
        nonlocal done
        while watch.wall_s < seconds:
            await engine.executions.submit("noop", b"1")
            lease = await ready.get()
            await engine.leases.complete(lease.fence, b"1")
            done += 1

    async def claimer() -> None:
        while True:
            for lease in await engine.leases.claim(["default"], "bench", limit=200):
                ready.put_nowait(lease)

    claiming = asyncio.create_task(claimer())
    await asyncio.gather(*(caller() for _ in range(callers)))
    claiming.cancel()
    return done / watch.wall_s


async def bench_postgres(dsn: str, plan: Plan, report: Report) -> None:
    async with connect(dsn, schema=SCHEMA) as engine:
        await batch_rate(engine, 1)
        # First what is measured alone: the server is busy for a while with what a full load leaves to be vacuumed.
        await report_cpu(engine, plan.seconds, report)
        await round_trips("PostgreSQL", engine.within("waits"), plan.seconds, report)
        await timeouts("PostgreSQL", engine.within("timeouts"), plan.timeouts, report)
        for siblings, most_ms in ((100, 20), (1000, 200)):
            await races("PostgreSQL", engine.within("races"), siblings, plan.races, most_ms, report)
        await chains("PostgreSQL", engine.within("chains"), plan.seconds, report)
        await full_load(dsn, engine, plan, report)
        await leases_in_flight("PostgreSQL", engine.within("leases"), report)
        await routing("PostgreSQL", engine.within("routing"), report)
        await unroutable("PostgreSQL", engine, report)
        await many_signals("PostgreSQL", engine.within("signals"), plan.signals, report)
    await durable_functions("PostgreSQL", dsn, plan.seconds, report, in_flight=1_024)
    waking = partial(connect, dsn, schema="waking")
    await wake_up_cost("PostgreSQL", waking, single_rate, plan.seconds, plan.rounds, report)
    await start_latency("PostgreSQL", waking, 6.0, report)
    await idle_cost("PostgreSQL", waking, 4 * plan.seconds, report)
    async with connect(dsn, schema="small") as few, connect(dsn, schema="large") as many:
        small = Store(few, postgres_filler(few, dsn, "small"))
        large = Store(many, postgres_filler(many, dsn, "large"))
        await backlog("PostgreSQL", small, large, plan.backlog, report)


async def full_load(dsn: str, engine: Engine, plan: Plan, report: Report) -> None:
    """Batches against pgbench, by turns; and 256 callers."""
    route = next(iter(engine._context.routes.values()))
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "cycle.sql"
        script.write_text(pgbench_script(SCHEMA, route, BATCH), encoding="utf-8")
        peer = partial(pgbench_rate, dsn, script, BATCH, ABREAST)
        ratio = await in_turns(partial(batch_rate, engine), peer, plan.seconds, plan.rounds)
    report.at_least("B2", ratio.value, 0.5, told("PostgreSQL, batches of 100", ratio, "pgbench"))
    rate = await single_rate(engine, plan.seconds)
    report.say(f"PostgreSQL: {IN_FLIGHT} callers, one execution each at a time: {rate:,.0f}/s")


async def bench_sqlite(path: str, plan: Plan, report: Report) -> None:
    async with connect(path) as engine:
        await batch_rate(engine, 1)
        route = next(iter(engine._context.routes.values()))

        async def peer(limit_s: float) -> float:
            return await asyncio.to_thread(raw_sqlite_rate, path, route, BATCH, limit_s)

        ratio = await in_turns(partial(batch_rate, engine), peer, plan.seconds, plan.rounds)
        report.at_least("B12", ratio.value, 0.5, told("SQLite, batches of 100", ratio, "raw sqlite3"))
        rate = await single_rate(engine, plan.seconds)
        report.at_least("B12", rate, 3000, f"SQLite: {IN_FLIGHT} callers, one execution each at a time: {rate:,.0f}/s")
        await leases_in_flight("SQLite", engine.within("leases"), report)
        await routing("SQLite", engine.within("routing"), report)
        await unroutable("SQLite", engine, report)
        await round_trips("SQLite", engine.within("waits"), plan.seconds, report.beside())
        await many_signals("SQLite", engine.within("signals"), plan.signals, report)
        await timeouts("SQLite", engine.within("timeouts"), plan.timeouts, report)
        await chains("SQLite", engine.within("chains"), plan.seconds, report.beside())
        for siblings, most_ms in ((100, 20), (1000, 200)):
            await races("SQLite", engine.within("races"), siblings, plan.races, most_ms, report.beside())
    await durable_functions("SQLite", f"{path}.functions", plan.seconds, report, in_flight=IN_FLIGHT)
    # Another process is noticed by a look at the file every 20 ms.
    await start_latency("SQLite", partial(connect, f"{path}.waking"), 25.0, report)
    paths = (f"{path}.small", f"{path}.large")
    async with connect(paths[0]) as few, connect(paths[1]) as many:
        small, large = Store(few, sqlite_filler(few, paths[0])), Store(many, sqlite_filler(many, paths[1]))
        await backlog("SQLite", small, large, plan.backlog, report)


async def report_cpu(engine: Engine, seconds: float, report: Report) -> None:
    """CPU per execution on both sides of the connection, in batches."""
    pid = await engine._context.store.read(_backend_pid)
    before, watch = server_cpu_s(pid), Stopwatch()
    rate = await batch_rate(engine, seconds)
    done, client = rate * watch.wall_s, watch.cpu_s
    after = server_cpu_s(pid)
    here_us = client / done * 1e6
    report.at_most("B3", here_us, 150, f"PostgreSQL: CPU per execution is {here_us:.0f} µs here")
    if before is None or after is None:
        report.say("PostgreSQL: this system does not tell the CPU of the server")
        return
    there_us = (after - before) / done * 1e6
    report.at_most("B3", there_us, 120, f"PostgreSQL: CPU per execution is {there_us:.0f} µs in the server")


async def _backend_pid(tx: object) -> int:
    connection = tx._session._connection  # type: ignore[attr-defined]
    return int(await connection.fetchval("SELECT pg_backend_pid()"))


def told(what: str, ratio: Ratio, peer: str) -> str:
    spread = f"({ratio.low:.2f} to {ratio.high:.2f})"
    return (
        f"{what}: {ratio.ours:,.0f}/s, {peer} {ratio.theirs:,.0f}/s: {ratio.value:.2f} {spread} of the same statements"
    )


def in_loop(work: Coroutine[Any, Any, None]) -> None:
    """Runs it in a loop like that of a worker."""
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(work)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=3.0, help="how long each figure is measured")
    parser.add_argument("--rounds", type=int, default=5, help="how often both sides of a ratio take turns")
    parser.add_argument("--quick", action="store_true", help="small sizes, to see that it works; misses do not fail it")
    options = parser.parse_args()
    plan = Plan(options.seconds, options.rounds, 1_000_000, 10_000, 100, 100)
    if options.quick:
        plan = Plan(1.0, 1, 5_000, 400, 10, 5)
    report = Report()
    report.say(f"{platform.platform()}, {os.cpu_count()} cores, Python {platform.python_version()}")
    with tempfile.TemporaryDirectory() as folder:
        in_loop(bench_sqlite(str(Path(folder) / "bench.db"), plan, report))
    with postgres_server(**SERVER) as server:
        in_loop(bench_postgres(server.dsn, plan, report))
    if report.missed:
        report.say(f"missed: {', '.join(dict.fromkeys(report.missed))}")
    sys.exit(bool(report.missed) and not options.quick)


if __name__ == "__main__":
    main()
