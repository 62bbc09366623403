"""Tests of submit_in_transaction on PostgreSQL: notifications, settings, conflicts and refused connections."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Iterator
from contextlib import suppress
from typing import Any

import asyncpg
import psycopg
import pytest
import sqlalchemy
from psycopg.rows import namedtuple_row
from psycopg.types.string import TextLoader
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from flowfabric.backends.postgres.notify import channel_name, from_payload
from flowfabric.engine import Created, Duplicate, Engine, InvalidRequest, State, Submission, Unavailable
from flowfabric.testing import VirtualClock
from tests.callers import (
    ON_POSTGRES,
    asyncpg_connection,
    make_table,
    notes,
    own_namespace,
    psycopg_connection,
    shared_schema,
)
from tests.postgres_server import PostgresServer
from tests.stores import PostgresTestStore, opened

JOB = Submission(kind="job")
LANE = 'späte "Post"'
DRIVERS = ["asyncpg", "psycopg", "psycopg async"]


@pytest.fixture(scope="module")
def store(postgres: PostgresServer) -> Iterator[PostgresTestStore]:
    with shared_schema(postgres) as store:
        yield store


@pytest.fixture
async def engine(store: PostgresTestStore) -> AsyncIterator[Engine]:
    async with opened(store, namespace=own_namespace()) as engine:
        await make_table(store)
        yield engine


@pytest.fixture
async def notified_lanes(store: PostgresTestStore) -> AsyncIterator[asyncio.Queue[tuple[str, str]]]:
    """Yield the lanes notified to a separate connection, as pairs of namespace and lane."""
    queue: asyncio.Queue[tuple[str, str]] = asyncio.Queue()
    connection = await asyncpg.connect(store.url)

    def on_notification(_connection: object, _process: int, _channel: str, payload: object) -> None:
        for lane in from_payload(str(payload)).lanes:
            queue.put_nowait(lane)

    await connection.add_listener(channel_name(store.schema), on_notification)
    yield queue
    await connection.close()


async def read_error_code(engine: Engine, connection: object, *, sync: bool = False) -> str:
    """Return the code of the error that the async or sync call raises for this connection."""
    if sync:
        return _read_sync_error_code(engine, connection)
    with pytest.raises((InvalidRequest, Unavailable)) as caught:
        await engine.executions.submit_in_transaction(connection, JOB)
    return caught.value.code


@pytest.mark.parametrize("library", ["asyncpg", "psycopg"])
async def test_notification_comes_once_with_the_commit_and_never_after_a_rollback(
    library: str, store: PostgresTestStore, engine: Engine, notified_lanes: asyncio.Queue[tuple[str, str]]
) -> None:
    # Notifications arrive in commit order. If the committed lanes arrive first, the rolled-back lane was not notified.
    async with ON_POSTGRES[library](store, engine) as caller, asyncpg_connection(store, engine) as other:
        await caller.submit(Submission(kind="job", lane="rolled-back"))
        await caller.rollback()
        for _ in range(3):
            await caller.submit(Submission(kind="job", lane=LANE))
        await other.submit(Submission(kind="job", lane="committed-first"))
        await other.commit()
        await caller.commit()
        await other.submit(Submission(kind="job", lane="last"))
        await other.commit()

        lanes = [await asyncio.wait_for(notified_lanes.get(), 10) for _ in range(3)]

    assert lanes == [(engine.namespace, lane) for lane in ("committed-first", LANE, "last")]


def test_channel_name_fits_into_postgresql_and_differs_by_schema() -> None:
    schemas = ["flowfabric", "a" * 63, "a" * 62 + "b", "a" * 52, "a" * 53]
    channels = [channel_name(schema) for schema in schemas]
    assert channels[0] == "flowfabric.flowfabric"
    assert max(map(len, channels)) <= 63
    assert len(set(channels)) == len(schemas)


async def test_longest_names_fit_into_a_notification(store: PostgresTestStore) -> None:
    async with store.connecting(namespace="\U0001f43e" * 256) as engine, asyncpg_connection(store, engine) as caller:
        await caller.submit(Submission(kind="job", lane="\U0001f43e" * 256))
        await caller.commit()


async def test_submit_without_a_key_sets_no_savepoint(store: PostgresTestStore, engine: Engine) -> None:
    async with asyncpg_connection(store, engine) as caller:
        statements: list[str] = []
        with caller.connection.query_logger(lambda record: statements.append(record.query)):
            await caller.submit(JOB)
            await caller.submit(Submission(kind="job", key="k"))
            # The driver logs a statement one turn of the event loop later.
            await asyncio.sleep(0)
            assert [text for text in statements if "SAVEPOINT" in text] == [
                "SAVEPOINT flowfabric_join",
                "RELEASE SAVEPOINT flowfabric_join",
            ]


async def test_second_submit_of_a_key_waits_for_the_transaction(store: PostgresTestStore, engine: Engine) -> None:
    async with psycopg_connection(store, engine) as caller:
        for key, finish, is_duplicate in (("a", caller.rollback, False), ("b", caller.commit, True)):
            inside = await caller.submit(Submission(kind="job", key=key))
            waiting = asyncio.create_task(engine.executions.submit("job", key=key))
            await wait_until_blocked(store)
            await finish()
            outside = await waiting
            assert (outside == Duplicate(inside.id)) is is_duplicate


async def wait_until_blocked(store: PostgresTestStore) -> None:
    """Wait until some statement waits for a lock."""
    connection = await asyncpg.connect(store.url)
    has_blocked = "SELECT EXISTS (SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE $1)"
    async with asyncio.timeout(10):
        while not await connection.fetchval(has_blocked, f"%{store.schema}%"):
            pass
    await connection.close()


@pytest.mark.parametrize("library", ["asyncpg", "psycopg async"])
async def test_cancelled_submit_leaves_the_transaction_usable(
    library: str, store: PostgresTestStore, engine: Engine
) -> None:
    async with ON_POSTGRES[library](store, engine) as caller, asyncpg_connection(store, engine) as other:
        await other.submit(Submission(kind="job", key="k"))
        await caller.note("kept")
        task = asyncio.create_task(caller.submit(Submission(kind="job", key="k")))
        await wait_until_blocked(store)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await caller.note("kept too")
        await caller.commit()
    assert await notes(store) == ["kept", "kept too"]


@pytest.mark.parametrize("library", [*DRIVERS, "sqlalchemy session", "sqlalchemy async session, asyncpg"])
async def test_rollback_to_a_savepoint_of_the_caller_discards_the_execution(
    library: str, store: PostgresTestStore, engine: Engine, notified_lanes: asyncio.Queue[tuple[str, str]]
) -> None:
    async with ON_POSTGRES[library](store, engine) as caller:
        outer = await caller.submit(Submission(kind="job", lane="outer", key="a"))
        await _execute(caller.connection, "SAVEPOINT own")
        await caller.submit(Submission(kind="job", lane="inner", key="b"))
        await caller.submit(Submission(kind="job", lane="inner"))
        await _execute(caller.connection, "ROLLBACK TO SAVEPOINT own")
        await caller.submit(Submission(kind="job", lane="after", key="b"))
        await caller.commit()

    page = await engine.executions.list()
    assert [execution.lane for execution in page.items] == ["after", "outer"] and page.items[1].id == outer.id
    assert [(await asyncio.wait_for(notified_lanes.get(), 10))[1] for _ in range(2)] == ["outer", "after"]


@pytest.mark.parametrize("library", DRIVERS)
async def test_serialization_conflict_raises_transaction_conflict(
    library: str, store: PostgresTestStore, engine: Engine
) -> None:
    async with ON_POSTGRES[library](store, engine) as caller:
        await _execute(caller.connection, "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        await caller.note("takes the snapshot")
        existing = await engine.executions.submit("job", key="k")
        with pytest.raises(Unavailable) as caught:
            await caller.submit(Submission(kind="job", key="k"))
        assert caught.value.code == "transaction_conflict"
        await caller.rollback()
        assert await caller.submit(Submission(kind="job", key="k")) == Duplicate(existing.id)


@pytest.mark.parametrize("library", [*DRIVERS, "sqlalchemy session", "sqlalchemy async connection, asyncpg"])
async def test_broken_connection_raises_unavailable_and_no_driver_error(
    library: str, store: PostgresTestStore, engine: Engine
) -> None:
    async with ON_POSTGRES[library](store, engine) as caller:
        await caller.note("lost")
        await store.query(
            "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE state ~ '^idle in' AND query LIKE ?",
            f"%{store.schema}%note%",
        )
        with pytest.raises(Unavailable) as caught:
            await caller.submit(JOB)
        # Some drivers detect the lost connection immediately, others at the next statement.
        assert caught.value.code in ("connection_lost", "connection_closed")
        await _await_suppressed(caller.rollback())
    assert await notes(store) == []


async def test_codecs_and_row_types_of_the_caller_have_no_effect(store: PostgresTestStore, engine: Engine) -> None:
    tagged = Submission(kind="job", tags={"shop.order": "17"}, key="k")
    async with asyncpg_connection(store, engine) as caller:
        for kind, encoder, decoder in (("jsonb", json.dumps, json.loads), ("uuid", str, str)):
            await caller.connection.set_type_codec(kind, schema="pg_catalog", encoder=encoder, decoder=decoder)
        first = await caller.submit(tagged)
        assert await caller.submit(tagged) == Duplicate(first.id)
        assert await caller.submit(Submission(kind="job", tags=tagged.tags, id=first.id)) == Duplicate(first.id)
        await caller.commit()
    async with psycopg_connection(store, engine) as caller:
        caller.connection.row_factory = namedtuple_row
        for name in ("uuid", "timestamptz", "jsonb", "bytea", "int8"):
            caller.connection.adapters.register_loader(name, TextLoader)
        assert await caller.submit(tagged) == Duplicate(first.id)
        second = await caller.submit(Submission(kind="job", tags=tagged.tags, delay="1h"))
        await caller.commit()
    for id_ in (first.id, second.id):
        assert dict((await engine.executions.describe(id_)).tags) == {"shop.order": "17"}


@pytest.mark.parametrize("library", DRIVERS)
async def test_submit_uses_the_clock_of_the_engine(library: str, store: PostgresTestStore) -> None:
    clock = VirtualClock()
    async with opened(store, clock, namespace=own_namespace()) as engine, ON_POSTGRES[library](store, engine) as caller:
        outcome = await caller.submit(Submission(kind="job", delay="1h", key="k"))
        await caller.commit()
        description = await engine.executions.describe(outcome.id)
        assert (description.created_at, outcome) == (clock.now(), Created(outcome.id, State.DELAYED))


async def test_sync_connection_is_joined_in_a_thread_without_an_event_loop(
    store: PostgresTestStore, engine: Engine
) -> None:
    def work() -> Any:
        with psycopg.connect(store.url) as connection:
            return engine.executions.submit_in_transaction_sync(connection, JOB)

    outcome = await asyncio.to_thread(work)
    assert (await engine.executions.describe(outcome.id)).state is State.WAITING


async def test_autocommit_connection_is_refused(store: PostgresTestStore, engine: Engine) -> None:
    connection = await asyncpg.connect(store.url)
    assert await read_error_code(engine, connection) == "no_transaction"
    await connection.close()
    with psycopg.connect(store.url, autocommit=True) as plain:
        assert await read_error_code(engine, plain, sync=True) == "no_transaction"
        with plain.transaction():
            joined = engine.executions.submit_in_transaction_sync(plain, JOB)
    for driver in ("asyncpg", "psycopg"):
        database = create_async_engine(_url(store, driver), isolation_level="AUTOCOMMIT")
        async with database.begin() as wrapped:
            assert await read_error_code(engine, wrapped) == "no_transaction"
        await database.dispose()
    rows = await store.query("SELECT id FROM ff.execution WHERE namespace = ?", engine.namespace)
    assert [row["id"] for row in rows] == [joined.id]


async def test_closed_connection_is_refused(store: PostgresTestStore, engine: Engine) -> None:
    connection = await asyncpg.connect(store.url)
    await connection.close()
    assert await read_error_code(engine, connection) == "connection_closed"
    async with asyncpg.create_pool(store.url, min_size=1, max_size=1) as pool:
        async with pool.acquire() as pooled:
            pass
        assert await read_error_code(engine, pooled) == "connection_closed"
    with psycopg.connect(store.url) as plain:
        pass
    assert await read_error_code(engine, plain, sync=True) == "connection_closed"
    database = sqlalchemy.create_engine(_url(store, "psycopg"))
    with database.connect() as wrapped:
        pass
    assert await read_error_code(engine, wrapped, sync=True) == "connection_closed"
    database.dispose()
    async_database = create_async_engine(_url(store, "asyncpg"))
    async with async_database.connect() as wrapped_async:
        pass
    assert await read_error_code(engine, wrapped_async) == "connection_closed"
    await async_database.dispose()


async def test_call_for_the_wrong_kind_of_connection_is_refused(store: PostgresTestStore, engine: Engine) -> None:
    with psycopg.connect(store.url) as plain:
        assert await read_error_code(engine, plain) == "connection_not_async"
    database = sqlalchemy.create_engine(_url(store, "psycopg"))
    with Session(database) as session:
        assert await read_error_code(engine, session) == "connection_not_async"
    database.dispose()
    connection = await asyncpg.connect(store.url)
    assert await read_error_code(engine, connection, sync=True) == "connection_not_sync"
    await connection.close()
    async_database = create_async_engine(_url(store, "asyncpg"))
    async with AsyncSession(async_database) as async_session, async_database.connect() as wrapped:
        assert await read_error_code(engine, async_session, sync=True) == "connection_not_sync"
        # Inside `run_sync` the session is synchronous, but its driver is not.
        code = await async_session.run_sync(lambda inner: _read_sync_error_code(engine, inner))
        assert code == "connection_not_sync"
        assert isinstance(wrapped, AsyncConnection)
    await async_database.dispose()


async def test_object_that_is_no_postgresql_connection_is_refused(store: PostgresTestStore, engine: Engine) -> None:
    class Connection:
        __module__ = "psycopg2.extensions"

    with sqlite3.connect(":memory:") as lite:
        pass
    pool = asyncpg.create_pool(store.url, min_size=0, max_size=1)
    for bad_connection in (lite, Connection(), pool, store.url, None):
        assert await read_error_code(engine, bad_connection) == "unsupported_connection"
        assert await read_error_code(engine, bad_connection, sync=True) == "unsupported_connection"
    lite.close()
    with pytest.raises(InvalidRequest, match=r"psycopg2\.extensions.* use a connection of asyncpg or psycopg 3"):
        engine.executions.submit_in_transaction_sync(Connection(), JOB)


async def test_read_only_or_aborted_transaction_is_refused(store: PostgresTestStore, engine: Engine) -> None:
    for library in (*DRIVERS, "sqlalchemy connection", "sqlalchemy async connection, asyncpg"):
        async with ON_POSTGRES[library](store, engine) as caller:
            await _execute(caller.connection, "SET TRANSACTION READ ONLY")
            with pytest.raises(InvalidRequest) as caught:
                await caller.submit(JOB)
            assert caught.value.code == "transaction_read_only"
            await _await_suppressed(_execute(caller.connection, "SELECT 1 / 0"))
            with pytest.raises(InvalidRequest) as caught:
                await caller.submit(JOB)
            assert caught.value.code == "transaction_aborted"
            await caller.rollback()


async def test_closed_engine_refuses_to_join(store: PostgresTestStore) -> None:
    async with store.connecting() as engine:
        pass
    with psycopg.connect(store.url) as plain:
        assert await read_error_code(engine, plain, sync=True) == "store_closed"


async def test_connection_to_another_database_is_refused(store: PostgresTestStore, engine: Engine) -> None:
    await store.query(f"CREATE DATABASE {store.schema}")
    other = await asyncpg.connect(store.url, database=store.schema)
    async with other.transaction():
        assert await read_error_code(engine, other) == "other_database"
        assert await other.fetchval("SELECT 1") == 1
    await other.close()
    await store.query(f"DROP DATABASE {store.schema}")


async def test_database_without_the_schema_is_refused(postgres: PostgresServer) -> None:
    dropped_store = PostgresTestStore(postgres.dsn)
    async with opened(dropped_store) as engine, asyncpg_connection(dropped_store, engine) as caller:
        await dropped_store.drop()
        assert await read_error_code(engine, caller.connection) == "schema_missing"
        assert await caller.connection.fetchval("SELECT 1") == 1


def _url(store: PostgresTestStore, driver: str) -> str:
    return store.url.replace("postgresql://", f"postgresql+{driver}://", 1)


def _read_sync_error_code(engine: Engine, connection: object) -> str:
    with pytest.raises((InvalidRequest, Unavailable)) as caught:
        engine.executions.submit_in_transaction_sync(connection, JOB)
    return caught.value.code


async def _execute(connection: Any, text: str) -> None:
    is_sqlalchemy = type(connection).__module__.startswith("sqlalchemy")
    result = connection.execute(sqlalchemy.text(text) if is_sqlalchemy else text)
    if isinstance(result, Awaitable):
        await result


async def _await_suppressed(work: Any) -> None:
    """Await a call, and ignore the driver error that a broken or aborted connection may raise."""
    with suppress(asyncpg.PostgresError, asyncpg.InterfaceError, psycopg.Error, sqlalchemy.exc.SQLAlchemyError):
        await work
