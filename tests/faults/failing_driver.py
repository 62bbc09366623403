"""Make the driver fail at the N-th statement of an operation, before or after the database executes it.

A fuse between the engine and its driver counts the statements. On SQLite it wraps the writer's connection, and also
counts BEGIN, SAVEPOINT and COMMIT. On PostgreSQL it wraps the pool's connections, and also counts BEGIN and COMMIT.
"""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import asyncpg

from flowfabric.engine import Engine


def _io_error() -> sqlite3.OperationalError:
    error = sqlite3.OperationalError("disk I/O error")
    error.sqlite_errorcode = sqlite3.SQLITE_IOERR
    return error


FAILURES: dict[str, dict[str, Callable[[], Exception]]] = {
    # In an outage the whole store is unavailable. A refusal affects only one statement. The engine handles these two
    # cases differently.
    "sqlite": {"outage": _io_error, "refusal": lambda: sqlite3.OperationalError("no such thing")},
    "postgres": {
        "outage": lambda: asyncpg.ConnectionDoesNotExistError("connection was closed in the middle of operation"),
        "refusal": lambda: asyncpg.InternalServerError("no such thing"),
        "serialization": lambda: asyncpg.SerializationError("could not serialize access"),
        "deadlock": lambda: asyncpg.DeadlockDetectedError("deadlock detected"),
    },
}


class Fuse:
    """Counts statements while armed, and raises an error once, at the chosen statement."""

    def __init__(self) -> None:
        self.statements: list[str] = []
        self.blown = False
        self._armed = False
        self._at = 0
        self._after = False
        self._failure: Callable[[], Exception] = RuntimeError

    def arm(self, at: int, failure: Callable[[], Exception] = RuntimeError, *, after: bool = False) -> None:
        """Fail at the `at`-th statement from now. If `at` is 0, only count the statements."""
        self.statements, self.blown, self._armed = [], False, True
        self._at, self._after, self._failure = at, after, failure

    def disarm(self) -> None:
        self._armed = False

    def before(self, statement: str) -> None:
        if self._armed:
            self.statements.append(statement)
            self._blow(after=False)

    def after(self) -> None:
        if self._armed:
            self._blow(after=True)

    def _blow(self, *, after: bool) -> None:
        if len(self.statements) == self._at and after == self._after and not self.blown:
            self.blown = True
            raise self._failure()


def fit_fuse(engine: Engine) -> Fuse:
    """Put a fuse between the engine and its driver."""
    fuse, store = Fuse(), engine._context.store
    if hasattr(store, "_writer"):
        store._writer._connection = FusedSqlite(store._writer._connection, fuse)
    else:
        vars(store)["_pool"] = FusedPool(vars(store)["_pool"], fuse)
        user_pool = vars(store)["_user_pool"]
        acquire = user_pool.acquire

        @asynccontextmanager
        async def acquire_fused(**options: Any) -> AsyncIterator[FusedPostgres]:
            async with acquire(**options) as connection:
                yield FusedPostgres(connection, fuse)

        vars(user_pool)["acquire"] = acquire_fused
    return fuse


class FusedSqlite:
    """A SQLite connection whose `execute` passes through the fuse."""

    def __init__(self, connection: Any, fuse: Fuse) -> None:
        self._connection = connection
        self._fuse = fuse

    def execute(self, sql: str, *arguments: Any) -> Any:
        self._fuse.before(sql)
        # Fetch all rows now, because a SQLite statement keeps its locks until its rows are fetched.
        cursor = self._connection.execute(sql, *arguments)
        fetched = Fetched(cursor.fetchall(), cursor.description)
        self._fuse.after()
        return fetched

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)


class Fetched:
    """The fetched rows of a statement, with the interface of a cursor."""

    def __init__(self, rows: list[Any], description: Any) -> None:
        self._rows = rows
        self.description = description

    def fetchall(self) -> list[Any]:
        return self._rows

    def fetchone(self) -> Any:
        return self._rows[0] if self._rows else None


class FusedPool:
    """A pool whose connections pass through the fuse."""

    def __init__(self, pool: Any, fuse: Fuse) -> None:
        self._pool = pool
        self._fuse = fuse

    @asynccontextmanager
    async def acquire(self, **options: Any) -> AsyncIterator[FusedPostgres]:
        async with self._pool.acquire(**options) as connection:
            yield FusedPostgres(connection, self._fuse)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._pool, name)


class FusedPostgres:
    """An asyncpg connection whose statements and transactions pass through the fuse."""

    def __init__(self, connection: Any, fuse: Fuse) -> None:
        self._connection = connection
        self._fuse = fuse

    async def fetch(self, sql: str, *arguments: Any) -> Any:
        return await self._fused(self._connection.fetch, sql, *arguments)

    async def fetchval(self, sql: str, *arguments: Any) -> Any:
        return await self._fused(self._connection.fetchval, sql, *arguments)

    async def fetchmany(self, sql: str, arguments: Any) -> Any:
        return await self._fused(self._connection.fetchmany, sql, arguments)

    async def execute(self, sql: str, *arguments: Any) -> Any:
        return await self._fused(self._connection.execute, sql, *arguments)

    @asynccontextmanager
    async def transaction(self, **options: Any) -> AsyncIterator[None]:
        # A failure after BEGIN or before COMMIT raises an error at this point. The error rolls the transaction back, as
        # in production.
        self._fuse.before("BEGIN")
        async with self._connection.transaction(**options):
            self._fuse.after()
            yield
            self._fuse.before("COMMIT")
        self._fuse.after()

    async def _fused(self, method: Any, sql: str, *arguments: Any) -> Any:
        self._fuse.before(sql)
        result = await method(sql, *arguments)
        self._fuse.after()
        return result

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)
