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
from flowfabric.sqlstore.statements import Statement


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
        return self._script(self._statements[statement], _bound(parameters))

    async def fetch_each(self, statement: str, items: Sequence[Parameters]) -> Sequence[Row]:
        script = self._statements[statement]
        return [row for item in items for row in self._script(script, _bound(item))]

    async def fetch_batch(self, statement: str, items: Sequence[Parameters], /, **shared: object) -> Sequence[Row]:
        script, common = self._statements[statement], _bound(shared)
        return [row for item in items for row in self._script(script, common | _bound(item))]

    def _script(self, statement: Statement, bound: dict[str, object]) -> list[Row]:
        first, *rest = statement.parts
        found = cast(list[Row], self._connection.execute(first.text, bound).fetchall())
        if found:
            for part in rest:
                self._connection.execute(part.text, bound)
        return found


def _bound(parameters: Parameters) -> dict[str, object]:
    """The values as SQLite stores them."""
    return {name: value if type(value) in _PLAIN else _stored(value) for name, value in parameters.items()}


def _stored(value: object) -> object:
    match value:
        case UUID():
            return str(value)
        case datetime():
            return since_1970_us(value)
        case list():
            return json.dumps([_stored(item) for item in value])
        case str():
            return str(value)
        case _:
            return value


_PLAIN = frozenset({str, int, bytes, type(None), bool})
