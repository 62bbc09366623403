"""Which migrations are still to be applied, and which schemas are refused."""

from __future__ import annotations

import hashlib
from importlib.resources import files

import pytest

from flowfabric.engine import Unavailable
from flowfabric.sqlstore.migrations import CREATE_TABLE, Migration, load_migrations, pending
from flowfabric.sqlstore.statements import Dialect

BACKENDS = ["flowfabric.backends.postgres", "flowfabric.backends.sqlite"]
SQLITE = Dialect(table_prefix="ff_", numbered=False)


def _shipped(*versions: int) -> list[Migration]:
    return [Migration(version, f"{version:04}_x", f"sum{version}", "SELECT 1;\n") for version in versions]


def _applied(*versions: int) -> dict[int, str]:
    return {version: f"sum{version}" for version in versions}


@pytest.mark.parametrize(
    ("applied", "missing"), [((), [1, 2, 3]), ((1,), [2, 3]), ((1, 2), [3]), ((1, 2, 3), []), ((1, 3), [2])]
)
def test_what_was_not_applied_is_pending_in_order(applied: tuple[int, ...], missing: list[int]) -> None:
    assert [item.version for item in pending(_shipped(1, 2, 3), _applied(*applied))] == missing


def test_a_newer_schema_is_refused() -> None:
    with pytest.raises(Unavailable) as refused:
        pending(_shipped(1, 2), _applied(1, 2, 3))
    assert refused.value.code == "schema_newer"
    assert refused.value.fields == {"version": 3, "known": 2}


@pytest.mark.parametrize("edited", [1, 2])
def test_a_migration_that_was_applied_with_other_content_is_refused(edited: int) -> None:
    with pytest.raises(Unavailable) as refused:
        pending(_shipped(1, 2, 3), _applied(1, 2) | {edited: "another sum"})
    assert refused.value.code == "schema_edited"
    assert refused.value.fields == {"version": edited}
    assert f"{edited:04}_x" in refused.value.message


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_shipped_migrations_are_numbered_from_one_without_a_gap(backend: str) -> None:
    shipped = load_migrations(backend)
    assert [item.version for item in shipped] == list(range(1, len(shipped) + 1))
    assert len(shipped) >= 1
    for item in shipped:
        text = (files(backend) / "migrations" / f"{item.name}.sql").read_text(encoding="utf-8")
        assert item.sha256 == hashlib.sha256(text.encode()).hexdigest()
        assert item.name.startswith(f"{item.version:04}_")


def test_both_backends_ship_the_same_migrations_by_name() -> None:
    one, two = ([item.name for item in load_migrations(backend)] for backend in BACKENDS)
    assert one == two


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_statements_of_a_migration_are_single_and_in_the_dialect(backend: str) -> None:
    for migration in load_migrations(backend):
        statements = migration.statements(SQLITE)
        assert statements
        assert all("ff." not in text and not text.rstrip().endswith(";") for text in statements)
        assert all(text.split()[0] in ("CREATE", "INSERT", "ALTER", "UPDATE", "DROP") for text in statements)


def test_the_table_of_migrations_can_be_made_twice() -> None:
    assert "IF NOT EXISTS ff_migration" in SQLITE.translate(CREATE_TABLE).text
