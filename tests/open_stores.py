"""Stores that stay open from one test to the next.

Opening a store takes longer than most tests. The `engine` fixture therefore uses one open store per backend and test
process. Each test gets a new `Engine` on it, so no test sees the memory of an earlier engine: routes, keys, batchers,
waiters, due times and the listener. `OpenStore.reset` removes all rows and every attribute that the last test set on
the store object. A store that cannot be reset is closed, and the next test opens another one.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import Any, TypeAlias

import asyncpg
import psycopg
import pytest

from flowfabric.engine import Engine, Unavailable
from flowfabric.testing import VirtualClock
from tests.stores import TABLES, PostgresSchemas, PostgresTestStore, SqliteTestStore, TestStore, fetch, opened

Parts: TypeAlias = dict[str, dict[str, type]]


class SwitchedClock:
    """A clock that shows the time of the current test."""

    def __init__(self) -> None:
        self.source = VirtualClock()

    def now(self) -> datetime:
        """Return the current time of that test's clock."""
        return self.source.now()


class OpenStore:
    """A store that stays open.

    It is opened once with the test's clock and once with its own clock, each on first use.
    """

    def __init__(self) -> None:
        self._clock = SwitchedClock()
        # The key is True for the test's clock. The value holds the store and the original types of its parts.
        self._open: dict[bool, tuple[Any, Parts]] = {}

    def connecting(self, clock: Any = None, **options: Any) -> Any:
        """Return what `flowfabric.connect` returns for this store."""
        raise NotImplementedError

    @asynccontextmanager
    async def engine(self, clock: VirtualClock | None) -> AsyncIterator[Engine]:
        """Lend a new engine on the open store. Tasks that the test leaves behind are cancelled at the end."""
        earlier = asyncio.all_tasks()
        engine = await self._new_engine(clock)
        try:
            yield engine
        finally:
            await _cancel_tasks_since(earlier)
            await engine._context.wakeups.close()

    async def reset(self) -> bool:
        """Reset the store to the state of a new one. Return False if that is not possible."""
        for store, parts in self._open.values():
            # The engine of the last test gets no further notifications. The empty transaction runs after all queued
            # writes.
            store.notifier.on_commit(_ignore)
            if store._closed or not _restore(store, parts):
                return False
            await store.run(_do_nothing)
        return self.remove_rows()

    def remove_rows(self) -> bool:
        """Remove every row that a new store does not have.

        Return False if the tables differ from those of a new store.
        """
        raise NotImplementedError

    async def close(self) -> None:
        """Close all open connections and stores."""
        for store, _ in self._open.values():
            await store.close()

    async def _new_engine(self, clock: VirtualClock | None) -> Engine:
        has_clock = clock is not None
        if clock is not None:
            self._clock.source = clock
        opener = self.connecting(clock)
        if has_clock in self._open:
            # If a test has closed the store, `_build` raises Unavailable, and the store is opened again below.
            with suppress(Unavailable):
                engine: Engine = await opener._build(self._open[has_clock][0])
                return engine
        store = (await self.connecting(self._clock if has_clock else None))._context.store
        store.notifier.on_commit(_ignore)
        self._open[has_clock] = (store, _types_in(store))
        return await opener._build(store)  # type: ignore[no-any-return]


class OpenSqliteStore(OpenStore, SqliteTestStore):
    """A SQLite file that stays open."""

    connecting = SqliteTestStore.connecting

    def __init__(self, folder: Path) -> None:
        OpenStore.__init__(self)
        SqliteTestStore.__init__(self, folder)
        self._connection = self.raw_connection()
        self._connection.execute("PRAGMA synchronous = OFF")
        self._schema_version: int | None = None

    async def _new_engine(self, clock: VirtualClock | None) -> Engine:
        engine = await super()._new_engine(clock)
        if self._schema_version is None:
            self._schema_version = self._read_schema_version()
        return engine

    async def queries(self, statements: Sequence[str]) -> list[list[dict[str, Any]]]:
        return [fetch(self._connection, statement) for statement in statements]

    async def query(self, sql: str, *arguments: Any) -> list[dict[str, Any]]:
        return fetch(self._connection, sql, *arguments)

    def remove_rows(self) -> bool:
        if self._read_schema_version() != self._schema_version:
            return False
        self._connection.execute("BEGIN IMMEDIATE")
        for table in TABLES:
            self._connection.execute(f"DELETE FROM ff_{table}")
        self._connection.execute("DELETE FROM sqlite_sequence")
        self._connection.execute("UPDATE ff_clock SET newest_at = 0")
        self._connection.execute("UPDATE ff_store SET trimmed_id = 0, era = 0, known_id = 0, is_test = 0")
        self._connection.execute("COMMIT")
        return True

    async def close(self) -> None:
        self._connection.close()
        await super().close()

    async def drop(self) -> None:
        """Remove the files."""
        shutil.rmtree(self.path.parent)

    def _read_schema_version(self) -> int:
        [version] = self._connection.execute("PRAGMA schema_version").fetchone()
        return int(version)


class OpenPostgresStore(OpenStore, PostgresTestStore):
    """A schema of the test server that stays open."""

    connecting = PostgresTestStore.connecting

    def __init__(self, schemas: PostgresSchemas) -> None:
        OpenStore.__init__(self)
        PostgresTestStore.__init__(self, schemas.dsn)
        self._schemas = schemas
        self._connection: asyncpg.Connection[Any] | None = None
        self._is_connection_lent = False

    @asynccontextmanager
    async def raw_connection(self) -> AsyncIterator[asyncpg.Connection[Any]]:
        """Lend the open connection, or a new connection while the open one is in use."""
        if self._is_connection_lent:
            async with super().raw_connection() as connection:
                yield connection
            return
        self._is_connection_lent = True
        try:
            if self._connection is None or self._connection.is_closed():
                # Statements are not cached, because a test may alter tables.
                self._connection = await asyncpg.connect(self.url, statement_cache_size=0)
            yield self._connection
        except asyncio.CancelledError:
            if self._connection is not None:
                self._connection.terminate()
            raise
        finally:
            self._is_connection_lent = False

    async def close(self) -> None:
        await super().close()
        if self._connection is not None:
            self._connection.terminate()

    async def drop(self) -> None:
        self._is_connection_lent = True  # The open connection has been closed.
        await super().drop()

    def remove_rows(self) -> bool:
        with suppress(psycopg.Error):
            return self._schemas.reset(self)
        return False


class OpenStores:
    """The open stores of a test process. Each is lent to one test at a time."""

    def __init__(self, folders: pytest.TempPathFactory) -> None:
        self._folders = folders
        self._spare: dict[str, list[OpenSqliteStore | OpenPostgresStore]] = {"sqlite": [], "postgres": []}

    def take(self, schemas: PostgresSchemas | None) -> OpenSqliteStore | OpenPostgresStore:
        """Return a store that no test uses. It is a schema if schemas are passed, otherwise a file."""
        if spare := self._spare["sqlite" if schemas is None else "postgres"]:
            return spare.pop()
        return OpenSqliteStore(self._folders.mktemp("open")) if schemas is None else OpenPostgresStore(schemas)

    async def give_back(self, store: OpenSqliteStore | OpenPostgresStore) -> None:
        """Keep the store for the next test if it can be reset, otherwise remove it."""
        with suppress(Unavailable):
            if await store.reset():
                self._spare[store.name].append(store)
                return
        await store.close()
        await store.drop()

    async def aclose(self) -> None:
        """Close all stores."""
        for spare in self._spare.values():
            for store in spare:
                await store.close()


@asynccontextmanager
async def engine_on(store: TestStore, clock: VirtualClock | None = None) -> AsyncIterator[Engine]:
    """Yield an engine on the store. A store that does not stay open is opened for the block."""
    async with store.engine(clock) if isinstance(store, OpenStore) else opened(store, clock) as engine:
        yield engine


def _restore(store: Any, parts: Parts) -> bool:
    """Remove the attributes that a test has set on the store.

    Return False if the test has replaced a part of the store.
    """
    for name in vars(store).keys() - parts[""].keys():
        delattr(store, name)
    return all(_is_whole(part, parts.get(path, {})) for path, part in _parts_of(store).items())


def _types_in(store: Any) -> Parts:
    """Return the attributes of the store and of its parts, each with its type."""
    return {path: {name: type(value) for name, value in vars(part).items()} for path, part in _parts_of(store).items()}


def _parts_of(store: Any) -> dict[str, Any]:
    """Return the store, under an empty name, and the objects of flowfabric that it holds."""
    held = {name: value for name, value in vars(store).items() if type(value).__module__.startswith("flowfabric.")}
    return {"": store} | {name: value for name, value in held.items() if hasattr(value, "__dict__")}


def _is_whole(part: Any, types: dict[str, type]) -> bool:
    now = vars(part)
    return now.keys() == types.keys() and all(
        isinstance(now[name], type_) or now[name] is None or type_ is type(None) for name, type_ in types.items()
    )


async def _cancel_tasks_since(earlier: set[asyncio.Task[Any]]) -> None:
    tasks = [task for task in asyncio.all_tasks() - earlier if task is not asyncio.current_task()]
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def _ignore(_: object) -> None:
    return None


async def _do_nothing(_: object) -> None:
    return None
