"""A store in a schema of a PostgreSQL database."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import asyncpg

from flowfabric.backends.postgres.errors import is_conflict, translated
from flowfabric.backends.postgres.facts import facts_of
from flowfabric.backends.postgres.hot import PostgresHotStatements
from flowfabric.backends.postgres.joining import Place, joined_errors, run_joined
from flowfabric.backends.postgres.links import async_link, sync_link
from flowfabric.backends.postgres.migrate import migrate
from flowfabric.backends.postgres.pool import Pool, UnsharedConnection
from flowfabric.backends.postgres.running import Borrowed, Manner, run_in_transaction
from flowfabric.backends.postgres.session import Clock, PostgresSession, Queries
from flowfabric.backends.postgres.sharing import Sharing
from flowfabric.backends.postgres.unlocked import PostgresUnlocked
from flowfabric.backends.postgres.wakeups import PostgresEar, PostgresTelling
from flowfabric.core.errors import InvalidRequest, Unavailable
from flowfabric.sqlstore.driving import drive
from flowfabric.sqlstore.statements import Dialect, load
from flowfabric.sqlstore.transaction import SqlTransaction
from flowfabric.store.facts import StoreFacts
from flowfabric.store.transaction import Answer, Body, JoinedBody, SharedBody

if TYPE_CHECKING:
    Connection = asyncpg.Connection[Any]

_OLDEST = 14
_CLOSE_S = 10


class Settings(Protocol):
    """What the caller of `connect` may choose for PostgreSQL."""

    @property
    def schema(self) -> str: ...
    @property
    def durable(self) -> bool: ...
    @property
    def migrate(self) -> bool: ...
    @property
    def pooler(self) -> bool: ...
    @property
    def pool_size(self) -> int: ...
    @property
    def statement_timeout_s(self) -> float: ...
    @property
    def listen_url(self) -> str | None: ...


async def open_postgres(url: str, settings: Settings, clock: Clock | None = None) -> PostgresStore:
    """A store in the database at `url`, whose schema is made and brought to the present version if need be."""
    dialect = Dialect(table_prefix=f'"{settings.schema}".', numbered=True)
    try:
        pool = _pool(url, settings)
        # What is wrong with the address is found out here, and nobody waits for the first connection later.
        pool.give_back(await pool.take(settings.statement_timeout_s), is_clean=True)
    except (ValueError, OverflowError, asyncpg.exceptions.ClientConfigurationError):
        # The driver's words may repeat the password, so they are not passed on.
        message = "the PostgreSQL url cannot be read; it should look like postgresql://user:password@host:5432/database"
        raise InvalidRequest("invalid_url", message) from None
    except Exception as error:
        raise translated(error) from error
    try:
        database = await _prepared(pool, dialect, settings)
    except BaseException:
        await pool.close(_CLOSE_S)
        raise
    # A session that others share cannot listen, so behind a pooler it takes an address of its own.
    listen_url = settings.listen_url or (None if settings.pooler else url)
    return PostgresStore(pool, dialect, settings, clock, Addresses(url, listen_url, database))


@dataclass(frozen=True, slots=True)
class Addresses:
    """Where the database is, where it can be listened to, and what it is called."""

    url: str = field(repr=False)
    listen_url: str | None = field(repr=False)
    database: str


class PostgresStore:
    """Runs operations on pooled connections; conflicts between transactions are retried inside."""

    def __init__(
        self, pool: Pool, dialect: Dialect, settings: Settings, clock: Clock | None, addresses: Addresses
    ) -> None:  # fmt: skip
        self._pool = pool
        self._dialect = dialect
        self._settings = settings
        self._clock = clock
        self._statements = load(dialect, "flowfabric.backends.postgres")
        self._place = Place(addresses.database, settings.schema)
        self._sharing = Sharing(addresses.url, settings)
        listen_url = addresses.listen_url
        ear = PostgresEar(listen_url, settings.schema, clock) if listen_url else None
        self.telling = PostgresTelling(pool, settings.schema, ear)
        locally = ";".join(f"SET LOCAL {name} = {value}" for name, value in _locally(settings).items())
        self._writing = Manner(wait_s=settings.statement_timeout_s, locally=locally)
        self._reading = replace(self._writing, isolation="repeatable_read", readonly=True)
        self._closed = False

    async def run(self, body: Body[Answer]) -> Answer:
        return await self._run(body, self._writing)

    async def run_shared(self, body: SharedBody[Answer]) -> Answer:
        self._check_open()
        answer, news = await self._sharing.run(body, self._session)
        self.telling.committed(news)
        return answer

    async def run_single(self, body: Body[Answer]) -> Answer:
        if self._settings.pooler:
            return await self.run(body)
        async with self._connection() as connection:
            transaction = self._transaction(connection)
            try:
                answer = await body(transaction)
            except Exception as error:
                if not is_conflict(error):
                    raise
            else:
                self.telling.committed(transaction.news)
                return answer
        return await self.run(body)

    async def read_single(self, body: Body[Answer]) -> Answer:
        return await (self.read(body) if self._settings.pooler else self.run_single(body))

    async def read(self, body: Body[Answer]) -> Answer:
        return await self._run(body, self._reading)

    async def run_within(self, connection: object, body: JoinedBody[Answer], *, savepoint: bool) -> Answer:
        self._check_open()
        with joined_errors():
            link = await async_link(connection)
            return await run_joined(link, self._session(link), self._place, body, savepoint=savepoint)

    def run_within_sync(self, connection: object, body: JoinedBody[Answer], *, savepoint: bool) -> Answer:
        self._check_open()
        with joined_errors():
            link = sync_link(connection)
            return drive(run_joined(link, self._session(link), self._place, body, savepoint=savepoint))

    async def ping(self) -> None:
        async with self._connection() as connection:
            await connection.execute("SELECT 1")

    async def facts(self) -> StoreFacts:
        async with self._connection() as connection:
            return await facts_of(connection, self._dialect, self._clock() if self._clock else None)

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        await self._sharing.close()
        await self._pool.close(_CLOSE_S)

    async def _run(self, body: Body[Answer], manner: Manner) -> Answer:
        self._check_open()
        answer, transaction = await run_in_transaction(self._pool, manner, self._transaction, body)
        self.telling.committed(transaction.news)
        return answer

    def _transaction(self, connection: Connection) -> SqlTransaction:
        return SqlTransaction(self._session(connection), PostgresHotStatements, PostgresUnlocked)

    def _session(self, connection: Queries) -> PostgresSession:
        return PostgresSession(connection, self._statements, self._settings.schema, self._clock)

    def _check_open(self) -> None:
        if self._closed:
            raise Unavailable("store_closed", "the engine was closed; open it again with connect()")

    def _connection(self) -> Borrowed:
        self._check_open()
        return Borrowed(self._pool, self._settings.statement_timeout_s)


async def _prepared(pool: Pool, dialect: Dialect, settings: Settings) -> str:
    """Checks the server and brings the schema up to date; answers the name of the database."""
    async with Borrowed(pool, settings.statement_timeout_s) as connection:
        await _check_server(connection, settings.durable)
        await migrate(connection, settings.schema, dialect, settings.migrate)
        return str(await connection.fetchval("SELECT current_database()"))


def _locally(settings: Settings) -> dict[str, object]:
    """Behind a pooler the session is shared with others, so settings last for the transaction only."""
    if not settings.pooler:
        return {}
    timeout_ms = int(settings.statement_timeout_s * 1000)
    return {"statement_timeout": timeout_ms, "synchronous_commit": "on", "enable_seqscan": "off", "jit": "off"}


def check_version(number: int) -> None:
    """Refuses a server that is too old, by the number it gives itself: 140005 for 14.5."""
    if number < _OLDEST * 10_000:
        message = f"PostgreSQL {number // 10_000} is too old, {_OLDEST} or later is needed"
        raise InvalidRequest("unsupported_version", message)


async def _check_server(connection: Connection, durable: bool) -> None:
    check_version(int(await connection.fetchval("SHOW server_version_num")))
    for setting in ("fsync", "full_page_writes") if durable else ():
        if await connection.fetchval(f"SHOW {setting}") != "on":
            message = f"{setting} is off, so the server may lose acknowledged work; switch it on, or use durable=False"
            raise InvalidRequest("unsafe_durability", message, setting=setting)


def _pool(url: str, settings: Settings) -> Pool:
    timeout_ms = int(settings.statement_timeout_s * 1000)
    session = {
        "application_name": "flowfabric",
        "timezone": "UTC",
        "synchronous_commit": "on",
        "default_transaction_isolation": "read committed",
        "plan_cache_mode": "force_generic_plan",
        # Plans are made once, often while the tables are empty, when reading them whole would look cheap.
        "enable_seqscan": "off",
        # Up to version 17 a plan that cannot do without what is off looks so dear that it would be compiled.
        "jit": "off",
        "statement_timeout": str(timeout_ms),
        "idle_in_transaction_session_timeout": str(2 * timeout_ms),
    }
    opened = partial(
        asyncpg.connect,
        url,
        connection_class=UnsharedConnection,
        timeout=settings.statement_timeout_s,
        command_timeout=settings.statement_timeout_s + 5,
        statement_cache_size=0 if settings.pooler else 256,
        server_settings={"application_name": "flowfabric"} if settings.pooler else session,
    )
    return Pool(opened, settings.pool_size)
