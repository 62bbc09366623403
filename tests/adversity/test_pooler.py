"""The engine works behind a pooler in transaction mode and with unusual role settings."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from flowfabric.core.waits.bindings import Bound
from flowfabric.engine import (
    Accepted,
    Created,
    DuplicateSignal,
    Ended,
    Engine,
    Lease,
    NewWaitpoint,
    Policy,
    RetryScheduled,
    State,
    Step,
    Suspended,
)
from flowfabric.store.rows import to_bytes
from flowfabric.store.transaction import Transaction
from flowfabric.testing import VirtualClock
from tests.adversity.transaction_pooler import pooler_before
from tests.concurrency.soundness import assert_sound
from tests.postgres_server import PostgresServer
from tests.scenarios import STEADY, leased, submitted
from tests.stores import PostgresTestStore, opened

ODD_SETTINGS = {
    "timezone": "'America/New_York'",
    "default_transaction_isolation": "'serializable'",
    "search_path": "'nowhere'",
    "datestyle": "SQL, DMY",
    "intervalstyle": "'sql_standard'",
    "bytea_output": "'escape'",
    "synchronous_commit": "'off'",
}


@pytest.fixture
async def odd(spare_server: PostgresServer) -> AsyncIterator[PostgresTestStore]:
    """Yield a schema for a role whose sessions start with unusual settings."""
    admin = await asyncpg.connect(spare_server.dsn)
    await admin.execute("DROP ROLE IF EXISTS odd")
    await admin.execute("CREATE ROLE odd SUPERUSER LOGIN")
    for name, value in ODD_SETTINGS.items():
        await admin.execute(f"ALTER ROLE odd SET {name} = {value}")
    store = PostgresTestStore(spare_server.dsn.replace("postgres@", "odd@"))
    yield store
    await store.drop()
    await admin.execute("DROP ROLE odd")
    await admin.close()


@pytest.mark.parametrize("pooler", [False, True])
async def test_engine_works_with_any_role_settings(odd: PostgresTestStore, pooler: bool) -> None:
    clock = VirtualClock()
    async with opened(odd, clock, pooler=pooler) as engine:
        await run_full_lifecycle(engine, clock)
    await assert_sound(odd)


@pytest.mark.parametrize("pooler", [False, True])
async def test_write_is_read_committed_and_durable_with_any_role_settings(odd: PostgresTestStore, pooler: bool) -> None:
    async def shown(tx: Transaction) -> list[str]:
        session: Any = tx
        names = ("transaction_isolation", "synchronous_commit", "statement_timeout", "jit")
        return [await session.session._connection.fetchval(f"SHOW {name}") for name in names]

    async with opened(odd, pooler=pooler, statement_timeout="7s") as engine:
        assert await engine._context.store.run(shown) == ["read committed", "on", "7s", "off"]
        assert await engine._context.store.run_single(shown) == ["read committed", "on", "7s", "off"]


@pytest.mark.parametrize("output", ["escape", "hex"])
async def test_bytes_in_a_document_are_read_in_any_bytea_output(spare_server: PostgresServer, output: str) -> None:
    every = bytes(range(256)) + rb"\x00\000\\"
    connection = await asyncpg.connect(spare_server.dsn, server_settings={"bytea_output": output})
    for content in (every, b"", rb"\x00"):
        assert to_bytes(json.loads(await connection.fetchval("SELECT to_json($1::BYTEA)::TEXT", content))) == content
    await connection.close()


async def test_four_engines_behind_a_pooler_create_a_store_concurrently_with_any_settings(
    odd: PostgresTestStore,
) -> None:
    engines = await asyncio.gather(*(odd.connecting(pooler=True) for _ in range(4)), return_exceptions=True)
    for engine in engines:
        if isinstance(engine, Engine):
            await engine.close()
    assert [engine for engine in engines if isinstance(engine, BaseException)] == []


async def test_engine_works_when_every_transaction_gets_another_connection(
    odd: PostgresTestStore, tmp_path: Path
) -> None:
    clock = VirtualClock()
    async with pooler_before(odd.url, tmp_path) as (address, pooler):
        behind = PostgresTestStore(address)
        behind.schema = odd.schema
        async with opened(behind, clock, pooler=True) as engine:
            await engine.ping()
            await asyncio.gather(*(run_full_lifecycle(engine, clock, lane=f"lane-{number}") for number in range(4)))
        assert pooler.transactions > 100
    await assert_sound(odd)


async def run_full_lifecycle(engine: Engine, clock: VirtualClock, lane: str = "default") -> None:
    """Run an execution to completion through a retry, a delay, a lost lease and two waits.

    Then replay and cancel it.
    """
    id_ = await submitted(engine, lane=lane, policy=STEADY, tags={"a.b": "ü"}, key=f"key of {lane}")
    assert isinstance(await engine.executions.submit("job", b"in", lane=lane, delay="1h"), Created)
    [lease] = await engine.leases.claim([lane], "w")
    assert (lease.execution_id, lease.acquired_at) == (id_, clock.now())
    await engine.leases.renew(lease.fence)
    await engine.leases.progress(lease.fence, 10, "begun")
    await engine.leases.checkpoint(lease.fence, [Step("one", b"\x00\xff")])
    assert isinstance(await engine.leases.fail(lease.fence, "again"), RetryScheduled)
    await engine.operator.hold(id_)
    await engine.operator.unhold(id_)
    clock.advance("10s")
    await engine.reconcilers.tick()
    lease = await engine.leases.claim_execution(id_, "w")
    await engine.leases.delay(lease.fence, after="1s", steps=[Step("two")])
    clock.advance("1s")
    await engine.reconcilers.tick()
    lease = await engine.leases.claim_execution(id_, "w")
    await engine.operator.revoke_lease(id_)
    lease = await wait_for_signals(engine, await engine.leases.claim_execution(id_, "w"))
    assert await engine.leases.complete(lease.fence, b"out") == Ended(State.COMPLETED)
    await engine.operator.replay(id_)
    await engine.operator.cancel(id_)
    execution = await engine.executions.describe(id_)
    assert (execution.state, execution.generation, execution.created_at.tzinfo) == (
        State.CANCELLED,
        1,
        clock.now().tzinfo,
    )
    assert len(await engine.executions.history(id_)) == execution.version
    assert (await engine.executions.list(lane=lane, limit=5)).items
    await leased(engine, lane=lane, policy=Policy(deadline="1s"))


async def wait_for_signals(engine: Engine, lease: Lease) -> Lease:
    """Suspend twice: first on an existing and a new waitpoint, then on two new ones. Send each waitpoint its signal."""
    await engine.waitpoints.create(lease.fence, "early")
    bound: list[list[Bound | str]] = [["early", NewWaitpoint("late", approver="ü")], ["later", "latest"]]
    for place, waitpoints in enumerate(bound):
        waited = await engine.leases.suspend(lease.fence, waitpoints, key=f"wait {place}")
        assert await engine.leases.suspend(lease.fence, waitpoints, key=f"wait {place}") == waited
        assert isinstance(waited, Suspended)
        for waitpoint in waited.waitpoints:
            assert waitpoint.token is not None
            sent = await engine.signals.deliver(waitpoint.token, "go", b"\x00\xff", key="once")
            assert isinstance(sent, Accepted)
            again = await engine.signals.deliver(waitpoint.token, "go", key="once")
            assert again == DuplicateSignal(sent.signal_id)
        lease = await engine.leases.claim_resumed(lease.execution_id, "w")
    return lease
