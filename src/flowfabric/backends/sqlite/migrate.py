"""Migration of a SQLite file under its write lock."""

from __future__ import annotations

import shlex
import sqlite3

from flowfabric.store.migrations import (
    CREATE_TABLE,
    READ_APPLIED,
    RECORD,
    Migration,
    find_pending,
    load_migrations,
    outdated_error,
    store_not_found_error,
)
from flowfabric.store.statements import Dialect

_TABLE_EXISTS = "SELECT EXISTS (SELECT 1 FROM sqlite_schema WHERE type = 'table' AND name = ?)"


def require_store(connection: sqlite3.Connection, path: str) -> None:
    """Raise if the file contains no store, before anything in it is changed."""
    [exists] = connection.execute(_TABLE_EXISTS, ["ff_migration"]).fetchone()
    if not exists:
        raise store_not_found_error(f"{path} contains no store", f"--store {shlex.quote(path)}")


def read_file_identity(connection: sqlite3.Connection) -> tuple[bool, str | None]:
    """Return whether there is a store, and the file that it was last written in. A store before migration 2 has none.

    This also reads the row that every transaction writes. If the log was deleted while another process uses the store,
    that row cannot be read.
    """
    [exists] = connection.execute(_TABLE_EXISTS, ["ff_clock"]).fetchone()
    if not exists:
        return False, None
    connection.execute("SELECT newest_at FROM ff_clock").fetchone()
    columns = {row["name"] for row in connection.execute("PRAGMA table_info(ff_store)")}
    row = connection.execute("SELECT file FROM ff_store").fetchone() if "file" in columns else None
    return True, None if row is None else row["file"]


def migrate(connection: sqlite3.Connection, dialect: Dialect, may_migrate: bool) -> None:
    """Apply missing migrations. Raise if the schema is newer than this program, was edited, or may not be migrated.

    An up-to-date file is only read, because the caller may have a transaction open on it with another connection.
    """
    available = load_migrations("flowfabric.backends.sqlite")
    applied = _read_applied(connection, dialect)
    missing = find_pending(available, applied)
    if not missing:
        return
    if not may_migrate:
        raise outdated_error(missing[0], applied)
    connection.execute("BEGIN IMMEDIATE")
    try:
        connection.execute(dialect.translate(CREATE_TABLE).text)
        # Another process may have migrated while this one waited for the lock.
        for migration in find_pending(available, _read_applied(connection, dialect)):
            _apply(connection, dialect, migration)
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def _read_applied(connection: sqlite3.Connection, dialect: Dialect) -> dict[int, str]:
    [exists] = connection.execute(_TABLE_EXISTS, (f"{dialect.table_prefix}migration",)).fetchone()
    if not exists:
        return {}
    return {row["version"]: row["sha256"] for row in connection.execute(dialect.translate(READ_APPLIED).text)}


def _apply(connection: sqlite3.Connection, dialect: Dialect, migration: Migration) -> None:
    for statement in migration.statements(dialect):
        connection.execute(statement)
    values = {"version": migration.version, "name": migration.name, "sha256": migration.sha256}
    connection.execute(dialect.translate(RECORD).text, values)
