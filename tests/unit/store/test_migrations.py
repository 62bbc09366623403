"""Tests for pending migrations and rejected schemas."""

from __future__ import annotations

import hashlib
from importlib.resources import files

import pytest

from flowfabric.engine import Unavailable
from flowfabric.store.migrations import CREATE_TABLE, Migration, find_pending, load_migrations
from flowfabric.store.statements import Dialect

BACKENDS = ["flowfabric.backends.postgres", "flowfabric.backends.sqlite"]
SQLITE = Dialect(table_prefix="ff_", numbered=False)


def _make_migrations(*versions: int) -> list[Migration]:
    return [Migration(version, f"{version:04}_x", f"sum{version}", "SELECT 1;\n") for version in versions]


def _make_applied(*versions: int) -> dict[int, str]:
    return {version: f"sum{version}" for version in versions}


@pytest.mark.parametrize(
    ("applied", "missing"), [((), [1, 2, 3]), ((1,), [2, 3]), ((1, 2), [3]), ((1, 2, 3), []), ((1, 3), [2])]
)
def test_unapplied_migrations_are_pending_in_order(applied: tuple[int, ...], missing: list[int]) -> None:
    assert [
        migration.version for migration in find_pending(_make_migrations(1, 2, 3), _make_applied(*applied))
    ] == missing


def test_newer_schema_is_rejected() -> None:
    with pytest.raises(Unavailable) as refused:
        find_pending(_make_migrations(1, 2), _make_applied(1, 2, 3))
    assert refused.value.code == "schema_newer"
    assert refused.value.fields == {"version": 3, "known": 2}


@pytest.mark.parametrize("edited", [1, 2])
def test_edited_migration_is_rejected(edited: int) -> None:
    with pytest.raises(Unavailable) as refused:
        find_pending(_make_migrations(1, 2, 3), _make_applied(1, 2) | {edited: "another sum"})
    assert refused.value.code == "schema_edited"
    assert refused.value.fields == {"version": edited}
    assert f"{edited:04}_x" in refused.value.message


@pytest.mark.parametrize("backend", BACKENDS)
def test_shipped_migrations_are_numbered_without_gaps(backend: str) -> None:
    migrations = load_migrations(backend)
    assert [migration.version for migration in migrations] == list(range(1, len(migrations) + 1))
    assert len(migrations) >= 1
    for migration in migrations:
        text = (files(backend) / "migrations" / f"{migration.name}.sql").read_text(encoding="utf-8")
        assert migration.sha256 == hashlib.sha256(text.encode()).hexdigest()
        assert migration.name.startswith(f"{migration.version:04}_")


def test_both_backends_ship_migrations_of_the_same_names() -> None:
    postgres, sqlite = ([migration.name for migration in load_migrations(backend)] for backend in BACKENDS)
    assert postgres == sqlite


@pytest.mark.parametrize("backend", BACKENDS)
def test_migration_statements_are_split_and_translated(backend: str) -> None:
    for migration in load_migrations(backend):
        statements = migration.statements(SQLITE)
        assert statements
        assert all("ff." not in text and not text.rstrip().endswith(";") for text in statements)
        assert all(text.split()[0] in ("CREATE", "INSERT", "ALTER", "UPDATE", "DROP") for text in statements)


def test_migration_table_is_created_only_if_missing() -> None:
    assert "IF NOT EXISTS ff_migration" in SQLITE.translate(CREATE_TABLE).text
