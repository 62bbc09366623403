"""A host that vanishes inside a transaction does not keep its rows locked."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import pytest

from flowfabric.backends.postgres.keepalive import SERVER_KEEPALIVES
from flowfabric.engine import Engine, Step
from tests.faults.kit.proxy import proxied
from tests.faults.kit.vanished_host import CALLS, take_over, vanish
from tests.postgres_server import PostgresServer
from tests.scenarios import leased
from tests.stores import PostgresTestStore, opened

LEASE_S = 1.0
# The limits of the server are twice the statement timeout, and at most 20 s.
OPTIONS: dict[str, Any] = {"statement_timeout": "1s"}
MARGIN_S = 12.0
PATIENCE_S = 4.0
CLIENT_OPTIONS = (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT, socket.TCP_USER_TIMEOUT)


@pytest.mark.parametrize("call", CALLS)
async def test_another_worker_takes_over_from_a_host_that_vanished_inside_a_transaction(
    postgres: PostgresServer, call: str
) -> None:
    store = PostgresTestStore(postgres.dsn)
    async with opened(store, **OPTIONS) as survivor, survivor.reconcilers.run_in_background():
        with proxied(postgres.dsn) as (proxy, url):
            id_, vanished_at = await vanish(proxy, url, survivor, store, call, LEASE_S, **OPTIONS)
            assert await take_over(survivor, id_, LEASE_S, vanished_at + 2 * LEASE_S + MARGIN_S)
            assert proxy.stalls
    await store.drop()


async def test_operator_can_cancel_the_execution_of_a_vanished_host(postgres: PostgresServer) -> None:
    store = PostgresTestStore(postgres.dsn)
    async with opened(store) as operator:
        with proxied(postgres.dsn) as (proxy, url):
            id_, _ = await vanish(proxy, url, operator, store, "delay", 600.0, **OPTIONS)
            await operator.operator.cancel(id_)
        assert (await operator.executions.describe(id_)).state == "cancelled"
    await store.drop()


async def test_cancelled_call_ends_immediately_while_the_server_does_not_respond(postgres: PostgresServer) -> None:
    store = PostgresTestStore(postgres.dsn)
    with proxied(postgres.dsn) as (proxy, url):
        behind = PostgresTestStore(url)
        behind.schema = store.schema
        engine = await behind.connecting(notify=False)
        lease = await leased(engine)
        proxy.vanish_at("inside a statement")
        call = asyncio.ensure_future(engine.leases.fail(lease.fence, "no"))
        assert await asyncio.to_thread(proxy.has_vanished.wait, PATIENCE_S)
        call.cancel()
        done, _ = await asyncio.wait([call], timeout=PATIENCE_S)
        assert done and call.cancelled()
        await engine.close(0)
    await store.drop()


async def test_session_requests_keepalives_on_both_sides(postgres: PostgresServer) -> None:
    store = PostgresTestStore(postgres.dsn)
    with proxied(postgres.dsn) as (proxy, url):
        behind = PostgresTestStore(url)
        behind.schema = store.schema
        async with opened(behind) as engine:
            lease = await leased(engine)
            await engine.leases.transact(lease.fence, _check_socket, lambda _: Step("checked", b"1"))
            async with _connection_of(engine) as connection:
                await _check_socket(connection)
                assert await connection.fetchval("SHOW idle_in_transaction_session_timeout") == "20s"
        sessions = [startup for startup in proxy.startups if startup["application_name"] == "flowfabric"]
        assert len(sessions) >= 2
        for startup in sessions:
            assert {name: startup.get(name) for name in SERVER_KEEPALIVES} == SERVER_KEEPALIVES
    await store.drop()


async def test_session_behind_a_pooler_bounds_each_transaction(postgres: PostgresServer) -> None:
    store = PostgresTestStore(postgres.dsn)
    with proxied(postgres.dsn) as (proxy, url):
        behind = PostgresTestStore(url)
        behind.schema = store.schema
        async with opened(behind, pooler=True) as engine, _connection_of(engine) as connection:
            async with connection.transaction():
                assert await connection.fetchval("SHOW idle_in_transaction_session_timeout") == "20s"
            assert await connection.fetchval("SHOW idle_in_transaction_session_timeout") == "0"
        assert all(startup.keys().isdisjoint(SERVER_KEEPALIVES) for startup in proxy.startups)
    await store.drop()


async def _check_socket(connection: Any) -> None:
    connection = getattr(connection, "_con", connection)
    watched = connection._transport.get_extra_info("socket")
    assert [watched.getsockopt(socket.IPPROTO_TCP, option) for option in CLIENT_OPTIONS] == [10, 5, 2, 20_000]
    assert watched.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)


def _connection_of(engine: Engine) -> Any:
    store: Any = engine._context.store
    return store._connection()
