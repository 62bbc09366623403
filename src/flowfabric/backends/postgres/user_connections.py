"""Connections that the engine and user code share: the engine on a user's connection, and user code on the engine's.

`submit_in_transaction` runs an operation in a transaction of the caller. The engine neither commits nor rolls back,
changes no setting, and retries nothing: after a conflict only the caller can run the transaction again. A savepoint is
used only if the operation may write before it raises, because many savepoints in one transaction slow down the server.

`step.tx` runs user code in a transaction of the engine. Its connections come from a separate pool, opened by the first
call, because settings and codecs of one side must not reach the other. They have the defaults of the server and the
role, including the search path, and are reset when they are given back. Only the statement timeout, the keepalives, the
time zone UTC, the application name and `synchronous_commit` are set: a role may turn the latter off, but the engine
acknowledges the commit. The engine's statements name their schema. User code cannot close the connection.
"""

from __future__ import annotations

import asyncio
import random
import sys
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import timedelta
from inspect import iscoroutinefunction
from typing import TYPE_CHECKING, Any, cast

import asyncpg

from flowfabric.backends.postgres.errors import is_conflict, reaching, translate
from flowfabric.backends.postgres.hot_path import PostgresTransaction
from flowfabric.backends.postgres.keepalive import SERVER_KEEPALIVES
from flowfabric.backends.postgres.notify import channel_name, to_payload
from flowfabric.backends.postgres.pool import (
    KEEP_STATEMENTS,
    EngineConnection,
    Settings,
    TransactionOptions,
    run_in_transaction,
)
from flowfabric.backends.postgres.session import DriverConnection, PostgresSession
from flowfabric.core.errors import FlowFabricError, InvalidRequest, Unavailable
from flowfabric.store.commit_hints import CommitHints
from flowfabric.store.ports import JoinedBody, Result, SharedBody
from flowfabric.store.session import Row, Session
from flowfabric.store.transaction import JoinedTransaction, RecordedResult, SharedTransaction, StepRecorder, UserBody
from flowfabric.store.user_connections import (
    ASYNC_SQLALCHEMY,
    DJANGO,
    SQLALCHEMY,
    UserCodeError,
    aborted_error,
    closed_error,
    ended_early_error,
    loaded_classes,
    no_transaction_error,
    not_async_error,
    not_sync_error,
    other_database_error,
    unsupported_error,
    unwrap,
    unwrap_async,
    wrong_body_error,
)

if TYPE_CHECKING:
    from asyncpg.pool import Pool

_REOPEN_PAUSE_S = 0.1


@dataclass(frozen=True, slots=True)
class StoreLocation:
    """The URL, the database and the schema of the engine's tables."""

    url: str = field(repr=False)
    database: str
    schema: str


class PostgresJoinedTransaction(PostgresTransaction, JoinedTransaction):
    """A transaction on the caller's connection. The notification is sent when the caller commits."""

    def __init__(self, session: Session, schema: str) -> None:
        super().__init__(session)
        self._channel = channel_name(schema)

    async def notify_on_commit(self, hints: CommitHints) -> None:
        # The server sends equal payloads of one transaction only once. So the payload names no sender, to stay equal.
        if hints:
            await self.session.fetch("wake", channel=self._channel, payload=to_payload(hints))


async def run_joined(
    adapter: DriverConnection,
    session: PostgresSession,
    location: StoreLocation,
    body: JoinedBody[Result],
    *,
    savepoint: bool,
) -> Result:
    """Run `body` in the caller's transaction and return its result."""
    await _check_location(session, location)
    transaction = PostgresJoinedTransaction(session, location.schema)
    if savepoint:
        return await _run_in_savepoint(adapter, transaction, body)
    return await body(transaction)


@contextmanager
def translate_joined_errors() -> Iterator[None]:
    """Translate the errors of every supported driver."""
    try:
        yield
    except FlowFabricError:
        raise
    except Exception as error:
        ours = _translate_joined(error)
        if ours is error:
            raise
        raise ours from error


async def _check_location(session: PostgresSession, location: StoreLocation) -> None:
    [row] = await session.fetch("inspect_joined")
    if row["database"] != location.database:
        raise other_database_error(f"database {row['database']!r}", f"database {location.database!r}")
    if not row["has_schema"]:
        message = (
            f"the connection's database has no engine schema {location.schema!r}; check that it is the right server"
        )
        raise InvalidRequest("schema_missing", message, schema=location.schema)
    if row["read_only"]:
        raise InvalidRequest(
            "transaction_read_only", "the transaction is read-only; begin a transaction that can write"
        )


async def _run_in_savepoint(
    adapter: DriverConnection, transaction: PostgresJoinedTransaction, body: JoinedBody[Result]
) -> Result:
    await adapter.fetch("SAVEPOINT flowfabric_join")
    try:
        result = await body(transaction)
    except BaseException:
        # If the rollback fails too, the connection or the transaction is lost, and the first error has the reason.
        with suppress(Exception):
            await adapter.fetch("ROLLBACK TO SAVEPOINT flowfabric_join")
            await adapter.fetch("RELEASE SAVEPOINT flowfabric_join")
        raise
    await adapter.fetch("RELEASE SAVEPOINT flowfabric_join")
    return result


def _translate_joined(error: Exception) -> BaseException:
    theirs = _to_asyncpg_error(error) if isinstance(error, loaded_classes("psycopg.Error")) else error
    if is_conflict(theirs):
        message = f"the transaction conflicted with another ({theirs}); roll it back and run it again"
        return Unavailable("transaction_conflict", message)
    if isinstance(theirs, asyncpg.InFailedSQLTransactionError):
        return aborted_error()
    ours = translate(theirs)
    return error if ours is theirs else ours


def _to_asyncpg_error(error: Any) -> Exception:
    """Return the asyncpg error that corresponds to a psycopg error, so that one translation is enough for both."""
    if error.sqlstate is None:
        return asyncpg.ConnectionDoesNotExistError(str(error))
    return asyncpg.PostgresError.new({"C": error.sqlstate, "M": error.diag.message_primary or str(error)})


_JOINABLE = "asyncpg or psycopg 3, or of Django or SQLAlchemy over one of them"
_ASYNC = ("asyncpg.Connection", "asyncpg.pool.PoolConnectionProxy", "psycopg.AsyncConnection")
_SYNC = ("psycopg.Connection",)


async def adapt_async(connection: object) -> DriverConnection:
    """Return the driver connection inside an asynchronous connection, which must be open and in a transaction."""
    if isinstance(connection, loaded_classes(*_SYNC, *DJANGO, *SQLALCHEMY)):
        raise not_async_error(connection)
    driver = await unwrap_async(connection)
    if isinstance(driver, loaded_classes("psycopg.AsyncConnection")):
        _check_psycopg(driver)
        return AsyncPsycopgAdapter(driver)
    if isinstance(driver, loaded_classes(*_ASYNC)):
        _check_asyncpg(driver)
        return cast(DriverConnection, driver)
    raise unsupported_error(driver, _JOINABLE)


def adapt_sync(connection: object) -> DriverConnection:
    """Return the driver connection inside a synchronous connection, which must be open and in a transaction."""
    if isinstance(connection, loaded_classes(*ASYNC_SQLALCHEMY)):
        raise not_sync_error(connection)
    driver = unwrap(connection)
    if isinstance(driver, loaded_classes(*_ASYNC)):
        raise not_sync_error(driver)
    if not isinstance(driver, loaded_classes(*_SYNC)):
        raise unsupported_error(driver, _JOINABLE)
    _check_psycopg(driver)
    return PsycopgAdapter(driver)


class PsycopgAdapter:
    """A psycopg Connection with the interface of asyncpg. Its coroutines never suspend."""

    cursor_class = "RawCursor"

    def __init__(self, connection: Any) -> None:
        psycopg: Any = sys.modules["psycopg"]
        cursor = getattr(psycopg, self.cursor_class)(connection, row_factory=psycopg.rows.dict_row)
        self._cursor = _register_loaders(cursor)

    async def fetch(self, text: str, /, *arguments: object) -> Sequence[Row]:
        self._cursor.execute(text, [_to_plain(value) for value in arguments])
        return self._cursor.fetchall() if self._cursor.description else []

    async def fetchmany(self, text: str, arguments: Iterable[Sequence[object]], /) -> Sequence[Row]:
        return [row for values in arguments for row in await self.fetch(text, *values)]


class AsyncPsycopgAdapter(PsycopgAdapter):
    """A psycopg AsyncConnection with the interface of asyncpg."""

    cursor_class = "AsyncRawCursor"

    async def fetch(self, text: str, /, *arguments: object) -> Sequence[Row]:
        await self._cursor.execute(text, [_to_plain(value) for value in arguments])
        return await self._cursor.fetchall() if self._cursor.description else []


def _check_asyncpg(connection: Any) -> None:
    try:
        is_closed, is_open = connection.is_closed(), connection.is_in_transaction()
    except asyncpg.InterfaceError as error:
        raise closed_error(connection) from error  # The connection is back in its pool.
    if is_closed:
        raise closed_error(connection)
    if not is_open:
        raise no_transaction_error(connection, "enter `async with connection.transaction():`")


def _check_psycopg(connection: Any) -> None:
    if not hasattr(sys.modules["psycopg"], "RawCursor"):
        raise InvalidRequest("unsupported_version", "psycopg is too old; use 3.2 or later")
    if connection.closed:
        raise closed_error(connection)
    status = connection.info.transaction_status.name
    if status == "INERROR":
        raise aborted_error()
    # Without autocommit, the first statement begins the transaction, even if it is a statement of the engine.
    if status == "IDLE" and connection.autocommit:
        raise no_transaction_error(connection, "enter `with connection.transaction():` or turn autocommit off")


def _register_loaders(cursor: Any) -> Any:
    """Make the cursor read our columns with psycopg's default loaders instead of loaders that the caller registered."""
    types: Any = sys.modules["psycopg"].types
    cursor.adapters.register_loader("uuid", types.uuid.UUIDLoader)
    cursor.adapters.register_loader("text", types.string.TextLoader)
    cursor.adapters.register_loader("bytea", types.string.ByteaLoader)
    cursor.adapters.register_loader("int8", types.numeric.IntLoader)
    cursor.adapters.register_loader("timestamptz", types.datetime.TimestamptzLoader)
    return cursor


def _to_plain(value: object) -> object:
    """Return string enumerations as plain `str`, because psycopg would convert them in a different way."""
    match value:
        case list():
            return [_to_plain(element) for element in value]
        case str():
            return str(value)
        case _:
            return value


# User code in a transaction of the engine.


class UserTransactionPool:
    """The pool of connections for user code."""

    def __init__(self, url: str, settings: Settings, close_idle: Callable[[], None]) -> None:
        self._url = url
        self._settings = settings
        # The server may have no free connection because the engine's own pool has idle ones.
        self._close_idle = close_idle
        wait_s = settings.statement_timeout_s
        local = f"SET LOCAL statement_timeout = {int(wait_s * 1000)}; SET LOCAL synchronous_commit = on"
        locally = local if settings.pooler else ""
        self._options = TransactionOptions(wait_s=wait_s, locally=locally)
        self._opening = asyncio.Lock()
        self._pool: Pool[Any] | None = None

    async def run(
        self, body: SharedBody[Result], session: Callable[[asyncpg.Connection[Any]], PostgresSession]
    ) -> tuple[Result, CommitHints]:
        """Run `body` and return its result with the hints of its commit.

        Exceptions of user code are raised unchanged. If a connection is lost before the user code has run, nothing can
        have been committed, so the error says that nothing was sent.
        """
        transactions: list[PostgresSharedTransaction] = []

        def make(connection: asyncpg.Connection[Any]) -> PostgresSharedTransaction:
            transactions.append(PostgresSharedTransaction(session(connection), connection))
            return transactions[-1]

        try:
            result, transaction = await run_in_transaction(self, self._options, make, body)
        except Exception as error:
            unwrapped = _unwrap_error(error)
            if isinstance(unwrapped, Unavailable) and not any(each.has_run_user_code for each in transactions):
                raise Unavailable(unwrapped.code, unwrapped.message, **{**unwrapped.fields, "sent": False}) from error
            if unwrapped is error:
                raise
        else:
            return result, transaction.hints
        raise unwrapped

    @asynccontextmanager
    async def acquire(self, *, timeout: float) -> AsyncIterator[Any]:  # noqa: ASYNC109 - as asyncpg.Pool has it
        """Lend a connection for the time of a block. If the server has no free one, wait for one of this pool."""
        pool = await self.pool()
        async with asyncio.timeout(timeout):
            connection = await self._take(pool)
        try:
            yield connection
        finally:
            await pool.release(connection)

    async def _take(self, pool: Pool[Any]) -> Any:
        while True:
            try:
                with reaching(self._url):
                    return await pool.acquire()
            except asyncpg.TooManyConnectionsError:
                if not pool.get_size():
                    self._close_idle()
                    raise
            await asyncio.sleep(random.uniform(0.5, 1.0) * _REOPEN_PAUSE_S)

    async def pool(self) -> Pool[Any]:
        """Return the pool. The first caller opens it."""
        async with self._opening:
            if self._pool is None:
                self._pool = await self._open()
            return self._pool

    async def close(self) -> None:
        """Terminate all connections."""
        if self._pool is not None:
            self._pool.terminate()

    async def _open(self) -> Pool[Any]:
        session = {
            "application_name": "flowfabric",
            "timezone": "UTC",
            "synchronous_commit": "on",
            "statement_timeout": str(int(self._settings.statement_timeout_s * 1000)),
            **SERVER_KEEPALIVES,
        }
        behind_pooler = self._settings.pooler
        return await asyncpg.create_pool(
            self._url,
            connection_class=LentConnection,
            min_size=0,
            max_size=self._settings.pool_size,
            statement_cache_size=0 if behind_pooler else 256,
            max_cached_statement_lifetime=KEEP_STATEMENTS,
            command_timeout=self._settings.statement_timeout_s + 5,
            server_settings={"application_name": "flowfabric"} if behind_pooler else session,
        )


_IN_USER_CODE = ContextVar("in_user_code", default=False)


class LentConnection(EngineConnection):
    """A connection that user code cannot close while it has the connection. The pool can, when the engine closes."""

    is_lent = False

    @contextmanager
    def lend(self) -> Iterator[None]:
        """Refuse to close the connection for the code inside the block."""
        token = _IN_USER_CODE.set(True)
        self.is_lent = True
        try:
            yield
        finally:
            self.is_lent = False
            _IN_USER_CODE.reset(token)

    async def close(self, *, timeout: float | None = None) -> None:  # noqa: ASYNC109 - as asyncpg has it
        self._check_not_lent()
        await super().close(timeout=timeout)

    def terminate(self) -> None:
        self._check_not_lent()
        super().terminate()

    def _check_not_lent(self) -> None:
        if self.is_lent and _IN_USER_CODE.get():
            raise asyncpg.InterfaceError("only the engine closes the connection that it lends to step.tx")


class PostgresSharedTransaction(PostgresTransaction, SharedTransaction):
    """A transaction of the engine on a connection that user code also uses."""

    outlasts_leases = True

    def __init__(self, session: PostgresSession, connection: asyncpg.Connection[Any]) -> None:
        super().__init__(session)
        self._connection = connection
        self.has_run_user_code = False

    async def run_user_code(self, body: UserBody, record: StepRecorder, lease_ttl: timedelta) -> RecordedResult:
        if not iscoroutinefunction(body):
            raise wrong_body_error("an async function that takes an asyncpg connection on PostgreSQL")
        [began] = await self.session.fetch("begin_user_code")
        self.has_run_user_code = True
        try:
            with cast(LentConnection, self._connection).lend():
                result = await body(self._connection)
            step = record(result)
        except Exception as error:
            if is_conflict(error):
                raise
            raise UserCodeError(error) from error
        if not self._connection.is_in_transaction():
            raise ended_early_error()
        # User code may have turned this setting off. The statement also reads the time for `now`.
        [ended] = await self.session.fetch("end_user_code")
        if ended["xid"] != began["xid"]:
            raise ended_early_error()  # The code began another transaction, which has not locked the execution.
        return result, step


def _unwrap_error(error: Exception) -> Exception:
    """Return the exception to raise after a transaction with user code failed."""
    if isinstance(error, UserCodeError):
        return error.error
    if isinstance(error, FlowFabricError) and isinstance(error.__cause__, asyncpg.InFailedSQLTransactionError):
        return aborted_error()
    return error
