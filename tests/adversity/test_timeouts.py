"""A call that waits too long or is cancelled ends with a clear error and leaves a working engine."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, closing
from typing import Any

import asyncpg
import pytest

from flowfabric.engine import Ended, Engine, FlowFabricError, Lease, State, Step, Unavailable
from flowfabric.store.transaction import Transaction
from tests.concurrency.gates import eventually, wait_until_blocked
from tests.concurrency.soundness import assert_sound
from tests.scenarios import leased, submitted
from tests.stores import PostgresTestStore, SqliteTestStore, TestStore, opened, snapshot

ENDLESS = {
    "sqlite": "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT COUNT(*) FROM n",
    "postgres": "SELECT pg_sleep(3600)",
}


# All of these calls wait for the execution's row. The first two calls need no other lock.
WAITING_CALLS: list[Callable[[Engine, Lease], Awaitable[Any]]] = [
    lambda engine, lease: engine.leases.fail(lease.fence, "no"),
    lambda engine, lease: engine.operator.cancel(lease.execution_id),
    lambda engine, lease: engine.leases.progress(lease.fence, 50),
    lambda engine, lease: engine.leases.complete(lease.fence, b"other"),
    lambda engine, lease: engine.leases.checkpoint(lease.fence, [Step("one")]),
]


@asynccontextmanager
async def everything_locked(store: TestStore) -> AsyncIterator[None]:
    """Hold a lock on all executions, or on SQLite on the whole file, during the block."""
    if isinstance(store, PostgresTestStore):
        connection = await asyncpg.connect(store.url)
        try:
            async with connection.transaction():
                await connection.execute(f'SELECT id FROM "{store.schema}".execution FOR UPDATE')
                yield
        finally:
            await connection.close()
        return
    assert isinstance(store, SqliteTestStore)
    with closing(sqlite3.connect(store.path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        yield
        other.execute("ROLLBACK")


@pytest.mark.parametrize("store", ["postgres"], indirect=True)
async def test_waiting_for_a_row_beyond_the_statement_timeout_is_unavailable(store: TestStore) -> None:
    options: dict[str, Any] = {"statement_timeout": "1s"}
    async with opened(store, **options) as direct, opened(store, **options, pooler=True) as pooled:
        lease = await leased(direct)
        before = await snapshot(store)
        async with everything_locked(store):
            calls = [call(engine, lease) for engine in (direct, pooled) for call in WAITING_CALLS]
            results = await asyncio.gather(*calls, return_exceptions=True)
        assert [code_of(result) for result in results] == ["statement_timeout"] * len(results)
        assert await snapshot(store) == before
        assert await direct.leases.complete(lease.fence) == Ended(State.COMPLETED)


@pytest.mark.parametrize("store", ["sqlite"], indirect=True)
async def test_waiting_for_the_file_beyond_the_statement_timeout_is_unavailable(
    store: TestStore,
) -> None:
    async with opened(store, statement_timeout="1s") as engine:
        lease = await leased(engine)
        before = await snapshot(store)
        began = time.monotonic()
        async with everything_locked(store):
            results = await asyncio.gather(*(call(engine, lease) for call in WAITING_CALLS), return_exceptions=True)
        assert {code_of(result) for result in results} <= {"statement_timeout", "storage_busy"}
        assert time.monotonic() - began < 5
        assert await snapshot(store) == before
        assert await engine.leases.complete(lease.fence) == Ended(State.COMPLETED)


async def test_statement_beyond_the_statement_timeout_is_cancelled(store: TestStore) -> None:
    async with opened(store, statement_timeout="1s") as engine:
        id_ = await submitted(engine)

        async def endless(tx: Transaction) -> None:
            # No operation has an endless statement, so the test adds one to the connection of the transaction.
            session: Any = tx
            await tx.executions.set_tags(id_, {"half.done": "yes"}, await tx.now())
            cursor = session.session._connection.execute(ENDLESS[store.name])
            await cursor if store.name == "postgres" else cursor.fetchone()

        with pytest.raises(Unavailable) as ended:
            await engine._context.store.run(endless)
        assert ended.value.code == "statement_timeout"
        assert (await engine.executions.describe(id_)).tags == {}
        await engine.leases.claim_execution(id_, "w")


async def test_cancelled_waiting_calls_leave_every_connection_usable(store: TestStore) -> None:
    async with opened(store, pool_size=2) if store.name == "postgres" else opened(store) as engine:
        lease = await leased(engine)
        async with everything_locked(store):
            calls = [asyncio.ensure_future(call(engine, lease)) for call in WAITING_CALLS[:2]]
            await wait_until_blocked(store, engine, len(calls))
            for call in calls:
                call.cancel()
            results = await asyncio.gather(*calls, return_exceptions=True)
            assert all(isinstance(result, asyncio.CancelledError) for result in results)
        if isinstance(store, PostgresTestStore):
            await eventually(lambda: nothing_runs(store))
        for _ in range(3):
            await asyncio.gather(*(engine.executions.submit("job") for _ in range(4)))
        assert (await engine.executions.count())[State.WAITING].value >= 12
    await assert_sound(store)


async def test_call_cancelled_at_any_await_is_done_whole_or_not_at_all(store: TestStore) -> None:
    async with opened(store, pool_size=2) if store.name == "postgres" else opened(store) as engine:
        leases = [await leased(engine) for _ in range(24)]
        length = await turns_of(asyncio.create_task(complete(engine, leases[0])), most=None)
        for number, lease in enumerate(leases):
            call = asyncio.create_task(complete(engine, lease))
            await turns_of(call, most=number * length // len(leases))
            call.cancel()
            await asyncio.wait({call})
        for lease in leases:
            # The caller does not know whether the cancelled call took effect. It repeats the call and gets the same
            # result.
            assert await complete(engine, lease) == Ended(State.COMPLETED)
            assert len(await engine.executions.steps(lease.execution_id)) == 1
    await assert_sound(store)


async def complete(engine: Engine, lease: Lease) -> Ended:
    return await engine.leases.complete(lease.fence, b"out", steps=[Step("last", b"1")])


async def turns_of(call: asyncio.Task[Any], most: int | None) -> int:
    """Run the event loop until the call is done or the limit is reached; return the number of iterations."""
    turns = 0
    while not call.done() and (most is None or turns < most):
        turns += 1
        await asyncio.sleep(0)
    return turns


def code_of(result: object) -> str:
    return result.code if isinstance(result, FlowFabricError) else repr(result)


async def nothing_runs(store: PostgresTestStore) -> bool:
    rows = await store.query("SELECT pid FROM pg_stat_activity WHERE state <> 'idle' AND pid <> pg_backend_pid()")
    return not rows
