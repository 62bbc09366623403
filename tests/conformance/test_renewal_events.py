"""Renewals as events: switched on, each leaves one, in order with the others; a lease that is lost leaves none."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta
from uuid import UUID

import pytest

from flowfabric.engine import AlreadySatisfied, Engine, Fence, FlowFabricError, Renewed, State
from flowfabric.testing import VirtualClock
from tests.facts import event_names, nothing_written, refused
from tests.scenarios import leased
from tests.stores import TestStore, opened


@pytest.fixture
async def noting(store: TestStore, clock: VirtualClock) -> AsyncIterator[Engine]:
    """An engine whose renewals leave events."""
    async with opened(store, clock, renewal_events=True) as engine:
        yield engine


async def test_a_renewal_leaves_an_event_of_the_lease(noting: Engine, clock: VirtualClock) -> None:
    lease = await leased(noting, kind="mail", lane="slow", tags={"team.owner": "ada"})
    clock.advance("10s")
    assert await noting.leases.renew(lease.fence) == Renewed(clock.now() + timedelta(seconds=30))
    acquired, renewed = await noting.executions.history(lease.execution_id)
    assert (renewed.family, renewed.name, renewed.at, renewed.version) == ("lease", "renewed", clock.now(), 2)
    assert (renewed.state, renewed.epoch, renewed.ends_lease) == (State.ACTIVE, lease.epoch, False)
    assert (renewed.lease_id, renewed.worker) == (lease.fence.lease_id, acquired.worker)
    assert (renewed.lane, renewed.kind, renewed.tags) == ("slow", "mail", {"team.owner": "ada"})
    found = await noting.executions.describe(lease.execution_id)
    assert (found.version, found.changed_at) == (2, clock.now())


async def test_every_renewal_of_a_batch_leaves_an_event_and_a_refused_one_none(
    noting: Engine, clock: VirtualClock
) -> None:
    live, revoked, lost, other = [await leased(noting, lease_ttl=ttl) for ttl in (30, 30, 5, 60)]
    assert not isinstance(await noting.operator.revoke_lease(revoked.execution_id), AlreadySatisfied)
    clock.advance("10s")
    forged = Fence(other.execution_id, other.epoch, UUID(int=1))
    answers = await noting.leases.renew_many([live.fence, revoked.fence, lost.fence, other.fence, forged, live.fence])
    assert [isinstance(answer, FlowFabricError) for answer in answers] == [False, True, True, False, True, False]
    assert await event_names(noting, live.execution_id) == ["lease.acquired", "lease.renewed", "lease.renewed"]
    assert await event_names(noting, other.execution_id) == ["lease.acquired", "lease.renewed"]
    assert await event_names(noting, revoked.execution_id) == ["lease.acquired", "lease.revoked"]
    assert await event_names(noting, lost.execution_id) == ["lease.acquired"]


async def test_a_renewal_of_a_lost_lease_writes_nothing(noting: Engine, clock: VirtualClock, store: TestStore) -> None:
    late = await leased(noting)
    clock.advance("30s")
    async with nothing_written(store):
        await refused(noting.leases.renew(late.fence), "lease_expired")
    await noting.reconcilers.tick()
    again = await noting.leases.claim_execution(late.execution_id, "worker-2")
    async with nothing_written(store):
        await refused(noting.leases.renew(late.fence), "lease_expired")
    await noting.leases.complete(again.fence)
    async with nothing_written(store):
        await refused(noting.leases.renew(again.fence), "execution_not_active")


async def test_subscribers_read_renewals_in_order_with_the_other_events(noting: Engine, clock: VirtualClock) -> None:
    lease = await leased(noting)
    for _ in range(3):
        clock.advance("20s")
        await noting.leases.renew(lease.fence)
        await noting.leases.progress(lease.fence, 10)
    await noting.leases.complete(lease.fence)
    read = noting.events.subscribe(["lease"], start="beginning", follow=False)
    found = [(event.name, event.version) async for event in read]
    assert found == [("acquired", 1), ("renewed", 2), ("renewed", 3), ("renewed", 4), ("completed", 5)]
    assert (await noting.executions.describe(lease.execution_id)).version == 5


async def test_whoever_renews_says_whether_it_is_noted(noting: Engine, engine: Engine, clock: VirtualClock) -> None:
    lease = await leased(engine)
    await engine.leases.renew(lease.fence)
    await noting.leases.renew(lease.fence)
    await noting.within("default").leases.renew_many([lease.fence])
    assert await event_names(engine, lease.execution_id) == ["lease.acquired", "lease.renewed", "lease.renewed"]
