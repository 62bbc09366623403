"""Tests of waitpoint expiry. A waitpoint closes at its expiry time, unless a suspension uses it."""

from __future__ import annotations

from datetime import timedelta

from flowfabric.engine import DuplicateSignal, Engine, NotFound, PendingWaitpoint, Suspended, WaitpointState
from flowfabric.testing import VirtualClock
from tests.expectations import event_names, nothing_written, refused
from tests.scenarios import leased, suspended
from tests.stores import TestStore


async def test_pending_waitpoint_closes_at_its_time_and_not_earlier(
    engine: Engine, clock: VirtualClock, store: TestStore
) -> None:
    lease = await leased(engine, lease_ttl="2h")
    waitpoint = await engine.waitpoints.create(lease.fence, "go", expires="1h")
    await engine.waitpoints.create(lease.fence, "other", expires_at=clock.now() + timedelta(hours=2))
    assert waitpoint.token is not None
    clock.advance("59m")
    async with nothing_written(store):
        await engine.reconcilers.tick()
    first = await engine.signals.deliver(waitpoint.token, "go", key="evt")
    clock.advance("1m")
    async with nothing_written(store):
        await refused(engine.signals.deliver(waitpoint.token, "go"), "token_expired")
    ticks = {tick.duty: tick.done for tick in await engine.reconcilers.tick()}
    assert ticks["waitpoint_expiry"] == 1
    states = {
        entry.key: (entry.state, entry.close_reason) for entry in await engine.waitpoints.list(lease.execution_id)
    }
    assert states == {"go": (WaitpointState.CLOSED, "expired"), "other": (WaitpointState.PENDING, None)}
    async with nothing_written(store):
        await refused(engine.signals.deliver(waitpoint.token, "go"), "token_expired")
        assert await engine.signals.deliver(waitpoint.token, "go", key="evt") == DuplicateSignal(first.signal_id)
        await refused(engine.leases.suspend(lease.fence, [PendingWaitpoint("go")]), "waitpoint_not_found", NotFound)
        await engine.reconcilers.tick()
    assert await event_names(engine, lease.execution_id) == ["lease.acquired", "signal.buffered"]


async def test_bound_waitpoint_is_closed_by_the_timeout_of_its_suspension_only(
    engine: Engine, clock: VirtualClock
) -> None:
    lease = await leased(engine)
    await engine.waitpoints.create(lease.fence, "go", expires="1h")
    wait = await suspended(engine, [PendingWaitpoint("go")], lease=lease, timeout="2h", on_timeout="escalate")
    clock.advance("3h")
    ticks = {tick.duty: tick.done for tick in await engine.reconcilers.tick()}
    assert (ticks["waitpoint_expiry"], ticks["suspension_timeout"]) == (0, 1)
    [waitpoint] = await engine.waitpoints.list(wait.id)
    assert waitpoint.state is WaitpointState.ACTIVE


async def test_pending_waitpoints_of_a_suspended_execution_expire(engine: Engine, clock: VirtualClock) -> None:
    lease = await leased(engine)
    later = await engine.waitpoints.create(lease.fence, "later", expires="1h")
    wait = await suspended(engine, ["go"], lease=lease)
    clock.advance("1h")
    await engine.reconcilers.tick()
    execution = await engine.executions.describe(wait.id)
    assert [waitpoint.key for waitpoint in execution.waitpoints] == ["go"]
    assert later.token is not None
    await refused(engine.signals.deliver(later.token, "go"), "token_expired")


async def test_waitpoint_without_an_expiry_stays_open(engine: Engine, clock: VirtualClock) -> None:
    wait = await suspended(engine)
    await engine.signals.deliver(wait.token(), "go")
    lease = await engine.leases.claim_resumed(wait.id, "worker-2")
    await engine.waitpoints.create(lease.fence, "later")
    assert isinstance(await engine.leases.suspend(lease.fence, ["go"]), Suspended)
    clock.advance("365d")
    await engine.reconcilers.tick()
    assert [waitpoint.key for waitpoint in (await engine.executions.describe(wait.id)).waitpoints] == ["go", "later"]
