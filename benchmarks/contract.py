"""Submit, claim and complete at the contract, on both backends: how many a second, alone and in batches.

Run it with `python3 dev.py bench [--seconds 2]`. PostgreSQL is the throw-away server of the tests with fsync switched
on, or the one at FLOWFABRIC_TEST_PG_DSN; SQLite is a file in the temporary folder. Both acknowledge durably.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import platform
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from flowfabric import Engine, Submission, connect
from tests.postgres_server import postgres_server

Operation = Callable[[Engine, int], Awaitable[None]]


async def cycle(engine: Engine, size: int) -> None:
    """A batch through its whole life: submitted, claimed, completed."""
    await engine.executions.submit_many([Submission(kind="noop", payload=b"1") for _ in range(size)])
    leases = await engine.leases.claim(["default"], "bench", limit=size)
    answers = await engine.leases.complete_many([(lease.fence, b"1") for lease in leases])
    assert len(answers) == size, "the bench works alone on its store"


async def measure(engine: Engine, size: int, seconds: float) -> float:
    """Executions per second through the whole cycle, in batches of `size`."""
    await cycle(engine, size)
    began, done = time.perf_counter(), 0
    while time.perf_counter() - began < seconds:
        await cycle(engine, size)
        done += size
    return done / (time.perf_counter() - began)


async def bench(name: str, url: str, seconds: float) -> None:
    async with connect(url, schema=f"bench_{os.getpid()}") as engine:
        for size in (1, 10, 100):
            rate = await measure(engine, size, seconds)
            print(f"{name:<10} submit, claim, complete in batches of {size:>3}: {rate:>8,.0f} executions/s", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=2.0, help="how long each figure is measured")
    seconds = parser.parse_args().seconds
    print(f"{platform.platform()}, {os.cpu_count()} cores, Python {platform.python_version()}")
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(bench("SQLite", str(Path(folder) / "bench.db"), seconds))
    with postgres_server(fsync="on", full_page_writes="on") as server:
        asyncio.run(bench("PostgreSQL", server.dsn, seconds))


if __name__ == "__main__":
    main()
