"""Absurd: tasks claimed by four workers with one connection each.

The workers poll every 10 ms instead of the default 250 ms.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from importlib.metadata import version
from typing import Any

import psycopg
from absurd_sdk import AsyncAbsurd
from absurdctl import BUNDLED_SCHEMA_SQL

from benchmarks.peers.driving import Coroutines, in_loop
from benchmarks.peers.protocol import Turn, serve

_WORKERS = 4
_CLIENTS = 4
_POLLING_S = 0.01
_CONCURRENCY = 32


async def jobs(turn: Turn) -> None:
    driver = Coroutines(turn)
    spawn = await _working(turn, driver, steps=0)
    await driver.rate(spawn, batch=1, callers=_CLIENTS)


async def start(turn: Turn) -> None:
    driver = Coroutines(turn)
    await driver.starts(await _working(turn, driver, steps=0))


async def steps(turn: Turn) -> None:
    driver, number = Coroutines(turn), turn.request.number
    spawn = await _working(turn, driver, steps=number)
    await driver.rate(spawn, batch=1, callers=_CLIENTS, per_job=number)


async def _working(turn: Turn, driver: Coroutines, steps: int) -> Callable[[int], Awaitable[Any]]:
    async with await psycopg.AsyncConnection.connect(turn.request.store, autocommit=True) as connection:
        await connection.execute(BUNDLED_SCHEMA_SQL)
    clients = [AsyncAbsurd(turn.request.store, queue_name="bench") for _ in range(_CLIENTS)]
    await clients[0].create_queue("bench")
    for _ in range(_WORKERS):
        worker = AsyncAbsurd(turn.request.store, queue_name="bench")
        _register(worker, driver, steps)
        working = asyncio.create_task(worker.start_worker(concurrency=_CONCURRENCY, poll_interval=_POLLING_S))
        _kept.append(working)
    free: asyncio.Queue[AsyncAbsurd] = asyncio.Queue()
    for client in clients:
        free.put_nowait(client)

    async def spawn(_: int) -> None:
        client = await free.get()
        await client.spawn("several", {"value": 1}, queue="bench")
        free.put_nowait(client)

    return spawn


def _register(worker: AsyncAbsurd, driver: Coroutines, steps: int) -> None:
    async def nothing() -> int:
        return 1

    @worker.register_task("several", queue="bench")
    async def several(_: dict[str, int], context: Any) -> int:
        if not steps:
            driver.ran()
            return 1
        for place in range(steps):
            await context.step(f"step-{place}", nothing)
        driver.ran()
        return steps


_kept: list[asyncio.Task[None]] = []

if __name__ == "__main__":
    told = f"Absurd {version('absurd-sdk')}, polled every 10 ms"
    serve(told, {scenario.__name__: in_loop(scenario) for scenario in (jobs, start, steps)})
