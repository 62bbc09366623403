"""Stop a transaction between its writes and its commit, and detect that another transaction waits for it."""

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
from flowfabric.store.ports import Body, Store
from flowfabric.store.transaction import Transaction
from tests.stores import PostgresTestStore, TestStore

_DEADLINE_S = 10.0
_LOOK_EVERY_S = 0.002
# The server truncates the text of long statements, so the text may not show the schema. The query therefore finds the
# schema by the tables that a statement uses.
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
    """Wait until the check returns True. Fail after a deadline that a healthy run never reaches."""
    ends = time.monotonic() + _DEADLINE_S
    while not await look():
        assert time.monotonic() < ends, "the expected condition did not occur in time"
        await asyncio.sleep(_LOOK_EVERY_S)


@asynccontextmanager
async def block_writes(store: TestStore, execution_id: UUID) -> AsyncIterator[None]:
    """Lock the row of an execution, or the whole file on SQLite, until the block ends."""
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
    """Raised to roll back a stopped transaction."""


class StoppedCall:
    """An engine call whose transaction stops after its writes and commits on request."""

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
        """Start the call and wait until its writes are made but not committed, or until it has ended."""
        stopping: Any = _StoppingStore(self._engine._context.store, self._stopped)
        engine = Engine(replace(self._engine._context, store=stopping, batchers={}))
        self._task = asyncio.create_task(_awaited(call(engine)))
        written = asyncio.create_task(self._written.wait())
        await asyncio.wait({self._task, written}, return_when=asyncio.FIRST_COMPLETED)
        written.cancel()

    @property
    def has_ended(self) -> bool:
        """True if the call has ended, because it had no transaction to stop."""
        return self._task is not None and self._task.done()

    async def commit(self) -> Any:
        """Commit the transaction and return the result of the call."""
        self._may_commit.set()
        self._thread_may_commit.set()
        assert self._task is not None, "begin was called"
        return await self._task

    async def roll_back(self) -> None:
        """Roll the transaction back."""
        self._rolls_back = True
        with contextlib.suppress(RolledBack):
            await self.commit()

    def _stopped(self, body: Body[Any]) -> Body[Any]:
        async def stopped(tx: Transaction) -> Any:
            result = await body(tx)
            if isinstance(result, list) and not any(result):
                return result  # A batch that rejected every item has written nothing.
            self._loop.call_soon_threadsafe(self._written.set)
            # On SQLite the body runs on the writer thread, which it may block. On PostgreSQL it runs on the event loop.
            if self._on_thread:
                assert self._thread_may_commit.wait(_DEADLINE_S), "the test did not release the transaction"
            else:
                await self._may_commit.wait()
            if self._rolls_back:
                raise RolledBack
            return result

        return stopped


class OpenTransaction:
    """A transaction with a given body that stops after its writes and commits on request."""

    def __init__(self, store: TestStore, engine: Engine) -> None:
        self._call = StoppedCall(store, engine)

    async def begin(self, body: Body[Any]) -> None:
        """Run the body and wait until its writes are made but not committed."""
        await self._call.begin(lambda engine: engine._context.store.run(body))
        if self._call.has_ended:
            await self._call.commit()

    async def commit(self) -> Any:
        """Commit the transaction and return the result of the body."""
        return await self._call.commit()


class _StoppingStore:
    """A store whose write transactions stop before they commit. Reads do not stop."""

    def __init__(self, store: Store, stopped: Callable[[Body[Any]], Body[Any]]) -> None:
        self._store = store
        self._stopped = stopped

    async def run(self, body: Body[Any], *, is_urgent: bool = False) -> Any:
        return await self._store.run(self._stopped(body))

    async def run_single(self, body: Body[Any], *, is_urgent: bool = False) -> Any:
        return await self._store.run(self._stopped(body))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


async def _awaited(call: Awaitable[Any]) -> Any:
    return await call


async def wait_until_blocked(store: TestStore, engine: Engine, calls: int) -> None:
    """Wait until `calls` calls of the engine are blocked by a lock."""
    if isinstance(store, PostgresTestStore):
        schema = store.schema
        await eventually(lambda: _has_waiters(store, schema, calls))
    else:
        await eventually(lambda: _is_writer_blocked(engine))


async def wait_until_engines_blocked(store: TestStore, engines: Sequence[Engine]) -> None:
    """Wait until one call of each engine is blocked by a lock."""
    # On PostgreSQL one query counts the blocked calls of all engines. On SQLite each engine has its own writer thread.
    for engine in engines[:1] if store.name == "postgres" else engines:
        await wait_until_blocked(store, engine, len(engines))


async def _has_waiters(store: TestStore, schema: str, calls: int) -> bool:
    [row] = await store.query(_WAITERS, schema)
    return bool(row["waiting"] >= calls)


async def _is_writer_blocked(engine: Engine) -> bool:
    """Return True if the writer thread, which all calls share, is blocked at the start of its transaction."""
    store: Any = engine._context.store
    writer = store._writer
    frame = sys._current_frames().get(writer._thread.ident)
    begins = frame is not None and frame.f_code.co_name == "_commit_batch"
    return begins and not writer._connection.in_transaction
