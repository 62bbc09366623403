"""A store in a schema of a PostgreSQL database."""

from __future__ import annotations

import asyncio
import random
import time
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Any

import asyncpg

from flowfabric.backends.postgres.errors import (
    is_conflict,
    is_locked_or_taken,
    is_temporary,
    reaching,
    translate_unsent,
    undeclared_pooler_error,
)
from flowfabric.backends.postgres.hot_path import SINGLE_VARIANTS, PostgresTransaction
from flowfabric.backends.postgres.keepalive import SERVER_KEEPALIVES, idle_limit_s
from flowfabric.backends.postgres.migrate import migrate
from flowfabric.backends.postgres.notify import PostgresNotificationSource, PostgresNotifier
from flowfabric.backends.postgres.pool import (
    KEEP_STATEMENTS,
    Pool,
    Settings,
    TransactionOptions,
    UnsharedConnection,
    acquire,
    run_in_transaction,
)
from flowfabric.backends.postgres.session import NO_VARIANTS, Clock, DriverConnection, PostgresSession, Variants
from flowfabric.backends.postgres.user_connections import (
    StoreLocation,
    UserTransactionPool,
    adapt_async,
    adapt_sync,
    run_joined,
    translate_joined_errors,
)
from flowfabric.backends.postgres.vacuum import read_dead_rows, vacuum
from flowfabric.core.errors import InvalidRequest, Unavailable
from flowfabric.store.checks import POSTGRES_BACKUPS, backup_unsupported_error, find_violations
from flowfabric.store.forks import Forks, check_not_forked
from flowfabric.store.migrations import READ_APPLIED
from flowfabric.store.ports import Body, JoinedBody, Result, SharedBody, StoreInfo
from flowfabric.store.session import run_to_completion
from flowfabric.store.statements import Dialect, load_statements
from flowfabric.store.transaction import Transaction

if TYPE_CHECKING:
    import asyncpg

    Connection = asyncpg.Connection[Any]


_SETTINGS = ("fsync", "full_page_writes", "synchronous_commit", "tcp_keepalives_idle")
_OVER_TCP = "SELECT inet_client_addr() IS NOT NULL"
_NOW = "SELECT COALESCE($1, clock_timestamp())"
_LAX = """
SELECT CONCAT_WS(' in ', 'role "' || r.rolname || '"', 'database "' || d.datname || '"') AS name
FROM pg_catalog.pg_db_role_setting AS s
LEFT JOIN pg_catalog.pg_roles AS r ON r.oid = s.setrole
LEFT JOIN pg_catalog.pg_database AS d ON d.oid = s.setdatabase
WHERE 'synchronous_commit=off' = ANY(s.setconfig)
    AND (s.setdatabase = 0 OR d.datname = current_database())
ORDER BY name
"""


async def read_store_info(
    connection: asyncpg.Connection[Any], dialect: Dialect, now: datetime | None, *, pooler: bool
) -> StoreInfo:
    """Return the versions of the server and the schema, the durability settings, and how the server is reached."""
    settings = {name: str(await connection.fetchval(f"SHOW {name}")) for name in _SETTINGS}
    reached_by = "tcp" if await connection.fetchval(_OVER_TCP) else "socket"
    settings["reached_by"] = "pooler" if pooler else reached_by
    applied = await connection.fetch(dialect.translate(READ_APPLIED).text)
    version = str(await connection.fetchval("SHOW server_version"))
    return StoreInfo(
        backend="postgresql",
        version=version.split(" ", maxsplit=1)[0],
        schema_version=applied[-1]["version"],
        settings=settings,
        now=await connection.fetchval(_NOW, now),
        lax=tuple(row["name"] for row in await connection.fetch(_LAX)),
    )


_MIN_VERSION = 14
_SERVER = """
SELECT
    current_setting('server_version_num')::INTEGER AS version,
    current_setting('server_encoding') AS encoding,
    current_setting('plan_cache_mode') AS plan_cache_mode,
    current_setting('fsync') AS fsync,
    current_setting('full_page_writes') AS full_page_writes,
    pg_is_in_recovery() AS is_replica
"""
# The first table on which policies apply to this role, unless one policy admits every row for reads and writes.
_ROW_SECURITY = """
SELECT c.relname AS table, current_user AS role
FROM pg_catalog.pg_class AS c
JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
WHERE n.nspname = $1
    AND c.relkind IN ('r', 'p')
    AND row_security_active(c.oid)
    AND (
        NOT EXISTS (
            SELECT 1
            FROM pg_catalog.pg_policies AS p
            WHERE p.schemaname = n.nspname
                AND p.tablename = c.relname
                AND p.permissive = 'PERMISSIVE'
                AND p.cmd = 'ALL'
                AND p.qual = 'true'
                AND COALESCE(p.with_check, 'true') = 'true'
                AND ('public' = ANY(p.roles) OR current_user = ANY(p.roles))
        )
        OR EXISTS (
            SELECT 1
            FROM pg_catalog.pg_policies AS p
            WHERE p.schemaname = n.nspname AND p.tablename = c.relname AND p.permissive = 'RESTRICTIVE'
        )
    )
ORDER BY c.relname
LIMIT 1
"""
_TIMELINE = "substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8)"
# How a server refuses `_TIMELINE`: it lacks the functions, as some hosted servers do, or the role may not call them.
_NO_TIMELINE = (
    asyncpg.exceptions.FeatureNotSupportedError,
    asyncpg.exceptions.InsufficientPrivilegeError,
    asyncpg.exceptions.UndefinedFunctionError,
)
_SESSION = {
    "application_name": "flowfabric",
    "timezone": "UTC",
    "synchronous_commit": "on",
    "default_transaction_isolation": "read committed",
    "plan_cache_mode": "force_generic_plan",
    # Each plan is made only once, often while tables are empty. A sequential scan then looks cheap.
    "enable_seqscan": "off",
    # Up to version 17, a disabled scan that is still needed looks so expensive that JIT would compile the plan.
    "jit": "off",
}
# Sessions of this role that stopped in the middle of a statement: the server has begun to work on it, and waits for
# the rest. No other timeout of the server ends such a session. COPY also waits for its client, for as long as it takes.
_END_STALLED = """
SELECT COUNT(pg_terminate_backend(a.pid))
FROM pg_catalog.pg_stat_activity AS a
WHERE a.application_name = 'flowfabric'
    AND a.usename = current_user
    AND a.datname = current_database()
    AND a.state = 'active'
    AND a.wait_event = 'ClientRead'
    AND a.state_change < clock_timestamp() - make_interval(secs => $1)
    AND a.query NOT ILIKE 'COPY%'
"""
_CLOSE_S = 10
_RECONNECT_PAUSE_S = 0.2


async def open_postgres(url: str, settings: Settings, clock: Clock | None = None) -> PostgresStore:
    """Open a store in the database at `url`. Create or migrate its schema if necessary."""
    dialect = Dialect(table_prefix=f'"{settings.schema}".', numbered=True)
    try:
        pool = _make_pool(url, settings)
        # Open the first connection now, so that a wrong URL raises here and the first caller need not wait.
        pool.give_back(await _open_first(pool, settings), is_clean=True)
    except (ValueError, OverflowError, asyncpg.exceptions.ClientConfigurationError):
        # The driver's message may contain the password, so it is not used.
        message = "the PostgreSQL URL is malformed; use the form postgresql://user:password@host:5432/database"
        raise InvalidRequest("invalid_url", message) from None
    except Exception as error:
        raise translate_unsent(error) from error
    try:
        database, dialect = await _prepare(pool, dialect, settings)
    except BaseException:
        await pool.close(_CLOSE_S)
        raise
    return PostgresStore(pool, dialect, settings, clock, StoreLocation(url, database, settings.schema))


class PostgresStore:
    """A store that runs operations on pooled connections and retries conflicts."""

    def __init__(
        self, pool: Pool, dialect: Dialect, settings: Settings, clock: Clock | None, location: StoreLocation
    ) -> None:
        self._pool = pool
        self._dialect = dialect
        self._settings = settings
        self._clock = clock
        self._statements = load_statements(dialect, "flowfabric.backends.postgres")
        self._location = location
        self._user_pool = UserTransactionPool(location.url, settings, pool.close_one_idle)
        # Behind a pooler, a session is shared and cannot listen, so listening needs a separate URL.
        listen_url = settings.listen_url or (None if settings.pooler else location.url)
        source = PostgresNotificationSource(listen_url, settings.schema, clock) if listen_url else None
        self.notifier = PostgresNotifier(pool, settings.schema, source)
        self._write_options = TransactionOptions(wait_s=settings.statement_timeout_s)
        self._read_options = replace(self._write_options, isolation="repeatable_read", readonly=True)
        self._forks = Forks.number
        self._closed = False

    @property
    def local_clock(self) -> None:
        return None

    async def run(self, body: Body[Result], *, is_urgent: bool = False) -> Result:
        return await self._run(body, self._write_options)

    async def run_shared(self, body: SharedBody[Result]) -> Result:
        self._check_open()
        result, hints = await self._user_pool.run(body, self._session)
        self.notifier.report_commit(hints)
        return result

    async def run_single(self, body: Body[Result], *, is_urgent: bool = False) -> Result:
        if self._settings.pooler:
            return await self.run(body)
        async with self._connection() as connection:
            transaction = PostgresTransaction(self._session(connection, SINGLE_VARIANTS))
            try:
                result = await body(transaction)
            except Exception as error:
                if not (is_conflict(error) or is_locked_or_taken(error)):
                    raise
            else:
                self.notifier.report_commit(transaction.hints)
                return result
        return await self.run(body)

    async def read_single(self, body: Body[Result]) -> Result:
        return await (self.read(body) if self._settings.pooler else self.run_single(body))

    async def read(self, body: Body[Result]) -> Result:
        return await self._run(body, self._read_options)

    async def run_within(self, connection: object, body: JoinedBody[Result], *, savepoint: bool) -> Result:
        self._check_open()
        with translate_joined_errors():
            adapter = await adapt_async(connection)
            return await run_joined(adapter, self._session(adapter), self._location, body, savepoint=savepoint)

    def run_within_sync(self, connection: object, body: JoinedBody[Result], *, savepoint: bool) -> Result:
        self._check_open()
        with translate_joined_errors():
            adapter = adapt_sync(connection)
            return run_to_completion(
                run_joined(adapter, self._session(adapter), self._location, body, savepoint=savepoint)
            )

    async def ping(self) -> None:
        async with self._connection() as connection:
            await connection.execute("SELECT 1")

    async def end_stalled_sessions(self) -> int:
        limit_s = idle_limit_s(self._settings.statement_timeout_s)
        async with self._connection() as connection:
            return int(await connection.fetchval(_END_STALLED, limit_s))

    async def vacuum(self) -> bool:
        self._check_open()
        # A pooler shares sessions, so the lock of a session needs a direct address. Autovacuum does the work otherwise.
        url = self._settings.listen_url or (None if self._settings.pooler else self._location.url)
        return url is None or await vacuum(url, self._settings.schema)

    async def store_info(self) -> StoreInfo:
        async with self._connection() as connection:
            now = self._clock() if self._clock else None
            info = await read_store_info(connection, self._dialect, now, pooler=self._settings.pooler)
            dead_rows, blockers = await read_dead_rows(connection, self._settings.schema)
            return replace(info, dead_rows=dead_rows, vacuum_blockers=blockers)

    async def find_damage(self) -> list[str]:
        return await self.read(lambda tx: find_violations(tx.session))

    async def backup(self, file: str) -> None:
        raise backup_unsupported_error(POSTGRES_BACKUPS)

    async def close(self, timeout_s: float | None = None) -> None:
        if self._closed or self._forks != Forks.number:
            return
        self._closed = True
        await self._user_pool.close()
        await self._pool.close(_CLOSE_S if timeout_s is None else min(_CLOSE_S, timeout_s))

    async def _run(self, body: Body[Result], options: TransactionOptions) -> Result:
        self._check_open()
        result, transaction = await run_in_transaction(self._pool, options, self._transaction, body)
        self.notifier.report_commit(transaction.hints)
        return result

    def _transaction(self, connection: Connection) -> Transaction:
        return PostgresTransaction(self._session(connection))

    def _session(self, connection: DriverConnection, variants: Variants = NO_VARIANTS) -> PostgresSession:
        return PostgresSession(connection, self._statements, self._settings.schema, self._clock, variants)

    def _check_open(self) -> None:
        if self._closed:
            raise Unavailable("store_closed", "the engine was closed; open it again with connect()")
        check_not_forked(self._forks)

    def _connection(self) -> AbstractAsyncContextManager[Connection]:
        self._check_open()
        return acquire(self._pool, self._settings.statement_timeout_s)


async def _open_first(pool: Pool, settings: Settings) -> Connection:
    """Open the first connection. While the server restarts or has no free connection, retry for a limited time."""
    stop_at = time.monotonic() + settings.retry_for_s
    while True:
        try:
            return await pool.take(settings.statement_timeout_s)
        except Exception as error:
            if not is_temporary(error) or time.monotonic() >= stop_at:
                raise
        await asyncio.sleep(random.uniform(0.5, 1.0) * _RECONNECT_PAUSE_S)


async def _prepare(pool: Pool, dialect: Dialect, settings: Settings) -> tuple[str, Dialect]:
    """Check the server, migrate the schema, and return the name of the database and the dialect of the server."""
    async with acquire(pool, settings.statement_timeout_s) as connection:
        await _check_server(connection, settings)
        await _check_row_security(connection, settings.schema)
        await migrate(connection, settings.schema, dialect, settings.migrate)
        try:
            await connection.fetchval(f"SELECT {_TIMELINE}")
        except _NO_TIMELINE:
            dialect = replace(dialect, replacements=((_TIMELINE, "NULL::TEXT"),))
        return str(await connection.fetchval("SELECT current_database()")), dialect


def check_version(number: int) -> None:
    """Raise if the server is too old. `number` is its version number, such as 140005 for 14.5."""
    if number < _MIN_VERSION * 10_000:
        message = f"PostgreSQL {number // 10_000} is too old; use {_MIN_VERSION} or later"
        raise InvalidRequest("unsupported_version", message)


async def _check_server(connection: Connection, settings: Settings) -> None:
    """Raise if the engine cannot work on this server, or could lose acknowledged work there."""
    server = await connection.fetchrow(_SERVER)
    assert server is not None, "the statement returns one row"
    check_version(server["version"])
    if server["is_replica"]:
        message = "the server is a replica, which accepts no writes; connect to the primary"
        raise Unavailable("server_read_only", message)
    if (encoding := server["encoding"]) != "UTF8":
        message = (
            f"the database has the encoding {encoding}, which cannot store all text; "
            "use a database that was created with ENCODING 'UTF8'"
        )
        raise InvalidRequest("unsupported_encoding", message, encoding=encoding)
    if not settings.pooler and server["plan_cache_mode"] != _SESSION["plan_cache_mode"]:
        raise undeclared_pooler_error("dropped the settings of the session")
    for setting in ("fsync", "full_page_writes") if settings.durable else ():
        if server[setting] != "on":
            message = (
                f"{setting} is off, so the server may lose acknowledged work; turn it on, or connect with durable=False"
            )
            raise InvalidRequest("unsafe_durability", message, setting=setting)


async def _check_row_security(connection: Connection, schema: str) -> None:
    """Raise if a policy may hide rows of our tables from this role, or refuse its writes."""
    if (hidden := await connection.fetchrow(_ROW_SECURITY, schema)) is not None:
        table, role = hidden["table"], hidden["role"]
        message = (
            f"row-level security may hide rows of {schema}.{table} from the role {role}; run ALTER TABLE "
            f"{schema}.{table} DISABLE ROW LEVEL SECURITY, or give the role BYPASSRLS"
        )
        raise InvalidRequest("rows_hidden", message, table=table, role=role)


def _make_pool(url: str, settings: Settings) -> Pool:
    timeouts = {
        "statement_timeout": int(settings.statement_timeout_s * 1000),
        "idle_in_transaction_session_timeout": int(idle_limit_s(settings.statement_timeout_s) * 1000),
    }
    local = {**timeouts, "synchronous_commit": "on", "enable_seqscan": "off", "jit": "off"}
    local_settings = ";".join(f"SET LOCAL {name} = {value}" for name, value in local.items())
    session = {**_SESSION, **SERVER_KEEPALIVES, **{name: str(value) for name, value in timeouts.items()}}

    async def open_connection() -> UnsharedConnection:
        with reaching(url):
            connection: UnsharedConnection = await asyncpg.connect(
                url,
                connection_class=UnsharedConnection,
                timeout=settings.statement_timeout_s,
                command_timeout=settings.statement_timeout_s + 5,
                statement_cache_size=0 if settings.pooler else 256,
                max_cached_statement_lifetime=KEEP_STATEMENTS,
                server_settings={"application_name": "flowfabric"} if settings.pooler else session,
            )
        connection.local_settings = local_settings if settings.pooler else ""
        return connection

    return Pool(open_connection, settings.pool_size)
