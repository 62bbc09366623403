"""Remove the dead rows of the tables that claims read, which autovacuum visits only once a minute.

Each claim leaves a dead entry at the head of the queue index, and later claims read it until VACUUM removes it.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import asyncpg

from flowfabric.backends.postgres.errors import reaching, translate_unsent
from flowfabric.backends.postgres.pool import EngineConnection

if TYPE_CHECKING:
    Connection = asyncpg.Connection[Any]

HOT_TABLES = ("execution", "purged")
MAX_VACUUM_S = 600
_CONNECT_S = 10
_CLOSE_S = 2
_LOCK = "SELECT pg_try_advisory_lock(hashtextextended('flowfabric vacuum of ' || $1, 0))"
# The server only warns about a table that this role may not vacuum. The privilege MAINTAIN exists since version 17.
_MAY_VACUUM = """
SELECT bool_and(
    pg_has_role(c.relowner, 'USAGE')
    OR pg_has_role(d.datdba, 'USAGE')
    {or_maintain}
)
FROM pg_catalog.pg_class AS c
JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
CROSS JOIN pg_catalog.pg_database AS d
WHERE n.nspname = $1
    AND c.relname = ANY($2::TEXT[])
    AND d.datname = current_database()
"""
_OR_MAINTAIN = "OR has_table_privilege(c.oid, 'MAINTAIN')"


# The transactions and slots that have blocked the removal of dead rows for over a minute.
_BLOCKERS = """
SELECT blocker.name
FROM (
    SELECT
        format(
            'the transaction of process %s (%s), open since %s',
            a.pid,
            CONCAT_WS(', ', a.usename, NULLIF(a.application_name, ''), a.state),
            to_char(a.xact_start AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS') || ' UTC'
        ) AS name,
        a.xact_start AS since
    FROM pg_catalog.pg_stat_activity AS a
    WHERE a.datname = current_database()
        AND a.pid <> pg_backend_pid()
        AND a.backend_type = 'client backend'
        AND COALESCE(a.backend_xmin, a.backend_xid) IS NOT NULL
        AND a.query NOT ILIKE 'VACUUM%'
    UNION ALL
    SELECT format('the prepared transaction %s of %s', p.gid, p.owner), p.prepared
    FROM pg_catalog.pg_prepared_xacts AS p
    WHERE p.database = current_database()
    UNION ALL
    SELECT format('the replication slot %s', s.slot_name), NULL
    FROM pg_catalog.pg_replication_slots AS s
    WHERE s.xmin IS NOT NULL
        AND age(s.xmin) > 100000
) AS blocker
WHERE COALESCE(blocker.since < clock_timestamp() - INTERVAL '1 minute', TRUE)
ORDER BY blocker.since NULLS LAST
LIMIT 3
"""
_DEAD_ROWS = """
SELECT COALESCE(SUM(t.n_dead_tup), 0)::BIGINT
FROM pg_catalog.pg_stat_user_tables AS t
WHERE t.schemaname = $1
    AND t.relname = 'execution'
"""


async def read_dead_rows(connection: Connection, schema: str) -> tuple[int, tuple[str, ...]]:
    """Return about how many rows of executions are dead, and what keeps PostgreSQL from removing them."""
    rows = await connection.fetch(_BLOCKERS)
    return int(await connection.fetchval(_DEAD_ROWS, schema)), tuple(row["name"] for row in rows)


async def vacuum(url: str, schema: str) -> bool:
    """Vacuum the hot tables over a separate connection, unless another process does. Return False if refused.

    A process that dies leaves no lock behind, because the lock belongs to the connection.
    """
    try:
        with reaching(url):
            connection = await asyncpg.connect(
                url,
                connection_class=EngineConnection,
                timeout=_CONNECT_S,
                command_timeout=MAX_VACUUM_S,
                server_settings={"application_name": "flowfabric-vacuum", "statement_timeout": "0"},
            )
    except Exception as error:
        raise translate_unsent(error) from error
    try:
        return await _vacuum(connection, schema)
    except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
        raise translate_unsent(error) from error
    finally:
        with contextlib.suppress(Exception):
            # If this task is cancelled, the driver asks the server to cancel the VACUUM, and `close` waits for that.
            await connection.close(timeout=_CLOSE_S)


async def _vacuum(connection: Connection, schema: str) -> bool:
    if not await _may_vacuum(connection, schema):
        return False
    if await connection.fetchval(_LOCK, schema):
        tables = ", ".join(f'"{schema}".{table}' for table in HOT_TABLES)
        # Truncation would lock out all readers. A table that is being vacuumed already is skipped.
        await connection.execute(f"VACUUM (TRUNCATE off, SKIP_LOCKED on) {tables}")
    return True


async def _may_vacuum(connection: Connection, schema: str) -> bool:
    or_maintain = _OR_MAINTAIN if connection.get_server_version().major >= 17 else ""
    return bool(await connection.fetchval(_MAY_VACUUM.format(or_maintain=or_maintain), schema, list(HOT_TABLES)))
