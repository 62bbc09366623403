"""Idle workers, each with its own engine, duties, registration and watch."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any
from uuid import UUID

import asyncpg

from flowfabric.engine import Engine, WorkerId

TTL_S = 60
Opening = Callable[[], Any]


class Starts:
    """The start times of executions, which callers can await."""

    def __init__(self) -> None:
        self._times: dict[UUID, asyncio.Future[float]] = {}

    def __len__(self) -> int:
        return sum(time.done() for time in self._times.values())

    def note(self, id_: UUID) -> None:
        """Record that the execution starts now."""
        time_ = self._of(id_)
        if not time_.done():
            time_.set_result(time.perf_counter())

    async def of(self, id_: UUID) -> float:
        """Wait until the execution has started and return the time. Time out after 30 seconds."""
        async with asyncio.timeout(30):
            return await self._of(id_)

    def _of(self, id_: UUID) -> asyncio.Future[float]:
        return self._times.setdefault(id_, asyncio.get_running_loop().create_future())


class IdleWorker:
    """A worker that claims when it is notified, completes each execution immediately, and records when it started."""

    def __init__(self, engine: Engine, name: str, started: Starts) -> None:
        self._engine = engine
        self._id = WorkerId("idle", name)
        self._started = started

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        await self._engine.workers.register(self._id, ["default"], ttl=TTL_S)
        async with self._engine.reconcilers.run_in_background():
            tasks = [asyncio.create_task(self._work()), asyncio.create_task(self._beat())]
            try:
                yield
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)

    async def _work(self) -> None:
        with self._engine.leases.watch(["default"]) as work:
            while True:
                leases = await self._engine.leases.claim(["default"], self._id, limit=4)
                for lease in leases:
                    self._started.note(lease.execution_id)
                    await self._engine.leases.complete(lease.fence, b"")
                if not leases:
                    await work.wait()

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(TTL_S / 3)
            await self._engine.workers.heartbeat(self._id.instance)


@asynccontextmanager
async def idle_workers(opening: Opening, number: int) -> AsyncIterator[Starts]:
    """Run `number` workers on a store and yield the start times of executions."""
    started = Starts()
    async with AsyncExitStack() as stack:
        for place in range(number):
            engine = await stack.enter_async_context(opening())
            await stack.enter_async_context(IdleWorker(engine, f"idle-{place}", started).running())
        yield started


async def start_latencies_ms(engine: Engine, started: Starts, number: int, pause_s: float) -> list[float]:
    """Submit `number` executions with pauses and return the latency from each submit to its start."""
    latencies_ms = []
    for _ in range(number):
        await asyncio.sleep(pause_s)
        began = time.perf_counter()
        submitted = await engine.executions.submit("noop")
        latencies_ms.append((await started.of(submitted.id) - began) * 1000)
    return latencies_ms


class StatementCount:
    """Counts all statements that this process sends to a store, including BEGIN and COMMIT."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self._made, self._opened = asyncpg.Connection.__init__, sqlite3.connect

    @property
    def number(self) -> int:
        return len(self.texts)

    def __enter__(self) -> StatementCount:
        made, opened = self._made, self._opened

        def make(connection: Any, *arguments: Any, **named: Any) -> None:
            made(connection, *arguments, **named)
            connection.add_query_logger(lambda record: self._count(record.query))

        def open_(*arguments: Any, **named: Any) -> sqlite3.Connection:
            connection: sqlite3.Connection = opened(*arguments, **named)
            connection.set_trace_callback(self._count)
            return connection

        setattr(asyncpg.Connection, "__init__", make)  # noqa: B010 - the type checker forbids the short way
        setattr(sqlite3, "connect", open_)  # noqa: B010
        return self

    def __exit__(self, *_: object) -> None:
        setattr(asyncpg.Connection, "__init__", self._made)  # noqa: B010
        setattr(sqlite3, "connect", self._opened)  # noqa: B010

    def _count(self, text: str) -> None:
        self.texts.append(text[:60])
