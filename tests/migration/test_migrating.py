"""Whoever comes first brings a store to the present schema, once; what does not fit is refused, half is never left."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from flowfabric.engine import Unavailable, connect
from flowfabric.sqlstore.migrations import load_migrations
from tests.children import children
from tests.stores import PostgresTestStore, TestStore, opened

READ_MIGRATIONS = "SELECT version, name, sha256 FROM ff.migration ORDER BY version"


async def test_of_four_processes_that_open_a_new_store_at_once_one_applies_each_migration(store: TestStore) -> None:
    schema = store.schema if isinstance(store, PostgresTestStore) else "flowfabric"
    with children("tests.migration.migrator", *[(store.url, schema)] * 4) as processes:
        for process in processes:
            process.tell("go")
        assert [process.answer() for process in processes] == ["opened"] * 4
    assert await store.query(READ_MIGRATIONS) == shipped(store)
    assert len(await store.query("SELECT id FROM ff.execution")) == 4


async def test_of_four_engines_that_open_a_new_store_at_once_one_applies_each_migration(store: TestStore) -> None:
    engines = await asyncio.gather(*(store.connecting() for _ in range(4)))
    assert await store.query(READ_MIGRATIONS) == shipped(store)
    for engine in engines:
        await engine.close()


async def test_a_store_that_is_up_to_date_is_opened_again_without_a_write(store: TestStore) -> None:
    async with opened(store):
        pass
    before = await store.query(READ_MIGRATIONS)
    async with opened(store, migrate=False) as engine:
        await engine.ping()
    assert await store.query(READ_MIGRATIONS) == before


@pytest.mark.parametrize("may_migrate", [True, False])
async def test_an_edited_migration_is_refused(store: TestStore, may_migrate: bool) -> None:
    async with opened(store):
        pass
    await store.query("UPDATE ff.migration SET sha256 = 'tampered' WHERE version = 1")
    with pytest.raises(Unavailable) as refused:
        await store.connecting(migrate=may_migrate)
    assert (refused.value.code, refused.value.fields["version"]) == ("schema_edited", 1)


@pytest.mark.parametrize("may_migrate", [True, False])
async def test_a_schema_newer_than_the_program_is_refused(store: TestStore, may_migrate: bool) -> None:
    async with opened(store):
        pass
    await store.query("INSERT INTO ff.migration (version, name, sha256) VALUES (9999, '9999_later', 'x')")
    with pytest.raises(Unavailable) as refused:
        await store.connecting(migrate=may_migrate)
    assert (refused.value.code, refused.value.fields["version"]) == ("schema_newer", 9999)
    assert "9999" in refused.value.message


async def test_an_empty_store_is_refused_by_whoever_may_not_migrate_and_stays_empty(store: TestStore) -> None:
    with pytest.raises(Unavailable) as refused:
        await store.connecting(migrate=False)
    assert refused.value.code == "schema_outdated"
    assert await tables(store) == set()


async def test_a_migration_that_fails_half_way_leaves_nothing_and_the_next_one_works(store: TestStore) -> None:
    # A table of that name stands in the way of one of the later statements.
    if isinstance(store, PostgresTestStore):
        await store.query(f'CREATE SCHEMA "{store.schema}"')
    await store.query("CREATE TABLE ff.step (stranger INTEGER)")
    before = await tables(store)
    with pytest.raises(Unavailable) as refused:
        await store.connecting()
    assert refused.value.code == "storage_refused"
    assert await tables(store) == before
    await store.query("DROP TABLE ff.step")
    async with opened(store) as engine:
        await engine.executions.submit("job")
    assert await store.query(READ_MIGRATIONS) == shipped(store)


async def test_opening_a_new_file_waits_for_whoever_writes_to_it(tmp_path: Path) -> None:
    path = tmp_path / "new.db"
    with closing(sqlite3.connect(path, isolation_level=None, check_same_thread=False)) as other:
        other.execute("BEGIN IMMEDIATE")
        other.execute("CREATE TABLE theirs (id INTEGER)")
        opening = asyncio.create_task(_opened_and_closed(str(path)))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.shield(opening), 0.2)
        other.execute("COMMIT")
        await opening


async def _opened_and_closed(url: str) -> None:
    async with connect(url) as engine:
        await engine.ping()


def shipped(store: TestStore) -> list[dict[str, Any]]:
    """What the table of migrations must hold."""
    available = load_migrations(f"flowfabric.backends.{store.name}")
    return [{"version": item.version, "name": item.name, "sha256": item.sha256} for item in available]


async def tables(store: TestStore) -> set[str]:
    """The names of all tables and indexes of the store."""
    if isinstance(store, PostgresTestStore):
        found = await store.query(
            "SELECT c.relname AS name FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace"
            " WHERE n.nspname = ?",
            store.schema,
        )
    else:
        found = await store.query("SELECT name FROM sqlite_schema")
    return {row["name"] for row in found}
