"""What the aggregates need from a connection inside a transaction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Protocol

Row = Mapping[str, Any]
Parameters = Mapping[str, object]
Batch = tuple[str, Sequence[Parameters]]


class Session(Protocol):
    """A connection in a transaction that executes named statements."""

    async def now(self) -> datetime:
        """The store's clock."""

    @property
    def bound_now(self) -> datetime | None:
        """The time that statements bind: the writer's own on SQLite, on PostgreSQL only that of a test clock."""

    async def fetch(self, statement: str, /, **parameters: object) -> Sequence[Row]:
        """The rows of one statement."""

    async def fetch_all(self, *reads: tuple[str, Parameters]) -> list[Sequence[Row]]:
        """The rows of several statements that only read, in one round trip where that saves any. Ids and times may
        come as text then, bytes as hexadecimal digits, and JSON as what it stands for."""

    async def fetch_each(self, statement: str, items: Sequence[Parameters]) -> Sequence[Row]:
        """The rows of a statement that is run once for each item."""

    async def write(self, *batches: Batch) -> None:
        """Runs statements over the rows that go with them, together where that saves round trips. None may depend on
        what another writes, and each must return as many rows as it was given."""

    async def fetch_batch(self, statement: str, items: Sequence[Parameters], /, **shared: object) -> Sequence[Row]:
        """The rows of a hot statement over a batch: one statement where arrays can be bound, one per item elsewhere."""

    async def run_batches(
        self, *batches: Batch, beside: Sequence[tuple[str, Parameters]] = (), **shared: object
    ) -> None:
        """Runs such statements that answer nothing, and others beside them, together where that saves round trips. None
        may depend on what another writes."""


def check_written(statement: str, items: Sequence[Parameters], written: int) -> None:
    """Whoever writes has locked what it decided on, so this cannot fail unless it decided on something else."""
    assert written == len(items), f"{statement} wrote {written} of {len(items)} rows: what it was decided on is gone"
