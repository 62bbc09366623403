"""Tests of submit_in_transaction_sync on SQLite: settings, locks, the time stored in the file, refused connections."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Iterator
from contextlib import closing
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy

from flowfabric.engine import Created, Duplicate, Engine, InvalidRequest, State, Submission, Unavailable, connect
from flowfabric.testing import VirtualClock
from tests.stores import SqliteTestStore, opened

JOB = Submission(kind="job")


@pytest.fixture
def store(tmp_path: Path) -> SqliteTestStore:
    return SqliteTestStore(tmp_path)


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
async def engine(store: SqliteTestStore, clock: VirtualClock) -> AsyncIterator[Engine]:
    async with opened(store, clock) as engine:
        yield engine


@pytest.fixture
def connection(store: SqliteTestStore, engine: Engine) -> Iterator[sqlite3.Connection]:
    """Yield a connection of the caller without an open transaction."""
    with closing(sqlite3.connect(store.path, isolation_level=None, timeout=0.05)) as connection:
        yield connection


def read_error_code(engine: Engine, connection: object) -> str:
    with pytest.raises((InvalidRequest, Unavailable)) as caught:
        engine.executions.submit_in_transaction_sync(connection, JOB)
    return caught.value.code


def test_joined_connection_never_checkpoints_automatically(engine: Engine, connection: sqlite3.Connection) -> None:
    assert connection.execute("PRAGMA wal_autocheckpoint").fetchone() != (0,)
    connection.execute("BEGIN")
    engine.executions.submit_in_transaction_sync(connection, JOB)
    connection.execute("COMMIT")
    assert connection.execute("PRAGMA wal_autocheckpoint").fetchone() == (0,)


def test_connection_without_a_transaction_is_refused_and_unchanged(
    engine: Engine, connection: sqlite3.Connection
) -> None:
    assert read_error_code(engine, connection) == "no_transaction"
    assert not connection.in_transaction
    assert connection.execute("SELECT count(*) FROM ff_execution").fetchone() == (0,)


def test_row_and_text_types_of_the_caller_have_no_effect_and_are_kept(
    engine: Engine, connection: sqlite3.Connection
) -> None:
    class FailingCursor(sqlite3.Cursor):
        def fetchall(self) -> list[Any]:
            raise AssertionError("the engine used a cursor of the caller")

    def fail_on_row(cursor: sqlite3.Cursor, row: tuple[Any, ...]) -> Any:
        raise AssertionError("the engine used the row factory of the caller")

    keyed = Submission(kind="job", key="k", requires=["gpu"])
    connection.execute("BEGIN")
    connection.row_factory, connection.text_factory = fail_on_row, bytes
    first = engine.executions.submit_in_transaction_sync(connection, keyed)
    assert engine.executions.submit_in_transaction_sync(connection, keyed) == Duplicate(first.id)
    assert (connection.row_factory, connection.text_factory) == (fail_on_row, bytes)
    assert connection.cursor(FailingCursor) is not None


async def test_transaction_with_an_outdated_snapshot_is_busy_and_stays_usable(
    engine: Engine, connection: sqlite3.Connection
) -> None:
    connection.execute("BEGIN")
    connection.execute("SELECT count(*) FROM ff_execution").fetchone()
    await engine.executions.submit("job")
    assert read_error_code(engine, connection) == "storage_busy"
    assert connection.in_transaction
    connection.execute("ROLLBACK")
    connection.execute("BEGIN")
    assert isinstance(engine.executions.submit_in_transaction_sync(connection, JOB), Created)


async def test_lock_of_another_connection_is_busy(store: SqliteTestStore, engine: Engine, connection: Any) -> None:
    with closing(sqlite3.connect(store.path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        connection.execute("BEGIN")
        assert read_error_code(engine, connection) == "storage_busy"
        other.execute("ROLLBACK")
        assert isinstance(engine.executions.submit_in_transaction_sync(connection, JOB), Created)


async def test_engine_waits_for_the_transaction_of_the_caller(engine: Engine, connection: sqlite3.Connection) -> None:
    connection.execute("BEGIN IMMEDIATE")
    inside = engine.executions.submit_in_transaction_sync(connection, Submission(kind="job", key="k"))
    waiting = asyncio.create_task(engine.executions.submit("job", key="k"))
    assert await engine.executions.list() is not None  # Readers do not wait.
    connection.execute("COMMIT")
    assert await waiting == Duplicate(inside.id)


async def test_time_is_read_under_the_write_lock(store: SqliteTestStore) -> None:
    class LockCheckingClock(VirtualClock):
        is_joining = was_read = False

        def now(self) -> datetime:
            if not self.is_joining:
                return super().now()
            locked = pytest.raises(sqlite3.OperationalError, match="locked")
            with closing(sqlite3.connect(store.path, isolation_level=None, timeout=0)) as other, locked:
                other.execute("BEGIN IMMEDIATE")
            self.was_read = True
            return super().now()

    clock = LockCheckingClock()
    async with opened(store, clock) as engine:
        with closing(sqlite3.connect(store.path)) as connection:
            connection.execute("BEGIN")
            clock.is_joining = True
            engine.executions.submit_in_transaction_sync(connection, JOB)
            clock.is_joining = False
    assert clock.was_read


async def test_time_in_the_file_never_decreases(
    store: SqliteTestStore, engine: Engine, connection: sqlite3.Connection, clock: VirtualClock
) -> None:
    start = clock.now()
    async with opened(store, VirtualClock(start + timedelta(hours=1))) as ahead:
        await ahead.executions.submit("job")
    connection.execute("BEGIN")
    joined = engine.executions.submit_in_transaction_sync(connection, JOB)
    connection.execute("COMMIT")
    assert (await engine.executions.describe(joined.id)).created_at == start + timedelta(hours=1)

    clock.advance("2h")
    connection.execute("BEGIN")
    engine.executions.submit_in_transaction_sync(connection, JOB)
    connection.execute("COMMIT")
    async with opened(store, VirtualClock(start)) as behind:
        late = await behind.executions.submit("job")
        assert (await behind.executions.describe(late.id)).created_at == start + timedelta(hours=2)


def test_another_file_or_memory_database_is_refused(tmp_path: Path, store: SqliteTestStore, engine: Engine) -> None:
    for path in (":memory:", str(tmp_path / "other.db"), ""):
        with closing(sqlite3.connect(path)) as other:
            other.execute("ATTACH ? AS engine", [store.url])
            other.execute("BEGIN")
            assert read_error_code(engine, other) == "other_database"


def test_symbolic_link_to_the_same_file_is_joined(tmp_path: Path, store: SqliteTestStore, engine: Engine) -> None:
    (tmp_path / "link").symlink_to(tmp_path)
    with closing(sqlite3.connect(tmp_path / "link" / store.path.name)) as same:
        same.execute("BEGIN")
        assert isinstance(engine.executions.submit_in_transaction_sync(same, JOB), Created)


async def test_memory_engine_cannot_be_joined() -> None:
    async with connect(":memory:") as engine:
        with closing(sqlite3.connect(":memory:")) as other:
            other.execute("BEGIN")
            assert read_error_code(engine, other) == "other_database"


async def test_connection_of_another_thread_or_closed_is_refused(
    engine: Engine, connection: sqlite3.Connection
) -> None:
    connection.execute("BEGIN")
    assert await asyncio.to_thread(read_error_code, engine, connection) == "connection_of_another_thread"
    connection.close()
    assert read_error_code(engine, connection) == "connection_closed"


async def test_connection_is_joined_in_a_thread_without_an_event_loop(store: SqliteTestStore, engine: Engine) -> None:
    def work() -> Any:
        with closing(sqlite3.connect(store.path)) as own, own:
            own.execute("BEGIN")
            return engine.executions.submit_in_transaction_sync(own, JOB)

    outcome = await asyncio.to_thread(work)
    assert (await engine.executions.describe(outcome.id)).state is State.WAITING


async def test_sqlalchemy_connection_is_joined_after_an_explicit_begin(store: SqliteTestStore, engine: Engine) -> None:
    database = sqlalchemy.create_engine(f"sqlite:///{store.path}")
    with database.begin() as wrapped:
        assert read_error_code(engine, wrapped) == "no_transaction"
        wrapped.exec_driver_sql("BEGIN")
        outcome = engine.executions.submit_in_transaction_sync(wrapped, JOB)
    database.dispose()
    assert (await engine.executions.describe(outcome.id)).state is State.WAITING


async def test_object_that_is_no_sqlite_connection_is_refused(engine: Engine, connection: sqlite3.Connection) -> None:
    class Connection:
        __module__ = "aiosqlite.core"

    assert read_error_code(engine, Connection()) == "unsupported_connection"
    for bad_connection, code in ((connection, "connection_not_async"), (Connection(), "unsupported_connection")):
        with pytest.raises(InvalidRequest) as caught:
            await engine.executions.submit_in_transaction(bad_connection, JOB)
        assert caught.value.code == code


async def test_closed_engine_refuses_to_join(store: SqliteTestStore, engine: Engine, connection: Any) -> None:
    await engine.close()
    connection.execute("BEGIN")
    assert read_error_code(engine, connection) == "store_closed"
