"""Programs with their own database connection, one per library, whose transactions the engine can join."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from typing import Any, Protocol

import asyncpg
import django
import psycopg
import sqlalchemy
from django.conf import settings
from django.db import connections, transaction
from django.db.utils import ConnectionHandler
from django.utils.connection import ConnectionProxy
from psycopg.conninfo import conninfo_to_dict
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from flowfabric.engine import Engine, Submission, Submitted
from tests.postgres_server import PostgresServer
from tests.stores import PostgresTestStore, SqliteTestStore, TestStore


class Caller(Protocol):
    """A program with one database connection. It begins a new transaction after each commit or rollback."""

    connection: Any

    async def submit(self, submission: Submission) -> Submitted:
        """Submit in the open transaction, with the method for this kind of connection."""

    async def note(self, text: str) -> None:
        """Insert a row into the program's table in the open transaction."""

    async def commit(self) -> None: ...
    async def rollback(self) -> None: ...


class AsyncpgCaller:
    """A program that uses asyncpg, with a connection or the proxy from a pool."""

    def __init__(self, connection: Any, engine: Engine, table: str) -> None:
        self.connection = connection
        self._engine = engine
        self._table = table

    async def submit(self, submission: Submission) -> Submitted:
        return await self._engine.executions.submit_in_transaction(self.connection, submission)

    async def note(self, text: str) -> None:
        await self.connection.execute(f"INSERT INTO {self._table} (text) VALUES ($1)", text)

    async def commit(self) -> None:
        await self.connection.execute("COMMIT")
        await self.connection.execute("BEGIN")

    async def rollback(self) -> None:
        await self.connection.execute("ROLLBACK")
        await self.connection.execute("BEGIN")


class SyncCaller:
    """A program that uses sqlite3, psycopg's Connection, or SQLAlchemy's Connection or Session."""

    def __init__(self, connection: Any, engine: Engine, execute: Callable[[str], object]) -> None:
        self.connection = connection
        self._engine = engine
        self._execute = execute

    async def submit(self, submission: Submission) -> Submitted:
        return self._engine.executions.submit_in_transaction_sync(self.connection, submission)

    async def note(self, text: str) -> None:
        self._execute(text)

    async def commit(self) -> None:
        self.connection.commit()

    async def rollback(self) -> None:
        self.connection.rollback()


class AsyncCaller:
    """A program that uses psycopg's AsyncConnection, or SQLAlchemy's AsyncConnection or AsyncSession."""

    def __init__(self, connection: Any, engine: Engine, execute: Callable[[str], Any]) -> None:
        self.connection = connection
        self._engine = engine
        self._execute = execute

    async def submit(self, submission: Submission) -> Submitted:
        return await self._engine.executions.submit_in_transaction(self.connection, submission)

    async def note(self, text: str) -> None:
        await self._execute(text)

    async def commit(self) -> None:
        await self.connection.commit()

    async def rollback(self) -> None:
        await self.connection.rollback()


async def make_table(store: TestStore) -> None:
    """Create the program's table next to the engine's tables, and empty it."""
    await store.query("CREATE TABLE IF NOT EXISTS ff.note (text TEXT)")
    await store.query("DELETE FROM ff.note")


@contextmanager
def shared_schema(server: PostgresServer) -> Iterator[PostgresTestStore]:
    """Yield a schema that many tests share. Each test uses its own namespace."""
    store = PostgresTestStore(server.dsn)
    yield store
    asyncio.run(store.drop())


def own_namespace() -> str:
    """Return a namespace that no other test uses."""
    return uuid.uuid4().hex


async def notes(store: TestStore) -> list[str]:
    """Return the texts that the program has committed to its table."""
    return [row["text"] for row in await store.query("SELECT text FROM ff.note ORDER BY text")]


@asynccontextmanager
async def asyncpg_connection(store: PostgresTestStore, engine: Engine) -> AsyncIterator[Caller]:
    connection = await asyncpg.connect(store.url)
    try:
        await connection.execute("BEGIN")
        yield AsyncpgCaller(connection, engine, _table(store))
    finally:
        await connection.close()


@asynccontextmanager
async def asyncpg_pool(store: PostgresTestStore, engine: Engine) -> AsyncIterator[Caller]:
    async with asyncpg.create_pool(store.url, min_size=1, max_size=1) as pool, pool.acquire() as connection:
        await connection.execute("BEGIN")
        yield AsyncpgCaller(connection, engine, _table(store))


@asynccontextmanager
async def psycopg_connection(store: PostgresTestStore, engine: Engine) -> AsyncIterator[Caller]:
    with psycopg.connect(store.url) as connection:
        insert: Any = f"INSERT INTO {_table(store)} (text) VALUES (%s)"
        yield SyncCaller(connection, engine, lambda text: connection.execute(insert, [text]))


@asynccontextmanager
async def psycopg_async(store: PostgresTestStore, engine: Engine) -> AsyncIterator[Caller]:
    async with await psycopg.AsyncConnection.connect(store.url) as connection:
        insert: Any = f"INSERT INTO {_table(store)} (text) VALUES (%s)"
        yield AsyncCaller(connection, engine, lambda text: connection.execute(insert, [text]))


@asynccontextmanager
async def sqlalchemy_connection(store: PostgresTestStore, engine: Engine) -> AsyncIterator[Caller]:
    database = sqlalchemy.create_engine(_sqlalchemy_url(store, "psycopg"))
    with database.connect() as connection:
        yield SyncCaller(connection, engine, lambda text: connection.execute(_insert(store), {"text": text}))
    database.dispose()


@asynccontextmanager
async def sqlalchemy_session(store: PostgresTestStore, engine: Engine) -> AsyncIterator[Caller]:
    database = sqlalchemy.create_engine(_sqlalchemy_url(store, "psycopg"))
    with Session(database) as session:
        yield SyncCaller(session, engine, lambda text: session.execute(_insert(store), {"text": text}))
    database.dispose()


def sqlalchemy_async(driver: str, kind: type[AsyncConnection] | type[AsyncSession]) -> Opening:
    """Return a function that opens callers with the asynchronous API of SQLAlchemy over a driver."""

    @asynccontextmanager
    async def opening(store: PostgresTestStore, engine: Engine) -> AsyncIterator[Caller]:
        database = create_async_engine(_sqlalchemy_url(store, driver))
        async with database.connect() if kind is AsyncConnection else AsyncSession(database) as connection:
            yield AsyncCaller(connection, engine, lambda text: connection.execute(_insert(store), {"text": text}))
        await database.dispose()

    return opening


@asynccontextmanager
async def sqlite3_connection(store: SqliteTestStore, engine: Engine) -> AsyncIterator[Caller]:
    connection = sqlite3.connect(store.path)
    try:
        connection.execute("BEGIN")
        yield SqliteCaller(
            connection, engine, lambda text: connection.execute("INSERT INTO ff_note VALUES (?)", [text])
        )
    finally:
        connection.close()


class SqliteCaller(SyncCaller):
    """A program that uses sqlite3. It begins transactions explicitly, because sqlite3 only does so before a write."""

    async def commit(self) -> None:
        await super().commit()
        self.connection.execute("BEGIN")

    async def rollback(self) -> None:
        await super().rollback()
        self.connection.execute("BEGIN")


class DjangoCaller(SyncCaller):
    """A program that uses Django, with `django.db.connection` inside `transaction.atomic()`."""

    def __init__(self, alias: str, engine: Engine, table: str) -> None:
        connection: Any = ConnectionProxy(connections, alias)
        super().__init__(connection, engine, self._insert)
        self.alias, self._table = alias, table
        self._begin()

    def end(self) -> None:
        """Commit the transaction, or roll it back if Django must do so. Begin no other."""
        self._atomic.__exit__(None, None, None)

    def _begin(self) -> None:
        self._atomic = transaction.atomic(using=self.alias)
        self._atomic.__enter__()

    def _insert(self, text: str) -> None:
        with self.connection.cursor() as cursor:
            cursor.execute(f"INSERT INTO {self._table} (text) VALUES (%s)", [text])

    async def commit(self) -> None:
        self.end()
        self._begin()

    async def rollback(self) -> None:
        transaction.set_rollback(True, using=self.alias)
        await self.commit()


@asynccontextmanager
async def django_connection(store: PostgresTestStore | SqliteTestStore, engine: Engine) -> AsyncIterator[Caller]:
    if not settings.configured:
        settings.configure(LOGGING_CONFIG=None, TIME_ZONE="UTC")
        django.setup()
    alias, table = own_namespace(), _table(store) if isinstance(store, PostgresTestStore) else "ff_note"
    connections[alias] = ConnectionHandler({"default": django_database(store)})["default"]
    os.environ["DJANGO_ALLOW_ASYNC_UNSAFE"] = "true"  # Our tests run in an event loop.
    try:
        yield DjangoCaller(alias, engine, table)
    finally:
        connections[alias].close()
        del connections[alias], os.environ["DJANGO_ALLOW_ASYNC_UNSAFE"]


def django_database(store: PostgresTestStore | SqliteTestStore) -> dict[str, object]:
    """Return the settings of Django for the database of a store."""
    if isinstance(store, SqliteTestStore):
        return {"ENGINE": "django.db.backends.sqlite3", "NAME": str(store.path)}
    parts = conninfo_to_dict(store.url)
    names = {"NAME": "dbname", "USER": "user", "PASSWORD": "password", "HOST": "host", "PORT": "port"}
    known = {setting: parts.get(name) or "" for setting, name in names.items()}
    return {"ENGINE": "django.db.backends.postgresql", **known}


Opening = Callable[[Any, Engine], AbstractAsyncContextManager[Caller]]

ON_POSTGRES: dict[str, Opening] = {
    "asyncpg": asyncpg_connection,
    "asyncpg pool": asyncpg_pool,
    "psycopg": psycopg_connection,
    "psycopg async": psycopg_async,
    "django": django_connection,
    "sqlalchemy connection": sqlalchemy_connection,
    "sqlalchemy session": sqlalchemy_session,
    "sqlalchemy async connection, asyncpg": sqlalchemy_async("asyncpg", AsyncConnection),
    "sqlalchemy async connection, psycopg": sqlalchemy_async("psycopg", AsyncConnection),
    "sqlalchemy async session, asyncpg": sqlalchemy_async("asyncpg", AsyncSession),
    "sqlalchemy async session, psycopg": sqlalchemy_async("psycopg", AsyncSession),
}
ON_SQLITE: dict[str, Opening] = {
    "sqlite3": sqlite3_connection,
    "django on sqlite3": django_connection,
}


def _table(store: PostgresTestStore) -> str:
    return f'"{store.schema}".note'


def _insert(store: PostgresTestStore) -> sqlalchemy.TextClause:
    return sqlalchemy.text(f"INSERT INTO {_table(store)} (text) VALUES (:text)")


def _sqlalchemy_url(store: PostgresTestStore, driver: str) -> str:
    return store.url.replace("postgresql://", f"postgresql+{driver}://", 1)
