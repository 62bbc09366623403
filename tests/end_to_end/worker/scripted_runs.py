"""Scripted runners for the worker's tests; each runs a function of the test and records the worker's calls."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, closing
from datetime import datetime
from typing import Any
from uuid import UUID

import asyncpg

from flowfabric.engine import Engine, FlowFabricError, Lease, State
from flowfabric.runtime.runner import always_held
from flowfabric.worker import Worker
from tests.stores import PostgresTestStore, TestStore


class ScriptedRun:
    """One run of a lease that records the notifications of the worker."""

    def __init__(self, engine: Engine, lease: Lease, body: Body) -> None:
        self.engine = engine
        self.lease = lease
        self.lost: asyncio.Future[FlowFabricError] = asyncio.get_running_loop().create_future()
        self.cancel: asyncio.Future[datetime] = asyncio.get_running_loop().create_future()
        self.draining = asyncio.Event()
        self.renewals: asyncio.Queue[None] = asyncio.Queue()
        self._body = body

    async def run(self) -> bool:
        await self._body(self)
        return not self.lost.done()

    async def wait_stopped(self) -> None:
        return None

    def lease_lost(self, error: FlowFabricError) -> None:
        self.lost.set_result(error)

    def cancel_requested(self, due_at: datetime) -> None:
        self.cancel.set_result(due_at)

    def drain(self) -> None:
        self.draining.set()

    def waits_changed(self) -> None:
        self.renewals.put_nowait(None)

    async def complete(self) -> None:
        await self.engine.leases.complete(self.lease.fence, b"done")

    async def release(self) -> None:
        await self.engine.leases.release(self.lease.fence)


Body = Callable[[ScriptedRun], Awaitable[None]]


class ScriptedRunner:
    """A runner that runs every lease with one function."""

    def __init__(self, body: Body, kinds: Sequence[str] = ("job",)) -> None:
        self.kinds = kinds
        self.version = "scripted"
        self.is_yielding = False
        self.begun: asyncio.Queue[ScriptedRun] = asyncio.Queue()
        self.ids: list[UUID] = []
        self._body = body

    def begin(self, engine: Engine, lease: Lease, is_held: Callable[[], bool] = always_held) -> ScriptedRun:
        run = ScriptedRun(engine, lease, self._body)
        self.ids.append(lease.execution_id)
        self.begun.put_nowait(run)
        return run

    async def next(self) -> ScriptedRun:
        """Wait at most 20 seconds for the next run to begin and return it."""
        async with asyncio.timeout(20):
            return await self.begun.get()


async def echo(run: ScriptedRun) -> None:
    """Complete immediately."""
    await run.complete()


async def until_drained(run: ScriptedRun) -> None:
    """Work until asked to unwind, then release the lease."""
    await run.draining.wait()
    await run.release()


async def until_lost(run: ScriptedRun) -> None:
    """Work until the lease is lost; ignore every other request."""
    await run.lost


def renewal_engine(store: TestStore) -> Callable[[], AbstractAsyncContextManager[Engine]]:
    """Return a factory for the engine of the renewal thread."""
    options: dict[str, Any] = {"pool_size": 1} if store.name == "postgres" else {}
    return lambda: store.connecting(notify=False, **options)


def make_worker(store: TestStore, engine: Engine, runner: ScriptedRunner, **options: Any) -> Worker:
    """Return a worker that renews leases in its own thread."""
    settings: dict[str, Any] = {"open_renewal_engine": renewal_engine(store), "grace": 20} | options
    return Worker(engine, runner, **settings)


async def submit_many(engine: Engine, number: int) -> list[UUID]:
    """Submit `number` executions and return their ids."""
    executions = await asyncio.gather(*(engine.executions.submit("job") for _ in range(number)))
    return [execution.id for execution in executions]


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    """Poll the condition until it is true, for at most 20 seconds."""
    async with asyncio.timeout(20):
        while not await condition():  # noqa: ASYNC110 - only the store knows
            await asyncio.sleep(0.02)


async def wait_until_completed(engine: Engine, id_: UUID) -> None:
    """Wait at most 20 seconds for the execution to complete."""
    outcome = await engine.executions.wait(id_, timeout=20)
    assert outcome is not None, "the execution did not end in time"
    assert outcome.state is State.COMPLETED


async def wait_for_state(engine: Engine, id_: UUID, state: State) -> None:
    """Wait until the execution is in this state."""

    async def is_in_state() -> bool:
        return (await engine.executions.describe(id_)).state is state

    await until(is_in_state)


@asynccontextmanager
async def block_writes(store: TestStore) -> AsyncIterator[None]:
    """Hold a lock that blocks every other writer while the block runs."""
    if isinstance(store, PostgresTestStore):
        connection = await asyncpg.connect(store.url)
        try:
            async with connection.transaction():
                await connection.execute(f'LOCK TABLE "{store.schema}".execution IN EXCLUSIVE MODE')
                yield
        finally:
            await connection.close()
    else:
        with closing(sqlite3.connect(store.url, isolation_level=None, timeout=10)) as locker:
            locker.execute("BEGIN IMMEDIATE")
            yield
