"""The stores that conformance tests run on: one fresh SQLite file or PostgreSQL schema per test."""

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
    "waitpoint", "signal", "signing_key", "flow", "edge", "edge_group", "subscriber", "purged", "worker",
)  # fmt: skip


class TestStore(Protocol):
    """An empty database of its own, for engines and for looking behind them."""

    __test__: ClassVar[bool] = False
    name: str
    url: str

    def connecting(self, clock: VirtualClock | None = None, **options: Any) -> Any:
        """What `flowfabric.connect` returns for this store."""

    async def query(self, sql: str, *arguments: Any) -> list[dict[str, Any]]:
        """The rows of a raw statement; tables are written `ff.execution`, parameters `?`."""

    async def queries(self, statements: Sequence[str]) -> list[list[dict[str, Any]]]:
        """The rows of several raw statements, by one connection."""


class SqliteTestStore:
    """A SQLite file in the test's own folder."""

    __test__: ClassVar[bool] = False
    name = "sqlite"

    def __init__(self, folder: Path) -> None:
        self.path = folder / "test.db"
        self.url = str(self.path)

    def connecting(self, clock: VirtualClock | None = None, **options: Any) -> Any:
        settings: dict[str, Any] = {"durable": False} | options
        return connect(self.url, clock=clock, **settings)

    async def query(self, sql: str, *arguments: Any) -> list[dict[str, Any]]:
        with closing(sqlite3.connect(self.path, isolation_level=None, timeout=10)) as connection:
            connection.execute("PRAGMA wal_autocheckpoint = 0")
            connection.row_factory = sqlite3.Row
            found = connection.execute(sql.replace("ff.", "ff_"), [_plain(value) for value in arguments]).fetchall()
            return [dict(row) for row in found]

    async def queries(self, statements: Sequence[str]) -> list[list[dict[str, Any]]]:
        return [await self.query(statement) for statement in statements]


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
        text = sql.replace("ff.", f'"{self.schema}".')
        for number in range(1, len(arguments) + 1):
            text = text.replace("?", f"${number}", 1)
        connection = await asyncpg.connect(self.url)
        try:
            return [dict(row) for row in await connection.fetch(text, *arguments)]
        finally:
            await connection.close()

    async def queries(self, statements: Sequence[str]) -> list[list[dict[str, Any]]]:
        connection = await asyncpg.connect(self.url)
        try:
            texts = [statement.replace("ff.", f'"{self.schema}".') for statement in statements]
            return [[dict(row) for row in await connection.fetch(text)] for text in texts]
        finally:
            await connection.close()

    @asynccontextmanager
    async def locked(self, *ids: uuid.UUID) -> AsyncIterator[None]:
        """Somebody else has locked the rows of these executions, and lets them go unchanged at the end of the block."""
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
        """What the schema looks like: its tables, columns and indexes, and the migrations that made them."""
        [columns] = connection.execute(_SHAPE, [self.schema]).fetchall()
        migrations = f'SELECT version, sha256 FROM "{self.schema}".migration ORDER BY version'
        return str(columns).replace(self.schema, "") + repr(connection.execute(migrations.encode()).fetchall())

    def empty(self, connection: psycopg.Connection) -> None:
        """Removes every row."""
        connection.execute("; ".join(f'DELETE FROM "{self.schema}".{table}' for table in TABLES).encode())


class PostgresSchemas:
    """Schemas for tests, one each. One that is as it was made is emptied and used again, which takes a tenth of the
    time of making another; by one connection for all of them, as a new one would take longer than the work."""

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self._spare: list[PostgresTestStore] = []
        self._pristine: str | None = None
        self._connection: psycopg.Connection | None = None

    async def take(self) -> PostgresTestStore:
        if self._pristine is None:
            fresh = PostgresTestStore(self._dsn)
            async with fresh.connecting():
                self._pristine = fresh.shape(self._connected())
            return fresh
        return self._spare.pop() if self._spare else PostgresTestStore(self._dsn)

    async def give_back(self, store: PostgresTestStore) -> None:
        try:
            connection = self._connected()
            if store.shape(connection) == self._pristine:
                store.empty(connection)
                self._spare.append(store)
                return
        except psycopg.Error:
            pass  # It was never made, or is locked or broken: then another one is made for the next test.
        await store.drop()

    def _connected(self) -> psycopg.Connection:
        """The connection of all tests, which belongs to no loop; another one when a test has cut it off."""
        if self._connection is None or self._connection.closed:
            self._connection = psycopg.connect(self._dsn, autocommit=True, options="-c lock_timeout=2s")
        return self._connection

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()


async def snapshot(store: TestStore) -> Snapshot:
    """Everything that is stored, table by table; equal snapshots mean that nothing was written."""
    found = await store.queries([f"SELECT * FROM ff.{table}" for table in TABLES])
    contents = zip(TABLES, found, strict=True)
    return {table: sorted(rows, key=lambda row: repr(sorted(row.items()))) for table, rows in contents}


def moved(before: Snapshot, after: Snapshot) -> list[str]:
    """What differs between two snapshots: rows that came or went, and of those that stayed each column that moved."""
    found = []
    for table in TABLES:
        gone = [row for row in before[table] if row not in after[table]]
        new = [row for row in after[table] if row not in before[table]]
        for old in gone:
            row = next((row for row in new if "id" in old and row["id"] == old["id"]), None)
            if row is None:
                found.append(f"{table}: gone {old}")
                continue
            new.remove(row)
            columns = {name: f"{old[name]!r} -> {row[name]!r}" for name in old if old[name] != row[name]}
            found.append(f"{table} {old['id']} ({old.get('state')}): {columns}")
        found += [f"{table}: new {row}" for row in new]
    return found


@asynccontextmanager
async def opened(store: TestStore, clock: VirtualClock | None = None, **options: Any) -> AsyncIterator[Engine]:
    """An engine on the store, closed at the end of the block."""
    async with store.connecting(clock, **options) as engine:
        yield engine


def _plain(value: Any) -> Any:
    return str(value) if isinstance(value, uuid.UUID) else value
