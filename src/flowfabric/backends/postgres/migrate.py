"""Migration of a PostgreSQL schema under an advisory lock."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from flowfabric.store.migrations import (
    CREATE_TABLE,
    READ_APPLIED,
    RECORD,
    Migration,
    find_pending,
    load_migrations,
    outdated_error,
    store_not_found_error,
)
from flowfabric.store.statements import Dialect

if TYPE_CHECKING:
    import asyncpg

_SCHEMA_EXISTS = "SELECT EXISTS (SELECT 1 FROM pg_namespace WHERE nspname = $1)"
_TABLE_EXISTS = "SELECT to_regclass($1) IS NOT NULL"
# A statement of a migration would wait for a running VACUUM, and all other statements for that statement.
_CANCEL_VACUUM = """
SELECT pg_cancel_backend(a.pid)
FROM pg_catalog.pg_stat_activity AS a
WHERE a.datname = current_database()
    AND a.usename = current_user
    AND a.application_name = 'flowfabric-vacuum'
"""
_LOCK = "SELECT pg_advisory_xact_lock(hashtextextended('flowfabric migration of ' || $1, 0))"


async def migrate(connection: asyncpg.Connection[Any], schema: str, dialect: Dialect, may_migrate: bool) -> None:
    """Apply missing migrations. Raise if the schema is newer than this program, was edited, or may not be migrated."""
    available = load_migrations("flowfabric.backends.postgres")
    applied = await _read_applied(connection, dialect)
    missing = find_pending(available, applied)
    if not missing:
        return
    if not may_migrate and not applied:
        database = await connection.fetchval("SELECT current_database()")
        problem = f"there is no store in schema {schema} of database {database}"
        raise store_not_found_error(problem, f"--store postgresql://…/{database} --schema {schema}")
    if not may_migrate:
        raise outdated_error(missing[0], applied)
    # With a stricter isolation level, this transaction would not see commits made while it waited for the lock.
    async with connection.transaction(isolation="read_committed"):
        await connection.execute(_LOCK, schema)
        if not await connection.fetchval(_SCHEMA_EXISTS, schema):
            await connection.execute(f'CREATE SCHEMA "{schema}"')
        await connection.execute(dialect.translate(CREATE_TABLE).text)
        # Another process may have migrated while this one waited for the lock.
        await connection.execute(_CANCEL_VACUUM)
        for migration in find_pending(available, await _read_applied(connection, dialect)):
            await _apply(connection, dialect, migration)


async def _read_applied(connection: asyncpg.Connection[Any], dialect: Dialect) -> dict[int, str]:
    if not await connection.fetchval(_TABLE_EXISTS, f"{dialect.table_prefix}migration"):
        return {}
    rows = await connection.fetch(dialect.translate(READ_APPLIED).text)
    return {row["version"]: row["sha256"] for row in rows}


async def _apply(connection: asyncpg.Connection[Any], dialect: Dialect, migration: Migration) -> None:
    for statement in migration.statements(dialect):
        await connection.execute(statement)
    record = dialect.translate(RECORD)
    await connection.execute(record.text, migration.version, migration.name, migration.sha256)
