"""Running an operation in a transaction of the caller's on the same SQLite file."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from flowfabric.backends.sqlite.connection import MEMORY
from flowfabric.backends.sqlite.errors import translated
from flowfabric.backends.sqlite.session import SqliteSession
from flowfabric.backends.sqlite.writer import Clock
from flowfabric.core.errors import FlowFabricError, InvalidRequest
from flowfabric.sqlstore import joining
from flowfabric.sqlstore.driving import drive
from flowfabric.sqlstore.rows import since_1970_us, when
from flowfabric.sqlstore.statements import Statement
from flowfabric.sqlstore.transaction import SqlTransaction
from flowfabric.store.news import News
from flowfabric.store.transaction import Answer, JoinedBody

_JOINABLE = "sqlite3"


class SqliteJoinedTransaction(SqlTransaction):
    """The aggregates over a connection of the caller's."""

    async def wake(self, news: News) -> None:
        """Nothing: SQLite has no notifications, whoever waits looks again soon."""


def async_refusal(connection: object) -> FlowFabricError:
    """What is wrong with a connection in the asynchronous call; there is none to a SQLite file that could be joined."""
    if isinstance(connection, (sqlite3.Connection, *joining.loaded(*joining.SQLALCHEMY))):
        return joining.not_async(connection)
    return joining.unsupported(connection, _JOINABLE)


def run_joined(
    connection: object, file: str, statements: Mapping[str, Statement], clock: Clock, body: JoinedBody[Answer]
) -> Answer:
    """The body's answer; what it wrote before an error is taken back."""
    try:
        driver = joining.unwrapped(connection)
        if not isinstance(driver, sqlite3.Connection):
            raise joining.unsupported(driver, _JOINABLE)
        _check_usable(driver)
        with _in_our_words(driver) as cursor:
            _check_file(cursor, file)
            # Two checkpointers at once can damage the file, and this connection's commit could be one of them.
            cursor.execute("PRAGMA wal_autocheckpoint = 0")
            return _run_in_savepoint(cursor, statements, clock, body)
    except sqlite3.Error as error:
        raise translated(error) from error


def _check_usable(connection: sqlite3.Connection) -> None:
    try:
        is_open = connection.in_transaction
        sqlite3.Cursor(connection).execute("SELECT 1").close()
    except sqlite3.ProgrammingError as error:
        if "thread" not in str(error):
            raise joining.closed(connection) from error
        message = "the connection belongs to another thread; call submit_within_sync there"
        raise InvalidRequest("connection_of_another_thread", message) from error
    if not is_open:
        raise joining.no_transaction(connection, 'execute "BEGIN IMMEDIATE"')


def _check_file(cursor: sqlite3.Cursor, wanted: str) -> None:
    [found] = [row["file"] for row in cursor.execute("PRAGMA database_list").fetchall() if row["name"] == "main"]
    if not _is_same(found, wanted):
        raise joining.other_database(_shown(found), _shown(wanted))


def _is_same(found: str, wanted: str) -> bool:
    try:
        return found != "" and wanted != MEMORY and Path(found).samefile(wanted)
    except FileNotFoundError:
        return False


def _shown(file: str) -> str:
    return "a database in memory" if file in ("", MEMORY) else file


@contextmanager
def _in_our_words(connection: sqlite3.Connection) -> Iterator[sqlite3.Cursor]:
    """A cursor whose rows have names and whose text is text, whatever the caller's connection is set to."""
    cursor = sqlite3.Cursor(connection)
    cursor.row_factory = sqlite3.Row
    text_factory, connection.text_factory = connection.text_factory, str
    try:
        yield cursor
    finally:
        connection.text_factory = text_factory
        cursor.close()


def _run_in_savepoint(
    cursor: sqlite3.Cursor, statements: Mapping[str, Statement], clock: Clock, body: JoinedBody[Answer]
) -> Answer:
    cursor.execute("SAVEPOINT flowfabric_join")
    try:
        # The write lock comes first, since the time must be later than the wait for it, and since a transaction that
        # has read but not written may not get it any more.
        [newest] = cursor.execute("UPDATE ff_clock SET newest_at = newest_at RETURNING newest_at").fetchall()[0]
        now = max(clock(), when(newest))
        answer = drive(body(SqliteJoinedTransaction(SqliteSession(cursor, statements, now))))
        cursor.execute("UPDATE ff_clock SET newest_at = ?", (since_1970_us(now),))
    except BaseException:
        # SQLite gives up the whole transaction after some errors, and the savepoint with it.
        if cursor.connection.in_transaction:
            cursor.execute("ROLLBACK TO flowfabric_join")
            cursor.execute("RELEASE flowfabric_join")
        raise
    cursor.execute("RELEASE flowfabric_join")
    return answer
