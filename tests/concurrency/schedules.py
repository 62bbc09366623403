"""Run two calls on two PostgreSQL connections, statement by statement, in every order.

Each call stops before every statement until the schedule lets it continue. While a call waits for a lock, the schedule
continues the other call. A switch is a change to the other call although the current call could continue. The tests run
all orders, or only the orders with few switches. Most faults need one or two switches. A test fails if there are more
orders than it can run.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import asyncpg

from flowfabric.engine import Engine
from flowfabric.testing import VirtualClock
from tests.concurrency.waits import Act
from tests.faults.failing_driver import FusedPool, FusedPostgres
from tests.stores import PostgresTestStore, opened

_PATIENCE_S = 10.0
_LOOK_S = 0.002
_MOMENT_S = 0.5
_MOST_ORDERS = 20_000
WITHOUT_BOUND = 10**6


class Walker:
    """A call that executes one statement per step."""

    def __init__(self, engine: Engine, observer: asyncpg.Connection[Any]) -> None:
        self.engine = engine
        self._observer = observer
        self._asks, self._may = asyncio.Event(), asyncio.Event()
        self._pid = 0
        self._task: asyncio.Task[Any] | None = None
        self.is_blocked = False
        store = vars(engine._context.store)
        store["_pool"] = _GatedPool(store["_pool"], self)

    async def begin(self, call: Awaitable[Any]) -> None:
        """Start the call and wait until it stops before its first statement."""
        self._asks.clear()
        self._may.clear()
        self._task = asyncio.ensure_future(call)
        await self.settle()

    async def turn(self, pid: int) -> None:
        """Wait until the connection may execute its next statement."""
        if self._task is None or self._task.done():
            return
        self._pid = pid
        self._asks.set()
        await self._may.wait()
        self._may.clear()

    @property
    def has_ended(self) -> bool:
        return self._task is not None and self._task.done()

    def result(self) -> Any:
        """The result or the exception of the call."""
        assert self._task is not None and self._task.done(), "the call has ended"
        return self._task.exception() or self._task.result()

    async def step(self) -> None:
        """Execute the next statement and wait until it is done or waits for a lock."""
        self._asks.clear()
        self._may.set()
        await self.settle()

    async def settle(self) -> None:
        """Wait until the call stops before a statement, has ended, or waits for a lock."""
        assert self._task is not None, "the call has begun"
        ends = time.monotonic() + _PATIENCE_S
        asks = asyncio.ensure_future(self._asks.wait())
        self.is_blocked = False
        while not asks.done() and not self._task.done() and not self.is_blocked:
            await asyncio.wait({asks, self._task}, timeout=_LOOK_S, return_when=asyncio.FIRST_COMPLETED)
            if not asks.done() and not self._task.done():
                blocking = await self._observer.fetchval("SELECT cardinality(pg_blocking_pids($1))", self._pid)
                self.is_blocked = bool(blocking)
            assert time.monotonic() < ends, "a statement neither ended nor waits for a lock"
        asks.cancel()


@dataclass
class Orders:
    """Enumerates the orders of two calls.

    `next` chooses the call that continues, and `again` prepares the next order.
    """

    switches: int
    _script: list[int] = field(default_factory=list)
    _taken: list[tuple[int, tuple[int, ...]]] = field(default_factory=list)
    _left: int = 0
    _last: int | None = None
    runs: int = 0

    def begin(self) -> None:
        self._taken, self._left, self._last = [], self.switches, None
        self.runs += 1

    def next(self, able: list[int]) -> int:
        """Return the number of the call that continues, chosen from the runnable calls `able`."""
        last = self._last
        if last is not None and last in able:
            able = [last, *(item for item in able if item != last)] if self._left else [last]
        place = len(self._taken)
        # The planned call may not be runnable, because locks and batches can differ between runs.
        scripted = self._script[place] if place < len(self._script) else able[0]
        chosen = scripted if scripted in able else able[0]
        self._taken.append((chosen, tuple(able)))
        self._left -= self._last in able and chosen != self._last
        self._last = chosen
        return chosen

    def again(self) -> bool:
        """Prepare the next order. Return False if all orders have run."""
        while self._taken:
            chosen, able = self._taken.pop()
            rest = able[able.index(chosen) + 1 :]
            if rest:
                assert self.runs < _MOST_ORDERS, f"more than {self.runs} orders; limit the switches"
                self._script = [item for item, _ in self._taken] + [rest[0]]
                return True
        return False


@asynccontextmanager
async def two_walkers(store: PostgresTestStore, clock: VirtualClock) -> AsyncIterator[tuple[Walker, Walker]]:
    """Yield two walkers on separate engines that have open connections and cached routes."""
    observer = await asyncpg.connect(store.url)
    try:
        async with opened(store, clock, pool_size=2) as one, opened(store, clock, pool_size=2) as other:
            for side in (one, other):
                await side.executions.submit("job")
            yield Walker(one, observer), Walker(other, observer)
    finally:
        await observer.close()


async def walk(walkers: tuple[Walker, Walker], calls: tuple[Act, Act], orders: Orders) -> None:
    """Run both calls until they end, in the order that `orders` chooses."""
    orders.begin()
    for walker, call in zip(walkers, calls, strict=True):
        await walker.begin(call(walker.engine))
    while able := await _runnable(walkers):
        await walkers[orders.next(able)].step()
        for walker in walkers:
            if walker.is_blocked:
                await walker.settle()
    assert all(walker.has_ended for walker in walkers), "both calls wait for a lock"


async def _runnable(walkers: tuple[Walker, Walker]) -> list[int]:
    """Return the calls that can continue.

    If neither call can continue, wait a moment for short locks, such as the lock of a notification. The wait is shorter
    than the server's deadlock timeout.
    """
    ends = time.monotonic() + _MOMENT_S
    while True:
        able = [place for place, walker in enumerate(walkers) if not walker.has_ended and not walker.is_blocked]
        if able or all(walker.has_ended for walker in walkers) or time.monotonic() > ends:
            return able
        for walker in walkers:
            if walker.is_blocked:
                await walker.settle()


class _GatedPool(FusedPool):
    """A pool whose connections wait before every statement until their walker lets them continue."""

    def __init__(self, pool: Any, walker: Walker) -> None:
        self._pool = pool
        self._walker = walker

    @asynccontextmanager
    async def acquire(self, **options: Any) -> AsyncIterator[FusedPostgres]:
        async with self._pool.acquire(**options) as connection:
            yield _GatedPostgres(connection, self._walker)


class _GatedPostgres(FusedPostgres):
    def __init__(self, connection: Any, walker: Walker) -> None:
        self._connection = connection
        self._walker = walker
        self._pid = connection.get_server_pid()

    @asynccontextmanager
    async def transaction(self, **options: Any) -> AsyncIterator[None]:
        async with self._connection.transaction(**options):
            yield
            await self._walker.turn(self._pid)

    async def _fused(self, method: Callable[..., Awaitable[Any]], sql: str, *arguments: Any) -> Any:
        await self._walker.turn(self._pid)
        return await method(sql, *arguments)
