"""The connection pool serves callers in order and replaces lost or broken connections."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

import asyncpg
import pytest

from flowfabric.backends.postgres import pool as pools
from flowfabric.backends.postgres.pool import Pool, UnsharedConnection
from tests.postgres_server import PostgresServer

Opened = Callable[[], Coroutine[Any, Any, Any]]


@pytest.fixture
def opened(postgres: PostgresServer) -> Opened:
    return lambda: asyncpg.connect(postgres.dsn)


@pytest.fixture
async def pool(opened: Opened) -> AsyncIterator[Pool]:
    new_pool = Pool(opened, 2)
    yield new_pool
    await new_pool.close(1)


async def pid_of(pool: Pool) -> int:
    async with pool.acquire(timeout=5) as connection:
        return int(await connection.fetchval("SELECT pg_backend_pid()"))


async def test_pool_reuses_the_most_recently_used_connection(pool: Pool) -> None:
    assert await pid_of(pool) == await pid_of(pool)
    assert (pool.size, pool.idle) == (1, 1)


async def test_pool_opens_at_most_its_size(pool: Pool) -> None:
    pids = await asyncio.gather(*(pid_of(pool) for _ in range(20)))
    assert len(set(pids)) == 2
    assert (pool.size, pool.idle) == (2, 2)


async def test_longest_waiter_gets_the_next_connection(opened: Opened) -> None:
    pool, order = Pool(opened, 1), list[int]()

    async def caller(number: int) -> None:
        async with pool.acquire(timeout=5):
            order.append(number)

    async with pool.acquire(timeout=5):
        callers = [asyncio.create_task(caller(number)) for number in range(5)]
        await asyncio.sleep(0)
    await asyncio.gather(*callers)
    assert order == [0, 1, 2, 3, 4]
    await pool.close(1)


async def test_waiter_that_times_out_keeps_no_connection(pool: Pool) -> None:
    async with pool.acquire(timeout=5), pool.acquire(timeout=5):
        with pytest.raises(TimeoutError):
            await pool.take(0.01)
    assert (pool.size, pool.idle) == (2, 2)
    assert await pid_of(pool)


async def test_connection_handed_to_a_cancelled_waiter_goes_to_the_next_one(opened: Opened) -> None:
    pool = Pool(opened, 1)
    held = await pool.take(5)
    first, second = (asyncio.create_task(pool.take(5)) for _ in range(2))
    await asyncio.sleep(0)
    pool.give_back(held, is_clean=True)
    first.cancel()
    assert await asyncio.wait_for(second, 5) is held
    assert first.cancelled()
    pool.give_back(held, is_clean=True)
    await pool.close(1)


async def test_connection_that_is_open_when_its_caller_is_cancelled_is_closed(opened: Opened) -> None:
    connections = list[Any]()

    async def open_and_cancel() -> Any:
        connections.append(await opened())
        asyncio.get_running_loop().call_soon(caller.cancel)
        return connections[0]

    pool = Pool(open_and_cancel, 1)
    caller = asyncio.create_task(pool.take(5))
    with pytest.raises(asyncio.CancelledError):
        await caller
    await asyncio.sleep(0)
    assert connections[0].is_closed()
    await pool.close(1)


async def test_lost_connection_is_replaced(pool: Pool) -> None:
    async with pool.acquire(timeout=5) as connection:
        connection.terminate()
    assert pool.size == 0
    assert await pid_of(pool)


async def test_connection_lost_while_idle_is_replaced(pool: Pool) -> None:
    async with pool.acquire(timeout=5) as connection:
        pass
    connection.terminate()
    assert await pid_of(pool)
    assert (pool.size, pool.idle) == (1, 1)


async def test_lost_connection_makes_room_for_a_waiter(opened: Opened) -> None:
    pool = Pool(opened, 1)
    held = await pool.take(5)
    waiting = asyncio.create_task(pid_of(pool))
    await asyncio.sleep(0)
    held.terminate()
    pool.give_back(held, is_clean=True)
    assert await asyncio.wait_for(waiting, 5)
    await pool.close(1)


async def test_slot_of_a_failed_connect_goes_to_the_next_waiter(opened: Opened) -> None:
    failures = [OSError("no route to host")]

    async def sometimes() -> Any:
        if failures:
            raise failures.pop()
        return await opened()

    pool = Pool(sometimes, 1)
    with pytest.raises(OSError, match="no route"):
        await pool.take(5)
    assert await pid_of(pool)
    await pool.close(1)


async def test_abandoned_statement_ends_before_the_next_one_starts(opened: Opened) -> None:
    pool = Pool(opened, 1)

    async def sleeping() -> None:
        async with pool.acquire(timeout=5) as connection, connection.transaction():
            await connection.execute("CREATE TEMPORARY TABLE left_over (id INTEGER)")
            await connection.execute("SELECT pg_sleep(60)")

    task = asyncio.create_task(sleeping())
    await asyncio.sleep(0.2)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    async with asyncio.timeout(5), pool.acquire(timeout=5) as connection:
        assert not connection.is_in_transaction()
        assert await connection.fetchval("SELECT to_regclass('left_over')") is None
    assert (pool.size, pool.idle) == (1, 1)
    await pool.close(1)


async def test_open_transaction_is_rolled_back_on_release(pool: Pool) -> None:
    async with pool.acquire(timeout=5) as connection:
        await connection.execute("BEGIN")
        await connection.execute("CREATE TEMPORARY TABLE left_over (id INTEGER)")
    for _ in range(2):
        async with pool.acquire(timeout=5) as connection:
            assert not connection.is_in_transaction()
            assert await connection.fetchval("SELECT to_regclass('left_over')") is None


async def test_close_waits_for_connections_in_use_and_then_cuts_them_off(opened: Opened) -> None:
    pool = Pool(opened, 2)
    quick, slow = await pool.take(5), await pool.take(5)
    closing = asyncio.create_task(pool.close(0.2))
    await asyncio.sleep(0)
    with pytest.raises(asyncpg.InterfaceError, match="closed"):
        await pool.take(5)
    assert await quick.fetchval("SELECT 1") == 1
    pool.give_back(quick, is_clean=True)
    await closing
    assert quick.is_closed() and slow.is_closed()
    pool.give_back(slow, is_clean=True)
    assert (pool.size, pool.idle) == (0, 0)


async def test_waiters_get_an_error_when_the_pool_closes(opened: Opened) -> None:
    pool = Pool(opened, 1)
    held = await pool.take(5)
    waiting = asyncio.create_task(pool.take(5))
    await asyncio.sleep(0)
    closing = asyncio.create_task(pool.close(5))
    with pytest.raises(asyncpg.InterfaceError, match="closed"):
        await waiting
    pool.give_back(held, is_clean=True)
    await asyncio.wait_for(closing, 2)


async def test_idle_connections_are_closed_after_a_while(opened: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pools, "_IDLE_S", 0.1)
    pool = Pool(opened, 2)
    async with pool.acquire(timeout=5), pool.acquire(timeout=5):
        pass
    async with asyncio.timeout(5):
        while pool.size:  # noqa: ASYNC110 - no event to await
            await asyncio.sleep(0.02)
    assert await pid_of(pool)
    await pool.close(1)


class Refusing(UnsharedConnection):
    """A connection whose next `refusals` BEGIN statements are refused."""

    refusals = 0

    async def execute(self, query: str, *arguments: Any, **options: Any) -> str:
        if query.startswith("BEGIN") and Refusing.refusals:
            Refusing.refusals -= 1
            raise asyncpg.TooManyConnectionsError("no server is free")
        return str(await super().execute(query, *arguments, **options))


async def test_failed_begin_does_not_affect_the_next_transaction(postgres: PostgresServer) -> None:
    pool = Pool(lambda: asyncpg.connect(postgres.dsn, connection_class=Refusing), 1)
    Refusing.refusals = 1
    with pytest.raises(asyncpg.TooManyConnectionsError):
        async with pool.acquire(timeout=5) as connection, connection.transaction():
            pass
    for _ in range(2):
        async with pool.acquire(timeout=5) as connection, connection.transaction():
            assert await connection.fetchval("SELECT pg_current_xact_id_if_assigned() IS NULL")
    assert (pool.size, pool.idle) == (1, 1)
    await pool.close(1)


async def test_close_waits_even_if_the_pool_was_empty_before(opened: Opened) -> None:
    pool = Pool(opened, 1)
    async with pool.acquire(timeout=5) as connection:
        connection.terminate()
    held = await pool.take(5)
    closing = asyncio.create_task(pool.close(5))
    await asyncio.sleep(0.05)
    assert not closing.done()
    pool.give_back(held, is_clean=True)
    await asyncio.wait_for(closing, 2)
    assert held.is_closed()


async def test_connection_opened_while_the_pool_closes_is_closed(opened: Opened) -> None:
    made, may_open = list[Any](), asyncio.Event()

    async def slowly() -> Any:
        await may_open.wait()
        made.append(await opened())
        return made[0]

    pool = Pool(slowly, 1)
    taking = asyncio.create_task(pool.take(5))
    await asyncio.sleep(0)
    closing = asyncio.create_task(pool.close(5))
    await asyncio.sleep(0)
    may_open.set()
    with pytest.raises(asyncpg.InterfaceError, match="closed"):
        await taking
    await asyncio.wait_for(closing, 2)
    assert made[0].is_closed() and pool.size == 0


async def test_cancelled_close_leaves_no_connection_open(opened: Opened) -> None:
    pool = Pool(opened, 1)
    held = await pool.take(5)
    closing = asyncio.create_task(pool.close(60))
    await asyncio.sleep(0.01)
    closing.cancel()
    await asyncio.gather(closing, return_exceptions=True)
    assert held.is_closed()


async def test_timeout_covers_waiting_and_connecting(opened: Opened) -> None:
    async def never() -> Any:
        await asyncio.Event().wait()

    pool = Pool(never, 1)
    began = time.monotonic()
    results = await asyncio.gather(*(pool.take(0.2) for _ in range(3)), return_exceptions=True)
    assert [type(result) for result in results] == [TimeoutError] * 3
    assert time.monotonic() - began < 0.35
    assert not pool._waiters


async def test_connection_that_cannot_be_reset_is_replaced_silently(
    pool: Pool, caplog: pytest.LogCaptureFixture
) -> None:
    connection = await pool.take(5)
    pid = connection.get_server_pid()
    pool.give_back(connection, is_clean=False)
    connection.terminate()
    async with asyncio.timeout(5):
        while pool.size:  # noqa: ASYNC110 - no event to await
            await asyncio.sleep(0.01)
    assert await pid_of(pool) != pid
    gc.collect()
    assert not caplog.records


async def test_pool_refuses_another_event_loop(pool: Pool) -> None:
    assert await pid_of(pool)

    def elsewhere() -> None:
        asyncio.run(pid_of(pool))

    with pytest.raises(asyncpg.InterfaceError, match="another event loop"):
        await asyncio.to_thread(elsewhere)
