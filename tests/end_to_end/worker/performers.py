"""Performers for the worker's tests: each performs by a function of the test's, and remembers what it was told."""

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
from flowfabric.worker import Worker
from tests.stores import PostgresTestStore, TestStore


class Told:
    """One performance: a lease, and what the worker tells about it."""

    def __init__(self, engine: Engine, lease: Lease, body: Body) -> None:
        self.engine = engine
        self.lease = lease
        self.lost: asyncio.Future[FlowFabricError] = asyncio.get_running_loop().create_future()
        self.cancel: asyncio.Future[datetime] = asyncio.get_running_loop().create_future()
        self.draining = asyncio.Event()
        self.renewals: asyncio.Queue[None] = asyncio.Queue()
        self._body = body

    async def perform(self) -> None:
        await self._body(self)

    def lease_lost(self, error: FlowFabricError) -> None:
        self.lost.set_result(error)

    def cancel_requested(self, due_at: datetime) -> None:
        self.cancel.set_result(due_at)

    def drain(self) -> None:
        self.draining.set()

    def news(self) -> None:
        self.renewals.put_nowait(None)

    async def complete(self) -> None:
        await self.engine.leases.complete(self.lease.fence, b"done")

    async def release(self) -> None:
        await self.engine.leases.release(self.lease.fence)


Body = Callable[[Told], Awaitable[None]]


class Performer:
    """Performs every lease by one function."""

    def __init__(self, body: Body, kinds: Sequence[str] = ("job",)) -> None:
        self.kinds = kinds
        self.begun: asyncio.Queue[Told] = asyncio.Queue()
        self.ids: list[UUID] = []
        self._body = body

    def begin(self, engine: Engine, lease: Lease) -> Told:
        told = Told(engine, lease, self._body)
        self.ids.append(lease.execution_id)
        self.begun.put_nowait(told)
        return told

    async def next(self) -> Told:
        """The next performance that begins, which must be soon."""
        async with asyncio.timeout(20):
            return await self.begun.get()


async def echo(told: Told) -> None:
    """Completes at once."""
    await told.complete()


async def until_drained(told: Told) -> None:
    """Works until it is asked to unwind, then gives the lease back."""
    await told.draining.wait()
    await told.release()


async def until_lost(told: Told) -> None:
    """Works until its lease is lost, whatever else it is told."""
    await told.lost


def second_engine(store: TestStore) -> Callable[[], AbstractAsyncContextManager[Engine]]:
    """How the renewing thread opens an engine of its own."""
    options: dict[str, Any] = {"pool_size": 1} if store.name == "postgres" else {}
    return lambda: store.connecting(notify=False, **options)


def worker_on(store: TestStore, engine: Engine, performer: Performer, **options: Any) -> Worker:
    """A worker that renews by a thread of its own."""
    settings: dict[str, Any] = {"renewal": second_engine(store), "grace": 20} | options
    return Worker(engine, performer, **settings)


async def submit_many(engine: Engine, number: int) -> list[UUID]:
    """So many fresh executions."""
    answers = await asyncio.gather(*(engine.executions.submit("job") for _ in range(number)))
    return [answer.id for answer in answers]


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    """Returns when something that nobody tells has become true, which must be soon."""
    async with asyncio.timeout(20):
        while not await condition():  # noqa: ASYNC110 - nobody but the store knows
            await asyncio.sleep(0.02)


async def completed(engine: Engine, id_: UUID) -> None:
    """Returns when the execution has ended well, which must be soon."""
    outcome = await engine.executions.wait(id_, timeout=20)
    assert outcome is not None, "it takes too long"
    assert outcome.state is State.COMPLETED


async def until_in(engine: Engine, id_: UUID, state: State) -> None:
    """Returns when the execution is in this state."""

    async def is_there() -> bool:
        return (await engine.executions.describe(id_)).state is state

    await until(is_there)


@asynccontextmanager
async def nobody_writes(store: TestStore) -> AsyncIterator[None]:
    """While the block lasts, somebody else keeps everybody from writing."""
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
