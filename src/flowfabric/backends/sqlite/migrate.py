"""Bringing a SQLite file to the present schema, under its write lock."""

from __future__ import annotations

import sqlite3

from flowfabric.core.errors import Unavailable
from flowfabric.sqlstore.migrations import CREATE_TABLE, READ_APPLIED, RECORD, Migration, load_migrations, pending
from flowfabric.sqlstore.statements import Dialect

_TABLE_EXISTS = "SELECT EXISTS (SELECT 1 FROM sqlite_schema WHERE type = 'table' AND name = ?)"


def require_store(connection: sqlite3.Connection, path: str) -> None:
    """Refuses a file without a store before anything of it is changed, its way of logging included."""
    [found] = connection.execute(_TABLE_EXISTS, ["ff_migration"]).fetchone()
    if not found:
        message = f"{path} holds no store; check the path, or run flowfabric migrate, or connect with migrate=True"
        raise Unavailable("schema_outdated", message, version=0)


def migrate(connection: sqlite3.Connection, dialect: Dialect, may_migrate: bool) -> None:
    """Applies what is missing, whoever comes first; refuses an edited or newer schema. A file that lacks nothing is
    only read: the caller may be in the middle of a transaction that another connection of theirs has open on it."""
    available = load_migrations("flowfabric.backends.sqlite")
    applied = _applied(connection, dialect)
    missing = pending(available, applied)
    if not missing:
        return
    if not may_migrate:
        message = f"the schema lacks {missing[0].name}; run flowfabric migrate, or connect with migrate=True once"
        raise Unavailable("schema_outdated", message, version=max(applied, default=0))
    connection.execute("BEGIN IMMEDIATE")
    try:
        connection.execute(dialect.translate(CREATE_TABLE).text)
        # Another process may have been faster while this one waited for the lock.
        for migration in pending(available, _applied(connection, dialect)):
            _apply(connection, dialect, migration)
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def _applied(connection: sqlite3.Connection, dialect: Dialect) -> dict[int, str]:
    [exists] = connection.execute(_TABLE_EXISTS, (f"{dialect.table_prefix}migration",)).fetchone()
    if not exists:
        return {}
    return {row["version"]: row["sha256"] for row in connection.execute(dialect.translate(READ_APPLIED).text)}


def _apply(connection: sqlite3.Connection, dialect: Dialect, migration: Migration) -> None:
    for statement in migration.statements(dialect):
        connection.execute(statement)
    values = {"version": migration.version, "name": migration.name, "sha256": migration.sha256}
    connection.execute(dialect.translate(RECORD).text, values)
