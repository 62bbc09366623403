"""The contract's speed on both backends, as ratios to the same statements without us, and the queue under load.

Run it with `python3 dev.py bench [--seconds 3] [--rounds 3] [--quick]`. PostgreSQL is a throw-away server with fsync
switched on; SQLite is a file in the temporary folder with synchronous=FULL. Both acknowledge durably.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks.measure import Ratio, Stopwatch, in_turns, server_cpu_s
from benchmarks.peers import pgbench_rate, pgbench_script, raw_sqlite_rate
from flowfabric import Engine, Lease, Submission, connect
from tests.postgres_server import postgres_server

BATCH = 100
ABREAST = 4
IN_FLIGHT = 256
SCHEMA = "flowfabric"


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


async def single_rate(engine: Engine, seconds: float) -> float:
    """Executions per second when 256 callers submit and complete one at a time, and one worker claims for all."""
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
    await asyncio.gather(*(caller() for _ in range(IN_FLIGHT)))
    claiming.cancel()
    return done / watch.wall_s


async def claim_median_ms(engine: Engine, number: int = 60) -> float:
    """The median time of a claim of one, which is given back by completing it."""
    times = []
    for _ in range(number):
        began = time.perf_counter()
        [lease] = await engine.leases.claim(["default"], "bench")
        times.append(time.perf_counter() - began)
        await engine.leases.complete(lease.fence, b"1")
    return statistics.median(times) * 1000


async def pile_up(engine: Engine, number: int, requires: Sequence[str] = (), priority: int = 0) -> None:
    for _ in range(number // 1000):
        work = [Submission(kind="noop", requires=requires, priority=priority) for _ in range(1000)]
        await engine.executions.submit_many(work)


async def backlog(name: str, engine: Engine, sizes: Sequence[int]) -> None:
    """The claim's median as the backlog grows, and behind 10,000 executions that this worker cannot take."""
    await pile_up(engine, sizes[0])
    first = last = await claim_median_ms(engine)
    for smaller, size in pairwise(sizes):
        await pile_up(engine, size - smaller)
        last = await claim_median_ms(engine)
    grown = f"{last:.2f} ms at {sizes[-1]:,}: {last / first:.2f}x"
    say(f"{name}: claim p50 is {first:.2f} ms at a backlog of {sizes[0]:,} and {grown}")
    await pile_up(engine, 10_000, requires=["gpu"], priority=9000)
    behind = await claim_median_ms(engine)
    say(f"{name}: claim p50 behind 10,000 more urgent ones that it cannot take is {behind:.2f} ms: {last / behind:.2f}")


async def leases_in_flight(name: str, engine: Engine) -> None:
    """A complete of 200, with few and with 10,000 leases in flight beside it."""
    few = await complete_200_ms(engine)
    await pile_up(engine, 10_000)
    for _ in range(10):
        await engine.leases.claim(["default"], "others", limit=1000, lease_ttl="1h")
    many = await complete_200_ms(engine)
    say(f"{name}: complete of 200 takes {few:.1f} ms, with 10,000 leases in flight {many:.1f} ms: {many / few:.2f}x")


async def complete_200_ms(engine: Engine) -> float:
    times = []
    for _ in range(7):
        await engine.executions.submit_many([Submission(kind="noop") for _ in range(200)])
        leases = await engine.leases.claim(["default"], "bench", limit=200)
        began = time.perf_counter()
        await engine.leases.complete_many([(lease.fence, b"1") for lease in leases])
        times.append(time.perf_counter() - began)
    return statistics.median(times) * 1000


async def bench_postgres(dsn: str, seconds: float, rounds: int, sizes: Sequence[int]) -> None:
    async with connect(dsn, schema=SCHEMA) as engine:
        await batch_rate(engine, 1)
        route = next(iter(engine._context.routes.values()))
        with tempfile.TemporaryDirectory() as folder:
            script = Path(folder) / "cycle.sql"
            script.write_text(pgbench_script(SCHEMA, route, BATCH), encoding="utf-8")
            peer = partial(pgbench_rate, dsn, script, BATCH, ABREAST)
            tell(
                "PostgreSQL, batches of 100",
                await in_turns(partial(batch_rate, engine), peer, seconds, rounds),
                "pgbench",
            )
        await report_cpu(engine, seconds)
        rate = await single_rate(engine, seconds)
        say(f"PostgreSQL: {IN_FLIGHT} callers, one execution each at a time: {rate:,.0f}/s")
        await leases_in_flight("PostgreSQL", engine.within("leases"))
        await backlog("PostgreSQL", engine.within("backlog"), sizes)


async def bench_sqlite(path: str, seconds: float, rounds: int, sizes: Sequence[int]) -> None:
    async with connect(path) as engine:
        await batch_rate(engine, 1)
        route = next(iter(engine._context.routes.values()))

        async def peer(limit_s: float) -> float:
            return await asyncio.to_thread(raw_sqlite_rate, path, route, BATCH, limit_s)

        tell(
            "SQLite, batches of 100", await in_turns(partial(batch_rate, engine), peer, seconds, rounds), "raw sqlite3"
        )
        rate = await single_rate(engine, seconds)
        say(f"SQLite: {IN_FLIGHT} callers, one execution each at a time: {rate:,.0f}/s")
        await leases_in_flight("SQLite", engine.within("leases"))
        await backlog("SQLite", engine.within("backlog"), sizes)


async def report_cpu(engine: Engine, seconds: float) -> None:
    """CPU per execution on both sides of the connection, in batches."""
    pid = await engine._context.store.read(_backend_pid)
    before, watch = server_cpu_s(pid), Stopwatch()
    rate = await batch_rate(engine, seconds)
    done, client = rate * watch.wall_s, watch.cpu_s
    after = server_cpu_s(pid)
    server = "unknown" if before is None or after is None else f"{(after - before) / done * 1e6:.0f} µs"
    say(f"PostgreSQL: CPU per execution {client / done * 1e6:.0f} µs here and {server} in the server")


async def _backend_pid(tx: object) -> int:
    connection = tx._session._connection  # type: ignore[attr-defined]
    return int(await connection.fetchval("SELECT pg_backend_pid()"))


def tell(what: str, ratio: Ratio, peer: str) -> None:
    spread = f"({ratio.low:.2f} to {ratio.high:.2f})"
    say(f"{what}: {ratio.ours:,.0f}/s, {peer} {ratio.theirs:,.0f}/s: {ratio.value:.2f} {spread} of the same statements")


def say(text: str) -> None:
    print(text, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=3.0, help="how long each figure is measured")
    parser.add_argument("--rounds", type=int, default=3, help="how often both sides of a ratio take turns")
    parser.add_argument("--quick", action="store_true", help="small sizes, to see that it works")
    options = parser.parse_args()
    seconds, rounds = (1.0, 1) if options.quick else (options.seconds, options.rounds)
    sizes = (1_000, 5_000) if options.quick else (1_000, 100_000)
    say(f"{platform.platform()}, {os.cpu_count()} cores, Python {platform.python_version()}")
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(bench_sqlite(str(Path(folder) / "bench.db"), seconds, rounds, sizes))
    with postgres_server(fsync="on", full_page_writes="on") as server:
        asyncio.run(bench_postgres(server.dsn, seconds, rounds, sizes))


if __name__ == "__main__":
    main()
