"""Bringing a SQLite file to the present schema, under its write lock."""

from __future__ import annotations

import sqlite3

from flowfabric.core.errors import Unavailable
from flowfabric.sqlstore.migrations import CREATE_TABLE, READ_APPLIED, RECORD, load_migrations, pending
from flowfabric.sqlstore.statements import Dialect

_HAS_STORE = "SELECT EXISTS (SELECT 1 FROM sqlite_master WHERE name = 'ff_migration')"


def require_store(connection: sqlite3.Connection, path: str) -> None:
    """Refuses a file without a store before anything of it is changed, its way of logging included."""
    [found] = connection.execute(_HAS_STORE).fetchone()
    if not found:
        message = f"{path} holds no store; check the path, or run flowfabric migrate, or connect with migrate=True"
        raise Unavailable("schema_outdated", message, version=0)


def migrate(connection: sqlite3.Connection, dialect: Dialect, may_migrate: bool) -> None:
    """Applies what is missing, whoever comes first; refuses an edited or newer schema."""
    available = load_migrations("flowfabric.backends.sqlite")
    connection.execute("BEGIN IMMEDIATE")
    try:
        connection.execute(dialect.translate(CREATE_TABLE).text)
        applied = {row["version"]: row["sha256"] for row in connection.execute(dialect.translate(READ_APPLIED).text)}
        missing = pending(available, applied)
        if missing and not may_migrate:
            raise Unavailable(
                "schema_outdated",
                f"the schema lacks {missing[0].name}; run flowfabric migrate, or connect with migrate=True once",
                version=max(applied, default=0),
            )
        for migration in missing:
            for statement in migration.statements(dialect):
                connection.execute(statement)
            values = {"version": migration.version, "name": migration.name, "sha256": migration.sha256}
            connection.execute(dialect.translate(RECORD).text, values)
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
