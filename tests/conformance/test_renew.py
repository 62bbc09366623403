"""renew: a lease in time is extended by its own term; one that has run out stays lost."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest

from flowfabric.engine import AlreadySatisfied, Engine, Fence, FlowFabricError, Policy, Renewed, State
from flowfabric.testing import VirtualClock
from tests.facts import event_names, nothing_written, refused, stored_row
from tests.flows import with_children
from tests.scenarios import leased
from tests.stores import TestStore, opened, snapshot

TICK = timedelta(microseconds=1)


async def test_a_lease_is_extended_by_its_own_term_from_now(engine: Engine, clock: VirtualClock) -> None:
    asked = await leased(engine, lease_ttl="5m", policy=Policy(lease_ttl="45s"))
    by_policy = await leased(engine, policy=Policy(lease_ttl="45s"))
    clock.advance("20s")
    for lease, term in ((asked, timedelta(minutes=5)), (by_policy, timedelta(seconds=45))):
        answer = await engine.leases.renew(lease.fence)
        assert answer == Renewed(clock.now() + term)
        shown = (await engine.executions.describe(lease.execution_id)).lease
        assert shown is not None
        assert (shown.expires_at, shown.renewed_at, shown.acquired_at) == (
            answer.expires_at, clock.now(), lease.acquired_at,
        )  # fmt: skip


async def test_a_renewal_changes_the_end_of_the_lease_and_nothing_else(
    engine: Engine, clock: VirtualClock, store: TestStore
) -> None:
    lease = await leased(engine)
    clock.advance("10s")
    row, everything = await stored_row(store, lease.execution_id), await snapshot(store)
    await engine.leases.renew(lease.fence)
    row_after, everything_after = await stored_row(store, lease.execution_id), await snapshot(store)
    assert {name for name in row if row[name] != row_after[name]} == {"lease_expires_at"}
    del everything["execution"], everything_after["execution"]
    assert everything == everything_after
    assert await event_names(engine, lease.execution_id) == ["lease.acquired"]


async def test_a_renewal_never_shortens_a_lease(engine: Engine, clock: VirtualClock, store: TestStore) -> None:
    lease = await leased(engine)
    behind = VirtualClock(clock.now())
    clock.advance("10s")
    renewed = await engine.leases.renew(lease.fence)
    assert await engine.leases.renew(lease.fence) == renewed
    async with opened(store, behind) as other:
        assert await other.leases.renew(lease.fence) == renewed


async def test_a_lease_can_be_renewed_until_its_last_moment_and_is_never_revived(
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


async def test_a_renewed_lease_outlives_its_first_term_and_ends_with_its_last(
    engine: Engine, clock: VirtualClock
) -> None:
    lease = await leased(engine)
    for _ in range(3):
        clock.advance("20s")
        await engine.leases.renew(lease.fence)
        await engine.reconcilers.tick()
    assert (await engine.executions.describe(lease.execution_id)).state is State.ACTIVE
    clock.advance("30s")
    await engine.reconcilers.tick()
    found = await engine.executions.describe(lease.execution_id)
    assert (found.state, found.reclaim_count) == (State.WAITING, 1)


async def test_a_renewal_does_not_move_the_time_of_the_attempt(engine: Engine, clock: VirtualClock) -> None:
    lease = await leased(engine, policy=Policy(attempt_timeout="40s"))
    clock.advance("20s")
    await engine.leases.renew(lease.fence)
    [held] = await engine.leases.held("worker-1")
    assert held.attempt_timeout_at == lease.attempt_timeout_at


async def test_many_renewals_are_answered_each_for_itself_and_in_order(engine: Engine, clock: VirtualClock) -> None:
    live, revoked, lost, long = [await leased(engine, lease_ttl=ttl) for ttl in (30, 30, 5, 60)]
    assert not isinstance(await engine.operator.revoke_lease(revoked.execution_id), AlreadySatisfied)
    clock.advance("10s")
    unknown = Fence(uuid4(), 1, UUID(int=1))
    forged = Fence(live.execution_id, live.epoch, UUID(int=1))
    fences = [revoked.fence, live.fence, unknown, lost.fence, long.fence, forged, live.fence]
    answers = await engine.leases.renew_many(fences)
    codes = [answer.code if isinstance(answer, FlowFabricError) else answer.expires_at for answer in answers]
    soon, later = clock.now() + timedelta(seconds=30), clock.now() + timedelta(seconds=60)
    assert codes == [
        "lease_revoked", soon, "execution_not_found", "lease_expired", later, "stale_lease", soon,
    ]  # fmt: skip
    assert await engine.leases.renew_many([]) == []


async def test_many_leases_that_were_lost_at_once_are_explained_together(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    lease = await leased(engine, lease_ttl="1h")
    children = await with_children(engine, lease, *map(str, range(20)))
    lost = [await engine.leases.claim_execution(id_, "worker-2") for id_ in children.values()]
    await engine.leases.cancel_children(lease.fence, list(children.values()))
    run, made = engine._context.store.run, []

    async def counted(body: Any) -> Any:
        made.append(body)
        return await run(body)

    monkeypatch.setattr(engine._context.store, "run", counted)
    renewals = (engine.leases.renew(item.fence) for item in [lease, *lost])
    renewed, *refusals = await asyncio.gather(*renewals, return_exceptions=True)
    assert isinstance(renewed, Renewed)
    assert {getattr(error, "code", None) for error in refusals} == {"execution_not_active"}
    assert len({id(error) for error in refusals}) == len(lost)
    assert len(made) <= 2
