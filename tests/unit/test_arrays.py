"""Arrays as text are read by the server as the driver's own would be."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import asyncpg
import pytest

from flowfabric.backends.postgres.arrays import written
from flowfabric.core.states import State
from tests.postgres_server import PostgresServer

ODD = [
    "",
    "NULL",
    "null",
    " a b ",
    'say "hi"',
    "back\\slash",
    '\\"',
    "{a,b}",
    "a,b",
    "'",
    "é 漢 \U0001f600",
    "\n\t",
    "x" * 5000,
]


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        ("TEXT", ODD),
        ("TEXT", [*ODD, None]),
        ("TEXT", ["plain", "words"]),
        ("TEXT", ['"', '"']),
        ("TEXT", [State.WAITING, State.ACTIVE]),
        ("TEXT", []),
        ("TEXT", [None]),
        ("UUID", [UUID(int=0), UUID(int=2**128 - 1), None]),
        ("BIGINT", [0, -(2**63), 2**63 - 1, None]),
        ("INTEGER", [1, -1]),
        ("BOOLEAN", [True, False, None]),
        ("TIMESTAMPTZ", [datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC), datetime(1, 1, 1, tzinfo=UTC), None]),
    ],
)
async def test_the_server_reads_what_was_written(postgres: PostgresServer, kind: str, values: list[Any]) -> None:
    connection = await asyncpg.connect(postgres.dsn)
    try:
        assert await connection.fetchval(f"SELECT $1::TEXT::{kind}[]", written(kind, values)) == values
    finally:
        await connection.close()


def test_what_is_no_array_stays_as_it_is() -> None:
    assert written(None, ["a"]) == ["a"]
    assert written("TEXT", None) is None
