"""Bringing a PostgreSQL schema to the present version, under an advisory lock."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from flowfabric.core.errors import Unavailable
from flowfabric.sqlstore.migrations import CREATE_TABLE, READ_APPLIED, RECORD, Migration, load_migrations, pending
from flowfabric.sqlstore.statements import Dialect

if TYPE_CHECKING:
    import asyncpg

_SCHEMA_EXISTS = "SELECT EXISTS (SELECT 1 FROM pg_namespace WHERE nspname = $1)"
_TABLE_EXISTS = "SELECT to_regclass($1) IS NOT NULL"
_LOCK = "SELECT pg_advisory_xact_lock(hashtextextended('flowfabric migration of ' || $1, 0))"


async def migrate(connection: asyncpg.Connection[Any], schema: str, dialect: Dialect, may_migrate: bool) -> None:
    """Applies what is missing, whoever comes first; refuses an edited or newer schema."""
    available = load_migrations("flowfabric.backends.postgres")
    applied = await _applied(connection, dialect)
    missing = pending(available, applied)
    if not missing:
        return
    if not may_migrate:
        raise Unavailable(
            "schema_outdated",
            f"the schema lacks {missing[0].name}; run flowfabric migrate, or connect with migrate=True once",
            version=max(applied, default=0),
        )
    # A server may default to a stricter isolation, which would not see what was committed during the wait.
    async with connection.transaction(isolation="read_committed"):
        await connection.execute(_LOCK, schema)
        if not await connection.fetchval(_SCHEMA_EXISTS, schema):
            await connection.execute(f'CREATE SCHEMA "{schema}"')
        await connection.execute(dialect.translate(CREATE_TABLE).text)
        # Another process may have been faster while this one waited for the lock.
        for migration in pending(available, await _applied(connection, dialect)):
            await _apply(connection, dialect, migration)


async def _applied(connection: asyncpg.Connection[Any], dialect: Dialect) -> dict[int, str]:
    if not await connection.fetchval(_TABLE_EXISTS, f"{dialect.table_prefix}migration"):
        return {}
    found = await connection.fetch(dialect.translate(READ_APPLIED).text)
    return {row["version"]: row["sha256"] for row in found}


async def _apply(connection: asyncpg.Connection[Any], dialect: Dialect, migration: Migration) -> None:
    for statement in migration.statements(dialect):
        await connection.execute(statement)
    record = dialect.translate(RECORD)
    await connection.execute(record.text, migration.version, migration.name, migration.sha256)
