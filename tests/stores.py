"""Stores for conformance tests: one new SQLite file or PostgreSQL schema per test."""

from __future__ import annotations

import sqlite3
import uuid
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any, ClassVar, Protocol

import asyncpg
import psycopg

from flowfabric.engine import Engine, connect
from flowfabric.testing import VirtualClock

_SHAPE = """
    SELECT string_agg(attrelid::regclass::TEXT || attname || atttypid || attnotnull, ',' ORDER BY attrelid, attnum)
    FROM pg_attribute JOIN pg_class ON pg_class.oid = attrelid JOIN pg_namespace ON pg_namespace.oid = relnamespace
    WHERE nspname = %s
"""
Snapshot = dict[str, list[dict[str, Any]]]
TABLES = (
    "execution", "attempt", "step", "event", "submission_key", "reclaim_grant", "lane", "route", "suspension",
    "waitpoint", "signal", "signing_key", "flow", "edge", "edge_group", "subscriber", "purged", "worker", "era",
)  # fmt: skip


class TestStore(Protocol):
    """An empty database for one test, with raw access for queries."""

    __test__: ClassVar[bool] = False
    name: str
    url: str

    def connecting(self, clock: VirtualClock | None = None, **options: Any) -> Any:
        """Return the result of `flowfabric.connect` for this store."""

    async def query(self, sql: str, *arguments: Any) -> list[dict[str, Any]]:
        """Return the rows of a raw statement. Tables are written `ff.execution`, parameters `?`."""

    async def queries(self, statements: Sequence[str]) -> list[list[dict[str, Any]]]:
        """Return the rows of several raw statements, executed on one connection."""


class SqliteTestStore:
    """A SQLite file in the test's folder."""

    __test__: ClassVar[bool] = False
    name = "sqlite"

    def __init__(self, folder: Path) -> None:
        self.path = folder / "test.db"
        self.url = str(self.path)

    def connecting(self, clock: VirtualClock | None = None, **options: Any) -> Any:
        settings: dict[str, Any] = {"durable": False} | options
        return connect(self.url, clock=clock, **settings)

    async def query(self, sql: str, *arguments: Any) -> list[dict[str, Any]]:
        with closing(self.raw_connection()) as connection:
            return fetch(connection, sql, *arguments)

    async def queries(self, statements: Sequence[str]) -> list[list[dict[str, Any]]]:
        with closing(self.raw_connection()) as connection:
            return [fetch(connection, statement) for statement in statements]

    def raw_connection(self) -> sqlite3.Connection:
        """Open a connection that never checkpoints the write-ahead log, so that only the engine does."""
        connection = sqlite3.connect(self.path, isolation_level=None, timeout=10)
        connection.execute("PRAGMA wal_autocheckpoint = 0")
        connection.row_factory = sqlite3.Row
        return connection


class PostgresTestStore:
    """A schema of the test server."""

    __test__: ClassVar[bool] = False
    name = "postgres"

    def __init__(self, dsn: str) -> None:
        self.url = dsn
        self.schema = f"t_{uuid.uuid4().hex[:16]}"

    def connecting(self, clock: VirtualClock | None = None, **options: Any) -> Any:
        settings: dict[str, Any] = {"durable": False, "schema": self.schema} | options
        return connect(self.url, clock=clock, **settings)

    async def query(self, sql: str, *arguments: Any) -> list[dict[str, Any]]:
        async with self.raw_connection() as connection:
            return await self._fetch(connection, sql, *arguments)

    async def queries(self, statements: Sequence[str]) -> list[list[dict[str, Any]]]:
        async with self.raw_connection() as connection:
            return [await self._fetch(connection, statement) for statement in statements]

    @asynccontextmanager
    async def raw_connection(self) -> AsyncIterator[asyncpg.Connection[Any]]:
        """Yield a connection to the server."""
        connection = await asyncpg.connect(self.url)
        try:
            yield connection
        finally:
            await connection.close()

    async def _fetch(self, connection: asyncpg.Connection[Any], sql: str, *arguments: Any) -> list[dict[str, Any]]:
        text = sql.replace("ff.", f'"{self.schema}".')
        for number in range(1, len(arguments) + 1):
            text = text.replace("?", f"${number}", 1)
        return [dict(row) for row in await connection.fetch(text, *arguments)]

    @asynccontextmanager
    async def locked(self, *ids: uuid.UUID) -> AsyncIterator[None]:
        """Lock the rows of these executions on another connection for the block. The rows stay unchanged."""
        connection = await asyncpg.connect(self.url)
        try:
            async with connection.transaction():
                rows = f'SELECT 1 FROM "{self.schema}".execution WHERE id = ANY($1) ORDER BY id FOR UPDATE'
                await connection.execute(rows, ids)
                yield
        finally:
            await connection.close()

    async def drop(self) -> None:
        await self.query(f'DROP SCHEMA IF EXISTS "{self.schema}" CASCADE')

    def shape(self, connection: psycopg.Connection) -> str:
        """Return the tables, columns, indexes and migrations of the schema."""
        [columns] = connection.execute(_SHAPE, [self.schema]).fetchall()
        migrations = f'SELECT version, sha256 FROM "{self.schema}".migration ORDER BY version'
        return str(columns).replace(self.schema, "") + repr(connection.execute(migrations.encode()).fetchall())

    def empty(self, connection: psycopg.Connection) -> None:
        """Remove every row that a new schema does not have."""
        deletes = [f'DELETE FROM "{self.schema}".{table}' for table in TABLES]
        trimmed = f"""UPDATE "{self.schema}".store SET trimmed_xid = '0', trimmed_id = 0, era = 0, is_test = FALSE
            WHERE trimmed_id <> 0 OR era <> 0 OR is_test"""
        connection.execute("; ".join([*deletes, trimmed]).encode())


class PostgresSchemas:
    """A pool of schemas, one per test.

    After a test, the pool empties and reuses the schema if the test has not altered its tables. That takes a tenth of
    the time of creating a schema. All resets share one connection, because opening one takes longer than a reset.
    """

    def __init__(self, dsn: str) -> None:
        self.dsn = dsn
        self._spare: list[PostgresTestStore] = []
        self._pristine: str | None = None
        self._connection: psycopg.Connection | None = None

    async def take(self) -> PostgresTestStore:
        if self._pristine is None:
            fresh = PostgresTestStore(self.dsn)
            async with fresh.connecting():
                self._pristine = fresh.shape(self._connected())
            return fresh
        return self._spare.pop() if self._spare else PostgresTestStore(self.dsn)

    async def give_back(self, store: PostgresTestStore) -> None:
        try:
            if self.reset(store):
                self._spare.append(store)
                return
        except psycopg.Error:
            pass  # The schema was never created, or is locked or broken. The next test gets a new one.
        await store.drop()

    def reset(self, store: PostgresTestStore) -> bool:
        """Empty the schema and return True if it still has the tables of a new schema. Otherwise return False."""
        connection = self._connected()
        shape = store.shape(connection)
        if self._pristine is None:
            self._pristine = shape
        if shape != self._pristine:
            return False
        store.empty(connection)
        return True

    def _connected(self) -> psycopg.Connection:
        """Return the shared synchronous connection. Reconnect if a test has closed it."""
        if self._connection is None or self._connection.closed:
            self._connection = psycopg.connect(self.dsn, autocommit=True, options="-c lock_timeout=2s")
        return self._connection

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()


async def snapshot(store: TestStore) -> Snapshot:
    """Return all rows of every table. Equal snapshots mean that nothing was written."""
    tables = await store.queries([f"SELECT * FROM ff.{table}" for table in TABLES])
    contents = zip(TABLES, tables, strict=True)
    return {table: sorted(rows, key=lambda row: repr(sorted(row.items()))) for table, rows in contents}


def moved(before: Snapshot, after: Snapshot) -> list[str]:
    """Return the differences between two snapshots: added and removed rows, and changed columns of other rows."""
    differences = []
    for table in TABLES:
        removed = [row for row in before[table] if row not in after[table]]
        added = [row for row in after[table] if row not in before[table]]
        for old in removed:
            row = next((row for row in added if "id" in old and row["id"] == old["id"]), None)
            if row is None:
                differences.append(f"{table}: gone {old}")
                continue
            added.remove(row)
            columns = {name: f"{old[name]!r} -> {row[name]!r}" for name in old if old[name] != row[name]}
            differences.append(f"{table} {old['id']} ({old.get('state')}): {columns}")
        differences += [f"{table}: new {row}" for row in added]
    return differences


@asynccontextmanager
async def opened(store: TestStore, clock: VirtualClock | None = None, **options: Any) -> AsyncIterator[Engine]:
    """Yield an engine on the store and close it after the block."""
    async with store.connecting(clock, **options) as engine:
        yield engine


def fetch(connection: sqlite3.Connection, sql: str, *arguments: Any) -> list[dict[str, Any]]:
    """Return the rows of a raw statement on a SQLite connection."""
    rows = connection.execute(sql.replace("ff.", "ff_"), [_plain(value) for value in arguments])
    return [dict(row) for row in rows.fetchall()]


def _plain(value: Any) -> Any:
    return str(value) if isinstance(value, uuid.UUID) else value
