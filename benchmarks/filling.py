"""Fill a store with millions of executions in seconds, by copying one stored execution with an SQL statement."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Awaitable, Callable

import asyncpg

from flowfabric.engine import Engine

Filler = Callable[[str, int], Awaitable[None]]

_POSTGRES = """
INSERT INTO {schema}.execution ({columns})
SELECT {values}
FROM {schema}.execution AS e, generate_series(1, $2) AS number
WHERE e.id = $1
"""
_SQLITE = """
WITH RECURSIVE numbers (number) AS (SELECT 1 UNION ALL SELECT number + 1 FROM numbers WHERE number < ?2)
INSERT INTO ff_execution ({columns})
SELECT {values}
FROM ff_execution AS e, numbers
WHERE e.id = ?1
"""
# Ids are ordered by time, like the engine's ids, because the position of a row decides which pages a claim reads.
_POSTGRES_ID = "(lpad(to_hex($3::BIGINT + number), 12, '0') || '7' || substr(md5(number::TEXT), 1, 19))::UUID"
_SQLITE_ID = (
    "printf('%08x-%04x-7%03x-8000-', (?3 + numbers.number) >> 16, (?3 + numbers.number) & 65535, numbers.number & 4095)"
    " || lower(hex(randomblob(6)))"
)


def postgres_filler(engine: Engine, dsn: str, schema: str) -> Filler:
    """Fill a PostgreSQL schema, then run the vacuum that autovacuum would have run while the backlog grew."""

    async def fill(state: str, number: int) -> None:
        model = await _model(engine, state)
        connection = await asyncpg.connect(dsn)
        found = await connection.fetch(
            "SELECT attname FROM pg_attribute WHERE attrelid = $1::TEXT::REGCLASS AND attnum > 0 AND NOT attisdropped",
            f"{schema}.execution",
        )
        names = [row["attname"] for row in found]
        values = [_POSTGRES_ID if name == "id" else f"e.{name}" for name in names]
        text = _POSTGRES.format(schema=schema, columns=", ".join(names), values=", ".join(values))
        await connection.execute("SET statement_timeout = 0")
        await connection.fetch(text, model, number, _first_number(state), timeout=600)
        await connection.execute(f"VACUUM ANALYZE {schema}.execution", timeout=600)
        await connection.close()

    return fill


def sqlite_filler(engine: Engine, path: str) -> Filler:
    """Fill a SQLite file."""

    def copy(model: str, state: str, number: int) -> None:
        connection = sqlite3.connect(path, isolation_level=None)
        connection.execute("PRAGMA wal_autocheckpoint = 0")
        names = [row[1] for row in connection.execute("PRAGMA table_info(ff_execution)")]
        values = [_SQLITE_ID if name == "id" else f"e.{name}" for name in names]
        text = _SQLITE.format(columns=", ".join(names), values=", ".join(values))
        connection.execute(text, (model, number, _first_number(state)))
        connection.close()

    async def fill(state: str, number: int) -> None:
        await asyncio.to_thread(copy, str(await _model(engine, state)), state, number)

    return fill


async def _model(engine: Engine, state: str) -> object:
    """Store an execution of the task `trivial` in the given state, to be copied. A worker can run the copies."""
    created = await engine.executions.submit("trivial", b'{"number":1}')
    if state == "completed":
        lease = await engine.leases.claim_execution(created.id, "bench")
        await engine.leases.complete(lease.fence, b"1")
    return created.id


_numbers = {"waiting": 0x018000000000, "completed": 0x010000000000}


def _first_number(state: str) -> int:
    _numbers[state] += 2_000_000
    return _numbers[state]
