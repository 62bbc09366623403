"""Tests for loading named SQL, its translation into each dialect, and the overrides of each backend."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from pathlib import Path

import pytest

import flowfabric
from flowfabric.store.statements import (
    Dialect,
    Statement,
    combine_batches,
    combine_reads,
    load_statements,
    read_blocks,
    split_script,
    to_columns,
)

POSTGRES = Dialect(table_prefix='"jobs".', numbered=True)
SQLITE = Dialect(table_prefix="ff_", numbered=False)
SHARED = "flowfabric.store"
BACKENDS = {"flowfabric.backends.postgres": POSTGRES, "flowfabric.backends.sqlite": SQLITE}
SOURCE = Path(flowfabric.__file__).parent

TRANSLATED = {
    "SELECT id FROM ff.execution AS e JOIN ff.lane AS l ON TRUE": (
        'SELECT id FROM "jobs".execution AS e JOIN "jobs".lane AS l ON TRUE',
        "SELECT id FROM ff_execution AS e JOIN ff_lane AS l ON TRUE",
    ),
    "SELECT stuff.x FROM off.x": ("SELECT stuff.x FROM off.x", "SELECT stuff.x FROM off.x"),
    "WHERE id IN :ids": ("WHERE id = ANY($1)", "WHERE id IN (SELECT value FROM json_each(:ids))"),
    "WHERE id NOT IN :ids": ("WHERE id <> ALL($1)", "WHERE id NOT IN (SELECT value FROM json_each(:ids))"),
    "WHERE a IN ('x', 'y')": ("WHERE a IN ('x', 'y')", "WHERE a IN ('x', 'y')"),
    "WHERE a = :a::TEXT AND b::TEXT = :b": (
        "WHERE a = $1::TEXT AND b::TEXT = $2",
        "WHERE a = :a::TEXT AND b::TEXT = :b",
    ),
    "SELECT :a::text[], x::bigint": ("SELECT $1::text[], x::bigint", "SELECT :a::text[], x::bigint"),
    "SELECT '12:30', 'a:b'": ("SELECT '12:30', 'a:b'", "SELECT '12:30', 'a:b'"),
    "SELECT 1 FOR NO KEY UPDATE": ("SELECT 1 FOR NO KEY UPDATE", "SELECT 1"),
    "SELECT 1\nFOR NO KEY UPDATE SKIP LOCKED": ("SELECT 1\nFOR NO KEY UPDATE SKIP LOCKED", "SELECT 1"),
    "(SELECT 1\nFOR NO KEY UPDATE OF e)\nSELECT 2": (
        "(SELECT 1\nFOR NO KEY UPDATE OF e)\nSELECT 2",
        "(SELECT 1)\nSELECT 2",
    ),
    "-- why: ff.x and :y\nSELECT 1": ("SELECT 1", "SELECT 1"),
}


@pytest.mark.parametrize("text", TRANSLATED)
def test_statement_is_translated_into_its_dialect(text: str) -> None:
    postgres, sqlite = TRANSLATED[text]
    assert POSTGRES.translate(text).text == postgres
    assert SQLITE.translate(text).text == sqlite


def test_repeated_parameter_keeps_its_first_number() -> None:
    text = "SELECT :b, :a, :b, :a_1 FROM ff.x WHERE id IN :ids AND name NOT IN :a"
    assert POSTGRES.translate(text).parameters == ("b", "a", "a_1", "ids")
    assert POSTGRES.translate(text).text.startswith('SELECT $1, $2, $1, $3 FROM "jobs".x WHERE id = ANY($4)')
    assert POSTGRES.translate(text).text.endswith("name <> ALL($2)")
    assert SQLITE.translate(text).parameters == ("b", "a", "a_1", "ids")


def test_more_than_nine_parameters_are_numbered_correctly() -> None:
    text = "SELECT " + ", ".join(f":p{number}" for number in range(1, 13))
    assert POSTGRES.translate(text).text == "SELECT " + ", ".join(f"${number}" for number in range(1, 13))


def test_a_statement_without_parameters_has_none() -> None:
    assert POSTGRES.translate("SELECT x::TEXT").parameters == SQLITE.translate("SELECT x::TEXT").parameters == ()


def test_script_is_split_at_semicolons_that_end_a_line() -> None:
    script = "-- first; not here;\nSELECT ';';\n\nSELECT 2\n  FROM x;  \n;\n-- end;\n"
    assert [piece.strip() for piece in split_script(script)] == ["SELECT ';'", "SELECT 2\n  FROM x"]
    assert split_script("") == split_script("-- nothing\n") == []
    assert split_script("SELECT 1") == ["SELECT 1"]


ROWS = """
WITH item (id UUID, a TEXT, b JSONB, old BIGINT) AS (
    VALUES :items
)
UPDATE ff.x
SET
    a = item.a,
    b = item.b
FROM item
WHERE x.id = item.id
    AND x.old = item.old
RETURNING 1
"""
ROWS_AS_JSON = """
WITH item AS (
SELECT item.id, item.a, item.b::JSONB AS b, item.old
FROM json_to_recordset($1::JSON) AS item (id UUID, a TEXT, b TEXT, old BIGINT)
WHERE item.id BETWEEN '00000000-0000-0000-0000-000000000000'::UUID AND 'ffffffff-ffff-ffff-ffff-ffffffffffff'::UUID
)
UPDATE "jobs".x
"""


def make_statement(text: str, dialect: Dialect) -> Statement:
    return Statement("probe", (dialect.translate(text),), text, dialect)


def test_typed_rows_are_json_on_postgresql_and_values_on_sqlite() -> None:
    part = POSTGRES.translate(ROWS)
    assert part.text.startswith(ROWS_AS_JSON.strip())
    assert part.parameters == ("id", "a", "b", "old")
    assert "WITH item (id, a, b, old) AS (VALUES (?, ?, ?, ?), (?, ?, ?, ?))" in SQLITE.translate(ROWS).over(2)


@pytest.mark.parametrize(("names", "omitted"), [("id a old", "b"), ("id b old", "a")])
@pytest.mark.parametrize("dialect", [POSTGRES, SQLITE], ids=["postgres", "sqlite"])
def test_update_sets_only_the_columns_of_its_rows(dialect: Dialect, names: str, omitted: str) -> None:
    part = make_statement(ROWS, dialect).over(names.split())
    assert part.parameters == tuple(names.split())
    assert f"item.{omitted}" not in part.text
    assert re.search(r"SET\n    (\w) = item.\1\nFROM item\n", part.text)


def test_update_of_all_columns_is_unchanged() -> None:
    probe = make_statement(ROWS, POSTGRES)
    assert probe.over(["a", "b", "id", "old", "more"]) is probe.parts[0]


def test_combined_writes_are_counted_separately() -> None:
    part = POSTGRES.translate(ROWS)
    text = combine_batches((part, part))
    for number in (1, 2):
        assert text.count(f"json_to_recordset(${number}::JSON) AS item_{number} (") == 1
    assert "a = item_2.a" in text
    assert text.endswith("SELECT ARRAY[(SELECT COUNT(*) FROM written_1), (SELECT COUNT(*) FROM written_2)] AS written")


def test_combined_reads_have_separate_parameters() -> None:
    one, two = POSTGRES.translate("SELECT :a, :b, :a"), POSTGRES.translate("SELECT :b, :c")
    text = combine_reads((one, two, one))
    assert re.findall(r"SELECT \$.*", text) == ["SELECT $1, $2, $1", "SELECT $3, $4", "SELECT $5, $6, $5"]


def test_columns_turns_a_batch_into_one_list_per_parameter() -> None:
    assert to_columns([{"a": 1, "b": "x"}, {"a": 2, "b": "y"}]) == {"a": [1, 2], "b": ["x", "y"]}


@pytest.mark.parametrize("backend", BACKENDS)
def test_backend_has_the_shared_statements_and_its_own(backend: str) -> None:
    statements = load_statements(BACKENDS[backend], backend)
    blocks = read_blocks(SHARED) | read_blocks(backend)
    assert set(statements) == {name for kind, name in blocks if kind == "name"}
    for name, statement in statements.items():
        assert statement.name == name
        assert statement.parts, name
        for part in statement.parts:
            assert not re.search(r"\{\w|\bff\.|-- ", part.text), name
            assert not part.text.endswith(";"), name


def test_loaded_statements_use_the_placeholders_of_their_dialect() -> None:
    for statement in load_statements(POSTGRES, "flowfabric.backends.postgres").values():
        [part] = statement.parts
        bound = 1 if part.rows else len(part.parameters)
        assert all(f"${number}" in part.text for number in range(1, bound + 1)), statement.name
        assert f"${bound + 1}" not in part.text, statement.name
    for statement in load_statements(SQLITE, "flowfabric.backends.sqlite").values():
        for part in statement.parts:
            assert "$" not in part.text and "ANY(" not in part.text and "::" not in part.text, statement.name
            assert "FOR NO KEY UPDATE" not in part.text, statement.name


def test_backends_differ_only_in_the_listed_statements() -> None:
    postgres, sqlite = (set(load_statements(dialect, backend)) for backend, dialect in BACKENDS.items())
    # PostgreSQL claims in one statement, with a second one for lanes where rows are locked. SQLite has no writing CTE
    # and needs three statements. A claim over several namespaces has its own statement on both. PostgreSQL resolves the
    # common case of a flow in one statement that writes to several tables. A submit in a caller's transaction inspects
    # the transaction and sends a notification only on PostgreSQL. Only PostgreSQL has concurrent writers, so only it
    # reads optimistically without a lock. Only there can user code change the settings of a session, and a dump can be
    # restored into other tables.
    only_postgres = {"seen_before_signalling", "held_as_seen", "begin_user_code", "end_user_code", "note_origin"}
    claims = {"claim_waiting", "claim_unlocked", "claim_across"}
    # Two statements have a cheaper variant, which fails where concurrent writers lock rows or insert ids.
    single = {"insert_single_executions", "complete_single_if_owned"}
    assert postgres - sqlite == claims | single | {"pass_on", "inspect_joined", "wake"} | only_postgres
    assert sqlite - postgres == {"claim_candidates", "claim_candidates_across", "take_waiting", "get_leases"}


def _normalize_sql(text: str) -> str:
    return " ".join(part for piece in split_script(text) for part in piece.split())


def _equal_blocks(one: Mapping[tuple[str, str], str], two: Mapping[tuple[str, str], str]) -> set[str]:
    """Return the names of blocks that are equal except for white space and comments."""
    return {
        name
        for kind, name in one.keys() & two.keys()
        if _normalize_sql(one[kind, name]) == _normalize_sql(two[kind, name])
    }


@pytest.mark.parametrize("backend", BACKENDS)
def test_override_differs_from_the_shared_statement(backend: str) -> None:
    assert _equal_blocks(read_blocks(SHARED), read_blocks(backend)) == set()


def test_backends_have_no_equal_blocks() -> None:
    postgres, sqlite = (read_blocks(backend) for backend in BACKENDS)
    assert _equal_blocks(postgres, sqlite) == set()


def test_equal_blocks_ignores_white_space_and_comments() -> None:
    shared = {("name", "a"): "SELECT 1\nFROM x\n", ("name", "b"): "SELECT 2", ("fragment", "c"): "d, e"}
    own = {("name", "a"): "-- ours\n  SELECT 1 FROM x;\n", ("name", "b"): "SELECT 3", ("fragment", "c"): "d,\ne"}
    assert _equal_blocks(shared, own) == {"a", "c"}


def test_every_statement_is_used() -> None:
    names = set().union(*(load_statements(dialect, backend) for backend, dialect in BACKENDS.items()))
    assert {name for name in names if not name.startswith("due_for_")} - _collect_string_literals() == set()


def _collect_string_literals() -> set[str]:
    files = [file for package in ("ops", "store", "backends") for file in (SOURCE / package).rglob("*.py")]
    nodes = (node for file in files for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))))
    return {node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)}
