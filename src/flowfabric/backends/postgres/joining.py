"""Running an operation in a transaction of the caller's on PostgreSQL.

Nothing is committed or rolled back, no setting is touched, and nothing is tried again: after a conflict only the caller
can, from the beginning of the transaction. A savepoint is set only around what may write before it refuses, because
many of them in one transaction slow down the whole server.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import asyncpg

from flowfabric.backends.postgres.errors import is_conflict, translated
from flowfabric.backends.postgres.hot import PostgresHotStatements
from flowfabric.backends.postgres.session import PostgresSession, Queries
from flowfabric.backends.postgres.unlocked import PostgresUnlocked
from flowfabric.backends.postgres.wakeups import news_payload, wake_channel
from flowfabric.core.errors import FlowFabricError, InvalidRequest, Unavailable
from flowfabric.sqlstore import joining
from flowfabric.sqlstore.session import Session
from flowfabric.sqlstore.transaction import SqlTransaction
from flowfabric.store.news import News
from flowfabric.store.transaction import Answer, JoinedBody


@dataclass(frozen=True, slots=True)
class Place:
    """Where the engine's tables are."""

    database: str
    schema: str


class PostgresJoinedTransaction(SqlTransaction):
    """The aggregates over a connection of the caller's, and the wake-up that its commit sends."""

    def __init__(self, session: Session, schema: str) -> None:
        super().__init__(session, PostgresHotStatements, PostgresUnlocked)
        self._channel = wake_channel(schema)

    async def wake(self, news: News) -> None:
        # Equal payloads of one transaction are delivered once, so this names no sender.
        if news:
            await self.session.fetch("wake", channel=self._channel, payload=news_payload(news))


async def run_joined(
    link: Queries, session: PostgresSession, place: Place, body: JoinedBody[Answer], *, savepoint: bool
) -> Answer:
    """The body's answer."""
    await _check_place(session, place)
    transaction = PostgresJoinedTransaction(session, place.schema)
    if savepoint:
        return await _run_in_savepoint(link, transaction, body)
    return await body(transaction)


@contextmanager
def joined_errors() -> Iterator[None]:
    """The errors of every driver leave it translated."""
    try:
        yield
    except FlowFabricError:
        raise
    except Exception as error:
        ours = _joined_error(error)
        if ours is error:
            raise
        raise ours from error


async def _check_place(session: PostgresSession, place: Place) -> None:
    [found] = await session.fetch("inspect_joined")
    if found["database"] != place.database:
        raise joining.other_database(f"database {found['database']!r}", f"database {place.database!r}")
    if not found["has_schema"]:
        message = f"the connection's database has no schema {place.schema!r} of the engine; is it the right server?"
        raise InvalidRequest("schema_missing", message, schema=place.schema)
    if found["read_only"]:
        raise InvalidRequest("transaction_read_only", "the transaction is read-only; begin one that may write")


async def _run_in_savepoint(link: Queries, transaction: PostgresJoinedTransaction, body: JoinedBody[Answer]) -> Answer:
    await link.fetch("SAVEPOINT flowfabric_join")
    try:
        answer = await body(transaction)
    except BaseException:
        # If this fails too, the connection or the whole transaction is gone, and the first error says why.
        with suppress(Exception):
            await link.fetch("ROLLBACK TO SAVEPOINT flowfabric_join")
            await link.fetch("RELEASE SAVEPOINT flowfabric_join")
        raise
    await link.fetch("RELEASE SAVEPOINT flowfabric_join")
    return answer


def _joined_error(error: Exception) -> BaseException:
    theirs = _as_asyncpg(error) if isinstance(error, joining.loaded("psycopg.Error")) else error
    if is_conflict(theirs):
        message = f"the transaction lost a conflict with another one; roll it back and run it again ({theirs})"
        return Unavailable("transaction_conflict", message)
    if isinstance(theirs, asyncpg.InFailedSQLTransactionError):
        return joining.aborted()
    ours = translated(theirs)
    return error if ours is theirs else ours


def _as_asyncpg(error: Any) -> Exception:
    """The error of asyncpg that stands for the same as one of psycopg, so that both have one translation."""
    if error.sqlstate is None:
        return asyncpg.ConnectionDoesNotExistError(str(error))
    return asyncpg.PostgresError.new({"C": error.sqlstate, "M": error.diag.message_primary or str(error)})
