"""A mixed load on one worker, and the memory that the process gains by it.

Of 20 submitted executions, 10 are plain jobs. The others make steps, sleep, wait for a signal, run a child, run a race
of two children, or fail. Together with the children, these are 24 executions.

An engine remembers a few things in tables of a fixed size, such as the last leases. `fill_tables` fills these tables,
because a warm-up of thousands of executions would take long.
"""

from __future__ import annotations

import asyncio
import gc
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

from flowfabric import App, ExecutionFailed, Signal, race, sleep, step, wait_signal
from flowfabric.core.ids import derive_id
from flowfabric.worker import Worker
from tests.stores import PostgresTestStore, TestStore

GO = Signal("go", int)
PERIOD = 20
EXECUTIONS_PER_PERIOD = 24
PATIENCE_S = 120.0
_TABLE_SIZE = 5_000
_REST_S = 1.5
_PAGE_KB = 4
_OURS = ("flowfabric.", "UUID")


@dataclass(frozen=True)
class Memory:
    """The memory of this process: its resident size, and its live objects by type."""

    resident_kb: int
    objects: Counter[str]

    @classmethod
    def measure(cls) -> Memory:
        """Collect garbage, then measure."""
        gc.collect()
        names = (_type_name(each) for each in gc.get_objects())
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        return cls(pages * _PAGE_KB, Counter(names))

    def gained_since(self, before: Memory) -> Counter[str]:
        """Return the types of the engine of which there are more objects now, and how many more.

        Drivers keep prepared statements, which is a fixed number per connection.
        """
        gained = self.objects - before.objects
        return Counter({name: number for name, number in gained.items() if name.startswith(_OURS)})


class MixedLoad:
    """An app with the tasks of the load. Results that differ from the expected ones are counted in `wrong`."""

    def __init__(self, store: TestStore) -> None:
        options: Any = {"durable": False}
        if isinstance(store, PostgresTestStore):
            options["schema"] = store.schema
        self.app = App(store.url, arguments="off", options=options)
        self.executions = 0
        self.wrong: list[str] = []
        self._define_tasks()

    def _define_tasks(self) -> None:
        app = self.app

        @app.task
        async def leaf(n: int) -> int:
            return n

        @app.task
        async def never(n: int) -> int:
            await sleep("1h")
            return n

        @app.task(signals=[GO])
        async def waiting(n: int) -> int:
            return (await wait_signal(GO)).value

        @app.task
        async def stepping(n: int) -> int:
            return await step(_same, await step(_same, n))

        @app.task
        async def sleeping(n: int) -> int:
            await sleep("5ms")
            return n

        @app.task
        async def parent(n: int) -> int:
            return await leaf.run(n)

        @app.task
        async def racing(n: int) -> int:
            winner = await race(leaf.run(n), never.run(n))
            return winner.value

        @app.task(retries=0)
        async def failing(n: int) -> int:
            raise ValueError(f"refused {n}")

        rare = (stepping, stepping, sleeping, sleeping, waiting, waiting, parent, parent, racing, failing)
        self._tasks = (*(leaf,) * (PERIOD - len(rare)), *rare)

    async def run(self, periods: int, at_once: int = 5) -> None:
        """Run periods of the load, some of them concurrently."""
        for first in range(0, periods, at_once):
            async with asyncio.timeout(PATIENCE_S):
                await self._run(min(at_once, periods - first) * PERIOD)

    async def _run(self, number: int) -> None:
        handles = await self.app.submit_many([self._tasks[n % PERIOD].call(n) for n in range(number)])
        waiting = [(n, handle) for n, handle in enumerate(handles) if self._tasks[n % PERIOD].name == "waiting"]
        await asyncio.gather(*(handle.signal(GO, n) for n, handle in waiting))
        for n, handle in enumerate(handles):
            with suppress(ExecutionFailed):
                if (result := await handle) != n:
                    self.wrong.append(f"{self._tasks[n % PERIOD].name} {n} returned {result}")
        self.executions += number * EXECUTIONS_PER_PERIOD // PERIOD


async def come_to_rest() -> None:
    """Wait until coalesced notifications were sent, and the event loop dropped the cancelled timers of runs.

    Such a timer keeps the context of its run until it is due, for at most a second.
    """
    await asyncio.sleep(_REST_S)


def fill_tables(worker: Worker) -> None:
    """Fill the tables of a fixed size with other entries."""
    for _ in range(_TABLE_SIZE):
        worker._lease_table.confirm_end(uuid4())
        derive_id(UUID(int=uuid4().int), "filler")


def _type_name(value: object) -> str:
    # The driver of PostgreSQL has its own class for ids.
    return "UUID" if isinstance(value, UUID) else f"{type(value).__module__}.{type(value).__qualname__}"


async def _same(n: int) -> int:
    return n
