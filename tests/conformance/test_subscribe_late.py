"""Transactions that commit late or out of order: none of their events is missed, and none comes before its time.

On SQLite one transaction writes at a time, so only PostgreSQL knows such things.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import datetime
from uuid import UUID

import pytest

from flowfabric.core.requests import Command
from flowfabric.engine import Engine, Event, Subscription
from flowfabric.ops.hold import hold, unhold
from flowfabric.store.transaction import Transaction
from flowfabric.testing import VirtualClock
from tests.faults.flow_operations import EVERY_OPERATION
from tests.faults.pictures import camera_on, wipe
from tests.scenarios import submitted
from tests.stores import PostgresSchemas, PostgresTestStore, opened

WHO = Command(principal="ada", reason="test")


@pytest.fixture
async def store(schemas: PostgresSchemas) -> AsyncIterator[PostgresTestStore]:
    """A schema of its own."""
    found = await schemas.take()
    yield found
    await schemas.give_back(found)


class Slow:
    """A transaction of the engine's that stays open when its body is done, until it is let go."""

    def __init__(self, engine: Engine) -> None:
        self._store = engine._context.store
        self.wrote = asyncio.Event()
        self.let_go = asyncio.Event()

    async def hold(self, id_: UUID) -> None:
        async def body(tx: Transaction) -> None:
            await hold(tx, "default", id_, WHO)
            self.wrote.set()
            await self.let_go.wait()

        await self._store.run(body)

    async def unhold_after_locking(self, first: UUID, second: UUID) -> None:
        """Locks the first, so that it has its transaction id, and later unholds the second."""

        async def body(tx: Transaction) -> None:
            await tx.executions.lock("default", [first])
            self.wrote.set()
            await self.let_go.wait()
            await unhold(tx, "default", second, WHO)

        await self._store.run(body)


async def test_an_event_that_commits_late_is_waited_for_and_not_missed(store: PostgresTestStore) -> None:
    async with opened(store) as engine:
        late, early = await submitted(engine), await submitted(engine)
        async with engine.events.subscribe() as events:
            slow = Slow(engine)
            holding = asyncio.create_task(slow.hold(late))
            await slow.wrote.wait()
            await engine.operator.hold(early)
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(anext(events), 0.3)
            since = (await engine.events.status()).held_back_since
            assert isinstance(since, datetime)
            slow.let_go.set()
            await holding
            assert [(await soon(events)).execution_id for _ in range(2)] == [late, early]
            assert (await engine.events.status()).held_back_since is None


async def test_versions_are_in_order_though_transaction_ids_are_not(store: PostgresTestStore) -> None:
    async with opened(store) as engine:
        first, second = await submitted(engine), await submitted(engine)
        slow = Slow(engine)
        unholding = asyncio.create_task(slow.unhold_after_locking(first, second))
        await slow.wrote.wait()
        await engine.operator.hold(second)
        slow.let_go.set()
        await unholding
        found = await everything(engine.events.subscribe(start="beginning", follow=False))
        assert [(event.name, event.version) for event in found] == [("held", 1), ("unheld", 2)]
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
            engine._context.routes.clear()
            given = await operation.arrange(engine, clock)
            known = {row["id"] for row in await camera.rows("SELECT id FROM ff.execution")}
            await camera.script("UPDATE ff.execution SET event_xid = '1000000000'")
            await camera.script("DELETE FROM ff.event")
            await operation.act(engine, given)
            events = await camera.rows("SELECT execution_id, name, transaction_id::TEXT AS place FROM ff.event")
            for event in events:
                assert event["execution_id"] not in known or event["place"] == "1000000000", (name, event["name"])
            written += sum(event["execution_id"] in known for event in events)
    await camera.close()
    assert written > 80


async def everything(subscription: Subscription) -> list[Event]:
    """All that there is to read at present."""
    return [event async for event in subscription]


async def soon(subscription: Subscription) -> Event:
    """The next event, which must be there within reason."""
    return await asyncio.wait_for(anext(subscription), 10)
