"""Tests of renew, which extends a live lease by its own ttl and never revives an expired one."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest

from flowfabric.engine import AlreadySatisfied, Engine, Fence, FlowFabricError, Policy, Renewed, State
from flowfabric.testing import VirtualClock
from tests.expectations import event_names, nothing_written, refused, stored_row
from tests.flows import with_children
from tests.scenarios import leased
from tests.stores import TestStore, opened, snapshot

TICK = timedelta(microseconds=1)


async def test_lease_is_extended_by_its_own_ttl_from_now(engine: Engine, clock: VirtualClock) -> None:
    by_claim = await leased(engine, lease_ttl="5m", policy=Policy(lease_ttl="45s"))
    by_policy = await leased(engine, policy=Policy(lease_ttl="45s"))
    clock.advance("20s")
    for lease, ttl in ((by_claim, timedelta(minutes=5)), (by_policy, timedelta(seconds=45))):
        renewal = await engine.leases.renew(lease.fence)
        assert renewal == Renewed(clock.now() + ttl)
        described = (await engine.executions.describe(lease.execution_id)).lease
        assert described is not None
        assert (described.expires_at, described.renewed_at, described.acquired_at) == (
            renewal.expires_at,
            clock.now(),
            lease.acquired_at,
        )


async def test_renewal_changes_only_the_end_of_the_lease(engine: Engine, clock: VirtualClock, store: TestStore) -> None:
    lease = await leased(engine)
    clock.advance("10s")
    row, tables = await stored_row(store, lease.execution_id), await snapshot(store)
    await engine.leases.renew(lease.fence)
    row_after, tables_after = await stored_row(store, lease.execution_id), await snapshot(store)
    assert {name for name in row if row[name] != row_after[name]} == {"lease_expires_at"}
    del tables["execution"], tables_after["execution"]
    assert tables == tables_after
    assert await event_names(engine, lease.execution_id) == ["lease.acquired"]


async def test_renewal_never_shortens_a_lease(engine: Engine, clock: VirtualClock, store: TestStore) -> None:
    lease = await leased(engine)
    slow_clock = VirtualClock(clock.now())
    clock.advance("10s")
    renewed = await engine.leases.renew(lease.fence)
    assert await engine.leases.renew(lease.fence) == renewed
    async with opened(store, slow_clock) as slow_engine:
        assert await slow_engine.leases.renew(lease.fence) == renewed


async def test_lease_can_be_renewed_until_it_expires_and_is_never_revived(
    engine: Engine, clock: VirtualClock, store: TestStore
) -> None:
    late, in_time = await leased(engine), await leased(engine)
    clock.advance(timedelta(seconds=30) - TICK)
    await engine.leases.renew(in_time.fence)
    clock.advance(TICK)
    async with nothing_written(store):
        error = await refused(engine.leases.renew(late.fence), "lease_expired")
    assert (error.fields["state"], error.fields["epoch"]) == (State.ACTIVE, late.epoch)
    await engine.reconcilers.tick()
    async with nothing_written(store):
        await refused(engine.leases.renew(late.fence), "lease_expired")
    assert (await engine.executions.describe(late.execution_id)).state is State.WAITING
    assert (await engine.executions.describe(in_time.execution_id)).state is State.ACTIVE


async def test_renewed_lease_outlives_its_first_ttl_and_ends_with_its_last(engine: Engine, clock: VirtualClock) -> None:
    lease = await leased(engine)
    for _ in range(3):
        clock.advance("20s")
        await engine.leases.renew(lease.fence)
        await engine.reconcilers.tick()
    assert (await engine.executions.describe(lease.execution_id)).state is State.ACTIVE
    clock.advance("30s")
    await engine.reconcilers.tick()
    execution = await engine.executions.describe(lease.execution_id)
    assert (execution.state, execution.reclaim_count) == (State.WAITING, 1)


async def test_renewal_does_not_move_the_attempt_timeout(engine: Engine, clock: VirtualClock) -> None:
    lease = await leased(engine, policy=Policy(attempt_timeout="40s"))
    clock.advance("20s")
    await engine.leases.renew(lease.fence)
    [held] = await engine.leases.held("worker-1")
    assert held.attempt_timeout_at == lease.attempt_timeout_at


async def test_batch_of_renewals_returns_one_outcome_each_in_order(engine: Engine, clock: VirtualClock) -> None:
    live, revoked, lost_lease, long = [await leased(engine, lease_ttl=ttl) for ttl in (30, 30, 5, 60)]
    assert not isinstance(await engine.operator.revoke_lease(revoked.execution_id), AlreadySatisfied)
    clock.advance("10s")
    unknown = Fence(uuid4(), 1, UUID(int=1))
    forged = Fence(live.execution_id, live.epoch, UUID(int=1))
    fences = [revoked.fence, live.fence, unknown, lost_lease.fence, long.fence, forged, live.fence]
    outcomes = await engine.leases.renew_many(fences)
    codes = [outcome.code if isinstance(outcome, FlowFabricError) else outcome.expires_at for outcome in outcomes]
    soon, later = clock.now() + timedelta(seconds=30), clock.now() + timedelta(seconds=60)
    assert codes == [
        "lease_revoked",
        soon,
        "execution_not_found",
        "lease_expired",
        later,
        "stale_lease",
        soon,
    ]
    assert await engine.leases.renew_many([]) == []


async def test_many_lost_leases_are_explained_by_shared_reads(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    lease = await leased(engine, lease_ttl="1h")
    children = await with_children(engine, lease, *map(str, range(20)))
    lost_leases = [await engine.leases.claim_execution(id_, "worker-2") for id_ in children.values()]
    await engine.leases.cancel_children(lease.fence, list(children.values()))
    run, calls = engine._context.store.run, []

    async def record_call(body: Any, **options: Any) -> Any:
        calls.append(body)
        return await run(body, **options)

    monkeypatch.setattr(engine._context.store, "run", record_call)
    renewals = (engine.leases.renew(renewed_lease.fence) for renewed_lease in [lease, *lost_leases])
    renewed, *refusals = await asyncio.gather(*renewals, return_exceptions=True)
    assert isinstance(renewed, Renewed)
    assert {getattr(error, "code", None) for error in refusals} == {"execution_not_active"}
    assert len({id(error) for error in refusals}) == len(lost_leases)
    assert len(calls) <= 2
