"""The contents of a store in a form that is comparable between two runs of the same operation.

Random ids and past times are left out. Every other column is included.
"""

from __future__ import annotations

import re
import sqlite3
from datetime import UTC, datetime, timedelta
from typing import Any, Protocol
from uuid import UUID

import asyncpg

from tests.stores import PostgresTestStore, SqliteTestStore, TestStore

# Routes are left out. Routes are committed separately from the operation, and an unused route is harmless.
TABLES = (
    "execution", "attempt", "step", "event", "submission_key", "reclaim_grant", "lane", "suspension", "waitpoint",
    "signal", "signing_key", "flow", "edge", "edge_group", "subscriber", "purged", "worker",
)  # fmt: skip
# `step_seq` is left out, because a repeated checkpoint consumes numbers without a visible effect.
MINTED = {
    "id", "execution_id", "lease_id", "former_lease_id", "consumed_by", "transaction_id", "route_id", "step_seq",
    "resume_suspension_id", "waitpoint_id", "nonce", "token_hash", "secret", "check_value", "digest", "former_digest",
    "flow_id", "parent_id", "upstream_id", "downstream_id", "event_xid", "holder", "event_id",
}  # fmt: skip
# Matches ids, times and generated key ids in texts.
VOLATILE_TEXT = re.compile(
    r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}|\d{4}-\d\d-\d\d[T ][\d:.]+\+00:00|\b\d{8}-[0-9a-f]{8}\b"
)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

Picture = dict[str, list[tuple[Any, ...]]]


class Camera(Protocol):
    """A separate connection to a store that bypasses the engine."""

    async def rows(self, sql: str) -> list[dict[str, Any]]:
        """Return the rows of a raw statement. Tables are written `ff.execution`."""

    async def script(self, sql: str) -> None:
        """Run several statements in one transaction."""

    async def close(self) -> None: ...


class SqliteCamera:
    def __init__(self, store: SqliteTestStore) -> None:
        self._connection = sqlite3.connect(store.path, isolation_level=None, timeout=10)
        self._connection.row_factory = sqlite3.Row
        self._connection.execute("PRAGMA wal_autocheckpoint = 0")
        self._connection.execute("PRAGMA synchronous = OFF")

    async def rows(self, sql: str) -> list[dict[str, Any]]:
        return [dict(row) for row in self._connection.execute(sql.replace("ff.", "ff_")).fetchall()]

    async def script(self, sql: str) -> None:
        self._connection.executescript(f"BEGIN IMMEDIATE; {sql.replace('ff.', 'ff_')}; COMMIT")

    async def close(self) -> None:
        self._connection.close()


class PostgresCamera:
    def __init__(self, connection: asyncpg.Connection[Any], schema: str) -> None:
        self._connection = connection
        self._schema = schema

    async def rows(self, sql: str) -> list[dict[str, Any]]:
        return [dict(row) for row in await self._connection.fetch(sql.replace("ff.", f'"{self._schema}".'))]

    async def script(self, sql: str) -> None:
        await self._connection.execute(sql.replace("ff.", f'"{self._schema}".'))

    async def close(self) -> None:
        await self._connection.close()


async def camera_on(store: TestStore) -> Camera:
    """Return a camera on the store. The caller must close it."""
    if isinstance(store, SqliteTestStore):
        return SqliteCamera(store)
    assert isinstance(store, PostgresTestStore), "there are two backends"
    return PostgresCamera(await asyncpg.connect(store.url), store.schema)


async def picture(camera: Camera, since: datetime) -> Picture:
    """Return everything stored, with times relative to `since`."""
    tables: Picture = {table: [] for table in TABLES}
    filled = " UNION ALL ".join(f"SELECT '{table}' AS name WHERE EXISTS (SELECT 1 FROM ff.{table})" for table in TABLES)
    for table in [row["name"] for row in await camera.rows(filled)]:
        rows = await camera.rows(f"SELECT * FROM ff.{table}")
        tables[table] = sorted(tuple(_shown(name, value, since) for name, value in row.items()) for row in rows)
    return tables


async def wipe(camera: Camera) -> None:
    """Empty the store."""
    await camera.script("; ".join(f"DELETE FROM ff.{table}" for table in (*TABLES, "route")))


def _shown(name: str, value: Any, since: datetime) -> Any:
    """Return the value as a sortable text that is equal in two runs."""
    if value is None:
        return "-"
    if name in MINTED or isinstance(value, UUID):
        return "set"
    if isinstance(value, datetime):
        return f"{(value - since).total_seconds():+}"
    if isinstance(value, int) and (name == "at" or name.endswith(("_at", "_until"))):
        return f"{(EPOCH + timedelta(microseconds=value) - since).total_seconds():+}"
    return VOLATILE_TEXT.sub("…", str(value))
