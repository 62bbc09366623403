"""Check a whole SQLite file: its pages and indexes, and the invariants of the store in it."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

from flowfabric.backends.sqlite.session import SqliteSession
from flowfabric.core.errors import Unavailable
from flowfabric.store.checks import find_violations
from flowfabric.store.session import run_to_completion
from flowfabric.store.statements import Statement

_MAX_PROBLEMS = 10
_DAMAGE = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
_PRIMARY_CODE = 0xFF


def find_damage(connection: sqlite3.Connection, statements: Mapping[str, Statement]) -> list[str]:
    """Return one sentence per problem. An empty list means that no damage was found."""
    return find_broken_pages(connection) or find_broken_rows(connection, statements)


def find_broken_pages(connection: sqlite3.Connection) -> list[str]:
    """Return the problems that SQLite finds in pages, indexes and constraints."""
    try:
        rows = connection.execute(f"PRAGMA integrity_check({_MAX_PROBLEMS})").fetchall()
    except sqlite3.DatabaseError as error:
        return [_describe(error)]
    return [text.strip() for [text] in rows if text != "ok"]


def find_broken_rows(connection: sqlite3.Connection, statements: Mapping[str, Statement]) -> list[str]:
    """Return the violated invariants of the store."""
    session = SqliteSession(connection, statements, datetime.now(UTC))
    try:
        return run_to_completion(find_violations(session))
    except sqlite3.DatabaseError as error:
        return [_describe(error)]


def damaged_error(path: str, problems: Sequence[str]) -> Unavailable:
    """Return the error for a damaged file."""
    first = problems[0].replace("\n", " ")
    message = (
        f"{path} is damaged ({first}); restore a backup with `flowfabric restore BACKUP`. A copy that is made with cp "
        "while the store is in use is not a backup, so use `flowfabric backup`"
    )
    return Unavailable("storage_damaged", message, path=path, problems=tuple(problems))


def _describe(error: sqlite3.DatabaseError) -> str:
    """Return the message of an error that shows damage. Raise other errors, such as a busy file."""
    if getattr(error, "sqlite_errorcode", 0) & _PRIMARY_CODE not in _DAMAGE:
        raise error
    return str(error)
