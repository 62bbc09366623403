"""Executing named statements on a SQLite connection. Nothing here ever suspends."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, cast
from uuid import UUID

from flowfabric.sqlstore.rows import since_1970_us
from flowfabric.sqlstore.session import Batch, Parameters, Row, check_written
from flowfabric.sqlstore.statements import Part, Statement

_ROWS = (1, 8, 32, 128)
_MOST_ROWS = _ROWS[-1]


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

    async def fetch_all(self, *reads: tuple[str, Parameters]) -> list[Sequence[Row]]:
        return [await self.fetch(statement, **parameters) for statement, parameters in reads]

    async def fetch_each(self, statement: str, items: Sequence[Parameters]) -> Sequence[Row]:
        script = self._statements[statement]
        return [row for item in items for row in self._script(script, _bound(item))]

    async def write(self, *batches: Batch) -> None:
        for statement, items in batches:
            for start in range(0, len(items), _MOST_ROWS):
                self._write(statement, items[start : start + _MOST_ROWS])

    async def fetch_batch(self, statement: str, items: Sequence[Parameters], /, **shared: object) -> Sequence[Row]:
        script, common = self._statements[statement], _bound(shared)
        found: list[Row] = []
        for start in range(0, len(items), _MOST_ROWS):
            chunk = items[start : start + _MOST_ROWS]
            found += self._script_over(script, [common | _bound(item) for item in chunk])
        return found

    async def run_batches(
        self, *batches: Batch, beside: Sequence[tuple[str, Parameters]] = (), **shared: object
    ) -> None:
        for statement, items in batches:
            await self.fetch_batch(statement, items, **shared)
        for statement, given in beside:
            await self.fetch(statement, **given, **shared)

    def _write(self, statement: str, items: Sequence[Parameters]) -> None:
        part = self._statements[statement].over(items[0])
        written = self._over(part, [_bound(item) for item in items])
        check_written(statement, items, len(written or ()))

    def _script(self, statement: Statement, bound: dict[str, object]) -> list[Row]:
        first, *rest = statement.parts
        found = cast(list[Row], self._connection.execute(first.text, bound).fetchall())
        if found:
            for part in rest:
                self._connection.execute(part.text, bound)
        return found

    def _script_over(self, statement: Statement, items: list[dict[str, object]]) -> list[Row]:
        """The rows of the last part that answers any; the parts after the first see the items that it let pass."""
        first, *rest = statement.parts
        answer = self._over(first, items)
        if rest and answer is not None and len(answer) < len(items):
            passed, identity = {row["id"] for row in answer}, first.parameters[0]
            items = [item for item in items if item[identity] in passed]
        for part in rest if items else ():
            found = self._over(part, items)
            answer = answer if found is None else found
        return answer or []

    def _over(self, part: Part, items: list[dict[str, object]]) -> list[Row] | None:
        size = next(size for size in _ROWS if size >= len(items))
        values = [item[name] for item in items for name in part.parameters]
        # Rows of nulls fill the statement up to one of a few sizes, so that few texts are compiled; they match nothing.
        values += [None] * (size - len(items)) * len(part.parameters)
        cursor = self._connection.execute(part.over(size), values)
        return cast(list[Row], cursor.fetchall()) if cursor.description else None


def _bound(parameters: Parameters) -> dict[str, object]:
    """The values as SQLite stores them."""
    return {name: value if type(value) in _PLAIN else _stored(value) for name, value in parameters.items()}


def _stored(value: Any) -> object:
    convert = _CONVERTED.get(type(value))
    if convert is not None:
        return convert(value)
    return str(value) if isinstance(value, str) else value


def _as_json(values: list[object]) -> str:
    return json.dumps([_stored(value) for value in values])


_PLAIN = frozenset({str, int, bytes, type(None), bool})
_CONVERTED: dict[type, Callable[[Any], object]] = {UUID: str, datetime: since_1970_us, list: _as_json}
