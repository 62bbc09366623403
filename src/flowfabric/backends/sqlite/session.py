"""Run named statements on a SQLite connection. The coroutines of a session never suspend."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, cast
from uuid import UUID

from flowfabric.store.rows import to_epoch_us
from flowfabric.store.session import Batch, Parameters, Row, check_row_count
from flowfabric.store.statements import Part, Statement

_BATCH_SIZES = (1, 8, 32, 128)
_MAX_ROWS = _BATCH_SIZES[-1]


class SqliteSession:
    """A session on the writer's connection or a caller's cursor. Its time is fixed when the transaction begins."""

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
        return self._run_script(self._statements[statement], _bind(parameters))

    async def fetch_all(self, *reads: tuple[str, Parameters]) -> list[Sequence[Row]]:
        return [await self.fetch(statement, **parameters) for statement, parameters in reads]

    async def fetch_each(self, statement: str, items: Sequence[Parameters]) -> Sequence[Row]:
        script = self._statements[statement]
        return [row for item in items for row in self._run_script(script, _bind(item))]

    async def write(self, *batches: Batch) -> None:
        for statement, items in batches:
            for start in range(0, len(items), _MAX_ROWS):
                self._write_batch(statement, items[start : start + _MAX_ROWS])

    async def fetch_batch(self, statement: str, items: Sequence[Parameters], /, **shared: object) -> Sequence[Row]:
        script, common = self._statements[statement], _bind(shared)
        rows: list[Row] = []
        for start in range(0, len(items), _MAX_ROWS):
            chunk = items[start : start + _MAX_ROWS]
            rows += self._run_batch_script(script, [common | _bind(item) for item in chunk])
        return rows

    async def fetch_rows(
        self, statement: str, names: Sequence[str], rows: Sequence[Sequence[object]], /, **shared: object
    ) -> Sequence[Row]:
        return await self.fetch_batch(statement, [dict(zip(names, row, strict=True)) for row in rows], **shared)

    async def run_batches(
        self, *batches: Batch, beside: Sequence[tuple[str, Parameters]] = (), **shared: object
    ) -> None:
        for statement, items in batches:
            await self.fetch_batch(statement, items, **shared)
        for statement, parameters in beside:
            await self.fetch(statement, **parameters, **shared)

    def _write_batch(self, statement: str, items: Sequence[Parameters]) -> None:
        part = self._statements[statement].over(items[0])
        written = self._run_batch(part, [_bind(item) for item in items])
        check_row_count(statement, items, len(written or ()))

    def _run_script(self, statement: Statement, bound: dict[str, object]) -> list[Row]:
        first, *rest = statement.parts
        rows = cast(list[Row], self._connection.execute(first.text, bound).fetchall())
        if rows:
            for part in rest:
                self._connection.execute(part.text, bound)
        return rows

    def _run_batch_script(self, statement: Statement, items: list[dict[str, object]]) -> list[Row]:
        """Run a script of several parts over a batch. Return the rows of the last part that returns rows.

        The later parts get only the items for which the first part returned a row.
        """
        first, *rest = statement.parts
        rows = self._run_batch(first, items)
        if rest and rows is not None and len(rows) < len(items):
            passed_ids, id_column = {row["id"] for row in rows}, first.parameters[0]
            items = [item for item in items if item[id_column] in passed_ids]
        for part in rest if items else ():
            part_rows = self._run_batch(part, items)
            rows = rows if part_rows is None else part_rows
        return rows or []

    def _run_batch(self, part: Part, items: list[dict[str, object]]) -> list[Row] | None:
        size = next(size for size in _BATCH_SIZES if size >= len(items))
        values = [item[name] for item in items for name in part.parameters]
        # Pad the batch with rows of nulls, which match nothing. With only a few sizes, few statements are compiled.
        values += [None] * (size - len(items)) * len(part.parameters)
        cursor = self._connection.execute(part.over(size), values)
        return cast(list[Row], cursor.fetchall()) if cursor.description else None


def _bind(parameters: Parameters) -> dict[str, object]:
    """Return the parameters with each value converted to the type that SQLite stores."""
    return {name: value if type(value) in _PLAIN else _to_stored(value) for name, value in parameters.items()}


def _to_stored(value: Any) -> object:
    convert = _CONVERTERS.get(type(value))
    if convert is not None:
        return convert(value)
    return str(value) if isinstance(value, str) else value


def _to_json(values: list[object]) -> str:
    return json.dumps([_to_stored(value) for value in values])


_PLAIN = frozenset({str, int, bytes, type(None), bool})
_CONVERTERS: dict[type, Callable[[Any], object]] = {UUID: str, datetime: to_epoch_us, list: _to_json}
