"""Tests of renewal events, which an engine writes if `renewal_events` is on."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta
from uuid import UUID

import pytest

from flowfabric.engine import AlreadySatisfied, Engine, Fence, FlowFabricError, Renewed, State
from flowfabric.testing import VirtualClock
from tests.expectations import event_names, nothing_written, refused
from tests.scenarios import leased
from tests.stores import TestStore, opened


@pytest.fixture
async def recording_engine(store: TestStore, clock: VirtualClock) -> AsyncIterator[Engine]:
    """Yield an engine whose renewals write events."""
    async with opened(store, clock, renewal_events=True) as engine:
        yield engine


async def test_renewal_writes_an_event_of_the_lease(recording_engine: Engine, clock: VirtualClock) -> None:
    lease = await leased(recording_engine, kind="mail", lane="slow", tags={"team.owner": "ada"})
    clock.advance("10s")
    assert await recording_engine.leases.renew(lease.fence) == Renewed(clock.now() + timedelta(seconds=30))
    acquired, renewed = await recording_engine.executions.history(lease.execution_id)
    assert (renewed.family, renewed.name, renewed.at, renewed.version) == ("lease", "renewed", clock.now(), 2)
    assert (renewed.state, renewed.epoch, renewed.ends_lease) == (State.ACTIVE, lease.epoch, False)
    assert (renewed.lease_id, renewed.worker) == (lease.fence.lease_id, acquired.worker)
    assert (renewed.lane, renewed.kind, renewed.tags) == ("slow", "mail", {"team.owner": "ada"})
    execution = await recording_engine.executions.describe(lease.execution_id)
    assert (execution.version, execution.changed_at) == (2, clock.now())


async def test_every_renewal_of_a_batch_writes_an_event_and_a_refused_one_none(
    recording_engine: Engine, clock: VirtualClock
) -> None:
    live, revoked, lost_lease, other_lease = [await leased(recording_engine, lease_ttl=ttl) for ttl in (30, 30, 5, 60)]
    assert not isinstance(await recording_engine.operator.revoke_lease(revoked.execution_id), AlreadySatisfied)
    clock.advance("10s")
    forged = Fence(other_lease.execution_id, other_lease.epoch, UUID(int=1))
    outcomes = await recording_engine.leases.renew_many(
        [live.fence, revoked.fence, lost_lease.fence, other_lease.fence, forged, live.fence]
    )
    assert [isinstance(outcome, FlowFabricError) for outcome in outcomes] == [False, True, True, False, True, False]
    assert await event_names(recording_engine, live.execution_id) == [
        "lease.acquired",
        "lease.renewed",
        "lease.renewed",
    ]
    assert await event_names(recording_engine, other_lease.execution_id) == ["lease.acquired", "lease.renewed"]
    assert await event_names(recording_engine, revoked.execution_id) == ["lease.acquired", "lease.revoked"]
    assert await event_names(recording_engine, lost_lease.execution_id) == ["lease.acquired"]


async def test_renewal_of_a_lost_lease_writes_nothing(
    recording_engine: Engine, clock: VirtualClock, store: TestStore
) -> None:
    late = await leased(recording_engine)
    clock.advance("30s")
    async with nothing_written(store):
        await refused(recording_engine.leases.renew(late.fence), "lease_expired")
    await recording_engine.reconcilers.tick()
    next_lease = await recording_engine.leases.claim_execution(late.execution_id, "worker-2")
    async with nothing_written(store):
        await refused(recording_engine.leases.renew(late.fence), "lease_expired")
    await recording_engine.leases.complete(next_lease.fence)
    async with nothing_written(store):
        await refused(recording_engine.leases.renew(next_lease.fence), "execution_not_active")


async def test_subscribers_read_renewals_in_order_with_the_other_events(
    recording_engine: Engine, clock: VirtualClock
) -> None:
    lease = await leased(recording_engine)
    for _ in range(3):
        clock.advance("20s")
        await recording_engine.leases.renew(lease.fence)
        await recording_engine.leases.progress(lease.fence, 10)
    await recording_engine.leases.complete(lease.fence)
    subscription = recording_engine.events.subscribe(["lease"], start="beginning", follow=False)
    events = [(event.name, event.version) async for event in subscription]
    assert events == [("acquired", 1), ("renewed", 2), ("renewed", 3), ("renewed", 4), ("completed", 5)]
    assert (await recording_engine.executions.describe(lease.execution_id)).version == 5


async def test_renewing_engine_decides_whether_an_event_is_written(
    recording_engine: Engine, engine: Engine, clock: VirtualClock
) -> None:
    lease = await leased(engine)
    await engine.leases.renew(lease.fence)
    await recording_engine.leases.renew(lease.fence)
    await recording_engine.for_namespace("default").leases.renew_many([lease.fence])
    assert await event_names(engine, lease.execution_id) == ["lease.acquired", "lease.renewed", "lease.renewed"]
