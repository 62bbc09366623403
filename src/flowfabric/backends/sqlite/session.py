"""Executing named statements on a SQLite connection. Nothing here ever suspends."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import cast
from uuid import UUID

from flowfabric.sqlstore.rows import since_1970_us
from flowfabric.sqlstore.session import Parameters, Row
from flowfabric.sqlstore.statements import Part, Statement


class SqliteSession:
    """A connection inside a transaction whose time is fixed when it begins, or a cursor of somebody else's."""

    def __init__(
        self, connection: sqlite3.Connection | sqlite3.Cursor, statements: Mapping[str, Statement], now: datetime
    ) -> None:
        self._connection = connection
        self._statements = statements
        self.bound_now: datetime | None = now
        self._now = now

    async def now(self) -> datetime:
        return self._now

    async def fetch(self, statement: str, /, **parameters: object) -> Sequence[Row]:
        return self._script(self._statements[statement], parameters)

    async def fetch_each(self, statement: str, items: Sequence[Parameters]) -> Sequence[Row]:
        script = self._statements[statement]
        return [row for item in items for row in self._script(script, item)]

    async def fetch_batch(self, statement: str, items: Sequence[Parameters], /, **shared: object) -> Sequence[Row]:
        script = self._statements[statement]
        return [row for item in items for row in self._script(script, shared | dict(item))]

    def _script(self, statement: Statement, parameters: Parameters) -> list[Row]:
        first, *rest = statement.parts
        found = self._execute(first, parameters)
        if found:
            for part in rest:
                self._execute(part, parameters)
        return found

    def _execute(self, part: Part, parameters: Parameters) -> list[Row]:
        bound = {name: _bound(parameters[name]) for name in part.parameters}
        return cast(list[Row], self._connection.execute(part.text, bound).fetchall())


def _bound(value: object) -> object:
    """A value as SQLite stores it."""
    match value:
        case UUID():
            return str(value)
        case datetime():
            return since_1970_us(value)
        case list():
            return json.dumps([_bound(item) for item in value])
        case str():
            return str(value)
        case _:
            return value
