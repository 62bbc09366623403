"""Tests of leases.expired, which lists leases that are past their time and that no duty has ended yet."""

from __future__ import annotations

from flowfabric.engine import Engine, InvalidRequest, Page
from flowfabric.testing import VirtualClock
from tests.expectations import nothing_written, refused
from tests.scenarios import KEEPING, leased
from tests.stores import TestStore


async def test_lease_past_its_time_is_listed_until_a_duty_ends_it(
    engine: Engine, clock: VirtualClock, store: TestStore
) -> None:
    lost = [await leased(engine, worker="gone"), await leased(engine, worker="gone", policy=KEEPING)]
    renewed = await leased(engine)
    clock.advance("29s")
    assert await engine.leases.expired() == Page((), None)
    await engine.leases.renew(renewed.fence)
    clock.advance("1s")
    async with nothing_written(store):
        page = await engine.leases.expired()
    assert [execution.id for execution in page.items] == [lease.execution_id for lease in reversed(lost)]
    [last, _] = page.items
    assert last.lease is not None
    assert (last.lease.worker.name, last.lease.expires_at) == ("gone", clock.now())
    await engine.reconcilers.tick()
    assert await engine.leases.expired() == Page((), None)


async def test_expired_leases_are_listed_in_pages(engine: Engine, clock: VirtualClock) -> None:
    ids = [(await leased(engine)).execution_id for _ in range(5)]
    clock.advance("1m")
    found, cursor = [], None
    while True:
        page = await engine.leases.expired(limit=2, cursor=cursor)
        found.append([execution.id for execution in page.items])
        cursor = page.next_cursor
        if cursor is None:
            break
    assert found == [[ids[4], ids[3]], [ids[2], ids[1]], [ids[0]]]
    first = await engine.leases.expired(limit=2)
    await refused(engine.executions.list(cursor=first.next_cursor), "cursor_invalid", InvalidRequest)


async def test_expired_leases_of_other_namespaces_are_not_listed(engine: Engine, clock: VirtualClock) -> None:
    lease = await leased(engine.for_namespace("other"))
    clock.advance("1m")
    assert await engine.leases.expired() == Page((), None)
    [execution] = (await engine.for_namespace("other").leases.expired()).items
    assert execution.id == lease.execution_id
