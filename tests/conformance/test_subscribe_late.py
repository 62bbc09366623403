"""Tests of transactions that commit late or out of order, whose events must not be missed.

SQLite has one writer at a time, so these tests need PostgreSQL.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import datetime
from uuid import UUID

import pytest

from flowfabric.core.executions.requests import AuditInfo
from flowfabric.engine import Engine, Event, Subscription
from flowfabric.ops.operator.hold import OperatorRequest, hold, unhold
from flowfabric.store.transaction import Transaction
from flowfabric.testing import VirtualClock
from tests.faults.flow_operations import EVERY_OPERATION
from tests.faults.store_dump import camera_on, wipe
from tests.scenarios import submitted
from tests.stores import PostgresSchemas, PostgresTestStore, opened

AUDIT = AuditInfo(principal="ada", reason="test")


@pytest.fixture
async def store(schemas: PostgresSchemas) -> AsyncIterator[PostgresTestStore]:
    """Yield a separate schema."""
    schema = await schemas.take()
    yield schema
    await schemas.give_back(schema)


class SlowTransaction:
    """A transaction of the engine that stays open after its body until `let_go` is set."""

    def __init__(self, engine: Engine) -> None:
        self._store = engine._context.store
        self.wrote = asyncio.Event()
        self.let_go = asyncio.Event()

    async def hold(self, id_: UUID) -> None:
        async def body(tx: Transaction) -> None:
            await hold.run(tx, "default", OperatorRequest(id_, AUDIT))
            self.wrote.set()
            await self.let_go.wait()

        await self._store.run(body)

    async def unhold_after_locking(self, first: UUID, second: UUID) -> None:
        """Lock the first execution to get a transaction id. When `let_go` is set, unhold the second execution."""

        async def body(tx: Transaction) -> None:
            await tx.executions.lock("default", [first])
            self.wrote.set()
            await self.let_go.wait()
            await unhold.run(tx, "default", OperatorRequest(second, AUDIT))

        await self._store.run(body)


async def test_event_that_commits_late_is_not_missed(store: PostgresTestStore) -> None:
    async with opened(store) as engine:
        late, early = await submitted(engine), await submitted(engine)
        async with engine.events.subscribe() as events:
            slow = SlowTransaction(engine)
            holding = asyncio.create_task(slow.hold(late))
            await slow.wrote.wait()
            await engine.operator.hold(early)
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(anext(events), 0.3)
            since = (await engine.events.status()).held_back_since
            assert isinstance(since, datetime)
            slow.let_go.set()
            await holding
            assert [(await read_next(events)).execution_id for _ in range(2)] == [late, early]
            assert (await engine.events.status()).held_back_since is None


async def test_versions_are_ordered_even_if_transaction_ids_are_not(store: PostgresTestStore) -> None:
    async with opened(store) as engine:
        first, second = await submitted(engine), await submitted(engine)
        slow = SlowTransaction(engine)
        unholding = asyncio.create_task(slow.unhold_after_locking(first, second))
        await slow.wrote.wait()
        await engine.operator.hold(second)
        slow.let_go.set()
        await unholding
        events = await read_all(engine.events.subscribe(start="beginning", follow=False))
        assert [(event.name, event.version) for event in events] == [("held", 1), ("unheld", 2)]
        lease = (await engine.leases.claim(["default"], "worker-1", limit=5))[1]
        await engine.leases.complete(lease.fence)
        rows = await store.query(
            "SELECT transaction_id::TEXT::BIGINT AS xid FROM ff.event WHERE execution_id = ? ORDER BY version", second
        )
        assert [row["xid"] for row in rows] == sorted(row["xid"] for row in rows)


async def test_no_operation_writes_an_event_before_an_earlier_one_of_its_execution(store: PostgresTestStore) -> None:
    clock, camera, written = VirtualClock(), await camera_on(store), 0
    async with opened(store, clock, renewal_events=True) as engine:
        for name, operation in EVERY_OPERATION.items():
            await wipe(camera)
            arguments = await operation.arrange(engine, clock)
            existing = {row["id"] for row in await camera.rows("SELECT id FROM ff.execution")}
            await camera.script("UPDATE ff.execution SET event_xid = '1000000000'")
            await camera.script("DELETE FROM ff.event")
            await operation.act(engine, arguments)
            events = await camera.rows("SELECT execution_id, name, transaction_id::TEXT AS place FROM ff.event")
            for event in events:
                assert event["execution_id"] not in existing or event["place"] == "1000000000", (name, event["name"])
            written += sum(event["execution_id"] in existing for event in events)
    await camera.close()
    assert written > 80


async def read_all(subscription: Subscription) -> list[Event]:
    """Return all events that can be read now."""
    return [event async for event in subscription]


async def read_next(subscription: Subscription) -> Event:
    """Return the next event, which must arrive within ten seconds."""
    return await asyncio.wait_for(anext(subscription), 10)
