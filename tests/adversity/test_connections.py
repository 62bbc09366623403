"""Users do not notice that connections are closed, lost or refused for a short time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Literal

import asyncpg
import pytest

from flowfabric.engine import Engine, Step, Unavailable
from flowfabric.testing import VirtualClock
from tests.faults.kit.proxy import proxied
from tests.postgres_server import PostgresServer
from tests.scenarios import leased, submitted
from tests.stores import PostgresTestStore, opened

LIMIT = 3


@asynccontextmanager
async def limited(spare: PostgresTestStore, limit: int) -> AsyncIterator[PostgresTestStore]:
    """Yield the same schema for a role that may have only `limit` connections."""
    await spare.query(f"CREATE ROLE limited LOGIN CONNECTION LIMIT {limit}")
    await spare.query("GRANT CREATE ON DATABASE postgres TO limited")
    store = PostgresTestStore(spare.url.replace("postgres@", "limited@"))
    try:
        yield store
    finally:
        await spare.query(f'DROP SCHEMA IF EXISTS "{store.schema}" CASCADE')
        await spare.query("REVOKE CREATE ON DATABASE postgres FROM limited")
        await spare.query("DROP ROLE limited")


async def test_calls_wait_for_a_connection_of_the_pool_if_the_server_has_no_free_one(spare: PostgresTestStore) -> None:
    async with limited(spare, LIMIT) as store, opened(store, pool_size=20, notify=False) as engine:
        ids = await asyncio.gather(*(submitted(engine) for _ in range(40)))
        # Each describe takes a connection, and they do not share a read.
        found = await asyncio.gather(*(engine.executions.describe(id_) for id_ in ids * 2))
        assert len(found) == 80
        assert engine._context.store._pool.size <= LIMIT  # type: ignore[attr-defined]


async def test_steps_in_a_transaction_wait_for_a_connection_if_the_server_has_no_free_one(
    spare: PostgresTestStore,
) -> None:
    async def body(connection: Any) -> int:
        return int(await connection.fetchval("SELECT 1 FROM pg_sleep(0.02)"))

    async with limited(spare, LIMIT) as store, opened(store, pool_size=20, notify=False) as engine:
        leases = [await leased(engine) for _ in range(20)]
        # The engine's own pool takes every connection, and gives one of them up for the steps.
        await asyncio.gather(*(engine.executions.describe(lease.execution_id) for lease in leases))
        results = await asyncio.gather(
            *(engine.leases.transact(lease.fence, body, lambda _: Step(name="paid")) for lease in leases)
        )
        assert results == [1] * 20


async def test_pool_opens_more_connections_when_the_server_has_free_ones_again(spare: PostgresTestStore) -> None:
    async with limited(spare, LIMIT) as store, opened(store, pool_size=4, notify=False) as engine:
        pool = engine._context.store._pool  # type: ignore[attr-defined]
        others = [await asyncpg.connect(store.url) for _ in range(LIMIT - 1)]
        id_ = await submitted(engine)

        async def describe_many() -> None:
            await asyncio.gather(*(engine.executions.describe(id_) for _ in range(20)))

        await describe_many()
        assert pool.size == 1
        for other in others:
            await other.close()
        async with asyncio.timeout(10):
            while pool.size < LIMIT:
                await describe_many()
                await asyncio.sleep(0.05)


async def test_engine_without_a_connection_retries_and_then_names_the_cause(spare: PostgresTestStore) -> None:
    async with limited(spare, LIMIT) as store, opened(store, retry_for=2, notify=False) as engine:
        pool = engine._context.store._pool  # type: ignore[attr-defined]
        id_ = await submitted(engine)
        # Close the only connection, and let other sessions take all of them.
        pool.close_one_idle()
        others: list[asyncpg.Connection[Any]] = []
        async with asyncio.timeout(5):
            while len(others) < LIMIT:
                try:
                    others.append(await asyncpg.connect(store.url))
                except asyncpg.TooManyConnectionsError:
                    await asyncio.sleep(0.02)
        began = time.monotonic()
        with pytest.raises(Unavailable) as raised:
            await engine.executions.describe(id_)
        assert raised.value.code == "too_many_connections"
        assert time.monotonic() - began >= 2
        describing = asyncio.ensure_future(engine.executions.describe(id_))
        await asyncio.sleep(0.3)
        for other in others:
            await other.close()
        assert (await describing).id == id_


async def test_connecting_waits_until_the_server_has_a_free_connection(spare: PostgresTestStore) -> None:
    async with limited(spare, 1) as store:
        other = await asyncpg.connect(store.url)
        opening = asyncio.ensure_future(_open_and_close(store))
        await asyncio.sleep(0.3)
        assert not opening.done()
        await other.close()
        await opening
        other = await asyncpg.connect(store.url)
        with pytest.raises(Unavailable) as refused:
            await store.connecting(retry_for=0.2)
        assert refused.value.code == "too_many_connections"
        await other.close()


async def _open_and_close(store: PostgresTestStore) -> None:
    async with opened(store, notify=False):
        pass


@pytest.mark.parametrize("how", ["idle_session_timeout", "pg_terminate_backend"])
async def test_no_call_fails_after_the_server_closed_idle_sessions(spare: PostgresTestStore, how: str) -> None:
    if how == "idle_session_timeout":
        await spare.query("ALTER ROLE postgres SET idle_session_timeout = '50ms'")
    try:
        async with opened(spare, notify=False) as engine:
            lease = await leased(engine, lease_ttl="1h")
            for number in range(5):
                if how == "pg_terminate_backend":
                    await spare.query(
                        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'flowfabric'"
                    )
                    # The event loop has not yet noticed that the connections are closed.
                else:
                    await asyncio.sleep(0.1)
                await submitted(engine)
                await engine.leases.checkpoint(lease.fence, [Step(name=str(number))])
                await engine.leases.renew(lease.fence)
                assert (await engine.executions.describe(lease.execution_id)).id == lease.execution_id
        stored = await spare.query("SELECT COUNT(*) AS number FROM ff.execution")
    finally:
        await spare.query("ALTER ROLE postgres RESET idle_session_timeout")
    assert stored[0]["number"] == 6, "a submit was lost or stored twice"


@pytest.mark.parametrize("mode", ["fast", "immediate"])
async def test_no_call_fails_while_the_server_restarts(
    spare_server: PostgresServer, spare: PostgresTestStore, mode: Literal["fast", "immediate"]
) -> None:
    acknowledged = 0
    stop = asyncio.Event()

    async def submit_until_stopped(engine: Engine) -> None:
        nonlocal acknowledged
        while not stop.is_set():
            await submitted(engine)
            acknowledged += 1

    async with opened(spare, retry_for=30, notify=False) as engine:
        load = [asyncio.create_task(submit_until_stopped(engine)) for _ in range(6)]
        await asyncio.sleep(0.3)
        await asyncio.to_thread(spare_server.stop, mode)
        await asyncio.sleep(0.3)
        await asyncio.to_thread(spare_server.start)
        before = acknowledged
        async with asyncio.timeout(30):
            while acknowledged < before + 20:  # noqa: ASYNC110 - no event to await
                await asyncio.sleep(0.02)
        stop.set()
        await asyncio.gather(*load)
        stored = await spare.query("SELECT COUNT(*) AS number FROM ff.execution")
    assert stored[0]["number"] == acknowledged, "a submit was lost or stored twice"


async def test_user_code_is_repeated_if_the_connection_was_lost_before_it_ran(
    postgres: PostgresServer, clock: VirtualClock
) -> None:
    runs = []

    async def body(connection: Any) -> None:
        runs.append(connection)

    direct = PostgresTestStore(postgres.dsn)
    with proxied(postgres.dsn) as (proxy, dsn):
        store = PostgresTestStore(dsn)
        store.schema = direct.schema
        async with opened(store, clock, notify=False) as engine:
            first, second = await leased(engine), await leased(engine)
            await engine.leases.transact(first.fence, body, lambda _: Step(name="paid"))
            proxy.drops_replies = True
            transacting = asyncio.ensure_future(engine.leases.transact(second.fence, body, lambda _: Step(name="paid")))
            await asyncio.sleep(0.1)
            proxy.heal()
            proxy.cut()
            await transacting
    await direct.drop()
    assert len(runs) == 2
