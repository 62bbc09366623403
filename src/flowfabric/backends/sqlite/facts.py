"""What a SQLite file says of itself."""

from __future__ import annotations

import sqlite3
from datetime import datetime

from flowfabric.sqlstore.migrations import READ_APPLIED, load_migrations
from flowfabric.sqlstore.statements import Dialect
from flowfabric.store.facts import StoreFacts

_SYNCHRONOUS = ("off", "normal", "full", "extra")


def facts_of(connection: sqlite3.Connection, dialect: Dialect, now: datetime) -> StoreFacts:
    """The version of SQLite and of the schema, and how this connection writes."""
    applied = connection.execute(dialect.translate(READ_APPLIED).text).fetchall()
    [mode] = connection.execute("PRAGMA journal_mode").fetchone()
    [synchronous] = connection.execute("PRAGMA synchronous").fetchone()
    return StoreFacts(
        backend="sqlite", version=sqlite3.sqlite_version, schema_version=applied[-1]["version"],
        settings={"journal_mode": mode, "synchronous": _SYNCHRONOUS[synchronous]}, now=now,
    )  # fmt: skip


def facts_of_memory(now: datetime) -> StoreFacts:
    """The same of `:memory:`, whose only connection is the writer's."""
    return StoreFacts(
        backend="sqlite", version=sqlite3.sqlite_version, now=now, settings={"journal_mode": "memory"},
        schema_version=load_migrations("flowfabric.backends.sqlite")[-1].version,
    )  # fmt: skip
