"""Letting code of the user's work on the writer's connection, inside the savepoint of an operation.

It sees the connection as `sqlite3` makes it, with rows that are tuples. It may not end the transaction, which holds the
file's write lock and the engine's own work, nor change how the connection behaves: these statements are not authorised.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from inspect import iscoroutinefunction

from flowfabric.backends.sqlite.session import SqliteSession
from flowfabric.sqlstore.sharing import RaisedByUser, ended_early, wrong_kind
from flowfabric.sqlstore.transaction import SqlTransaction
from flowfabric.store.transaction import Recorded, Recording, UserBody

SAVEPOINT = "operation"
_FORBIDDEN = frozenset({sqlite3.SQLITE_TRANSACTION, sqlite3.SQLITE_ATTACH, sqlite3.SQLITE_DETACH})
_HARMLESS_PRAGMAS = frozenset({"table_info", "table_xinfo", "index_list", "index_info", "foreign_key_list"})


class SqliteTransaction(SqlTransaction):
    """The aggregates over the writer's connection, which the user's code may work on too."""

    def __init__(self, session: SqliteSession, connection: sqlite3.Connection) -> None:
        super().__init__(session)
        self._connection = connection

    async def perform(self, body: UserBody, record: Recording) -> Recorded:
        if iscoroutinefunction(body):
            raise wrong_kind("a plain function of a sqlite3 connection on SQLite")
        try:
            with _lent(self._connection):
                answer = body(self._connection)
            step = record(answer)
        except Exception as error:
            raise RaisedByUser(error) from error
        if not self._connection.in_transaction:
            raise ended_early()
        return answer, step


@contextmanager
def _lent(connection: sqlite3.Connection) -> Iterator[None]:
    ours = connection.row_factory, connection.text_factory
    connection.row_factory, connection.text_factory = None, str
    connection.set_authorizer(_authorize)
    try:
        yield
    finally:
        connection.set_authorizer(None)
        connection.row_factory, connection.text_factory = ours


def _authorize(action: int, first: str | None, second: str | None, *_: str | None) -> int:
    forbidden = action in _FORBIDDEN
    forbidden |= action == sqlite3.SQLITE_SAVEPOINT and second == SAVEPOINT
    forbidden |= action == sqlite3.SQLITE_PRAGMA and first not in _HARMLESS_PRAGMAS
    return sqlite3.SQLITE_DENY if forbidden else sqlite3.SQLITE_OK
