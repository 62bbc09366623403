"""The engine on a user's connection: `submit_in_transaction_sync` runs an operation in a transaction of the caller.

The opposite case, user code on the engine's connection, is in `lending.py`.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from flowfabric.backends.sqlite.clock import StoreClock
from flowfabric.backends.sqlite.connection import MEMORY
from flowfabric.backends.sqlite.errors import translate
from flowfabric.backends.sqlite.session import SqliteSession
from flowfabric.backends.sqlite.store_file import StoreFile, replaced_error
from flowfabric.core.errors import FlowFabricError, InvalidRequest
from flowfabric.store.commit_hints import CommitHints
from flowfabric.store.ports import JoinedBody, Result
from flowfabric.store.session import run_to_completion
from flowfabric.store.statements import Statement
from flowfabric.store.transaction import JoinedTransaction
from flowfabric.store.user_connections import (
    DJANGO,
    SQLALCHEMY,
    closed_error,
    loaded_classes,
    no_transaction_error,
    not_async_error,
    other_database_error,
    unsupported_error,
    unwrap,
)

_JOINABLE = "sqlite3, or of Django over it"


class SqliteJoinedTransaction(JoinedTransaction):
    """A transaction on the caller's connection."""

    async def notify_on_commit(self, hints: CommitHints) -> None:
        """Do nothing, because SQLite has no notifications. Listeners poll instead."""


def async_error(connection: object) -> FlowFabricError:
    """Return the error that the asynchronous `submit_in_transaction` raises for this connection.

    No asynchronous connection to SQLite can be joined.
    """
    if isinstance(connection, (sqlite3.Connection, *loaded_classes(*DJANGO, *SQLALCHEMY))):
        return not_async_error(connection)
    return unsupported_error(connection, _JOINABLE)


def run_joined(
    connection: object,
    file: StoreFile | None,
    statements: Mapping[str, Statement],
    clock: StoreClock,
    body: JoinedBody[Result],
) -> Result:
    """Run `body` in the caller's transaction and return its result. If `body` raises, undo only its writes.

    `file` is None for a store in memory.
    """
    try:
        driver = unwrap(connection)
        if not isinstance(driver, sqlite3.Connection):
            raise unsupported_error(driver, _JOINABLE)
        _check_usable(driver)
        with _open_cursor(driver) as cursor:
            _check_file(cursor, file)
            assert file is not None, "a connection to a store in memory was refused"
            # Two concurrent checkpoints can damage the file, and a commit of this connection could start one.
            cursor.execute("PRAGMA wal_autocheckpoint = 0")
            return _run_in_savepoint(cursor, file, statements, clock, body)
    except sqlite3.Error as error:
        raise translate(error) from error


def _check_usable(connection: sqlite3.Connection) -> None:
    try:
        is_open = connection.in_transaction
        sqlite3.Cursor(connection).execute("SELECT 1").close()
    except sqlite3.ProgrammingError as error:
        if "thread" not in str(error):
            raise closed_error(connection) from error
        message = "the connection belongs to another thread; call submit_in_transaction_sync there"
        raise InvalidRequest("connection_of_another_thread", message) from error
    if not is_open:
        raise no_transaction_error(connection, 'execute "BEGIN IMMEDIATE"')


def _check_file(cursor: sqlite3.Cursor, file: StoreFile | None) -> None:
    expected = MEMORY if file is None else file.path
    if file is not None:
        file.check()
    [actual] = [row["file"] for row in cursor.execute("PRAGMA database_list").fetchall() if row["name"] == "main"]
    if not _is_same_file(actual, expected):
        raise other_database_error(_describe(actual), _describe(expected))


def _check_identity(cursor: sqlite3.Cursor, file: StoreFile) -> None:
    """Raise unless the caller's connection has opened the same file as the engine. Both must be the file at the path.

    SQLite does not report which file a connection has opened, but the store in the file remembers its file.
    """
    row = cursor.execute("SELECT file FROM ff_store").fetchone()
    # If the tables were emptied, the store does not know its file.
    if row is not None and row["file"] not in (None, file.identity):
        raise replaced_error(file.path)
    file.check()


def _is_same_file(actual: str, expected: str) -> bool:
    try:
        return actual != "" and expected != MEMORY and Path(actual).samefile(expected)
    except FileNotFoundError:
        return False


def _describe(file: str) -> str:
    return "a database in memory" if file in ("", MEMORY) else file


@contextmanager
def _open_cursor(connection: sqlite3.Connection) -> Iterator[sqlite3.Cursor]:
    """Open a cursor with named rows and text as `str`, independent of the settings of the caller's connection."""
    cursor = sqlite3.Cursor(connection)
    cursor.row_factory = sqlite3.Row
    text_factory, connection.text_factory = connection.text_factory, str
    try:
        yield cursor
    finally:
        connection.text_factory = text_factory
        cursor.close()


def _run_in_savepoint(
    cursor: sqlite3.Cursor,
    file: StoreFile,
    statements: Mapping[str, Statement],
    clock: StoreClock,
    body: JoinedBody[Result],
) -> Result:
    cursor.execute("SAVEPOINT flowfabric_join")
    try:
        # Take the write lock first. The time must be later than the wait for the lock, and a transaction that has
        # already read may not get the lock.
        cursor.execute("UPDATE ff_clock SET newest_at = newest_at")
        _check_identity(cursor, file)
        now = clock.read(cursor)
        result = run_to_completion(body(SqliteJoinedTransaction(SqliteSession(cursor, statements, now))))
        # The caller may submit several times in one transaction.
        clock.write(cursor, now, is_only_write=False)
    except BaseException:
        # After some errors SQLite rolls back the whole transaction, including the savepoint.
        if cursor.connection.in_transaction:
            cursor.execute("ROLLBACK TO flowfabric_join")
            cursor.execute("RELEASE flowfabric_join")
        raise
    cursor.execute("RELEASE flowfabric_join")
    return result
