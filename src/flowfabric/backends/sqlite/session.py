"""Executing named statements on a SQLite connection. Nothing here ever suspends."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Coroutine, Mapping, Sequence
from datetime import datetime
from typing import Any, TypeVar, cast
from uuid import UUID

from flowfabric.sqlstore.rows import since_1970_us
from flowfabric.sqlstore.session import Parameters, Row
from flowfabric.sqlstore.statements import Statement

Answer = TypeVar("Answer")


class SqliteSession:
    """A connection inside a transaction whose time is fixed when it begins."""

    def __init__(self, connection: sqlite3.Connection, statements: Mapping[str, Statement], now: datetime) -> None:
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


def drive(coroutine: Coroutine[Any, Any, Answer]) -> Answer:
    """Runs the body of an operation to its end at once, which it does because its transaction never suspends."""
    try:
        coroutine.send(None)
    except StopIteration as done:
        return cast(Answer, done.value)
    coroutine.close()
    raise RuntimeError("an operation awaited something other than its transaction")


def _bound(parameters: Parameters) -> dict[str, object]:
    """The values as SQLite stores them; what is not listed it stores as it is."""
    bound = dict(parameters)
    for name, value in parameters.items():
        stored = _STORED_AS.get(type(value))
        if stored is not None:
            bound[name] = stored(value)
    return bound


def _as_json(values: list[object]) -> str:
    return json.dumps([str(value) if isinstance(value, UUID) else value for value in values])


_STORED_AS: dict[type, Callable[[Any], object]] = {UUID: str, datetime: since_1970_us, list: _as_json}
