"""The tasks of the benchmarks, on any store."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from flowfabric import App, Signal, Task, race, step, wait_signal

NAMESPACE = "bench"


@dataclass(frozen=True, slots=True)
class Tasks:
    """An app and its tasks."""

    app: App
    go: Signal[int]
    trivial: Task[[int], int]
    parent: Task[[int], int]
    one_step: Task[[int], int]
    ten_steps: Task[[int], int]
    when: Task[[], float]
    timed_step: Task[[], float]
    waiting: Task[[], int]
    racing: Task[[int], int]

    async def size(self) -> int:
        """Return the size of the store in bytes, including indexes."""
        if not self.app.store.startswith("postgres"):
            file = Path(self.app.store)
            return sum(path.stat().st_size for path in file.parent.glob(f"{file.name}*"))
        import asyncpg

        connection = await asyncpg.connect(self.app.store)
        size = await connection.fetchval("SELECT pg_database_size(current_database())")
        await connection.close()
        return int(size)


async def nothing(number: int) -> int:
    """Do nothing. Tasks call this as a step."""
    return number


@asynccontextmanager
async def tasks_on(
    store: str,
    *,
    namespace: str = NAMESPACE,
    retention_s: float | None = None,
    note: Callable[[], None] = lambda: None,
) -> AsyncIterator[Tasks]:
    """Yield the tasks of an app on a store, and close the app at the end. Every trivial task calls `note`."""
    tasks = _tasks(App(store, namespace=namespace), retention_s, note)
    async with tasks.app:
        yield tasks


def _tasks(app: App, retention_s: float | None, note: Callable[[], None]) -> Tasks:  # noqa: C901 - a list
    go = Signal("go", int)

    @app.task(retention=retention_s)
    async def trivial(number: int) -> int:
        note()
        return number

    @app.task(retention=retention_s)
    async def parent(number: int) -> int:
        return await trivial.run(number)

    @app.task
    async def one_step(number: int) -> int:
        return await step(nothing, number)

    @app.task
    async def ten_steps(number: int) -> int:
        for index in range(10):
            number += await step(nothing, index)
        return number

    @app.task
    async def when() -> float:
        return time.perf_counter()

    @app.task
    async def timed_step() -> float:
        began = time.perf_counter()
        await step(nothing, 1)
        return (time.perf_counter() - began) * 1000

    @app.task(signals=[go])
    async def waiting() -> int:
        return (await wait_signal(go)).value

    @app.task
    async def runner(place: int) -> int:
        if place:
            await asyncio.sleep(60)
        return place

    @app.task
    async def racing(number: int) -> int:
        return (await race(*(runner.run(place) for place in range(number)))).value

    return Tasks(app, go, trivial, parent, one_step, ten_steps, when, timed_step, waiting, racing)
