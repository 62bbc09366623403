"""Connections of the caller's, by library: those of asyncpg as they are, those of psycopg in the same words."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import Any, cast

import asyncpg

from flowfabric.backends.postgres.session import Queries
from flowfabric.core.errors import InvalidRequest
from flowfabric.sqlstore import joining
from flowfabric.sqlstore.joining import loaded
from flowfabric.sqlstore.session import Row

_JOINABLE = "asyncpg, psycopg 3, and SQLAlchemy over one of them"
_ASYNC = ("asyncpg.Connection", "asyncpg.pool.PoolConnectionProxy", "psycopg.AsyncConnection")
_SYNC = ("psycopg.Connection",)


async def async_link(connection: object) -> Queries:
    """The driver's connection under an asynchronous one, open and in a transaction."""
    if isinstance(connection, loaded(*_SYNC, *joining.SQLALCHEMY)):
        raise joining.not_async(connection)
    driver = await joining.unwrapped_async(connection)
    if isinstance(driver, loaded("psycopg.AsyncConnection")):
        _check_psycopg(driver)
        return AsyncPsycopgLink(driver)
    if isinstance(driver, loaded(*_ASYNC)):
        _check_asyncpg(driver)
        return cast(Queries, driver)
    raise joining.unsupported(driver, _JOINABLE)


def sync_link(connection: object) -> Queries:
    """The driver's connection under a synchronous one, open and in a transaction."""
    if isinstance(connection, loaded(*joining.ASYNC_SQLALCHEMY)):
        raise joining.not_sync(connection)
    driver = joining.unwrapped(connection)
    if isinstance(driver, loaded(*_ASYNC)):
        raise joining.not_sync(driver)
    if not isinstance(driver, loaded(*_SYNC)):
        raise joining.unsupported(driver, _JOINABLE)
    _check_psycopg(driver)
    return PsycopgLink(driver)


class PsycopgLink:
    """A psycopg Connection. Nothing here ever suspends."""

    def __init__(self, connection: Any) -> None:
        psycopg: Any = sys.modules["psycopg"]
        self._cursor = _with_own_loaders(psycopg.RawCursor(connection, row_factory=psycopg.rows.dict_row))

    async def fetch(self, text: str, /, *arguments: object) -> Sequence[Row]:
        self._cursor.execute(text, [_plain(value) for value in arguments])
        return self._cursor.fetchall() if self._cursor.description else []

    async def fetchmany(self, text: str, arguments: Iterable[Sequence[object]], /) -> Sequence[Row]:
        return [row for values in arguments for row in await self.fetch(text, *values)]


class AsyncPsycopgLink:
    """A psycopg AsyncConnection."""

    def __init__(self, connection: Any) -> None:
        psycopg: Any = sys.modules["psycopg"]
        self._cursor = _with_own_loaders(psycopg.AsyncRawCursor(connection, row_factory=psycopg.rows.dict_row))

    async def fetch(self, text: str, /, *arguments: object) -> Sequence[Row]:
        await self._cursor.execute(text, [_plain(value) for value in arguments])
        return await self._cursor.fetchall() if self._cursor.description else []

    async def fetchmany(self, text: str, arguments: Iterable[Sequence[object]], /) -> Sequence[Row]:
        return [row for values in arguments for row in await self.fetch(text, *values)]


def _check_asyncpg(connection: Any) -> None:
    try:
        is_closed, is_open = connection.is_closed(), connection.is_in_transaction()
    except asyncpg.InterfaceError as error:
        raise joining.closed(connection) from error  # It was given back to its pool.
    if is_closed:
        raise joining.closed(connection)
    if not is_open:
        raise joining.no_transaction(connection, "enter `async with connection.transaction():`")


def _check_psycopg(connection: Any) -> None:
    if not hasattr(sys.modules["psycopg"], "RawCursor"):
        raise InvalidRequest(
            "unsupported_version", "psycopg is too old to join its transactions, 3.2 or later is needed"
        )
    if connection.closed:
        raise joining.closed(connection)
    status = connection.info.transaction_status.name
    if status == "INERROR":
        raise joining.aborted()
    # Without autocommit the first statement begins the transaction, also if it is ours.
    if status == "IDLE" and connection.autocommit:
        raise joining.no_transaction(connection, "enter `with connection.transaction():` or switch autocommit off")


def _with_own_loaders(cursor: Any) -> Any:
    """Reads our columns as psycopg does by default, whatever the caller has registered for these types."""
    types: Any = sys.modules["psycopg"].types
    cursor.adapters.register_loader("uuid", types.uuid.UUIDLoader)
    cursor.adapters.register_loader("text", types.string.TextLoader)
    cursor.adapters.register_loader("bytea", types.string.ByteaLoader)
    cursor.adapters.register_loader("int8", types.numeric.IntLoader)
    cursor.adapters.register_loader("timestamptz", types.datetime.TimestamptzLoader)
    return cursor


def _plain(value: object) -> object:
    """Enumerations become their words, since psycopg has ideas of its own about them."""
    match value:
        case list():
            return [_plain(item) for item in value]
        case str():
            return str(value)
        case _:
            return value
