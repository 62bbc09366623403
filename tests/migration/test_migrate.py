"""Tests that one process applies each missing migration once, under a lock and completely, and that other schemas are
rejected.

The process that migrates is the next release (see `next_release.py`), so there are always two migrations.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from flowfabric.engine import Unavailable, connect
from flowfabric.store.migrations import load_migrations
from tests.children import children
from tests.migration.next_release import load_next_migrations, next_release
from tests.stores import PostgresTestStore, TestStore, opened

READ_MIGRATIONS = "SELECT version, name, sha256 FROM ff.migration ORDER BY version"
READ_COUNTS = "SELECT lane, executions FROM ff.lane_count ORDER BY lane"
LOCK = "SELECT pg_advisory_lock(hashtextextended('flowfabric migration of ' || $1, 0))"
WAITERS = """
    SELECT pid FROM pg_locks
    WHERE locktype = 'advisory' AND NOT granted
        AND ((classid::BIGINT << 32) | objid::BIGINT) = hashtextextended('flowfabric migration of ' || ?, 0)
"""

either_start = pytest.mark.parametrize("is_upgrade", [False, True], ids=["new", "upgrade"])


@either_start
async def test_four_concurrent_processes_apply_each_migration_once(store: TestStore, is_upgrade: bool) -> None:
    if is_upgrade:
        await make_old(store)
    schema = store.schema if isinstance(store, PostgresTestStore) else "flowfabric"
    with children("tests.migration.migrator", *[(store.url, schema)] * 4) as processes:
        for process in processes:
            process.send_line("go")
        assert [process.read_reply() for process in processes] == ["opened"] * 4
    assert await store.query(READ_MIGRATIONS) == next_rows(store)
    assert len(await store.query("SELECT id FROM ff.execution WHERE lane = 'opened'")) == 4


@either_start
async def test_four_concurrent_engines_apply_each_migration_once(store: TestStore, is_upgrade: bool) -> None:
    if is_upgrade:
        await make_old(store)
    with next_release():
        engines = await asyncio.gather(*(store.connecting() for _ in range(4)))
    assert await store.query(READ_MIGRATIONS) == next_rows(store)
    for engine in engines:
        await engine.close()


async def test_upgrade_keeps_the_rows_and_applies_only_the_missing_migration(store: TestStore) -> None:
    await make_old(store)
    assert await store.query(READ_MIGRATIONS) == shipped_rows(store)
    with next_release():
        async with opened(store) as engine:
            assert (await engine.store_info()).schema_version == next_rows(store)[-1]["version"]
    assert await store.query(READ_MIGRATIONS) == next_rows(store)
    assert await store.query(READ_COUNTS) == [{"lane": "old", "executions": 2}]
    assert len(await store.query("SELECT id FROM ff.execution")) == 2


async def test_current_store_is_opened_without_a_write(store: TestStore) -> None:
    with next_release():
        async with opened(store):
            pass
        before = await store.query(READ_MIGRATIONS)
        async with opened(store, migrate=False) as engine:
            await engine.ping()
    assert await store.query(READ_MIGRATIONS) == before == next_rows(store)


@pytest.mark.parametrize("may_migrate", [True, False])
@pytest.mark.parametrize("position", [0, -1], ids=["first", "last"])
async def test_edited_migration_is_rejected(store: TestStore, may_migrate: bool, position: int) -> None:
    edited = next_rows(store)[position]["version"]
    with next_release():
        async with opened(store):
            pass
        await store.query(f"UPDATE ff.migration SET sha256 = 'tampered' WHERE version = {edited}")
        with pytest.raises(Unavailable) as refused:
            await store.connecting(migrate=may_migrate)
    assert (refused.value.code, refused.value.fields["version"]) == ("schema_edited", edited)


async def test_edited_migration_is_rejected_before_the_upgrade(store: TestStore) -> None:
    await make_old(store)
    await store.query("UPDATE ff.migration SET sha256 = 'tampered' WHERE version = 1")
    before = await read_tables(store)
    with next_release(), pytest.raises(Unavailable) as refused:
        await store.connecting()
    assert (refused.value.code, refused.value.fields["version"]) == ("schema_edited", 1)
    assert await read_tables(store) == before


@pytest.mark.parametrize("may_migrate", [True, False])
async def test_schema_newer_than_the_program_is_rejected(store: TestStore, may_migrate: bool) -> None:
    with next_release():
        async with opened(store):
            pass
    newest, known = next_rows(store)[-1]["version"], shipped_rows(store)[-1]["version"]
    with pytest.raises(Unavailable) as refused:
        await store.connecting(migrate=may_migrate)
    assert refused.value.code == "schema_newer"
    assert refused.value.fields == {"version": newest, "known": known}
    assert f"version {newest}" in refused.value.message


async def test_empty_store_without_permission_to_migrate_is_rejected_and_stays_empty(store: TestStore) -> None:
    with pytest.raises(Unavailable) as refused:
        await store.connecting(migrate=False)
    assert refused.value.code == "store_not_found"
    assert await read_tables(store) == set()


async def test_old_store_without_permission_to_migrate_is_rejected_and_stays_old(store: TestStore) -> None:
    await make_old(store)
    before = await read_tables(store)
    with next_release(), pytest.raises(Unavailable) as refused:
        await store.connecting(migrate=False)
    assert refused.value.code == "schema_outdated"
    assert refused.value.fields == {"version": shipped_rows(store)[-1]["version"]}
    assert next_rows(store)[-1]["name"] in refused.value.message
    assert await read_tables(store) == before
    assert await store.query(READ_MIGRATIONS) == shipped_rows(store)


@pytest.mark.parametrize("obstacle", ["step", "lane_count"])
async def test_failed_migration_of_a_new_store_changes_nothing_and_can_be_repeated(
    store: TestStore, obstacle: str
) -> None:
    # If a table `step` exists, the first migration fails. If a table `lane_count` exists, the last migration fails.
    if isinstance(store, PostgresTestStore):
        await store.query(f'CREATE SCHEMA "{store.schema}"')
    await assert_fails_completely(store, obstacle)


async def test_failed_upgrade_changes_nothing_and_can_be_repeated(store: TestStore) -> None:
    await make_old(store)
    await assert_fails_completely(store, "lane_count")
    assert await store.query(READ_COUNTS) == [{"lane": "old", "executions": 2}]


async def test_opening_a_new_file_waits_for_a_writer(tmp_path: Path) -> None:
    path = tmp_path / "new.db"
    with closing(sqlite3.connect(path, isolation_level=None, check_same_thread=False)) as other:
        other.execute("BEGIN IMMEDIATE")
        other.execute("CREATE TABLE theirs (id INTEGER)")
        opening = asyncio.create_task(_open_and_close(str(path)))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.shield(opening), 0.2)
        other.execute("COMMIT")
        await opening


async def test_an_upgrade_waits_for_the_lock(store: TestStore) -> None:
    await make_old(store)
    with next_release():
        async with migration_lock(store):
            opening = asyncio.create_task(_open_and_close(store))
            await wait_for_waiter(store, opening)
            assert await store.query(READ_MIGRATIONS) == shipped_rows(store)
        await opening
    assert await store.query(READ_MIGRATIONS) == next_rows(store)


async def make_old(store: TestStore) -> None:
    """Make a store with the shipped schema and two executions."""
    async with opened(store) as engine:
        await engine.executions.submit("job", lane="old")
        await engine.executions.submit("job", lane="old")


async def assert_fails_completely(store: TestStore, obstacle: str) -> None:
    """Check that the next release changes nothing while a table `obstacle` exists, and migrates after its drop."""
    await store.query(f"CREATE TABLE ff.{obstacle} (unrelated INTEGER)")
    before = await read_tables(store)
    with next_release():
        with pytest.raises(Unavailable) as refused:
            await store.connecting()
        assert refused.value.code == "storage_refused"
        assert await read_tables(store) == before
        await store.query(f"DROP TABLE ff.{obstacle}")
        async with opened(store) as engine:
            await engine.executions.submit("job")
    assert await store.query(READ_MIGRATIONS) == next_rows(store)


@asynccontextmanager
async def migration_lock(store: TestStore) -> AsyncIterator[None]:
    """Hold the lock that a backend takes while it migrates."""
    if isinstance(store, PostgresTestStore):
        connection = await asyncpg.connect(store.url)
        try:
            await connection.execute(LOCK, store.schema)
            yield
        finally:
            await connection.close()
    else:
        with closing(sqlite3.connect(store.url, isolation_level=None)) as file:
            file.execute("BEGIN IMMEDIATE")
            yield
            file.execute("COMMIT")


async def wait_for_waiter(store: TestStore, opening: asyncio.Task[None]) -> None:
    """Wait until the task that opens the store waits for the lock. On SQLite, just wait briefly."""
    if isinstance(store, PostgresTestStore):
        async with asyncio.timeout(30):
            while not await store.query(WAITERS, store.schema):
                assert not opening.done()
    else:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.shield(opening), 0.2)


async def _open_and_close(target: str | TestStore) -> None:
    connecting = connect(target) if isinstance(target, str) else target.connecting()
    async with connecting as engine:
        await engine.ping()


def shipped_rows(store: TestStore) -> list[dict[str, Any]]:
    """Return the rows of the migration table after the shipped migrations."""
    available = load_migrations(f"flowfabric.backends.{store.name}")
    return [
        {"version": migration.version, "name": migration.name, "sha256": migration.sha256} for migration in available
    ]


def next_rows(store: TestStore) -> list[dict[str, Any]]:
    """Return the rows of the migration table after the migrations of the next release."""
    available = load_next_migrations(f"flowfabric.backends.{store.name}")
    return [
        {"version": migration.version, "name": migration.name, "sha256": migration.sha256} for migration in available
    ]


async def read_tables(store: TestStore) -> set[str]:
    """Return the names of all tables and indexes of the store."""
    if isinstance(store, PostgresTestStore):
        rows = await store.query(
            "SELECT c.relname AS name FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace"
            " WHERE n.nspname = ?",
            store.schema,
        )
    else:
        rows = await store.query("SELECT name FROM sqlite_schema")
    return {row["name"] for row in rows}
