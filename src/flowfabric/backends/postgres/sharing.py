"""Connections that code of the user's shares with the engine for one transaction.

They come from a pool of their own, which is opened by the first call: the engine's connections have settings that are
right for its statements only, and what the user's code sets or registers on a connection must not reach them. These
have the defaults of the server and the role, the search path included, and are reset when they are given back; only the
statement timeout, the time zone UTC and the application name are set. The engine's statements name their schema.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from inspect import iscoroutinefunction
from typing import TYPE_CHECKING, Any, Protocol

import asyncpg

from flowfabric.backends.postgres.errors import is_conflict
from flowfabric.backends.postgres.hot import PostgresHotStatements
from flowfabric.backends.postgres.running import Manner, run_in_transaction
from flowfabric.backends.postgres.session import PostgresSession
from flowfabric.backends.postgres.unlocked import PostgresUnlocked
from flowfabric.core.errors import FlowFabricError
from flowfabric.sqlstore import joining
from flowfabric.sqlstore.sharing import RaisedByUser, ended_early, wrong_kind
from flowfabric.sqlstore.transaction import SqlTransaction
from flowfabric.store.news import News
from flowfabric.store.transaction import Answer, Recorded, Recording, SharedBody, UserBody

if TYPE_CHECKING:
    from asyncpg.pool import Pool


class Settings(Protocol):
    """What the caller of `connect` may choose."""

    @property
    def pooler(self) -> bool: ...
    @property
    def pool_size(self) -> int: ...
    @property
    def statement_timeout_s(self) -> float: ...


class Sharing:
    """The pool of connections that users see."""

    def __init__(self, url: str, settings: Settings) -> None:
        self._url = url
        self._settings = settings
        wait_s = settings.statement_timeout_s
        locally = f"SET LOCAL statement_timeout = {int(wait_s * 1000)}" if settings.pooler else ""
        self._manner = Manner(wait_s=wait_s, locally=locally)
        self._opening = asyncio.Lock()
        self._pool: Pool[Any] | None = None

    async def run(
        self, body: SharedBody[Answer], session: Callable[[asyncpg.Connection[Any]], PostgresSession]
    ) -> tuple[Answer, News]:
        """The body's answer, and the news of its commit. What the user's code raised is raised as it is."""
        try:
            pool = await self.pool()
            answer, transaction = await run_in_transaction(
                pool, self._manner, lambda found: PostgresSharedTransaction(session(found), found), body
            )
        except Exception as error:
            failed = _told(error)
            if failed is error:
                raise
        else:
            return answer, transaction.news
        raise failed

    async def pool(self) -> Pool[Any]:
        """The pool, opened by whoever asks first."""
        async with self._opening:
            if self._pool is None:
                self._pool = await self._open()
            return self._pool

    async def close(self) -> None:
        """Ends its connections."""
        if self._pool is not None:
            self._pool.terminate()

    async def _open(self) -> Pool[Any]:
        session = {
            "application_name": "flowfabric",
            "timezone": "UTC",
            "statement_timeout": str(int(self._settings.statement_timeout_s * 1000)),
        }
        pooled = self._settings.pooler
        return await asyncpg.create_pool(
            self._url, min_size=0, max_size=self._settings.pool_size, statement_cache_size=0 if pooled else 256,
            command_timeout=self._settings.statement_timeout_s + 5,
            server_settings={"application_name": "flowfabric"} if pooled else session,
        )  # fmt: skip


class PostgresSharedTransaction(SqlTransaction):
    """The aggregates over a connection that the user's code works on too."""

    def __init__(self, session: PostgresSession, connection: asyncpg.Connection[Any]) -> None:
        super().__init__(session, PostgresHotStatements, PostgresUnlocked)
        self._connection = connection

    async def perform(self, body: UserBody, record: Recording) -> Recorded:
        if not iscoroutinefunction(body):
            raise wrong_kind("an async function of an asyncpg connection on PostgreSQL")
        try:
            answer = await body(self._connection)
            step = record(answer)
        except Exception as error:
            if is_conflict(error):
                raise
            raise RaisedByUser(error) from error
        if not self._connection.is_in_transaction():
            raise ended_early()
        return answer, step


def _told(error: Exception) -> Exception:
    """What is raised after a transaction with the user's code has failed."""
    if isinstance(error, RaisedByUser):
        return error.error
    if isinstance(error, FlowFabricError) and isinstance(error.__cause__, asyncpg.InFailedSQLTransactionError):
        return joining.aborted()
    return error
