"""Named statements on an asyncpg connection."""

from __future__ import annotations

import json
from collections.abc import Callable, Coroutine, Mapping, Sequence
from datetime import datetime
from typing import Any, Protocol, cast
from uuid import UUID

from flowfabric.store.session import Batch, Parameters, Row, check_row_count
from flowfabric.store.statements import (
    Part,
    Statement,
    combine_batches,
    combine_batches_if_held,
    combine_reads,
    combine_writes,
    to_column,
    to_columns,
)

Clock = Callable[[], datetime]
# The statements that a session replaces by others with the same parameters.
Variants = Mapping[str, str]
NO_VARIANTS: Variants = {}


class DriverConnection(Protocol):
    """The methods of an asyncpg connection that a session needs."""

    def fetch(self, query: str, /, *arguments: Any) -> Coroutine[Any, Any, Any]:
        """Run a statement and return its rows."""

    def fetchmany(self, query: str, arguments: Any, /) -> Coroutine[Any, Any, Any]:
        """Run a statement once for each list of arguments and return all rows."""


class PostgresSession:
    """A session on one connection. Its time comes from the server's clock or from a test clock."""

    def __init__(
        self,
        connection: DriverConnection,
        statements: Mapping[str, Statement],
        schema: str,
        clock: Clock | None,
        variants: Variants = NO_VARIANTS,
    ) -> None:
        self._connection = connection
        self._statements = statements
        self._schema = schema
        self._clock = clock
        self._variants = variants
        self._last_now: datetime | None = None

    @property
    def bound_now(self) -> datetime | None:
        return self._clock() if self._clock else None

    async def now(self) -> datetime:
        if self._clock:
            return self._clock()
        if self._last_now is not None:
            return self._last_now
        [row] = await self._connection.fetch("SELECT clock_timestamp() AS now")
        return cast(datetime, row["now"])

    async def fetch(self, statement: str, /, **parameters: object) -> Sequence[Row]:
        [part] = self._statements[self._variants.get(statement, statement)].parts
        values = {"schema": self._schema} | parameters
        rows = cast(Sequence[Row], await self._connection.fetch(part.text, *_bind(part, values)))
        # The time is valid until the next statement, which may wait for a lock.
        self._last_now = rows[-1].get("now") if rows else None
        return rows

    async def fetch_all(self, *reads: tuple[str, Parameters]) -> list[Sequence[Row]]:
        self._last_now = None
        parts = tuple(self._statements[statement].parts[0] for statement, _ in reads)
        values = [
            value for part, (_, parameters) in zip(parts, reads, strict=True) for value in _bind(part, parameters)
        ]
        [row] = await self._connection.fetch(combine_reads(parts), *values)
        return [json.loads(document) if document else [] for document in row]

    async def fetch_each(self, statement: str, items: Sequence[Parameters]) -> Sequence[Row]:
        [part] = self._statements[statement].parts
        if not items:
            return []
        self._last_now = None
        arguments = [_bind(part, item) for item in items]
        if len(arguments) == 1:
            return cast(Sequence[Row], await self._connection.fetch(part.text, *arguments[0]))
        return cast(Sequence[Row], await self._connection.fetchmany(part.text, arguments))

    async def write(self, *batches: Batch) -> None:
        nonempty = [(name, items) for name, items in batches if items]
        if not nonempty:
            return
        self._last_now = None
        text = combine_batches(tuple(self._statements[name].over(items[0]) for name, items in nonempty))
        [row] = await self._connection.fetch(text, *[_to_document(items) for _, items in nonempty])
        for (name, items), number in zip(nonempty, row["written"], strict=True):
            check_row_count(name, items, number)

    async def write_if_unchanged(self, row_versions: Sequence[Parameters], *batches: Batch) -> set[UUID]:
        """Write batches for those executions whose row is not locked and has the given version. Return their ids."""
        nonempty = [(name, items) for name, items in batches if items]
        self._last_now = None
        first = self._statements["held_as_seen"].parts[0]
        text = combine_batches_if_held(first, tuple(self._statements[name].over(items[0]) for name, items in nonempty))
        values = _bind(first, to_columns(row_versions))
        [row] = await self._connection.fetch(text, *values, *[_to_document(items) for _, items in nonempty])
        unchanged = set(row["held"])
        for (name, items), number in zip(nonempty, row["written"], strict=True):
            check_row_count(name, [item for item in items if item["execution_id"] in unchanged], number)
        return unchanged

    async def fetch_batch(self, statement: str, items: Sequence[Parameters], /, **shared: object) -> Sequence[Row]:
        return await self.fetch(statement, **to_columns(items), **shared) if items else []

    async def fetch_rows(
        self, statement: str, names: Sequence[str], rows: Sequence[Sequence[object]], /, **shared: object
    ) -> Sequence[Row]:
        # Drivers of callers take only a list for an array.
        columns = {name: to_column(list(values)) for name, values in zip(names, zip(*rows, strict=True), strict=True)}
        return await self.fetch(statement, **columns, **shared) if rows else []

    async def run_batches(
        self, *batches: Batch, beside: Sequence[tuple[str, Parameters]] = (), **shared: object
    ) -> None:
        parameters = [(name, to_columns(items)) for name, items in batches if items] + [
            (name, {**one}) for name, one in beside
        ]
        statements = [(self._statements[name].parts[0], values | shared) for name, values in parameters]
        if statements:
            self._last_now = None
            values = [value for part, parameters in statements for value in _bind(part, parameters)]
            await self._connection.fetch(combine_writes(tuple(part for part, _ in statements)), *values)


def _bind(part: Part, parameters: Parameters) -> list[object]:
    """Return the values of a statement's parameters in order."""
    return [parameters[key] for key in part.parameters]


def _to_document(items: Sequence[Parameters]) -> str:
    """Return rows as a JSON array of objects. Leave out keys with the value None."""
    return _encode([{name: value for name, value in item.items() if value is not None} for item in items])


def _to_text(value: object) -> str:
    return "\\x" + value.hex() if isinstance(value, bytes) else str(value)


# Rows contain no circular references, so the check for them is off.
_encode = json.JSONEncoder(default=_to_text, separators=(",", ":"), check_circular=False).encode
