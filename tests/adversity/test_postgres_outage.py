"""An engine survives an outage: calls raise `Unavailable` during it, and work continues afterwards."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Literal
from uuid import UUID

import asyncpg
import pytest

from flowfabric.engine import Created, Duplicate, Ended, Engine, State, Unavailable
from tests.concurrency.gates import eventually, wait_until_blocked
from tests.concurrency.soundness import assert_sound
from tests.postgres_server import PostgresServer
from tests.scenarios import leased, submitted
from tests.stores import PostgresTestStore, opened

CALLS: dict[str, Callable[[Engine, Any], Awaitable[Any]]] = {
    "ping": lambda engine, lease: engine.ping(),
    "submit": lambda engine, lease: engine.executions.submit("job"),
    "claim": lambda engine, lease: engine.leases.claim(["default"], "w"),
    "renew": lambda engine, lease: engine.leases.renew(lease.fence),
    "complete": lambda engine, lease: engine.leases.complete(lease.fence),
    "fail": lambda engine, lease: engine.leases.fail(lease.fence, "no"),
    "cancel": lambda engine, lease: engine.operator.cancel(lease.execution_id),
    "describe": lambda engine, lease: engine.executions.describe(lease.execution_id),
    "tick": lambda engine, lease: engine.reconcilers.tick(),
}


@pytest.mark.parametrize("mode", ["fast", "immediate"])
async def test_engine_reconnects_when_its_server_is_back(
    spare_server: PostgresServer, spare: PostgresTestStore, mode: Literal["fast", "immediate"]
) -> None:
    async with opened(spare, durable=True, retry_for=0) as engine:
        lease = await leased(engine, lease_ttl="1h")
        completed = await leased(engine)
        await engine.leases.complete(completed.fence, b"kept")
        spare_server.stop(mode)
        for name, call in CALLS.items():
            with pytest.raises(Unavailable) as unavailable:
                await call(engine, lease)
            assert unavailable.value.code in ("connection_lost", "server_unreachable"), name
        spare_server.start()
        await engine.ping()
        outcome = await engine.executions.result(completed.execution_id)
        assert outcome is not None
        assert outcome.result == b"kept"
        assert await engine.leases.complete(lease.fence, b"later") == Ended(State.COMPLETED)
    await assert_sound(spare)


@pytest.mark.parametrize("mode", ["fast", "immediate"])
async def test_acknowledged_work_survives_an_outage_and_the_rest_can_be_retried(
    spare_server: PostgresServer, spare: PostgresTestStore, mode: Literal["fast", "immediate"]
) -> None:
    acknowledged: set[UUID] = set()
    unknown: set[UUID] = set()

    async def submit_until_stopped(engine: Engine) -> None:
        while True:
            id_ = engine._context.ids.mint()
            try:
                assert await engine.executions.submit("job", id=id_) == Created(id_, State.WAITING)
            except Unavailable:
                unknown.add(id_)
                return
            acknowledged.add(id_)

    async with opened(spare, durable=True, retry_for=0) as engine:
        await engine.executions.submit("job", lane="first")
        load = [asyncio.create_task(submit_until_stopped(engine)) for _ in range(6)]
        await eventually(lambda: _is_true(len(acknowledged) > 30))
        await asyncio.to_thread(spare_server.stop, mode)
        await asyncio.gather(*load)
        await asyncio.to_thread(spare_server.start)
        await engine.ping()
        stored = {row["id"] for row in await spare.query("SELECT id FROM ff.execution")}
        assert acknowledged <= stored
        for id_ in unknown:
            again = await engine.executions.submit("job", id=id_)
            assert again == (Duplicate(id_) if id_ in stored else Created(id_, State.WAITING))
    await assert_sound(spare)


@pytest.mark.parametrize("name", [None, "billing"])
async def test_following_subscription_survives_an_outage(
    spare_server: PostgresServer, spare: PostgresTestStore, name: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    async with opened(spare, retry_for=0) as engine, engine.events.subscribe(["lease"], name=name) as events:
        first = await leased(engine)
        assert (await anext(events)).execution_id == first.execution_id
        spare_server.stop("immediate")
        following = asyncio.create_task(anext(events))
        await eventually(lambda: _is_true("Events cannot be read" in caplog.text))
        spare_server.start()
        await engine.ping()
        second = await leased(engine)
        assert (await asyncio.wait_for(following, 20)).execution_id == second.execution_id


async def test_subscription_without_follow_raises_in_an_outage(
    spare_server: PostgresServer, spare: PostgresTestStore
) -> None:
    async with opened(spare, retry_for=0) as engine, engine.events.subscribe(follow=False) as events:
        spare_server.stop("immediate")
        with pytest.raises(Unavailable) as unavailable:
            await anext(events)
        spare_server.start()
    assert unavailable.value.code in ("connection_lost", "server_unreachable")


async def test_subscription_of_a_closed_engine_ends(spare: PostgresTestStore) -> None:
    async with opened(spare) as engine:
        events = engine.events.subscribe()
        await events.__aenter__()
    with pytest.raises(Unavailable) as closed:
        await anext(events)
    assert closed.value.code == "store_closed"


async def test_closing_an_engine_without_a_server_raises_no_error(
    spare_server: PostgresServer, spare: PostgresTestStore
) -> None:
    engine = await spare.connecting()
    spare_server.stop("immediate")
    await engine.close()
    with pytest.raises(Unavailable) as refused:
        await engine.ping()
    assert refused.value.code == "store_closed"
    with pytest.raises(Unavailable) as lost:
        await spare.connecting()
    assert lost.value.code == "server_unreachable"
    spare_server.start()


async def test_call_on_a_killed_connection_is_unavailable_and_the_next_call_works(
    spare: PostgresTestStore,
) -> None:
    async with opened(spare, pool_size=1, retry_for=0) as engine:
        lease = await leased(engine)
        other = await asyncpg.connect(spare.url)
        try:
            async with other.transaction():
                await other.execute(f'SELECT id FROM "{spare.schema}".execution FOR UPDATE')
                waiting = asyncio.ensure_future(engine.leases.fail(lease.fence, "no"))
                await wait_until_blocked(spare, engine, 1)
                await kill_connections_of(engine, other)
                with pytest.raises(Unavailable) as lost:
                    await waiting
                assert lost.value.code == "connection_lost"
            assert await engine.leases.complete(lease.fence) == Ended(State.COMPLETED)
            # Kill the engine's connections while they are idle. The engine must recover.
            await kill_connections_of(engine, other)
            await eventually(lambda: answers(engine))
            await submitted(engine)
        finally:
            await other.close()
    await assert_sound(spare)


async def kill_connections_of(engine: Engine, other: Any) -> None:
    """Terminate every FlowFabric connection on the separate server, except the connection `other`."""
    await other.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'flowfabric' AND pid <>"
        " pg_backend_pid()"
    )


async def answers(engine: Engine) -> bool:
    try:
        await engine.ping()
    except Unavailable:
        return False
    return True


async def _is_true(value: bool) -> bool:
    return value
