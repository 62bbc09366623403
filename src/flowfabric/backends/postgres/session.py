"""Executing named statements on an asyncpg connection."""

from __future__ import annotations

import json
from collections.abc import Callable, Coroutine, Mapping, Sequence
from datetime import datetime
from typing import Any, Protocol, cast
from uuid import UUID

from flowfabric.backends.postgres.arrays import written
from flowfabric.sqlstore.session import Batch, Parameters, Row, check_written
from flowfabric.sqlstore.statements import Part, Statement, columns, reading, together, together_if_held, writing

_HOLDING = (("minting", "minting"), ("held", "held_as_seen"))
Clock = Callable[[], datetime]


class Queries(Protocol):
    """What is needed of a connection, in the words of asyncpg."""

    def fetch(self, query: str, /, *arguments: Any) -> Coroutine[Any, Any, Any]:
        """The rows of a statement."""

    def fetchmany(self, query: str, arguments: Any, /) -> Coroutine[Any, Any, Any]:
        """The rows of a statement that is run once for each list of arguments."""


class PostgresSession:
    """A connection; the time is the server's unless a test clock stands in for it."""

    def __init__(
        self,
        connection: Queries,
        statements: Mapping[str, Statement],
        schema: str,
        clock: Clock | None,
    ) -> None:
        self._connection = connection
        self._statements = statements
        self._schema = schema
        self._clock = clock
        self._told: datetime | None = None

    @property
    def bound_now(self) -> datetime | None:
        return self._clock() if self._clock else None

    async def now(self) -> datetime:
        if self._clock:
            return self._clock()
        if self._told is not None:
            return self._told
        [row] = await self._connection.fetch("SELECT clock_timestamp() AS now")
        return cast(datetime, row["now"])

    async def fetch(self, statement: str, /, **parameters: object) -> Sequence[Row]:
        [part] = self._statements[statement].parts
        values = {"schema": self._schema} | parameters
        found = cast(Sequence[Row], await self._connection.fetch(part.text, *_bound(part, values)))
        # The time is good until the next statement, which may wait for somebody.
        self._told = found[-1].get("now") if found else None
        return found

    async def fetch_all(self, *reads: tuple[str, Parameters]) -> list[Sequence[Row]]:
        self._told = None
        parts = tuple(self._statements[statement].parts[0] for statement, _ in reads)
        values = [value for part, (_, given) in zip(parts, reads, strict=True) for value in _bound(part, given)]
        [row] = await self._connection.fetch(reading(parts), *values)
        return [json.loads(found) if found else [] for found in row]

    async def fetch_each(self, statement: str, items: Sequence[Parameters]) -> Sequence[Row]:
        [part] = self._statements[statement].parts
        if not items:
            return []
        self._told = None
        arguments = [_bound(part, item) for item in items]
        if len(arguments) == 1:
            return cast(Sequence[Row], await self._connection.fetch(part.text, *arguments[0]))
        return cast(Sequence[Row], await self._connection.fetchmany(part.text, arguments))

    async def write(self, *batches: Batch) -> None:
        asked = [(name, items) for name, items in batches if items]
        if not asked:
            return
        self._told = None
        text = together(tuple(self._statements[name].over(items[0]) for name, items in asked))
        [row] = await self._connection.fetch(text, *[_document(items) for _, items in asked])
        for (name, items), number in zip(asked, row["written"], strict=True):
            check_written(name, items, number)

    async def write_held(self, marks: Sequence[Parameters], kid: str | None, *batches: Batch) -> set[UUID]:
        """The same for rows of executions that are held as they were seen, by one statement; answers which are."""
        asked = [(name, items) for name, items in batches if items]
        self._told = None
        first = tuple((title, self._statements[name].parts[0]) for title, name in _HOLDING)
        text = together_if_held(first, tuple(self._statements[name].over(items[0]) for name, items in asked))
        given = columns(marks) | {"kid": kid, "now": self.bound_now}
        values = [value for _, part in first for value in _bound(part, given)]
        [row] = await self._connection.fetch(text, *values, *[_document(items) for _, items in asked])
        held = set(row["held"])
        for (name, items), number in zip(asked, row["written"], strict=True):
            check_written(name, [item for item in items if item["execution_id"] in held], number)
        return held

    async def fetch_batch(self, statement: str, items: Sequence[Parameters], /, **shared: object) -> Sequence[Row]:
        return await self.fetch(statement, **columns(items), **shared) if items else []

    async def run_batches(
        self, *batches: Batch, beside: Sequence[tuple[str, Parameters]] = (), **shared: object
    ) -> None:
        given = [(name, columns(items)) for name, items in batches if items] + [(name, {**one}) for name, one in beside]
        asked = [(self._statements[name].parts[0], values | shared) for name, values in given]
        if asked:
            self._told = None
            values = [value for part, given in asked for value in _bound(part, given)]
            await self._connection.fetch(writing(tuple(part for part, _ in asked)), *values)


def _bound(part: Part, given: Parameters) -> list[object]:
    """The values of a statement's parameters in order, arrays as text."""
    return [written(kind, given[key]) for key, kind in zip(part.parameters, part.kinds, strict=True)]


def _document(items: Sequence[Parameters]) -> str:
    """Rows as a JSON array; what is null is left out."""
    return _encode([{name: value for name, value in item.items() if value is not None} for item in items])


def _as_text(value: object) -> str:
    return "\\x" + value.hex() if isinstance(value, bytes) else str(value)


# Rows hold nothing that could hold itself, so nobody looks for that.
_encode = json.JSONEncoder(default=_as_text, separators=(",", ":"), check_circular=False).encode
