"""Named SQL is loaded and put into each backend's dialect, and a backend overrides only what must differ."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from pathlib import Path

import pytest

import flowfabric
from flowfabric.sqlstore.statements import (
    Dialect,
    Statement,
    columns,
    load,
    read_blocks,
    reading,
    split_script,
    together,
)

POSTGRES = Dialect(table_prefix='"jobs".', numbered=True)
SQLITE = Dialect(table_prefix="ff_", numbered=False)
SHARED = "flowfabric.sqlstore"
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
def test_a_statement_is_put_into_the_words_of_its_database(text: str) -> None:
    postgres, sqlite = TRANSLATED[text]
    assert POSTGRES.translate(text).text == postgres
    assert SQLITE.translate(text).text == sqlite


def test_parameters_are_numbered_by_their_first_use_and_used_again() -> None:
    text = "SELECT :b, :a, :b, :a_1 FROM ff.x WHERE id IN :ids AND name NOT IN :a"
    assert POSTGRES.translate(text).parameters == ("b", "a", "a_1", "ids")
    assert POSTGRES.translate(text).text.startswith('SELECT $1, $2, $1, $3 FROM "jobs".x WHERE id = ANY($4)')
    assert POSTGRES.translate(text).text.endswith("name <> ALL($2)")
    assert SQLITE.translate(text).parameters == ("b", "a", "a_1", "ids")


def test_more_than_nine_parameters_keep_their_numbers_apart() -> None:
    text = "SELECT " + ", ".join(f":p{number}" for number in range(1, 13))
    assert POSTGRES.translate(text).text == "SELECT " + ", ".join(f"${number}" for number in range(1, 13))


def test_a_statement_without_parameters_has_none() -> None:
    assert POSTGRES.translate("SELECT x::TEXT").parameters == SQLITE.translate("SELECT x::TEXT").parameters == ()


def test_a_script_is_split_where_a_line_ends_with_a_semicolon() -> None:
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
AS_DOCUMENT = """
WITH item AS (
SELECT item.id, item.a, item.b::JSONB AS b, item.old
FROM json_to_recordset($1::JSON) AS item (id UUID, a TEXT, b TEXT, old BIGINT)
WHERE item.id BETWEEN '00000000-0000-0000-0000-000000000000'::UUID AND 'ffffffff-ffff-ffff-ffff-ffffffffffff'::UUID
)
UPDATE "jobs".x
"""


def statement(text: str, dialect: Dialect) -> Statement:
    return Statement("probe", (dialect.translate(text),), text, dialect)


def test_typed_rows_are_a_document_on_postgresql_and_values_on_sqlite() -> None:
    part = POSTGRES.translate(ROWS)
    assert part.text.startswith(AS_DOCUMENT.strip())
    assert part.parameters == ("id", "a", "b", "old")
    assert "WITH item (id, a, b, old) AS (VALUES (?, ?, ?, ?), (?, ?, ?, ?))" in SQLITE.translate(ROWS).over(2)


@pytest.mark.parametrize(("names", "left"), [("id a old", "b"), ("id b old", "a")])
@pytest.mark.parametrize("dialect", [POSTGRES, SQLITE], ids=["postgres", "sqlite"])
def test_an_update_sets_only_what_its_rows_have(dialect: Dialect, names: str, left: str) -> None:
    part = statement(ROWS, dialect).over(names.split())
    assert part.parameters == tuple(names.split())
    assert f"item.{left}" not in part.text
    assert re.search(r"SET\n    (\w) = item.\1\nFROM item\n", part.text)


def test_an_update_with_all_of_its_columns_is_as_it_was_written() -> None:
    probe = statement(ROWS, POSTGRES)
    assert probe.over(["a", "b", "id", "old", "more"]) is probe.parts[0]


def test_statements_over_rows_are_written_together_and_counted_apart() -> None:
    part = POSTGRES.translate(ROWS)
    text = together((part, part))
    for number in (1, 2):
        assert text.count(f"json_to_recordset(${number}::JSON) AS item_{number} (") == 1
    assert "a = item_2.a" in text
    assert text.endswith("SELECT ARRAY[(SELECT COUNT(*) FROM written_1), (SELECT COUNT(*) FROM written_2)] AS written")


def test_statements_that_read_together_keep_their_parameters_apart() -> None:
    one, two = POSTGRES.translate("SELECT :a, :b, :a"), POSTGRES.translate("SELECT :b, :c")
    text = reading((one, two, one))
    assert re.findall(r"SELECT \$.*", text) == ["SELECT $1, $2, $1", "SELECT $3, $4", "SELECT $5, $6, $5"]


def test_a_batch_becomes_one_list_per_parameter() -> None:
    assert columns([{"a": 1, "b": "x"}, {"a": 2, "b": "y"}]) == {"a": [1, 2], "b": ["x", "y"]}


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_backend_has_the_shared_statements_and_its_own(backend: str) -> None:
    statements = load(BACKENDS[backend], backend)
    blocks = read_blocks(SHARED) | read_blocks(backend)
    assert set(statements) == {name for kind, name in blocks if kind == "name"}
    for name, statement in statements.items():
        assert statement.name == name
        assert statement.parts, name
        for part in statement.parts:
            assert not re.search(r"\{\w|\bff\.|-- ", part.text), name
            assert not part.text.endswith(";"), name


def test_every_placeholder_of_a_loaded_statement_is_a_parameter_of_its_dialect() -> None:
    for statement in load(POSTGRES, "flowfabric.backends.postgres").values():
        [part] = statement.parts
        bound = 1 if part.rows else len(part.parameters)
        assert all(f"${number}" in part.text for number in range(1, bound + 1)), statement.name
        assert f"${bound + 1}" not in part.text, statement.name
    for statement in load(SQLITE, "flowfabric.backends.sqlite").values():
        for part in statement.parts:
            assert "$" not in part.text and "ANY(" not in part.text and "::" not in part.text, statement.name
            assert "FOR NO KEY UPDATE" not in part.text, statement.name


def test_both_backends_offer_the_same_statements_but_for_claiming_and_joining() -> None:
    postgres, sqlite = (set(load(dialect, backend)) for backend, dialect in BACKENDS.items())
    # PostgreSQL claims in one statement, by another where rows are locked; SQLite has no writing CTE: it needs three.
    # Of what follows in flows, the common case is one statement that writes to many tables.
    # What joins a caller's transaction looks at it first, and sends the wake-up that only PostgreSQL has.
    # Only where many write is anything looked at without a lock.
    unlocked = {"seen_before_suspending", "seen_before_signalling", "held_as_seen", "minting"}
    assert postgres - sqlite == {"claim_waiting", "claim_unlocked", "pass_on", "inspect_joined", "wake"} | unlocked
    assert sqlite - postgres == {"claim_candidates", "take_waiting", "get_leases"}


def _squeezed(text: str) -> str:
    return " ".join(part for piece in split_script(text) for part in piece.split())


def _equal_blocks(one: Mapping[tuple[str, str], str], two: Mapping[tuple[str, str], str]) -> set[str]:
    """The names under which both hold the same, whatever the white space and the comments."""
    return {name for kind, name in one.keys() & two.keys() if _squeezed(one[kind, name]) == _squeezed(two[kind, name])}


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_override_differs_from_what_it_overrides(backend: str) -> None:
    assert _equal_blocks(read_blocks(SHARED), read_blocks(backend)) == set()


def test_what_both_backends_write_alike_is_shared() -> None:
    postgres, sqlite = (read_blocks(backend) for backend in BACKENDS)
    assert _equal_blocks(postgres, sqlite) == set()


def test_an_equal_override_would_be_noticed() -> None:
    shared = {("name", "a"): "SELECT 1\nFROM x\n", ("name", "b"): "SELECT 2", ("fragment", "c"): "d, e"}
    own = {("name", "a"): "-- ours\n  SELECT 1 FROM x;\n", ("name", "b"): "SELECT 3", ("fragment", "c"): "d,\ne"}
    assert _equal_blocks(shared, own) == {"a", "c"}


def test_no_statement_is_left_without_a_user() -> None:
    names = set().union(*(load(dialect, backend) for backend, dialect in BACKENDS.items()))
    assert {name for name in names if not name.startswith("due_for_")} - _text_literals() == set()


def _text_literals() -> set[str]:
    files = [*(SOURCE / "sqlstore").rglob("*.py"), *(SOURCE / "backends").rglob("*.py")]
    nodes = (node for file in files for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))))
    return {node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)}
