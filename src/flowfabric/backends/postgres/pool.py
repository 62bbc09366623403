"""The connections of an engine: opened when they are needed, closed when nobody has needed them for a while.

The driver's own pool starts a task and a timer when a connection is taken, and again when it is given back, which takes
as long as a small statement. Here a free connection that comes back clean waits for nothing.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from types import TracebackType
from typing import TYPE_CHECKING, Any

import asyncpg

from flowfabric.core.errors import FlowFabricError

if TYPE_CHECKING:
    Connection = asyncpg.Connection[Any]

_IDLE_S = 300.0
_RESET_S = 5.0


class Pool:
    """At most so many connections, each for one caller at a time. It belongs to one event loop."""

    def __init__(self, open_one: Callable[[], Awaitable[Connection]], most: int) -> None:
        self._open_one = open_one
        self._room = most
        self._loop = asyncio.get_running_loop()
        self._all: set[Connection] = set()
        self._opening = 0
        # With the time since when; the one that was used last is taken first.
        self._free: list[tuple[float, Connection]] = []
        self._waiting: deque[asyncio.Future[Connection | None]] = deque()
        self._tasks: set[asyncio.Task[None]] = set()
        self._sweep: asyncio.TimerHandle | None = None
        self._is_closed = False
        self._is_empty = asyncio.Event()

    def acquire(self, *, timeout: float) -> Loan:
        """A connection for the time of a block: `async with pool.acquire(timeout=5) as connection`."""
        return Loan(self, timeout)

    @property
    def size(self) -> int:
        """How many connections are open."""
        return len(self._all)

    @property
    def idle(self) -> int:
        """How many of them nobody has."""
        return len(self._free)

    async def close(self, timeout: float) -> None:  # noqa: ASYNC109 - what is still in use then is cut off
        """Lets nobody take a connection any more, and waits for those that somebody has."""
        self._is_closed = True
        while self._waiting:
            self._pass_on(None)
        try:
            async with asyncio.timeout(timeout):
                while self._free:
                    await self._close_one(self._free.pop()[1])
                if self._all or self._opening:
                    await self._is_empty.wait()
        except TimeoutError:
            pass
        finally:
            for connection in self._all:
                connection.terminate()
            if self._sweep is not None:
                self._sweep.cancel()

    async def take(self, timeout: float) -> Connection:  # noqa: ASYNC109 - a free one is there at once
        """A connection that is the caller's until it gives it back."""
        self._check_usable()
        while self._free:
            _, connection = self._free.pop()
            if not connection.is_closed():
                return connection
            self._lose(connection)
        async with asyncio.timeout(timeout):
            if self._room:
                self._room -= 1
            elif (handed := await self._turn()) is not None:
                if not handed.is_closed():
                    return handed
                self._all.discard(handed)
            return await self._open()

    def give_back(self, connection: Connection, *, is_clean: bool) -> None:
        """Lets others have it; one that was left in the middle of something is brought to order first."""
        if connection.is_closed() or self._is_closed:
            connection.terminate()
            self._lose(connection)
        elif is_clean and not connection.is_in_transaction():
            self._pass_on(connection)
        else:
            self._spawn(self._reset(connection))

    async def _reset(self, connection: Connection) -> None:
        """Waits until the statement that was given up has ended, and takes its transaction back: on the server, and in
        what the driver knows of it."""
        try:
            async with asyncio.timeout(_RESET_S):
                await connection.execute("ROLLBACK")
                await connection.reset()
        except BaseException as error:
            connection.terminate()
            self._lose(connection)
            if not isinstance(error, Exception):
                raise
        else:
            self.give_back(connection, is_clean=True)

    async def _turn(self) -> Connection | None:
        """What comes free next, after those who have waited longer: a connection, or the room for one."""
        turn: asyncio.Future[Connection | None] = self._loop.create_future()
        self._waiting.append(turn)
        try:
            return await turn
        except BaseException:
            if turn.cancelled():
                # Whoever passes something on may have taken it out already.
                self._waiting = deque(other for other in self._waiting if other is not turn)
            else:
                self._pass_on(turn.result())
            raise

    async def _open(self) -> Connection:
        """A new connection, for which there is room."""
        self._opening += 1
        self._is_empty.clear()
        try:
            self._check_usable()
            connection = await self._open_one()
            self._all.add(connection)
        except BaseException:
            self._opening -= 1
            self._lose(None)
            raise
        self._opening -= 1
        if self._is_closed:
            self.give_back(connection, is_clean=True)
            self._check_usable()
        return connection

    def _pass_on(self, connection: Connection | None) -> None:
        """Hands a connection, or the room for one, to whoever has waited longest; keeps it if nobody waits."""
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(connection)
                return
        if connection is None:
            self._room += 1
            return
        self._free.append((self._loop.time(), connection))
        if self._sweep is None:
            self._sweep = self._loop.call_later(_IDLE_S, self._close_idle)

    def _lose(self, connection: Connection | None) -> None:
        """There is room for another one again."""
        if connection is not None:
            self._all.discard(connection)
        if not self._all and not self._opening:
            self._is_empty.set()
        self._pass_on(None)

    def _close_idle(self) -> None:
        idle = [connection for since, connection in self._free if since <= self._loop.time() - _IDLE_S]
        self._free = self._free[len(idle) :]
        for connection in idle:
            self._spawn(self._close_one(connection))
        self._sweep = self._loop.call_later(_IDLE_S, self._close_idle) if self._free else None

    async def _close_one(self, connection: Connection) -> None:
        try:
            await connection.close(timeout=_RESET_S)
        except (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError):
            return
        finally:
            connection.terminate()
            self._lose(connection)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _check_usable(self) -> None:
        if self._is_closed:
            raise asyncpg.InterfaceError("the pool is closed")
        if asyncio.get_running_loop() is not self._loop:
            raise asyncpg.InterfaceError("the pool belongs to another event loop")


class Loan:
    """A connection for the time of a block."""

    __slots__ = ("_connection", "_pool", "_timeout")

    def __init__(self, pool: Pool, timeout: float) -> None:
        self._pool = pool
        self._timeout = timeout

    async def __aenter__(self) -> Connection:
        self._connection = await self._pool.take(self._timeout)
        return self._connection

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        # After an error of its own the driver may take the connection for one in a transaction, though it is in none.
        self._pool.give_back(self._connection, is_clean=error is None or isinstance(error, FlowFabricError))


class UnsharedConnection(asyncpg.Connection):
    """A connection whose session nobody has changed, so that a reset needs no statement of its own."""

    def get_reset_query(self) -> str:
        return ""
