"""A host that vanishes inside a transaction does not keep its rows locked."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from typing import Any

import asyncpg
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
# The sessions that copy from their client or wait for a lock.
BUSY = """
SELECT COUNT(*) FROM pg_stat_activity
WHERE pid = ANY($1) AND state = 'active' AND wait_event IN ('ClientRead', 'advisory')
"""
CLIENT_OPTIONS = (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT, socket.TCP_USER_TIMEOUT)


@pytest.mark.parametrize("call", CALLS)
async def test_another_worker_takes_over_from_a_host_that_vanished_inside_a_transaction(
    postgres: PostgresServer, call: str
) -> None:
    store = PostgresTestStore(postgres.dsn)
    async with opened(store, **OPTIONS) as survivor, survivor.reconcilers.run_in_background():
        with proxied(postgres.dsn) as (proxy, url):
            id_, vanished_at = await vanish(proxy, url, survivor, store, call, LEASE_S, **OPTIONS)
            took_over = await take_over(survivor, id_, LEASE_S, vanished_at + 2 * LEASE_S + MARGIN_S)
            assert took_over, "the row of the execution stayed locked"
            assert proxy.stalls
    await store.drop()


async def test_session_is_ended_only_after_it_has_stopped_inside_a_statement_for_long(
    postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = PostgresTestStore(postgres.dsn)
    async with opened(store) as survivor:
        with proxied(postgres.dsn) as (proxy, url):
            await vanish(proxy, url, survivor, store, "fail", LEASE_S)
            assert await _store_of(survivor).end_stalled_sessions() == 0
            monkeypatch.setattr("flowfabric.backends.postgres.store.idle_limit_s", lambda _: 0.0)
            assert await _store_of(survivor).end_stalled_sessions() == 1
    await store.drop()


async def test_session_that_copies_or_waits_for_a_lock_is_not_ended(
    postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = PostgresTestStore(postgres.dsn)
    copied = asyncio.Event()
    async with opened(store) as engine, store.raw_connection() as blocker:
        copier, waiter = [
            await asyncpg.connect(postgres.dsn, server_settings={"application_name": "flowfabric"}) for _ in range(2)
        ]
        await copier.execute("CREATE TEMPORARY TABLE number (n INTEGER)")
        await blocker.execute("SELECT pg_advisory_lock(1)")
        copying = asyncio.ensure_future(copier.copy_to_table("number", source=_copy_until(copied)))
        waiting = asyncio.ensure_future(waiter.execute("SELECT pg_advisory_lock(1)"))
        async with asyncio.timeout(PATIENCE_S):
            while await blocker.fetchval(BUSY, [copier.get_server_pid(), waiter.get_server_pid()]) < 2:
                pass
        monkeypatch.setattr("flowfabric.backends.postgres.store.idle_limit_s", lambda _: 0.0)
        try:
            assert await _store_of(engine).end_stalled_sessions() == 0
        finally:
            copied.set()
            await blocker.execute("SELECT pg_advisory_unlock(1)")
            results = await asyncio.gather(copying, waiting, return_exceptions=True)
        assert list(results) == ["COPY 1", "SELECT 1"]
        await copier.close()
        await waiter.close()
    await store.drop()


async def test_operator_can_cancel_the_execution_of_a_vanished_host(postgres: PostgresServer) -> None:
    store = PostgresTestStore(postgres.dsn)
    async with opened(store, statement_timeout="10s") as operator:
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


async def _copy_until(end: asyncio.Event) -> AsyncIterator[bytes]:
    yield b"1\n"
    await end.wait()


def _store_of(engine: Engine) -> Any:
    return engine._context.store


def _connection_of(engine: Engine) -> Any:
    return _store_of(engine)._connection()
