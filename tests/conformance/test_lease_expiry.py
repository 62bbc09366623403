"""Lease expiry: a lease that ran out is ended by the duty; the work goes on, is kept, or fails past the cap."""

from __future__ import annotations

from datetime import timedelta
from uuid import UUID

from flowfabric.engine import AttemptOutcome, Engine, Lease, Policy, RetryScheduled, State, WorkerId
from flowfabric.testing import VirtualClock
from tests.facts import event_names, every_write_is_refused, last_event
from tests.scenarios import KEEPING, leased
from tests.stores import TestStore

MICROSECOND = timedelta(microseconds=1)


async def lost(engine: Engine, clock: VirtualClock, policy: Policy | None = None) -> Lease:
    """A lease whose worker died and whose time has passed, after the duty has run."""
    lease = await leased(engine, policy=policy or Policy(), worker="worker-1")
    clock.advance(lease.ttl)
    await engine.reconcilers.tick()
    return lease


async def test_a_lease_lives_to_the_end_of_its_term_and_not_longer(engine: Engine, clock: VirtualClock) -> None:
    lease, given_up = await leased(engine), await leased(engine)
    await engine.leases.release(given_up.fence)
    clock.advance(lease.ttl - MICROSECOND)
    await engine.reconcilers.tick()
    assert (await engine.executions.describe(lease.execution_id)).version == 1
    clock.advance(MICROSECOND)
    await engine.reconcilers.tick()
    assert (await engine.executions.describe(lease.execution_id)).state is State.WAITING
    assert (await event_names(engine, given_up.execution_id))[-1] == "lease.released"


async def test_requeued_work_is_taken_up_as_the_next_attempt(engine: Engine, clock: VirtualClock) -> None:
    lease = await lost(engine, clock)
    found, event = await engine.executions.describe(lease.execution_id), await last_event(engine, lease.execution_id)
    assert (found.state, found.vector.attempt_state) == (State.WAITING, "pending_reclaim_attempt")
    assert (found.reclaim_count, found.retry_count, found.epoch) == (1, 0, lease.epoch + 1)
    assert [(item.outcome, item.worker) for item in found.attempts] == [(AttemptOutcome.RECLAIMED, lease.worker)]
    assert (event.family, event.name, event.ends_lease, event.worker) == ("lease", "expired", True, lease.worker)
    [again] = await engine.leases.claim(["default"], "worker-2")
    assert (again.execution_id, again.origin) == (lease.execution_id, "reclaimed")
    assert (again.attempt_index, again.epoch) == (1, lease.epoch + 2)


async def test_the_zombie_of_an_expired_lease_gets_nowhere(engine: Engine, clock: VirtualClock) -> None:
    for policy in (Policy(), KEEPING, Policy(max_reclaims=0)):
        lease = await lost(engine, clock, policy)
        await every_write_is_refused(engine, lease.fence, "lease_expired")


async def test_a_lease_past_its_time_is_lost_before_the_duty_has_run(engine: Engine, clock: VirtualClock) -> None:
    lease = await leased(engine)
    clock.advance(lease.ttl)
    await every_write_is_refused(engine, lease.fence, "lease_expired")


async def test_kept_work_stays_active_without_an_owner(engine: Engine, clock: VirtualClock) -> None:
    lease = await lost(engine, clock, KEEPING)
    found = await engine.executions.describe(lease.execution_id)
    assert (found.state, found.lease, found.epoch) == (State.ACTIVE, None, lease.epoch + 1)
    assert (found.vector.ownership_state, found.vector.attempt_state) == (
        "lease_expired_reclaimable", "pending_reclaim_attempt",
    )  # fmt: skip
    assert await engine.leases.claim(["default"], "worker-2") == []
    clock.advance("10d")
    await engine.reconcilers.tick()
    assert await engine.executions.describe(lease.execution_id) == found


async def test_past_the_cap_the_execution_fails(engine: Engine, clock: VirtualClock) -> None:
    for cap in (0, 1):
        lease = await leased(engine, policy=Policy(max_reclaims=cap))
        for reclaims in range(cap):
            clock.advance("30s")
            await engine.reconcilers.tick()
            assert (await engine.executions.describe(lease.execution_id)).reclaim_count == reclaims + 1
            await engine.leases.claim_execution(lease.execution_id, "worker-2")
        clock.advance("30s")
        await engine.reconcilers.tick()
        found = await engine.executions.describe(lease.execution_id)
        assert (found.state, found.reclaim_count, len(found.attempts)) == (State.FAILED, cap, cap + 1)
        assert found.last_failure is not None
        assert found.last_failure.category == "max_reclaims_exceeded"
        assert (await event_names(engine, lease.execution_id)).count("completion.failed") == 1
        assert (await last_event(engine, lease.execution_id)).ends_lease


async def test_a_renewed_lease_is_only_looked_at_again(engine: Engine, clock: VirtualClock, store: TestStore) -> None:
    lease = await leased(engine)
    clock.advance("20s")
    renewed = await engine.leases.renew(lease.fence)
    assert await check_is_due_at_the_end(store) is False
    clock.advance("10s")
    before = await engine.executions.describe(lease.execution_id)
    await engine.reconcilers.tick()
    assert await engine.executions.describe(lease.execution_id) == before
    assert await check_is_due_at_the_end(store) is True
    clock.advance(renewed.expires_at - clock.now() - MICROSECOND)
    await engine.reconcilers.tick()
    assert (await engine.executions.describe(lease.execution_id)).state is State.ACTIVE
    clock.advance(MICROSECOND)
    await engine.reconcilers.tick()
    assert (await engine.executions.describe(lease.execution_id)).state is State.WAITING


async def test_reclaims_do_not_consume_retries(engine: Engine, clock: VirtualClock) -> None:
    lease = await lost(engine, clock, Policy(max_retries=1))
    id_ = lease.execution_id
    second = await engine.leases.claim_execution(id_, "worker-2")
    assert isinstance(await engine.leases.fail(second.fence, "once"), RetryScheduled)
    found = await engine.executions.describe(id_)
    assert (found.retry_count, found.reclaim_count, found.attempt_index) == (1, 1, 2)
    clock.advance("1m")
    await engine.reconcilers.tick()
    third = await engine.leases.claim_execution(id_, "worker-3")
    assert third.origin == "retry"
    await engine.leases.fail(third.fence, "twice")
    assert (await engine.executions.describe(id_)).state is State.FAILED


async def test_work_whose_worker_died_is_with_another_within_two_lease_periods(
    engine: Engine, clock: VirtualClock
) -> None:
    lease = await leased(engine, worker="worker-1")
    clock.advance("20s")
    await engine.leases.renew(lease.fence)
    taken: list[UUID] = []
    while not taken and clock.now() - lease.acquired_at < 3 * lease.ttl:
        clock.advance("10s")
        await engine.reconcilers.tick()
        taken = [again.execution_id for again in await engine.leases.claim(["default"], WorkerId("two", "two-1"))]
    assert taken == [lease.execution_id]
    assert clock.now() - lease.acquired_at <= 2 * lease.ttl


async def check_is_due_at_the_end(store: TestStore) -> bool:
    """Whether the only lease is looked at when its present term ends."""
    [row] = await store.query("SELECT lease_check_at, lease_expires_at FROM ff.execution")
    return bool(row["lease_check_at"] == row["lease_expires_at"])
