"""What a PostgreSQL server says of itself and of the schema."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any

from flowfabric.sqlstore.migrations import READ_APPLIED
from flowfabric.sqlstore.statements import Dialect
from flowfabric.store.facts import StoreFacts

if TYPE_CHECKING:
    import asyncpg

_SETTINGS = ("fsync", "full_page_writes", "synchronous_commit")
_NOW = "SELECT COALESCE($1, clock_timestamp())"


async def facts_of(connection: asyncpg.Connection[Any], dialect: Dialect, now: datetime | None) -> StoreFacts:
    """The version of the server and of the schema, and the settings under which it acknowledges."""
    settings = {name: str(await connection.fetchval(f"SHOW {name}")) for name in _SETTINGS}
    applied = await connection.fetch(dialect.translate(READ_APPLIED).text)
    version = str(await connection.fetchval("SHOW server_version"))
    return StoreFacts(
        backend="postgresql", version=version.split(" ", maxsplit=1)[0], schema_version=applied[-1]["version"],
        settings=settings, now=await connection.fetchval(_NOW, now),
    )  # fmt: skip
