"""Pending waitpoints close at their time; bound ones live as long as their suspension."""

from __future__ import annotations

from datetime import timedelta

from flowfabric.engine import DuplicateSignal, Engine, NotFound, Pending, Suspended, WaitpointState
from flowfabric.testing import VirtualClock
from tests.facts import event_names, nothing_written, refused
from tests.scenarios import leased, suspended
from tests.stores import TestStore


async def test_a_pending_waitpoint_closes_at_its_time_and_not_before(
    engine: Engine, clock: VirtualClock, store: TestStore
) -> None:
    lease = await leased(engine, lease_ttl="2h")
    made = await engine.waitpoints.create(lease.fence, "go", expires="1h")
    await engine.waitpoints.create(lease.fence, "other", expires_at=clock.now() + timedelta(hours=2))
    assert made.token is not None
    clock.advance("59m")
    async with nothing_written(store):
        await engine.reconcilers.tick()
    first = await engine.signals.deliver(made.token, "go", key="evt")
    clock.advance("1m")
    async with nothing_written(store):
        await refused(engine.signals.deliver(made.token, "go"), "token_expired")
    ticks = {tick.duty: tick.done for tick in await engine.reconcilers.tick()}
    assert ticks["waitpoint_expiry"] == 1
    listed = {item.key: (item.state, item.close_reason) for item in await engine.waitpoints.list(lease.execution_id)}
    assert listed == {"go": (WaitpointState.CLOSED, "expired"), "other": (WaitpointState.PENDING, None)}
    async with nothing_written(store):
        await refused(engine.signals.deliver(made.token, "go"), "token_expired")
        assert await engine.signals.deliver(made.token, "go", key="evt") == DuplicateSignal(first.signal_id)
        await refused(engine.leases.suspend(lease.fence, [Pending("go")]), "waitpoint_not_found", NotFound)
        await engine.reconcilers.tick()
    assert await event_names(engine, lease.execution_id) == ["lease.acquired", "signal.buffered"]


async def test_a_bound_waitpoint_is_left_to_the_timeout_of_its_suspension(engine: Engine, clock: VirtualClock) -> None:
    lease = await leased(engine)
    await engine.waitpoints.create(lease.fence, "go", expires="1h")
    wait = await suspended(engine, [Pending("go")], lease=lease, timeout="2h", on_timeout="escalate")
    clock.advance("3h")
    ticks = {tick.duty: tick.done for tick in await engine.reconcilers.tick()}
    assert (ticks["waitpoint_expiry"], ticks["suspension_timeout"]) == (0, 1)
    [shown] = await engine.waitpoints.list(wait.id)
    assert shown.state is WaitpointState.ACTIVE


async def test_a_suspended_execution_loses_its_other_pending_waitpoints_at_their_time(
    engine: Engine, clock: VirtualClock
) -> None:
    lease = await leased(engine)
    later = await engine.waitpoints.create(lease.fence, "later", expires="1h")
    wait = await suspended(engine, ["go"], lease=lease)
    clock.advance("1h")
    await engine.reconcilers.tick()
    found = await engine.executions.describe(wait.id)
    assert [item.key for item in found.waitpoints] == ["go"]
    assert later.token is not None
    await refused(engine.signals.deliver(later.token, "go"), "token_expired")


async def test_without_a_time_it_stays(engine: Engine, clock: VirtualClock) -> None:
    wait = await suspended(engine)
    await engine.signals.deliver(wait.token(), "go")
    lease = await engine.leases.claim_resumed(wait.id, "worker-2")
    await engine.waitpoints.create(lease.fence, "later")
    assert isinstance(await engine.leases.suspend(lease.fence, ["go"]), Suspended)
    clock.advance("365d")
    await engine.reconcilers.tick()
    assert [item.key for item in (await engine.executions.describe(wait.id)).waitpoints] == ["go", "later"]
