"""Test guards that matter only in rare situations: a lease lost during a call, a wrong clock, a shared key, and a paged
read under load.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from datetime import datetime, timedelta, tzinfo
from typing import Any, Self

import pytest

from flowfabric.core.executions.requests import AuditInfo, LeaseFilter
from flowfabric.engine import Created, Engine, Page, Refused, Submission, Unavailable
from flowfabric.ops.leases.reclaim import RevokeRequest, revoke_lease
from flowfabric.store.transaction import Transaction
from tests import scenarios
from tests.expectations import refused
from tests.faults.worker import stale_writes
from tests.stores import PostgresTestStore, TestStore, opened

IN_FLIGHT_S = 0.1
SKEW = timedelta(hours=1)


async def test_write_waiting_while_its_lease_is_lost_is_refused(store: TestStore) -> None:
    async with opened(store) as worker, opened(store) as operator:
        for name in stale_writes(worker, (await scenarios.leased(worker)).fence):
            fence = (await scenarios.leased(worker)).fence
            loss = Loss(operator, fence.execution_id, blocking=store.name == "sqlite")
            losing = asyncio.create_task(loss.run())
            await loss.begun.wait()
            writing = asyncio.ensure_future(stale_writes(worker, fence)[name]())
            await asyncio.wait([writing], timeout=IN_FLIGHT_S)
            loss.finish()
            await losing
            if name == "renew" and store.name == "postgres":
                # A renewal never waits for a row lock. The worker repeats it.
                await refused(writing, "lease_busy", Unavailable)
                writing = asyncio.ensure_future(worker.leases.renew(fence))
            with pytest.raises(Refused):
                await writing


class Loss:
    """A revoke that keeps its transaction open, with the row locked, until it is released."""

    def __init__(self, engine: Engine, id_: Any, *, blocking: bool) -> None:
        self.begun = asyncio.Event()
        self._engine = engine
        self._id = id_
        # On SQLite a transaction cannot wait on the event loop, so this transaction blocks the writer thread.
        self._blocking = blocking
        self._thread_gate = threading.Event()
        self._gate = asyncio.Event()
        self._loop = asyncio.get_running_loop()

    async def run(self) -> None:
        await self._engine._context.store.run(self._body)

    def finish(self) -> None:
        self._thread_gate.set()
        self._gate.set()

    async def _body(self, tx: Transaction) -> None:
        command = AuditInfo(principal="operator", reason="lost in flight")
        await revoke_lease.run(tx, self._engine.namespace, RevokeRequest(self._id, LeaseFilter(), command))
        self._loop.call_soon_threadsafe(self.begun.set)
        if self._blocking:
            self._thread_gate.wait(10)
        else:
            await self._gate.wait()


@pytest.mark.parametrize("store", ["postgres"], indirect=True)
async def test_client_clock_does_not_affect_leases(store: PostgresTestStore, monkeypatch: pytest.MonkeyPatch) -> None:
    async with opened(store) as engine:
        await engine.ping()
        put_clock_forward(monkeypatch)
        claimed = await scenarios.leased(engine, lease_ttl="5s")
        by_queue = await scenarios.submitted(engine)
        await engine.leases.claim([scenarios.LANE], scenarios.WORKER, lease_ttl="5s")
        await engine.leases.renew(claimed.fence)
        await engine.reconcilers.tick()
    rows = await store.query("SELECT id, lease_expires_at - clock_timestamp() AS remaining FROM ff.execution")
    assert {row["id"] for row in rows} == {claimed.execution_id, by_queue}
    assert all(timedelta(0) < row["remaining"] <= timedelta(seconds=5) for row in rows)


def put_clock_forward(monkeypatch: pytest.MonkeyPatch) -> None:
    """Move the clock of this process one hour ahead of the database."""
    time_s, time_ns = time.time, time.time_ns
    monkeypatch.setattr(time, "time", lambda: time_s() + SKEW.total_seconds())
    monkeypatch.setattr(time, "time_ns", lambda: time_ns() + int(SKEW.total_seconds() * 1e9))
    for name, module in list(sys.modules.items()):
        if name.startswith("flowfabric") and getattr(module, "datetime", None) is datetime:
            monkeypatch.setattr(module, "datetime", Ahead)


class Ahead(datetime):
    @classmethod
    def now(cls, tz: tzinfo | None = None) -> Self:
        return super().now(tz) + SKEW


async def test_the_same_key_in_two_namespaces_is_two_submissions(engine: Engine) -> None:
    first = await engine.executions.submit("job", b"in", key="order-1")
    second = await engine.for_namespace("elsewhere").executions.submit("job", b"in", key="order-1")
    assert isinstance(first, Created) and isinstance(second, Created)
    assert first.id != second.id


async def test_paged_list_misses_and_repeats_nothing_under_load(engine: Engine) -> None:
    for _ in range(2):
        await engine.executions.submit_many([Submission(kind="job") for _ in range(3)])
    old = {item.id for item in (await engine.executions.list()).items}
    page, seen = await engine.executions.list(limit=2), list[Any]()
    while True:
        seen += [item.id for item in page.items]
        if page.next_cursor is None:
            break
        page = await next_page_meanwhile(engine, page.next_cursor)
    assert len(old) == 6
    assert sorted(seen) == sorted(old)


async def next_page_meanwhile(engine: Engine, cursor: str) -> Page:
    """Submit new executions, complete an existing one, and then return the next page."""
    await engine.executions.submit_many([Submission(kind="job") for _ in range(3)])
    [lease] = await engine.leases.claim([scenarios.LANE], scenarios.WORKER)
    await engine.leases.complete(lease.fence)
    return await engine.executions.list(limit=2, cursor=cursor)


async def test_paged_history_misses_and_repeats_nothing_while_it_grows(engine: Engine) -> None:
    id_, versions = await scenarios.submitted(engine), list[Any]()
    for _ in range(4):
        await scenarios.leased(engine)
        lease = await engine.leases.claim_execution(id_, scenarios.WORKER)
        versions += [event.version for event in await engine.executions.history(id_, after=len(versions), limit=1)]
        await engine.leases.release(lease.fence)
    versions += [event.version for event in await engine.executions.history(id_, after=len(versions))]
    assert versions == list(range(1, 9))
