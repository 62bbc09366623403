"""PgQueuer: jobs enqueued and dequeued in batches of 100 over asyncpg. It stores no attempts and no results."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from importlib.metadata import version
from typing import Any

import asyncpg
from pgqueuer import AsyncpgDriver, Job, PgQueuer, Queries

from benchmarks.peers.driving import Coroutines, in_loop
from benchmarks.peers.protocol import Turn, serve

_BATCH = 100


async def jobs(turn: Turn) -> None:
    driver = Coroutines(turn)
    async with _working(turn, driver) as submit:
        await driver.rate(submit, batch=_BATCH)


async def start(turn: Turn) -> None:
    driver = Coroutines(turn)
    async with _working(turn, driver) as submit:
        await driver.starts(submit)


@asynccontextmanager
async def _working(turn: Turn, driver: Coroutines) -> AsyncIterator[Callable[[int], Awaitable[Any]]]:
    logging.getLogger("pgqueuer").setLevel(logging.ERROR)
    pool = await asyncpg.create_pool(turn.request.store, min_size=4, max_size=10)
    sending = Queries(AsyncpgDriver(await asyncpg.connect(turn.request.store)))
    await sending.install()
    queue = PgQueuer.from_asyncpg_pool(pool)

    @queue.entrypoint("trivial")
    async def trivial(_: Job) -> None:
        driver.ran()

    async def submit(number: int) -> None:
        await sending.enqueue(["trivial"] * number, [b"1"] * number, [0] * number)

    working = asyncio.create_task(queue.run(dequeue_timeout=timedelta(seconds=1), batch_size=_BATCH))
    yield submit
    queue.shutdown.set()
    working.cancel()


if __name__ == "__main__":
    told = f"PgQueuer {version('pgqueuer')}, batches of {_BATCH}"
    serve(told, {scenario.__name__: in_loop(scenario) for scenario in (jobs, start)})
