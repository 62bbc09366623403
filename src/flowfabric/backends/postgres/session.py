"""Executing named statements on an asyncpg connection."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, cast

from flowfabric.sqlstore.session import Parameters, Row
from flowfabric.sqlstore.statements import Statement, columns

if TYPE_CHECKING:
    from asyncpg.pool import PoolConnectionProxy

Clock = Callable[[], datetime]


class PostgresSession:
    """A pooled connection; the time is the server's unless a test clock stands in for it."""

    def __init__(
        self,
        connection: PoolConnectionProxy[Any],
        statements: Mapping[str, Statement],
        schema: str,
        clock: Clock | None,
    ) -> None:
        self._connection = connection
        self._statements = statements
        self._schema = schema
        self._clock = clock

    @property
    def bound_now(self) -> datetime | None:
        return self._clock() if self._clock else None

    async def now(self) -> datetime:
        if self._clock:
            return self._clock()
        return cast(datetime, await self._connection.fetchval("SELECT clock_timestamp()"))

    async def fetch(self, statement: str, /, **parameters: object) -> Sequence[Row]:
        [part] = self._statements[statement].parts
        values = {"schema": self._schema} | parameters
        return cast(Sequence[Row], await self._connection.fetch(part.text, *[values[key] for key in part.parameters]))

    async def fetch_each(self, statement: str, items: Sequence[Parameters]) -> Sequence[Row]:
        [part] = self._statements[statement].parts
        if not items:
            return []
        arguments = [[item[key] for key in part.parameters] for item in items]
        if len(arguments) == 1:
            return cast(Sequence[Row], await self._connection.fetch(part.text, *arguments[0]))
        return cast(Sequence[Row], await self._connection.fetchmany(part.text, arguments))

    async def fetch_batch(self, statement: str, items: Sequence[Parameters], /, **shared: object) -> Sequence[Row]:
        return await self.fetch(statement, **columns(items), **shared) if items else []
