"""The engine's connection pool, and transactions on its connections.

`asyncpg.Pool` starts a task and a timer whenever a connection is taken, and again when it is given back. That costs as
much client CPU as a small statement. In this pool, a caller takes an idle connection, and gives back a clean
connection, without awaiting.

If the server has no free connection, a caller waits for one that the pool already has. The pool withholds the unused
capacity from callers for a moment, so that not all of them try to connect:

    unused capacity ──open──> connection ──give_back──> idle, or the next caller
        ▲             │ too many connections
        └── a second ─┴──> withheld; the caller waits for a connection of the pool
"""

from __future__ import annotations

import asyncio
import os
import random
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from contextvars import Context
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar

import asyncpg

from flowfabric.backends.postgres.errors import OtherEventLoop, PoolClosed, is_conflict, translate, translate_unsent
from flowfabric.backends.postgres.keepalive import WatchedConnection
from flowfabric.core.errors import FlowFabricError, Unavailable
from flowfabric.store.forks import watch_forks

if TYPE_CHECKING:
    Connection = asyncpg.Connection[Any]

_IDLE_S = 300.0
_RESET_S = 5.0
_REOPEN_S = 1.0
_MAX_TRIES = 10
INITIAL_BACKOFF_S = 0.005
_MAX_BACKOFF_S = 0.1
# With a lifetime, the driver starts a timer for each prepared statement. The timer would keep the context of the caller
# in memory, and with it the run of a task.
KEEP_STATEMENTS = 0

Isolation = Literal["read_committed", "repeatable_read"]
Result = TypeVar("Result")
Transaction = TypeVar("Transaction")


class Settings(Protocol):
    """The options of `connect` that PostgreSQL uses."""

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
    def retry_for_s(self) -> float: ...
    @property
    def listen_url(self) -> str | None: ...


class Pool:
    """At most `max_size` connections, each used by one caller at a time. A pool belongs to one event loop."""

    def __init__(self, open_connection: Callable[[], Coroutine[Any, Any, Connection]], max_size: int) -> None:
        self._open_connection = open_connection
        self._unused_capacity = max_size
        self._withheld_capacity = 0
        self._reopen: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()
        self._connections: set[Connection] = set()
        self._opening = 0
        # The idle connections, each with the time when it became idle. The last connection of the list is taken first.
        self._idle: list[tuple[float, Connection]] = []
        self._waiters: deque[asyncio.Future[Connection | None]] = deque()
        self._tasks: set[asyncio.Task[None]] = set()
        self._sweep: asyncio.TimerHandle | None = None
        self._is_closed = False
        self._is_empty = asyncio.Event()

    @asynccontextmanager
    async def acquire(self, *, timeout: float) -> AsyncIterator[Connection]:  # noqa: ASYNC109 - as asyncpg.Pool has it
        """Lend a connection for the time of a block."""
        connection = await self.take(timeout)
        is_clean = False
        try:
            yield connection
            is_clean = True
        except FlowFabricError:
            # Our own errors leave the connection clean. Only a driver error can leave it in a wrong state.
            is_clean = True
            raise
        finally:
            self.give_back(connection, is_clean=is_clean)

    @property
    def size(self) -> int:
        """The number of open connections."""
        return len(self._connections)

    @property
    def idle(self) -> int:
        """The number of open connections that no caller uses."""
        return len(self._idle)

    async def close(self, timeout: float) -> None:  # noqa: ASYNC109 - connections in use after that are terminated
        """Refuse new callers, wait until connections in use are given back, and close all connections."""
        self._is_closed = True
        while self._waiters:
            self._hand_over(None)
        try:
            async with asyncio.timeout(timeout):
                while self._idle:
                    await self._close_connection(self._idle.pop()[1])
                if self._connections or self._opening:
                    await self._is_empty.wait()
        except TimeoutError:
            pass
        finally:
            for connection in self._connections:
                connection.terminate()
            for timer in (self._sweep, self._reopen):
                if timer is not None:
                    timer.cancel()

    async def take(self, timeout: float) -> Connection:  # noqa: ASYNC109 - an idle connection needs no timer
        """Return a connection for the caller alone, who must return it with `give_back`."""
        self._check_usable()
        if (connection := self._take_idle()) is not None:
            return connection
        async with asyncio.timeout(timeout):
            if self._unused_capacity:
                self._unused_capacity -= 1
            elif (received := await self._wait_for_turn()) is not None:
                if not received.is_closed():
                    return received
                self._connections.discard(received)
            return await self._open_or_wait()

    def close_one_idle(self) -> None:
        """Close an idle connection, so that the server has a free one for another pool of this process."""
        if self._idle:
            self._spawn(self._close_connection(self._idle.pop(0)[1]))

    def give_back(self, connection: Connection, *, is_clean: bool) -> None:
        """Make a connection available again. A connection that is not clean is first reset in the background."""
        if connection.is_closed() or self._is_closed:
            connection.terminate()
            self._drop(connection)
        elif is_clean and not connection.is_in_transaction():
            self._hand_over(connection)
        else:
            self._spawn(self._reset(connection))

    async def _reset(self, connection: Connection) -> None:
        """Wait until an abandoned statement has ended, then roll back on the server and in the driver."""
        try:
            async with asyncio.timeout(_RESET_S):
                await connection.execute("ROLLBACK")
                await connection.reset()
        except BaseException as error:
            connection.terminate()
            self._drop(connection)
            if not isinstance(error, Exception):
                raise
        else:
            self.give_back(connection, is_clean=True)

    def _take_idle(self) -> Connection | None:
        while self._idle:
            _, connection = self._idle.pop()
            if not connection.is_closed():
                return connection
            self._drop(connection)
        return None

    async def _open_or_wait(self) -> Connection:
        """Open a connection. If the server has no free one, wait for one that this pool already has."""
        while True:
            try:
                return await self._open()
            except asyncpg.TooManyConnectionsError:
                if not self._connections:
                    raise
            if (connection := self._take_idle()) is not None:
                return connection
            received = await self._wait_for_turn(is_first=True)
            if received is not None:
                if not received.is_closed():
                    return received
                self._connections.discard(received)

    async def _wait_for_turn(self, *, is_first: bool = False) -> Connection | None:
        """Wait behind earlier callers. Return a connection, or None if the caller may open a new connection.

        A caller that has waited before is first.
        """
        turn: asyncio.Future[Connection | None] = self._loop.create_future()
        if is_first:
            self._waiters.appendleft(turn)
        else:
            self._waiters.append(turn)
        try:
            return await turn
        except BaseException:
            if turn.cancelled():
                # `_hand_over` may have removed this waiter already.
                self._waiters = deque(other for other in self._waiters if other is not turn)
            else:
                self._hand_over(turn.result())
            raise

    async def _open(self) -> Connection:
        """Open a connection. The caller has already reduced the unused capacity by one."""
        self._opening += 1
        self._is_empty.clear()
        try:
            self._check_usable()
            connection = await self._open_in_task()
            self._connections.add(connection)
        except BaseException as error:
            self._opening -= 1
            if isinstance(error, asyncpg.TooManyConnectionsError) and self._connections:
                self._withhold_capacity()
            else:
                self._drop(None)
            raise
        self._opening -= 1
        self._restore_capacity()
        if self._is_closed:
            self.give_back(connection, is_clean=True)
            self._check_usable()
        return connection

    async def _open_in_task(self) -> Connection:
        """Open a connection in a separate task, so that it does not keep the context of the caller in memory."""
        opening = self._loop.create_task(self._open_connection(), context=Context())
        try:
            return await opening
        except asyncio.CancelledError:
            # The caller may be cancelled when the connection is open already.
            opening.add_done_callback(_terminate_unused)
            raise

    def _hand_over(self, connection: Connection | None) -> None:
        """Give a connection to the first waiter, or keep it as idle. None stands for the right to open a connection."""
        while self._waiters:
            turn = self._waiters.popleft()
            if not turn.done():
                turn.set_result(connection)
                return
        if connection is None:
            self._unused_capacity += 1
            return
        self._idle.append((self._loop.time(), connection))
        if self._sweep is None:
            self._sweep = self._loop.call_later(_IDLE_S, self._close_idle)

    def _drop(self, connection: Connection | None) -> None:
        """Forget a connection and free its capacity. None stands for a connection that was never opened."""
        if connection is not None:
            self._connections.discard(connection)
        if not self._connections and not self._opening:
            self._is_empty.set()
            # Without a connection of the pool, callers must try to open one.
            self._restore_capacity()
        self._hand_over(None)

    def _withhold_capacity(self) -> None:
        self._withheld_capacity += 1
        if self._reopen is None:
            self._reopen = self._loop.call_later(_REOPEN_S, self._restore_one)

    def _restore_one(self) -> None:
        """Let one caller try to open a connection. If that fails, the others need not try."""
        self._reopen = None
        if self._withheld_capacity and not self._is_closed:
            self._withheld_capacity -= 1
            self._hand_over(None)
        if self._withheld_capacity and self._reopen is None:
            self._reopen = self._loop.call_later(_REOPEN_S, self._restore_one)

    def _restore_capacity(self) -> None:
        while self._withheld_capacity:
            self._withheld_capacity -= 1
            self._hand_over(None)

    def _close_idle(self) -> None:
        expired = [connection for since, connection in self._idle if since <= self._loop.time() - _IDLE_S]
        self._idle = self._idle[len(expired) :]
        for connection in expired:
            self._spawn(self._close_connection(connection))
        self._sweep = self._loop.call_later(_IDLE_S, self._close_idle) if self._idle else None

    async def _close_connection(self, connection: Connection) -> None:
        try:
            await connection.close(timeout=_RESET_S)
        except (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError):
            return
        finally:
            connection.terminate()
            self._drop(connection)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _check_usable(self) -> None:
        if self._is_closed:
            raise PoolClosed("the pool is closed")
        if asyncio.get_running_loop() is not self._loop:
            raise OtherEventLoop("the pool belongs to another event loop")


def _terminate_unused(opening: asyncio.Task[Connection]) -> None:
    if not opening.cancelled() and opening.exception() is None:
        opening.result().terminate()


class EngineConnection(WatchedConnection):
    """A connection that a forked process cannot use."""

    def __init__(self, protocol: Any, transport: asyncio.Transport, *arguments: Any) -> None:
        super().__init__(protocol, transport, *arguments)
        self._engine_transport = transport
        watch_forks(self)

    def leave_to_parent(self) -> None:
        """Replace the socket by the null device, without a message to the server."""
        transport = self._engine_transport
        if not transport.is_closing():
            null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
            os.dup2(null, transport.get_extra_info("socket").fileno(), inheritable=False)
            os.close(null)


class UnsharedConnection(EngineConnection):
    """A connection that no user code has changed, so that a reset needs no extra statement.

    Behind a pooler, other programs use the same session. `local_settings` then holds SQL with the settings for each
    transaction.
    """

    local_settings = ""

    def get_reset_query(self) -> str:
        return ""

    @asynccontextmanager
    async def transaction(  # type: ignore[override] # `async with` is the only use of asyncpg's own object
        self, *, isolation: Isolation = "read_committed", readonly: bool = False
    ) -> AsyncIterator[None]:
        """Run the block in a transaction, which begins with its settings in one round trip.

        A block that is cancelled does not wait for the rollback, because the server may not respond. The pool resets
        the connection in the background.
        """
        mode = f"{isolation.replace('_', ' ').upper()}{' READ ONLY' if readonly else ''}"
        await self.execute(f"BEGIN ISOLATION LEVEL {mode};{self.local_settings}")
        try:
            yield
        except Exception:
            await self.execute("ROLLBACK")
            raise
        await self.execute("COMMIT")


class ConnectionSource(Protocol):
    """The method that our pool and `asyncpg.Pool` have in common."""

    def acquire(self, *, timeout: float) -> AbstractAsyncContextManager[Any]:
        """Lend a connection for the time of a block."""


@asynccontextmanager
async def acquire(pool: ConnectionSource, timeout_s: float) -> AsyncIterator[Connection]:
    """Lend a connection of `pool`. Translate driver errors that leave the block, except conflicts."""
    is_lent = False
    try:
        async with pool.acquire(timeout=timeout_s) as connection:
            is_lent = True
            yield connection
    except Exception as error:
        ours = translate(error) if is_lent else translate_unsent(error)
        if ours is error or is_conflict(error):
            raise
        raise ours from error


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionOptions:
    """How to begin a transaction, and how long to wait for a connection. `locally` holds SQL to begin with."""

    wait_s: float
    isolation: Isolation = "read_committed"
    readonly: bool = False
    locally: str = ""


async def run_in_transaction(
    pool: ConnectionSource,
    options: TransactionOptions,
    make: Callable[[Connection], Transaction],
    body: Callable[[Transaction], Coroutine[Any, Any, Result]],
) -> tuple[Result, Transaction]:
    """Run `body` in a transaction, and return its result and the committed transaction. Retry after conflicts."""
    for tries in range(_MAX_TRIES):
        if tries:
            await asyncio.sleep(random.uniform(0, max_backoff_s(tries)))
        async with acquire(pool, options.wait_s) as connection:
            try:
                transaction = make(connection)
                async with connection.transaction(isolation=options.isolation, readonly=options.readonly):
                    if options.locally:
                        await connection.execute(options.locally)
                    result = await body(transaction)
            except Exception as error:
                if not is_conflict(error):
                    raise
            else:
                return result, transaction
    raise Unavailable("retry_exhausted", f"the transaction lost {_MAX_TRIES} conflicts in a row; repeat the call")


def max_backoff_s(tries: int) -> float:
    """Return the longest pause before a transaction runs again after `tries` conflicts."""
    return min(INITIAL_BACKOFF_S * 2.0**tries, _MAX_BACKOFF_S)
