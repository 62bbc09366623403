"""The engine vacuums the table of executions: one process at a time, and only with the privilege to do so."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import asyncpg
import pytest

from flowfabric.backends.postgres import vacuum as vacuum_module
from flowfabric.backends.postgres.vacuum import HOT_TABLES, vacuum
from flowfabric.engine import Engine, Submission
from flowfabric.reconcilers import vacuum as duty
from tests.adversity.transaction_pooler import pooler_before
from tests.postgres_server import PostgresServer
from tests.stores import PostgresTestStore, opened

JOBS = 300
VACUUMS = "SELECT COALESCE(SUM(vacuum_count), 0)::BIGINT AS n FROM pg_stat_user_tables WHERE schemaname = ?"
LOCK = "SELECT pg_advisory_lock(hashtextextended('flowfabric vacuum of ' || ?, 0))"
PATIENCE_S = 20


@pytest.fixture
async def store(postgres: PostgresServer) -> AsyncIterator[PostgresTestStore]:
    store = PostgresTestStore(postgres.dsn)
    yield store
    await store.drop()


async def run_jobs(engine: Engine, number: int = JOBS) -> None:
    await engine.executions.submit_many([Submission(kind="noop", payload=b"1") for _ in range(number)])
    leases = await engine.leases.claim(["default"], "w", limit=number)
    await engine.leases.complete_many([(lease.fence, b"1") for lease in leases])


async def count_vacuums(store: PostgresTestStore) -> int:
    [row] = await store.query(VACUUMS, store.schema)
    return int(row["n"])


async def count_dead_rows(store: PostgresTestStore) -> int:
    """Return the exact number of dead rows in the table of executions."""
    await store.query("CREATE EXTENSION IF NOT EXISTS pgstattuple")
    [row] = await store.query("SELECT dead_tuple_count AS n FROM pgstattuple('ff.execution'::REGCLASS)")
    return int(row["n"])


@asynccontextmanager
async def held_by_another_process(store: PostgresTestStore) -> AsyncIterator[None]:
    connection = await asyncpg.connect(store.url)
    try:
        await connection.execute(LOCK.replace("?", f"'{store.schema}'"))
        yield
    finally:
        await connection.close()


async def test_vacuum_removes_the_dead_rows_of_claims(store: PostgresTestStore) -> None:
    async with opened(store) as engine:
        await run_jobs(engine)
        assert await count_dead_rows(store) >= JOBS
        assert await vacuum(store.url, store.schema)
    assert await count_dead_rows(store) == 0
    assert await count_vacuums(store) == len(HOT_TABLES)


async def test_only_one_process_vacuums_at_a_time(store: PostgresTestStore) -> None:
    async with opened(store):
        async with held_by_another_process(store):
            assert await vacuum(store.url, store.schema)
            assert await count_vacuums(store) == 0
        assert await vacuum(store.url, store.schema)
        assert await count_vacuums(store) == len(HOT_TABLES)


async def test_another_schema_is_vacuumed_at_the_same_time(store: PostgresTestStore, postgres: PostgresServer) -> None:
    other = PostgresTestStore(postgres.dsn)
    async with opened(store), opened(other), held_by_another_process(other):
        assert await vacuum(store.url, store.schema)
        assert await count_vacuums(store) == len(HOT_TABLES)
    await other.drop()


async def test_claims_start_a_vacuum_in_the_background(
    store: PostgresTestStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(duty.Vacuum.__init__, "__kwdefaults__", {"draw": lambda: JOBS})
    async with opened(store) as engine, engine.reconcilers.run_in_background():
        await run_jobs(engine)
        async with asyncio.timeout(PATIENCE_S):
            while await count_vacuums(store) < len(HOT_TABLES):  # noqa: ASYNC110 - the server reports it by this only
                await asyncio.sleep(0.05)


async def test_role_that_may_not_vacuum_is_reported(store: PostgresTestStore) -> None:
    role = f"guest_{store.schema}"
    async with opened(store) as engine:
        await run_jobs(engine)
        grants = ("USAGE ON SCHEMA", "SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA")
        await store.queries(
            [f"CREATE ROLE {role} LOGIN", *(f'GRANT {what} "{store.schema}" TO {role}' for what in grants)]
        )
        try:
            assert not await vacuum(store.url.replace("postgres@", f"{role}@"), store.schema)
            assert await count_vacuums(store) == 0
        finally:
            await store.queries([f"DROP OWNED BY {role}", f"DROP ROLE {role}"])


async def test_vacuum_of_a_stopped_process_ends_and_frees_the_lock(
    store: PostgresTestStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        vacuum_module, "_LOCK", f"SELECT pg_sleep(60) IS NOT NULL OR ({LOCK.replace('?', '$1')}) IS NULL"
    )
    async with opened(store):
        task = asyncio.create_task(vacuum(store.url, store.schema))
        async with asyncio.timeout(PATIENCE_S):
            while not await _sessions(store):  # noqa: ASYNC110 - the server reports it by this only
                await asyncio.sleep(0.02)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            while await _sessions(store):  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        monkeypatch.undo()
        assert await vacuum(store.url, store.schema)
        assert await count_vacuums(store) == len(HOT_TABLES)


async def test_store_behind_a_pooler_leaves_it_to_autovacuum(store: PostgresTestStore, tmp_path: Path) -> None:
    async with opened(store), pooler_before(store.url, tmp_path) as (url, _):
        behind = PostgresTestStore(url)
        behind.schema = store.schema
        async with opened(behind, pooler=True) as engine:
            assert await engine._context.store.vacuum()
            assert await count_vacuums(store) == 0
        async with opened(behind, pooler=True, listen_url=store.url) as engine:
            assert await engine._context.store.vacuum()
            assert await count_vacuums(store) == len(HOT_TABLES)


async def test_old_transaction_that_blocks_vacuum_is_named(
    store: PostgresTestStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vacuum_module, "_BLOCKERS", vacuum_module._BLOCKERS.replace("1 minute", "0 seconds"))
    async with opened(store) as engine:
        async with _report(store) as reader, reader.transaction(isolation="repeatable_read"):
            await reader.fetchval("SELECT 1")
            await run_jobs(engine)
            assert await vacuum(store.url, store.schema)
            assert await count_dead_rows(store) >= JOBS, "the transaction may still see these rows"
            pid = await reader.fetchval("SELECT pg_backend_pid()")
            blockers = (await engine.store_info()).vacuum_blockers
        [named] = [text for text in blockers if f"process {pid} " in text]
        assert "report" in named and "idle in transaction" in named
        assert (await engine.store_info()).vacuum_blockers == ()


@asynccontextmanager
async def _report(store: PostgresTestStore) -> AsyncIterator[asyncpg.Connection]:
    """Yield a connection of another program."""
    connection = await asyncpg.connect(store.url, server_settings={"application_name": "report"})
    try:
        yield connection
    finally:
        await connection.close()


async def _sessions(store: PostgresTestStore) -> int:
    [row] = await store.query(
        "SELECT COUNT(*) AS n FROM pg_stat_activity WHERE application_name = 'flowfabric-vacuum' AND state = 'active'"
    )
    return int(row["n"])
