"""Procrastinate: jobs deferred in batches of 100 and run by one worker with concurrency 100 and notifications."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from importlib.metadata import version
from typing import Any

from procrastinate import App, PsycopgConnector

from benchmarks.peers.driving import Coroutines, in_loop
from benchmarks.peers.protocol import Turn, serve

_BATCH = 100
_CONCURRENCY = 100


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
    logging.getLogger("procrastinate").setLevel(logging.ERROR)
    app = App(connector=PsycopgConnector(conninfo=turn.request.store, min_size=4, max_size=20))

    @app.task(name="trivial")
    async def trivial(number: int) -> int:
        driver.ran()
        return number

    async def submit(number: int) -> None:
        if number == 1:
            await trivial.defer_async(number=1)
        else:
            await trivial.batch_defer_async(*({"number": place} for place in range(number)))

    async with app.open_async():
        await app.schema_manager.apply_schema_async()
        options = {"concurrency": _CONCURRENCY, "install_signal_handlers": False}
        working = asyncio.create_task(app.run_worker_async(**options))
        yield submit
        working.cancel()


if __name__ == "__main__":
    told = f"Procrastinate {version('procrastinate')}, batches of {_BATCH}"
    serve(told, {scenario.__name__: in_loop(scenario) for scenario in (jobs, start)})
