"""The connections of an engine: opened when they are needed, closed when nobody has needed them for a while.

The driver's own pool starts a task and a timer when a connection is taken, and again when it is given back, which takes
as long as a small statement. Here a free connection that comes back clean waits for nothing.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any

import asyncpg

if TYPE_CHECKING:
    Connection = asyncpg.Connection[Any]

_IDLE_S = 300.0
_RESET_S = 5.0


class Pool:
    """At most so many connections, each for one caller at a time. It belongs to one event loop."""

    def __init__(self, open_one: Callable[[], Awaitable[Connection]], most: int) -> None:
        self._open_one = open_one
        self._room = most
        self._all: set[Connection] = set()
        # With the time since when; the one that was used last is taken first.
        self._free: list[tuple[float, Connection]] = []
        self._waiting: deque[asyncio.Future[Connection | None]] = deque()
        self._resets: set[asyncio.Task[None]] = set()
        self._sweep: asyncio.TimerHandle | None = None
        self._is_closed = False
        self._is_empty = asyncio.Event()

    def acquire(self, *, timeout: float) -> Borrowing:
        """A connection for the time of a block: `async with pool.acquire(timeout=5) as connection`."""
        return Borrowing(self, timeout)

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
        free, self._free = self._free, []
        await asyncio.gather(*(self._close_one(connection) for _, connection in free))
        if self._all:
            try:
                async with asyncio.timeout(timeout):
                    await self._is_empty.wait()
            except TimeoutError:
                for connection in self._all:
                    connection.terminate()
        if self._sweep is not None:
            self._sweep.cancel()

    async def take(self, timeout: float) -> Connection:  # noqa: ASYNC109 - of the wait alone
        """A connection that is the caller's until it gives it back."""
        self._check_open()
        while self._free:
            _, connection = self._free.pop()
            if not connection.is_closed():
                return connection
            self._lose(connection)
        if self._room:
            self._room -= 1
        else:
            handed = await self._turn(timeout)
            if handed is not None:
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
            reset = asyncio.create_task(self._reset(connection))
            self._resets.add(reset)
            reset.add_done_callback(self._resets.discard)

    async def _reset(self, connection: Connection) -> None:
        """Waits until the statement that was given up has ended, and takes its transaction back."""
        try:
            await connection.reset(timeout=_RESET_S)
        except BaseException:
            connection.terminate()
            self._lose(connection)
            raise
        self.give_back(connection, is_clean=True)

    async def _turn(self, timeout: float) -> Connection | None:  # noqa: ASYNC109
        """What comes free next, after those who have waited longer: a connection, or the room for one."""
        turn: asyncio.Future[Connection | None] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            async with asyncio.timeout(timeout):
                return await turn
        except BaseException:
            if turn.done() and not turn.cancelled():
                self._pass_on(turn.result())
            raise

    async def _open(self) -> Connection:
        """A new connection, for which there is room."""
        try:
            self._check_open()
            connection = await self._open_one()
        except BaseException:
            self._pass_on(None)
            raise
        self._all.add(connection)
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
        loop = asyncio.get_running_loop()
        self._free.append((loop.time(), connection))
        if self._sweep is None:
            self._sweep = loop.call_later(_IDLE_S, self._close_idle)

    def _lose(self, connection: Connection) -> None:
        self._all.discard(connection)
        if not self._all:
            self._is_empty.set()
        self._pass_on(None)

    def _close_idle(self) -> None:
        loop = asyncio.get_running_loop()
        idle = [connection for since, connection in self._free if since <= loop.time() - _IDLE_S]
        self._free = self._free[len(idle) :]
        for connection in idle:
            closing = loop.create_task(self._close_one(connection))
            self._resets.add(closing)
            closing.add_done_callback(self._resets.discard)
        self._sweep = loop.call_later(_IDLE_S, self._close_idle) if self._free else None

    async def _close_one(self, connection: Connection) -> None:
        try:
            await connection.close(timeout=_RESET_S)
        except (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError):
            connection.terminate()
        finally:
            self._lose(connection)

    def _check_open(self) -> None:
        if self._is_closed:
            raise asyncpg.InterfaceError("pool is closed")


class Borrowing:
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
        is_clean = error is None or (isinstance(error, Exception) and not isinstance(error, TimeoutError))
        self._pool.give_back(self._connection, is_clean=is_clean)
