"""Tests of a lent connection that user code closes or loses: only its own step fails, and the store keeps working."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from contextlib import closing
from typing import Any

import asyncpg
import pytest
import sqlalchemy
from sqlalchemy.pool import StaticPool

from flowfabric.engine import Engine, InvalidRequest, Step, Unavailable
from tests.expectations import refused
from tests.scenarios import leased
from tests.stores import PostgresTestStore, SqliteTestStore, TestStore, opened

ON_SQLITE = pytest.mark.parametrize("store", ["sqlite"], indirect=True)
ON_POSTGRES = pytest.mark.parametrize("store", ["postgres"], indirect=True)


def make_step(_: object = None) -> Step:
    return Step("pay", b"1")


def _returning(step: Step) -> Callable[[object], Step]:
    return lambda _: step


async def assert_usable(store: TestStore, engine: Engine) -> None:
    """Assert that the engine can still read and write, and that user code gets a working connection."""
    await engine.executions.submit("job")
    lease = await leased(engine)

    async def on_postgres(db: Any) -> int:
        return int(await db.fetchval("SELECT 7"))

    def on_sqlite(db: sqlite3.Connection) -> int:
        return int(db.execute("SELECT 7").fetchone()[0])

    body: Any = on_postgres if isinstance(store, PostgresTestStore) else on_sqlite
    for name in ("one", "two"):
        step = Step(name)
        assert await engine.leases.transact(lease.fence, body, _returning(step)) == 7
    await engine.leases.complete(lease.fence, b"")


async def test_user_code_cannot_close_the_lent_connection(store: TestStore) -> None:
    async def close(db: Any) -> None:
        await db.close()

    async def terminate(db: Any) -> None:
        db.terminate()

    def close_sqlite(db: sqlite3.Connection) -> None:
        db.close()

    bodies: list[Any] = [close, terminate] if isinstance(store, PostgresTestStore) else [close_sqlite]
    async with opened(store) as engine:
        lease = await leased(engine)
        for body in bodies:
            with pytest.raises((asyncpg.InterfaceError, sqlite3.ProgrammingError), match="only the engine closes"):
                await engine.leases.transact(lease.fence, body, make_step)
        assert await engine.executions.steps(lease.execution_id) == []
        await engine.leases.renew(lease.fence)
        await assert_usable(store, engine)


def back_up(db: sqlite3.Connection) -> None:
    with closing(sqlite3.connect(":memory:")) as target:
        db.backup(target)


def end_savepoint(db: sqlite3.Connection) -> None:
    db.execute("RELEASE Operation")


def remove_authorizer(db: sqlite3.Connection) -> None:
    db.set_authorizer(None)
    db.execute("COMMIT")


@ON_SQLITE
@pytest.mark.parametrize("body", [back_up, end_savepoint, remove_authorizer])
async def test_user_code_can_neither_block_the_writer_nor_end_its_transaction(
    store: SqliteTestStore, body: Callable[[sqlite3.Connection], None]
) -> None:
    """A backup of the lent connection would wait for the transaction in which it runs."""
    async with opened(store) as engine:
        lease = await leased(engine)
        with pytest.raises(sqlite3.DatabaseError, match="not authorized"):
            await engine.leases.transact(lease.fence, body, make_step)
        await assert_usable(store, engine)


async def test_refused_close_changes_nothing_if_user_code_catches_it(store: TestStore) -> None:
    async def on_postgres(db: Any) -> int:
        with pytest.raises(asyncpg.InterfaceError):
            await db.close()
        return int(await db.fetchval("SELECT 3"))

    def on_sqlite(db: sqlite3.Connection) -> int:
        with pytest.raises(sqlite3.ProgrammingError):
            db.close()
        return int(db.execute("SELECT 3").fetchone()[0])

    body: Any = on_postgres if isinstance(store, PostgresTestStore) else on_sqlite
    async with opened(store) as engine:
        lease = await leased(engine)
        assert await engine.leases.transact(lease.fence, body, make_step) == 3
        assert len(await engine.executions.steps(lease.execution_id)) == 1


@ON_SQLITE
@pytest.mark.parametrize("raises", [False, True])
async def test_connection_closed_anyway_is_reopened_and_only_that_step_fails(
    store: SqliteTestStore, raises: bool
) -> None:
    def body(db: sqlite3.Connection) -> None:
        db.execute("CREATE TABLE late (x)")
        sqlite3.Connection.close(db)
        if raises:
            raise ValueError("no")

    async with opened(store) as engine, opened(store) as other:
        lease = await leased(engine)
        for _ in range(3):
            if raises:
                with pytest.raises(ValueError, match="no"):
                    await engine.leases.transact(lease.fence, body, make_step)
            else:
                await refused(engine.leases.transact(lease.fence, body, make_step), "no_transaction", InvalidRequest)
            await assert_usable(store, engine)
            await assert_usable(store, other)
        assert await engine.executions.steps(lease.execution_id) == []
        assert await store.query("SELECT name FROM sqlite_master WHERE name = 'late'") == []


@ON_POSTGRES
@pytest.mark.parametrize("catches", [False, True])
@pytest.mark.parametrize("ends", ["by user code", "by the server"])
async def test_connection_lost_anyway_is_replaced_and_only_that_step_fails(
    store: PostgresTestStore, ends: str, catches: bool
) -> None:
    async def body(db: Any) -> None:
        try:
            if ends == "by user code":
                await asyncpg.Connection.close(db._con)
            await db.execute("SELECT pg_terminate_backend(pg_backend_pid())")
        except (asyncpg.PostgresError, asyncpg.InterfaceError, OSError):
            if not catches:
                raise

    async with opened(store, pool_size=1) as engine:
        lease = await leased(engine)
        for _ in range(3):
            await refused(engine.leases.transact(lease.fence, body, make_step), "connection_lost", Unavailable)
            await assert_usable(store, engine)
        assert await engine.executions.steps(lease.execution_id) == []


@ON_SQLITE
@pytest.mark.parametrize("closes", ["the connection", "the engine", "nothing"])
async def test_sqlalchemy_over_the_lent_connection_fails_only_its_step(store: SqliteTestStore, closes: str) -> None:
    """SQLAlchemy rolls back and closes a connection that it gives back to its pool."""

    def body(db: sqlite3.Connection) -> str:
        pool = sqlalchemy.create_engine("sqlite://", creator=lambda: db, poolclass=StaticPool)
        with pool.connect() as connection:
            connection.exec_driver_sql("CREATE TABLE orders (id INTEGER)")
            connection.exec_driver_sql("INSERT INTO orders VALUES (1)")
            if closes == "the connection":
                connection.invalidate()
        if closes == "the engine":
            pool.dispose()
        return "done"

    async with opened(store) as engine:
        lease = await leased(engine)
        transact = engine.leases.transact(lease.fence, body, make_step)
        outcomes = await asyncio.gather(transact, return_exceptions=True)
        assert not isinstance(outcomes[0], Unavailable), outcomes
        await engine.leases.renew(lease.fence)
        steps = await engine.executions.steps(lease.execution_id)
        rows = await store.query("SELECT name FROM sqlite_master WHERE name = 'orders'")
        assert len(rows) == len(steps)  # Both are committed, or neither.
        await assert_usable(store, engine)
