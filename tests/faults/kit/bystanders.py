"""One worker with several executions, of which a fault hits one. The others are bystanders, and must run once.

Each execution runs short steps until the fault is over. The ledger is kept in this process: how often each execution
ran, and which steps were recorded. A step body that starts after its record is doubled.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from flowfabric import App, Handle, StepFailed, step
from flowfabric.engine import StoreOptions
from tests.faults.rows.row import Tally
from tests.stores import PostgresTestStore, TestStore

STEP_S = 0.05
PATIENCE_S = 60.0
Transaction = Callable[[Any], Any]


class Station:
    """The app and the ledger of one worker."""

    def __init__(self, store: TestStore, name: str, transaction: Transaction | None = None) -> None:
        self.name = name
        self.runs = Counter[str]()
        self.ends: dict[str, float] = {}
        self.doubled: list[str] = []
        self.is_over = False
        self._recorded: dict[str, set[int]] = defaultdict(set)
        self._has_recorded: dict[str, asyncio.Event] = defaultdict(asyncio.Event)
        self._handles: dict[str, Handle[Any]] = {}
        options: StoreOptions = {"durable": False}
        if isinstance(store, PostgresTestStore):
            options["schema"] = store.schema
        self.app = App(store.url, options=options)
        self._work = self.app.task(name="work", retries=0)(self._make_work())
        self._transact = self.app.task(name="transact", retries=0)(self._make_transaction(transaction))

    async def begin(self, *names: str) -> None:
        """Submit executions that work until the fault is over, and wait until each has recorded a step."""
        for name in names:
            self._handles[name] = await self._work.submit(name)
        async with asyncio.timeout(PATIENCE_S):
            for name in names:
                await self._has_recorded[name].wait()

    async def transact(self, name: str) -> str:
        """Run an execution whose only step is the transaction, and return `committed` or the error's text."""
        self._handles[name] = await self._transact.submit(name)
        return str(await self._handles[name])

    def id_of(self, name: str) -> Any:
        """Return the id of an execution."""
        return self._handles[name].id

    async def finish(self, tally: Tally) -> None:
        """Let the executions end, and add to the tally those that do not."""
        self.is_over = True
        for name, handle in self._handles.items():
            tally.executions += 1
            try:
                async with asyncio.timeout(PATIENCE_S):
                    await handle
            except TimeoutError:
                tally.stuck.append(f"{self.name}: {name} did not end within {PATIENCE_S:g} s")
            except Exception as error:
                tally.wrong.append(f"{self.name}: {name} failed with {error!r}")
        tally.doubled += self.doubled

    def check_runs(self, tally: Tally, *names: str) -> None:
        """Add the executions that did not run exactly once."""
        for name in names:
            if self.runs[name] != 1:
                tally.doubled.append(f"{self.name}: {name} ran {self.runs[name]} times, although no fault hit it")

    @asynccontextmanager
    async def working(self, lease_s: float) -> AsyncIterator[None]:
        """Run the worker inside the block."""
        async with self.app, self.app.worker(lease=lease_s):
            yield

    def _make_work(self) -> Callable[[str], Awaitable[int]]:
        async def may_end(name: str, number: int) -> bool:
            if number in self._recorded[name]:
                self.doubled.append(f"{self.name}: step {number} of {name} started after its result was recorded")
            await asyncio.sleep(STEP_S)
            return self.is_over

        async def work(name: str) -> int:
            self.runs[name] += 1
            number, is_over = 0, False
            while not is_over:
                is_over = await step(may_end, name, number)
                self._recorded[name].add(number)
                self._has_recorded[name].set()
                number += 1
            self.ends[name] = time.monotonic()
            return number

        return work

    def _make_transaction(self, transaction: Transaction | None) -> Callable[[str], Awaitable[str]]:
        async def transact(name: str) -> str:
            self.runs[name] += 1
            assert transaction is not None, "the suite has no transaction"
            try:
                await step.options(retries=0).tx(transaction)
            except StepFailed as error:
                return str(error)
            return "committed"

        return transact
