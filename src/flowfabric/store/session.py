"""The session with which the aggregate stores run statements."""

from __future__ import annotations

from collections.abc import Coroutine, Mapping, Sequence
from datetime import datetime
from typing import Any, Protocol, TypeVar, cast

from flowfabric.store.commit_hints import CommitHints

Row = Mapping[str, Any]
Parameters = Mapping[str, object]
Batch = tuple[str, Sequence[Parameters]]


class Session(Protocol):
    """A connection in a transaction that runs named statements."""

    async def now(self) -> datetime:
        """Return the store's time."""

    @property
    def bound_now(self) -> datetime | None:
        """The time to pass to statements. None means that statements use the server's clock, as on PostgreSQL."""

    async def fetch(self, statement: str, /, **parameters: object) -> Sequence[Row]:
        """Run one statement and return its rows."""

    async def fetch_all(self, *reads: tuple[str, Parameters]) -> list[Sequence[Row]]:
        """Run several reading statements and return the rows of each, in one round trip where possible.

        In these rows, ids and times may be text, bytes may be hexadecimal digits, and JSON may already be parsed.
        """

    async def fetch_each(self, statement: str, items: Sequence[Parameters]) -> Sequence[Row]:
        """Run a statement once for each item and return all rows."""

    async def write(self, *batches: Batch) -> None:
        """Run statements over batches of rows, in one round trip where possible.

        No statement may depend on what another one writes. Each statement must return as many rows as it receives.
        """

    async def fetch_batch(self, statement: str, items: Sequence[Parameters], /, **shared: object) -> Sequence[Row]:
        """Run a hot statement over a batch and return its rows."""

    async def fetch_rows(
        self, statement: str, names: Sequence[str], rows: Sequence[Sequence[object]], /, **shared: object
    ) -> Sequence[Row]:
        """Run a hot statement over a batch of rows with the values of these parameters, and return its rows."""

    async def run_batches(
        self, *batches: Batch, beside: Sequence[tuple[str, Parameters]] = (), **shared: object
    ) -> None:
        """Run batches, and the single statements in `beside`, in one round trip where possible.

        Return no rows. No statement may depend on what another one writes.
        """


class AggregateStore:
    """The base class of aggregate stores: the session of a transaction, and the hints to send after its commit."""

    def __init__(self, session: Session, hints: CommitHints) -> None:
        self._session = session
        self._hints = hints


def check_row_count(statement: str, items: Sequence[Parameters], written: int) -> None:
    """Assert that a statement has written all rows, since the caller locked them before it decided."""
    assert written == len(items), (
        f"{statement} wrote {written} of {len(items)} rows; rows that were locked have changed"
    )


Result = TypeVar("Result")


def run_to_completion(coroutine: Coroutine[Any, Any, Result]) -> Result:
    """Run a coroutine that never suspends, and return its result. No event loop is needed."""
    try:
        coroutine.send(None)
    except StopIteration as done:
        return cast(Result, done.value)
    coroutine.close()
    raise RuntimeError("an operation awaited something other than its transaction")
