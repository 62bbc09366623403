"""Tests that the readable schema of each backend equals the sum of its migrations."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.migration.catalogs import (
    make_postgres_schema,
    make_sqlite_file,
    read_postgres_catalog,
    read_schema_script,
    read_sqlite_catalog,
)
from tests.postgres_server import PostgresServer
from tests.stores import PostgresTestStore, SqliteTestStore, opened

POSTGRES_EDITS = {
    "a storage option": ("fillfactor = 50", "fillfactor = 90"),
    "a nullable column": ("fingerprint BYTEA NOT NULL,", "fingerprint BYTEA,"),
    "another type": ("priority INTEGER NOT NULL", "priority BIGINT NOT NULL"),
    "a default": (" DEFAULT pg_current_xact_id()", ""),
    "a missing constraint": (" CHECK (number >= 1)", ""),
    "a looser constraint": ("'active', 'paused', 'draining'", "'active', 'paused', 'draining', 'lost'"),
    "a wider index": (" WHERE lease_check_at IS NOT NULL;", ";"),
    "another order of an index": ("priority DESC", "priority"),
}
SQLITE_EDITS = {
    "a loose table": (") STRICT;", ");"),
    "a nullable column": ("fingerprint BLOB NOT NULL,", "fingerprint BLOB,"),
    "a missing constraint": (" CHECK (epoch >= 0)", ""),
    "a wider index": (" WHERE lease_check_at IS NOT NULL;", ";"),
    "another first row": ("VALUES (1, 0)", "VALUES (1, 7)"),
}


async def test_readable_schema_of_postgres_equals_its_migrations(postgres: PostgresServer) -> None:
    migrated, written = PostgresTestStore(postgres.dsn), PostgresTestStore(postgres.dsn)
    async with opened(migrated):
        await make_postgres_schema(postgres.dsn, written.schema, read_schema_script("postgres"))
    assert await _read_catalog(written) == await _read_catalog(migrated)
    await migrated.drop()
    await written.drop()


async def test_readable_schema_of_sqlite_equals_its_migrations(tmp_path: Path) -> None:
    migrated = SqliteTestStore(tmp_path)
    async with opened(migrated):
        make_sqlite_file(tmp_path / "written.db", read_schema_script("sqlite"))
    assert read_sqlite_catalog(tmp_path / "written.db") == read_sqlite_catalog(migrated.path)


async def test_comparison_finds_every_kind_of_difference_on_postgres(postgres: PostgresServer) -> None:
    text = read_schema_script("postgres")
    original = await _create_and_read_catalog(postgres.dsn, text)
    for difference, (old, new) in POSTGRES_EDITS.items():
        assert old in text, difference
        assert await _create_and_read_catalog(postgres.dsn, text.replace(old, new, 1)) != original, difference


@pytest.mark.parametrize("difference", SQLITE_EDITS)
def test_comparison_finds_every_kind_of_difference_on_sqlite(tmp_path: Path, difference: str) -> None:
    text = read_schema_script("sqlite")
    old, new = SQLITE_EDITS[difference]
    assert old in text
    make_sqlite_file(tmp_path / "one.db", text)
    make_sqlite_file(tmp_path / "other.db", text.replace(old, new, 1))
    assert read_sqlite_catalog(tmp_path / "one.db") != read_sqlite_catalog(tmp_path / "other.db")


async def test_no_table_of_postgres_has_a_trigger_or_a_foreign_key(postgres: PostgresServer) -> None:
    catalog = await _create_and_read_catalog(postgres.dsn, read_schema_script("postgres"))
    assert not [
        entry for entry in catalog if entry[0] in ("trigger", "function") or entry[-1].startswith("FOREIGN KEY")
    ]


async def _create_and_read_catalog(dsn: str, script: str) -> set[tuple[str, ...]]:
    store = PostgresTestStore(dsn)
    await make_postgres_schema(dsn, store.schema, script)
    catalog = await _read_catalog(store)
    await store.drop()
    return catalog


async def _read_catalog(store: PostgresTestStore) -> set[tuple[str, ...]]:
    return await read_postgres_catalog(store.url, store.schema)
