"""Tests that tools/show_sql.py prints the statements that a backend sends."""

from __future__ import annotations

import sqlite3
from typing import Any

import asyncpg
import pytest

from flowfabric.backends.sqlite.lending import WriterConnection
from tests.stores import TestStore, opened
from tools import show_sql


def printed(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert show_sql.main(words) == 0
    return capsys.readouterr().out


def test_without_a_name_all_statements_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    lines = printed(capsys).splitlines()
    names = {line.split()[0] for line in lines}
    assert names == {*show_sql.load("postgres"), *show_sql.load("sqlite")}
    assert len(lines) == len(names) > 100


@pytest.mark.parametrize("backend", show_sql.BACKENDS)
def test_every_statement_is_shown_without_placeholders(backend: str) -> None:
    for name in show_sql.load(backend):
        text = "\n".join(line for line in show_sql.show(name, backend, "flowfabric") if not line.startswith("--"))
        assert "ff." not in text and ":items" not in text and "{" not in text.replace("'{}'", ""), name


def test_both_backends_are_shown_unless_one_is_chosen(capsys: pytest.CaptureFixture[str]) -> None:
    both = printed(capsys, "insert_executions")
    assert '"flowfabric".execution' in both and "ff_execution" in both
    one = printed(capsys, "insert_executions", "--backend", "sqlite")
    assert '"flowfabric".execution' not in one and "ff_execution" in one


def test_an_override_is_shown_with_its_own_file(capsys: pytest.CaptureFixture[str]) -> None:
    text = printed(capsys, "insert_executions")
    assert "backends/postgres/sql/" in text and "backends/sqlite/sql/" in text


def test_a_name_that_is_unknown_is_an_error_with_a_suggestion(capsys: pytest.CaptureFixture[str]) -> None:
    assert show_sql.main(["insert_execution"]) == 2
    assert "insert_executions" in capsys.readouterr().err


async def test_the_store_receives_the_text_that_is_shown(store: TestStore, monkeypatch: pytest.MonkeyPatch) -> None:
    queries = spy(monkeypatch)
    async with opened(store) as engine:
        created = await engine.executions.submit("noop", key="once")
        await engine.executions.describe(created.id)
        await engine.operator.hold(created.id)
    statements = show_sql.load(store.name, getattr(store, "schema", ""))
    sent = {name for name, statement in statements.items() if show_sql.sent(statement.parts[0]) in queries}
    assert {"insert_executions", "add_route", "lock_executions"} <= sent


def spy(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Return a set that collects all statements that the driver receives."""
    queries: set[str] = set()
    fetch = asyncpg.Connection.fetch

    def spied_execute(self: sqlite3.Connection, sql: str, *arguments: Any) -> sqlite3.Cursor:
        queries.add(sql)
        return sqlite3.Connection.execute(self, sql, *arguments)

    async def spied_fetch(self: asyncpg.Connection, query: str, *arguments: Any, **options: Any) -> Any:
        queries.add(query)
        return await fetch(self, query, *arguments, **options)

    monkeypatch.setattr(WriterConnection, "execute", spied_execute)
    monkeypatch.setattr(asyncpg.Connection, "fetch", spied_fetch)
    return queries
