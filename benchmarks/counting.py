"""Counters that do not depend on the machine: WAL, index entries, pages read, and statements in series.

The extension pg_walinspect counts the WAL, and pg_stat_statements counts the pages.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import astuple, dataclass
from typing import Any

import asyncpg

from flowfabric.store.statements import Dialect, Statement, load_statements
from tests.postgres_server import find_binaries

# These statements do not delay a result: notifications are sent beside the work, and duties run in the background.
_BESIDE = ("SELECT set_config('synchronous_commit', 'off', TRUE), pg_notify", "LISTEN", "SELECT (SELECT MIN(")
_INDEX_ENTRIES = ("Btree/INSERT_LEAF", "Btree/INSERT_POST")
_SETTLED_S = 0.05
_POSITION = "SELECT pg_current_wal_flush_lsn()"
_RECORDS = """
    SELECT "resource_manager/record_type" AS type, count::BIGINT AS number, record_size AS size
    FROM pg_get_wal_stats($1, $2, TRUE)
"""
_DATABASE = "dbid = (SELECT oid FROM pg_database WHERE datname = current_database())"
_PAGES = f"""
    SELECT COALESCE(SUM(shared_blks_hit + shared_blks_read), 0)::BIGINT
    FROM pg_stat_statements
    WHERE {_DATABASE}
"""
_CLAIMS = f"""
    SELECT
        COALESCE(SUM(rows), 0)::BIGINT AS rows,
        COALESCE(SUM(shared_blks_hit + shared_blks_read), 0)::BIGINT AS pages
    FROM pg_stat_statements
    WHERE queryid = ANY($1::BIGINT[])
        AND {_DATABASE}
"""


Work = Callable[[], Awaitable[object]]


class NotCountable(Exception):
    """The server cannot count this; the text gives the reason."""


@dataclass(frozen=True, slots=True)
class Counts:
    """The writes and reads of some work, without images of full pages, which depend on the time of a checkpoint."""

    wal_bytes: float
    wal_records: float
    index_entries: float
    pages: float

    def minus(self, other: Counts) -> Counts:
        """Return the difference to some other work."""
        return Counts(*(mine - theirs for mine, theirs in zip(astuple(self), astuple(other), strict=True)))

    def per(self, jobs: int) -> Counts:
        """Return the share of one of these jobs."""
        return Counts(*(value / jobs for value in astuple(self)))


async def count_work(dsn: str, work: Work) -> Counts:
    """Do the work and return its counts. No other work may use the server."""
    connection = await asyncpg.connect(dsn)
    try:
        await _extend(connection)
        began, pages = await connection.fetchval(_POSITION), await connection.fetchval(_PAGES)
        await work()
        await asyncio.sleep(_SETTLED_S)
        ended, pages = await connection.fetchval(_POSITION), await connection.fetchval(_PAGES) - pages
        rows = await connection.fetch(_RECORDS, began, ended)
    finally:
        await connection.close()
    entries = sum(row["number"] for row in rows if row["type"] in _INDEX_ENTRIES)
    return Counts(float(sum(row["size"] for row in rows)), sum(row["number"] for row in rows), entries, pages)


@dataclass(frozen=True, slots=True)
class ClaimPages:
    """How many rows the claims of a database have taken since its creation, and how many pages they visited."""

    rows: int
    pages: int

    def per_row_since(self, before: ClaimPages) -> float:
        """Return the pages per claimed row since an earlier count."""
        return (self.pages - before.pages) / max(1, self.rows - before.rows)


class ClaimCounter:
    """Counts the pages that claims visit, over one connection to their database."""

    def __init__(self, connection: asyncpg.Connection, query_ids: Sequence[int]) -> None:
        self._connection = connection
        self._query_ids = query_ids

    @classmethod
    async def on(cls, connection: asyncpg.Connection) -> ClaimCounter:
        """Return a counter for the database of this connection, whose store exists."""
        await _extend(connection)
        statements = load_statements(Dialect('"flowfabric".', numbered=True), "flowfabric.backends.postgres")
        claims = [statement for name, statement in statements.items() if name.startswith("claim_")]
        query_ids = [query_id for claim in claims if (query_id := await _query_id(connection, claim)) is not None]
        return cls(connection, query_ids)

    async def read(self) -> ClaimPages:
        """Return the totals up to now."""
        [row] = await self._connection.fetch(_CLAIMS, self._query_ids)
        return ClaimPages(row["rows"], row["pages"])


def server_settings() -> dict[str, str]:
    """Return the settings that let a server of our own count pages, or none if it lacks the library."""
    root = find_binaries().parent
    exists = any((root / folder / "pg_stat_statements.so").exists() for folder in ("lib", "lib/postgresql"))
    return {"shared_preload_libraries": "pg_stat_statements"} if exists else {}


class Series:
    """The statements of this process in time, and how many of them a result had to wait for one after another."""

    def __init__(self) -> None:
        self._spans: list[tuple[float, float]] = []
        self._made: Any = asyncpg.Connection.__init__

    def __enter__(self) -> Series:
        made = self._made

        def make(connection: Any, *arguments: Any, **named: Any) -> None:
            made(connection, *arguments, **named)
            connection.add_query_logger(self._note)

        setattr(asyncpg.Connection, "__init__", make)  # noqa: B010 - the type checker forbids the short way
        return self

    def __exit__(self, *_: object) -> None:
        setattr(asyncpg.Connection, "__init__", self._made)  # noqa: B010

    async def median(self, prepare: Callable[[], Awaitable[Work]], times: int) -> float:
        """Prepare and do some work several times, and return the median number of statements in series."""
        return statistics.median([await self._count(await prepare()) for _ in range(times)])

    async def _count(self, work: Work) -> int:
        await asyncio.sleep(_SETTLED_S)
        began = time.monotonic()
        self._spans.clear()
        await work()
        ended = time.monotonic()
        await asyncio.sleep(0)
        return longest_series([span for span in self._spans if began <= span[0] and span[1] <= ended])

    def _note(self, record: Any) -> None:
        if " ".join(record.query.split()).startswith(_BESIDE):
            return
        # The event loop calls this some time after the statement. Only the first half of the span is kept, so that two
        # statements in series do not seem to overlap.
        began = time.monotonic() - record.elapsed
        self._spans.append((began, began + record.elapsed / 2))


def longest_series(spans: Sequence[tuple[float, float]]) -> int:
    """Return how many of these spans can follow one another without an overlap."""
    number, last = 0, float("-inf")
    for began, ended in sorted(spans, key=lambda span: span[1]):
        if began >= last:
            number, last = number + 1, ended
    return number


async def _extend(connection: asyncpg.Connection) -> None:
    """Create the extensions that count, or raise NotCountable."""
    try:
        await connection.execute("CREATE EXTENSION IF NOT EXISTS pg_walinspect")
        await connection.execute("CREATE EXTENSION IF NOT EXISTS pg_stat_statements")
        await connection.fetchval(_PAGES)
    except asyncpg.PostgresError as error:
        raise NotCountable(str(error)) from error


async def _query_id(connection: asyncpg.Connection, statement: Statement) -> int | None:
    """Return the number under which the server counts a statement, or None if the server does not show it."""
    [part] = statement.parts
    lines = await connection.fetch(f"EXPLAIN (VERBOSE) {part.text}", *[None] * len(part.parameters))
    query_ids = [line[0].rpartition(": ")[2] for line in lines if "Query Identifier" in line[0]]
    return int(query_ids[0]) if query_ids else None
