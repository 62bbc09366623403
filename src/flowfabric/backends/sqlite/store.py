"""A store in one SQLite file."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from flowfabric.backends.sqlite.checkpoint import Checkpointer
from flowfabric.backends.sqlite.connection import (
    MEMORY,
    check_environment,
    connect,
    limit_statements,
    use_write_ahead_log,
)  # fmt: skip
from flowfabric.backends.sqlite.errors import translated
from flowfabric.backends.sqlite.facts import facts_of, facts_of_memory
from flowfabric.backends.sqlite.joining import async_refusal, run_joined
from flowfabric.backends.sqlite.migrate import migrate, require_store
from flowfabric.backends.sqlite.session import SqliteSession
from flowfabric.backends.sqlite.wakeups import SqliteTelling
from flowfabric.backends.sqlite.writer import Clock, Writer
from flowfabric.core.errors import Unavailable
from flowfabric.sqlstore.driving import drive
from flowfabric.sqlstore.rows import when
from flowfabric.sqlstore.sharing import RaisedByUser
from flowfabric.sqlstore.statements import Dialect, load
from flowfabric.sqlstore.transaction import SqlTransaction
from flowfabric.store.facts import StoreFacts
from flowfabric.store.transaction import Answer, Body, JoinedBody, SharedBody

DIALECT = Dialect(table_prefix="ff_", numbered=False)
_READERS = 2


async def open_sqlite(
    path: str,
    *,
    clock: Clock | None = None,
    durable: bool = True,
    statement_timeout_s: float = 30.0,
    may_migrate: bool = True,
) -> SqliteStore:
    """A store in the file at `path`, which is made and brought to the present schema if need be."""
    # Opening may wait for other processes, so it must not hold up the event loop.
    return await asyncio.to_thread(_open, path, clock or _wall_clock, durable, statement_timeout_s, may_migrate)


class SqliteStore:
    """Writes by one thread, reads by a few; `:memory:` has one connection only, so it reads where it writes."""

    def __init__(self, path: str, writer: Writer, clock: Clock, durable: bool, timeout_s: float) -> None:
        self._path = path
        self._file = path if path == MEMORY else str(Path(path).resolve())
        self._writer = writer
        self._clock = clock
        self._durable = durable
        self._timeout_s = timeout_s
        self._statements = load(DIALECT, "flowfabric.backends.sqlite")
        self._readers = ThreadPoolExecutor(_READERS, thread_name_prefix="flowfabric-sqlite-reader")
        self._own = threading.local()
        self._opened: list[sqlite3.Connection] = []
        self._process = os.getpid()
        self._closed = False
        self.telling = SqliteTelling(writer)

    async def run(self, body: Body[Answer]) -> Answer:
        self._check_usable()
        answer: Answer = await self._writer.run(body)
        return answer

    async def run_shared(self, body: SharedBody[Answer]) -> Answer:
        self._check_usable()
        try:
            # Alone: it may take its time, and what it breaks must not be somebody else's.
            answer: Answer = await self._writer.run(body, alone=True)
        except RaisedByUser as raised:
            error = raised.error
        else:
            return answer
        raise error

    async def run_single(self, body: Body[Answer]) -> Answer:
        return await self.run(body)

    async def read(self, body: Body[Answer]) -> Answer:
        self._check_usable()
        if self._path == MEMORY:
            return await self.run(body)
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._readers, self._read, body)

    async def read_single(self, body: Body[Answer]) -> Answer:
        return await self.read(body)

    async def run_within(self, connection: object, body: JoinedBody[Answer], *, savepoint: bool) -> Answer:
        self._check_usable()
        raise async_refusal(connection)

    def run_within_sync(self, connection: object, body: JoinedBody[Answer], *, savepoint: bool) -> Answer:
        self._check_usable()
        return run_joined(connection, self._file, self._statements, self._clock, body)

    async def ping(self) -> None:
        await self.read(_nothing)

    async def facts(self) -> StoreFacts:
        self._check_usable()
        if self._path == MEMORY:
            return facts_of_memory(self._clock())
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._readers, self._facts)

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        await asyncio.to_thread(self._close)

    def _close(self) -> None:
        self._writer.close()
        self._readers.shutdown()
        for connection in self._opened:
            connection.close()

    def _check_usable(self) -> None:
        if self._closed:
            raise Unavailable("store_closed", "the engine was closed; open it again with connect()")
        if os.getpid() != self._process:
            raise Unavailable("store_forked", "the engine was opened before a fork; open it again in this process")

    def _read(self, body: Body[Answer]) -> Answer:
        try:
            connection = self._reading_connection()
            limit_statements(connection, self._timeout_s)
            connection.execute("BEGIN")
            try:
                [newest] = connection.execute("SELECT newest_at FROM ff_clock").fetchone()
                now = max(self._clock(), when(newest))
                return drive(body(SqlTransaction(SqliteSession(connection, self._statements, now))))
            finally:
                connection.execute("ROLLBACK")
        except sqlite3.Error as error:
            raise translated(error) from error

    def _facts(self) -> StoreFacts:
        try:
            connection = self._reading_connection()
            [newest] = connection.execute("SELECT newest_at FROM ff_clock").fetchone()
            return facts_of(connection, DIALECT, max(self._clock(), when(newest)))
        except sqlite3.Error as error:
            raise translated(error) from error

    def _reading_connection(self) -> sqlite3.Connection:
        if not hasattr(self._own, "connection"):
            self._own.connection = connect(self._path, durable=self._durable, timeout_s=self._timeout_s, read_only=True)
            self._opened.append(self._own.connection)
        connection: sqlite3.Connection = self._own.connection
        return connection


def _open(path: str, clock: Clock, durable: bool, timeout_s: float, may_migrate: bool) -> SqliteStore:
    # The program may change its folder later, and the readers open the file again.
    path = path if path == MEMORY else str(Path(path).resolve())
    check_environment(path)
    if not may_migrate and path != MEMORY and not Path(path).exists():
        message = f"there is no store at {path}; check it, or run flowfabric migrate, or connect with migrate=True"
        raise Unavailable("schema_outdated", message, version=0)
    try:
        connection = connect(path, durable=durable, timeout_s=timeout_s)
    except sqlite3.Error as error:
        raise translated(error) from error
    try:
        if not may_migrate:
            require_store(connection, path)
        use_write_ahead_log(connection, path, timeout_s)
        migrate(connection, DIALECT, may_migrate)
        checkpointer = None if path == MEMORY else Checkpointer(connection, path)
    except BaseException as error:
        connection.close()
        ours = translated(error)
        if ours is error:
            raise
        raise ours from error
    statements = load(DIALECT, "flowfabric.backends.sqlite")
    return SqliteStore(path, Writer(connection, statements, clock, timeout_s, checkpointer), clock, durable, timeout_s)


def _wall_clock() -> datetime:
    return datetime.now(UTC)


async def _nothing(_: Any) -> None:
    return None
