"""The pool of connections: everybody gets one in turn, and what is left in disorder or lost takes nothing with it."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import asyncpg
import pytest

from flowfabric.backends.postgres import pool as pools
from flowfabric.backends.postgres.pool import Pool, UnsharedConnection
from tests.postgres_server import PostgresServer

Opened = Callable[[], Awaitable[Any]]


@pytest.fixture
def opened(postgres: PostgresServer) -> Opened:
    return lambda: asyncpg.connect(postgres.dsn)


@pytest.fixture
async def pool(opened: Opened) -> AsyncIterator[Pool]:
    found = Pool(opened, 2)
    yield found
    await found.close(1)


async def pid_of(pool: Pool) -> int:
    async with pool.acquire(timeout=5) as connection:
        return int(await connection.fetchval("SELECT pg_backend_pid()"))


async def test_the_connection_that_was_used_last_is_used_again(pool: Pool) -> None:
    assert await pid_of(pool) == await pid_of(pool)
    assert (pool.size, pool.idle) == (1, 1)


async def test_there_are_no_more_than_so_many(pool: Pool) -> None:
    pids = await asyncio.gather(*(pid_of(pool) for _ in range(20)))
    assert len(set(pids)) == 2
    assert (pool.size, pool.idle) == (2, 2)


async def test_whoever_waited_longest_is_next(opened: Opened) -> None:
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


async def test_who_waits_too_long_is_told_and_takes_nothing_along(pool: Pool) -> None:
    async with pool.acquire(timeout=5), pool.acquire(timeout=5):
        with pytest.raises(TimeoutError):
            await pool.take(0.01)
    assert (pool.size, pool.idle) == (2, 2)
    assert await pid_of(pool)


async def test_a_connection_that_comes_to_somebody_who_has_given_up_goes_on_to_the_next(opened: Opened) -> None:
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


async def test_a_lost_connection_is_replaced(pool: Pool) -> None:
    async with pool.acquire(timeout=5) as connection:
        connection.terminate()
    assert pool.size == 0
    assert await pid_of(pool)


async def test_one_that_is_lost_while_it_lies_there_is_replaced(pool: Pool) -> None:
    async with pool.acquire(timeout=5) as connection:
        pass
    connection.terminate()
    assert await pid_of(pool)
    assert (pool.size, pool.idle) == (1, 1)


async def test_a_lost_connection_makes_room_for_whoever_waits(opened: Opened) -> None:
    pool = Pool(opened, 1)
    held = await pool.take(5)
    waiting = asyncio.create_task(pid_of(pool))
    await asyncio.sleep(0)
    held.terminate()
    pool.give_back(held, is_clean=True)
    assert await asyncio.wait_for(waiting, 5)
    await pool.close(1)


async def test_room_that_could_not_be_used_is_used_by_the_next(opened: Opened) -> None:
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


async def test_a_statement_that_was_given_up_has_ended_before_the_next_begins(opened: Opened) -> None:
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


async def test_an_open_transaction_is_taken_back(pool: Pool) -> None:
    async with pool.acquire(timeout=5) as connection:
        await connection.execute("BEGIN")
        await connection.execute("CREATE TEMPORARY TABLE left_over (id INTEGER)")
    for _ in range(2):
        async with pool.acquire(timeout=5) as connection:
            assert not connection.is_in_transaction()
            assert await connection.fetchval("SELECT to_regclass('left_over')") is None


async def test_closing_waits_for_those_that_somebody_has_and_cuts_off_the_rest(opened: Opened) -> None:
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


async def test_those_who_wait_when_it_closes_are_told(opened: Opened) -> None:
    pool = Pool(opened, 1)
    held = await pool.take(5)
    waiting = asyncio.create_task(pool.take(5))
    await asyncio.sleep(0)
    closing = asyncio.create_task(pool.close(5))
    with pytest.raises(asyncpg.InterfaceError, match="closed"):
        await waiting
    pool.give_back(held, is_clean=True)
    await asyncio.wait_for(closing, 2)


async def test_what_nobody_needs_for_long_is_closed(opened: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pools, "_IDLE_S", 0.1)
    pool = Pool(opened, 2)
    async with pool.acquire(timeout=5), pool.acquire(timeout=5):
        pass
    async with asyncio.timeout(5):
        while pool.size:  # noqa: ASYNC110 - nobody is told
            await asyncio.sleep(0.02)
    assert await pid_of(pool)
    await pool.close(1)


class Refusing(UnsharedConnection):
    """A connection to a server that refuses to begin a transaction, once."""

    refusals = 0

    async def execute(self, query: str, *arguments: Any, **options: Any) -> str:
        if query.startswith("BEGIN") and Refusing.refusals:
            Refusing.refusals -= 1
            raise asyncpg.TooManyConnectionsError("no server is free")
        return str(await super().execute(query, *arguments, **options))


async def test_a_refused_begin_spoils_nothing_for_the_next(postgres: PostgresServer) -> None:
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


async def test_closing_waits_also_after_the_pool_was_empty_once(opened: Opened) -> None:
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


async def test_a_connection_that_is_opened_while_the_pool_closes_is_nobodys(opened: Opened) -> None:
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


async def test_whoever_is_told_to_stop_closing_leaves_nothing_open(opened: Opened) -> None:
    pool = Pool(opened, 1)
    held = await pool.take(5)
    closing = asyncio.create_task(pool.close(60))
    await asyncio.sleep(0.01)
    closing.cancel()
    await asyncio.gather(closing, return_exceptions=True)
    assert held.is_closed()


async def test_the_time_is_that_of_the_wait_and_of_opening_together(opened: Opened) -> None:
    async def never() -> Any:
        await asyncio.Event().wait()

    pool = Pool(never, 1)
    began = time.monotonic()
    answers = await asyncio.gather(*(pool.take(0.2) for _ in range(3)), return_exceptions=True)
    assert [type(answer) for answer in answers] == [TimeoutError] * 3
    assert time.monotonic() - began < 0.35
    assert not pool._waiting


async def test_one_that_cannot_be_brought_to_order_is_replaced_without_a_word(
    pool: Pool, caplog: pytest.LogCaptureFixture
) -> None:
    connection = await pool.take(5)
    pid = connection.get_server_pid()
    pool.give_back(connection, is_clean=False)
    connection.terminate()
    async with asyncio.timeout(5):
        while pool.size:  # noqa: ASYNC110 - nobody is told
            await asyncio.sleep(0.01)
    assert await pid_of(pool) != pid
    gc.collect()
    assert not caplog.records


async def test_another_loop_is_refused(pool: Pool) -> None:
    assert await pid_of(pool)

    def elsewhere() -> None:
        asyncio.run(pid_of(pool))

    with pytest.raises(asyncpg.InterfaceError, match="another event loop"):
        await asyncio.to_thread(elsewhere)
