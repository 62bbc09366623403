"""Ways to stop a transaction between its writes and its commit, and to know that another one really waits for it."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import sys
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any
from uuid import UUID

import asyncpg

from flowfabric.engine import Engine
from flowfabric.store.transaction import Body, Store, Transaction
from tests.stores import PostgresTestStore, TestStore

_DEADLINE_S = 10.0
_LOOK_EVERY_S = 0.002
# The server cuts the text of a long statement off; by the tables it has opened it is known which schema it is for.
_WAITERS = """
    SELECT COUNT(*) AS waiting
    FROM pg_stat_activity AS a
    WHERE a.wait_event_type = 'Lock'
        AND cardinality(pg_blocking_pids(a.pid)) > 0
        AND EXISTS (
            SELECT 1
            FROM pg_locks AS l
            JOIN pg_class AS c ON c.oid = l.relation
            JOIN pg_namespace AS n ON n.oid = c.relnamespace
            WHERE l.pid = a.pid
                AND n.nspname = ?
        )
"""


async def eventually(look: Callable[[], Awaitable[bool]]) -> None:
    """Returns as soon as a look says so; fails if none does within a deadline that no healthy run comes near."""
    ends = time.monotonic() + _DEADLINE_S
    while not await look():
        assert time.monotonic() < ends, "what the test waits for never happened"
        await asyncio.sleep(_LOOK_EVERY_S)


@asynccontextmanager
async def held_up(store: TestStore, execution_id: UUID) -> AsyncIterator[None]:
    """Nobody can write the execution while the block lasts: its row is locked, or on SQLite the file."""
    if isinstance(store, PostgresTestStore):
        holder = await asyncpg.connect(store.url)
        async with holder.transaction():
            await holder.execute(f'SELECT 1 FROM "{store.schema}".execution WHERE id = $1 FOR UPDATE', execution_id)
            yield
        await holder.close()
        return
    with contextlib.closing(sqlite3.connect(store.url, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        yield
        other.execute("ROLLBACK")


class RolledBack(Exception):
    """What a transaction ends with that was told to roll back."""


class StoppedCall:
    """A call of an engine whose transaction has made its writes and commits when told."""

    def __init__(self, store: TestStore, engine: Engine) -> None:
        self._on_thread = store.name == "sqlite"
        self._engine = engine
        self._loop = asyncio.get_running_loop()
        self._written = asyncio.Event()
        self._may_commit = asyncio.Event()
        self._thread_may_commit = threading.Event()
        self._task: asyncio.Task[Any] | None = None
        self._rolls_back = False

    async def begin(self, call: Callable[[Engine], Awaitable[Any]]) -> None:
        """Starts the call and returns when it has made its writes, which are not committed yet, or has ended."""
        stopping: Any = _StoppingStore(self._engine._context.store, self._stopped)
        engine = Engine(replace(self._engine._context, store=stopping, batchers={}))
        self._task = asyncio.create_task(_awaited(call(engine)))
        written = asyncio.create_task(self._written.wait())
        await asyncio.wait({self._task, written}, return_when=asyncio.FIRST_COMPLETED)
        written.cancel()

    @property
    def has_ended(self) -> bool:
        """True if the call came to its end without a transaction to stop in."""
        return self._task is not None and self._task.done()

    async def commit(self) -> Any:
        """Lets the transaction commit; answers what the call did."""
        self._may_commit.set()
        self._thread_may_commit.set()
        assert self._task is not None, "it has begun"
        return await self._task

    async def roll_back(self) -> None:
        """Lets the transaction end without its writes."""
        self._rolls_back = True
        with contextlib.suppress(RolledBack):
            await self.commit()

    def _stopped(self, body: Body[Any]) -> Body[Any]:
        async def stopped(tx: Transaction) -> Any:
            answer = await body(tx)
            if isinstance(answer, list) and not any(answer):
                return answer  # A batch that left everything out has written nothing.
            self._loop.call_soon_threadsafe(self._written.set)
            # SQLite's writer thread runs the body and may be blocked; on PostgreSQL the body runs on the event loop.
            if self._on_thread:
                assert self._thread_may_commit.wait(_DEADLINE_S), "nobody let the transaction commit"
            else:
                await self._may_commit.wait()
            if self._rolls_back:
                raise RolledBack
            return answer

        return stopped


class OpenTransaction:
    """The same for a transaction with a body of its own."""

    def __init__(self, store: TestStore, engine: Engine) -> None:
        self._call = StoppedCall(store, engine)

    async def begin(self, body: Body[Any]) -> None:
        """Runs the body and returns when it has made its writes; they are not committed yet."""
        await self._call.begin(lambda engine: engine._context.store.run(body))
        if self._call.has_ended:
            await self._call.commit()

    async def commit(self) -> Any:
        """Lets the transaction commit; answers what its body did."""
        return await self._call.commit()


class _StoppingStore:
    """A store whose transactions stop before their commit; reads do not."""

    def __init__(self, store: Store, stopped: Callable[[Body[Any]], Body[Any]]) -> None:
        self._store = store
        self._stopped = stopped

    async def run(self, body: Body[Any]) -> Any:
        return await self._store.run(self._stopped(body))

    async def run_single(self, body: Body[Any]) -> Any:
        return await self._store.run(self._stopped(body))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


async def _awaited(call: Awaitable[Any]) -> Any:
    return await call


async def all_wait_for_a_lock(store: TestStore, engine: Engine, calls: int) -> None:
    """Returns when that many calls of the engine wait for a lock that somebody else holds."""
    if isinstance(store, PostgresTestStore):
        schema = store.schema
        await eventually(lambda: _that_many_wait(store, schema, calls))
    else:
        await eventually(lambda: _writer_waits(engine))


async def all_engines_wait(store: TestStore, engines: Sequence[Engine]) -> None:
    """The same for one call of each of these engines."""
    # PostgreSQL knows them all; on SQLite each has a thread to look at.
    for engine in engines[:1] if store.name == "postgres" else engines:
        await all_wait_for_a_lock(store, engine, len(engines))


async def _that_many_wait(store: TestStore, schema: str, calls: int) -> bool:
    [row] = await store.query(_WAITERS, schema)
    return bool(row["waiting"] >= calls)


async def _writer_waits(engine: Engine) -> bool:
    """All calls share the writer thread: it has taken them and stands in the statement that begins a transaction."""
    store: Any = engine._context.store
    writer = store._writer
    frame = sys._current_frames().get(writer._thread.ident)
    begins = frame is not None and frame.f_code.co_name == "_commit_together"
    return begins and not writer._connection.in_transaction
