"""Tests of the duty that ends expired leases. The execution is then queued again, kept for hand-off, or failed."""

from __future__ import annotations

from datetime import timedelta
from uuid import UUID

import pytest

from flowfabric.engine import AttemptOutcome, Ended, Engine, Lease, OnLeaseLoss, Policy, RetryScheduled, State, WorkerId
from flowfabric.testing import VirtualClock
from tests.expectations import event_names, every_write_is_refused, last_event, refusals
from tests.scenarios import KEEPING, ONE_SHOT, leased, submitted
from tests.stores import TestStore, snapshot

CAPPED = Policy(max_reclaims=1)
CAPPED_KEEPING = Policy(max_reclaims=1, on_lease_loss=OnLeaseLoss.HAND_OFF)

MICROSECOND = timedelta(microseconds=1)


async def expire_lease(engine: Engine, clock: VirtualClock, policy: Policy | None = None) -> Lease:
    """Let a lease expire, run the duty, and return the lost lease."""
    lease = await leased(engine, policy=policy or Policy(), worker="worker-1")
    clock.advance(lease.ttl)
    await engine.reconcilers.tick()
    return lease


async def test_lease_lives_exactly_for_its_ttl(engine: Engine, clock: VirtualClock) -> None:
    lease, released = await leased(engine), await leased(engine)
    await engine.leases.release(released.fence)
    clock.advance(lease.ttl - MICROSECOND)
    await engine.reconcilers.tick()
    assert (await engine.executions.describe(lease.execution_id)).version == 1
    clock.advance(MICROSECOND)
    await engine.reconcilers.tick()
    assert (await engine.executions.describe(lease.execution_id)).state is State.WAITING
    assert (await event_names(engine, released.execution_id))[-1] == "lease.released"


async def test_requeued_work_is_claimed_as_the_next_attempt(engine: Engine, clock: VirtualClock) -> None:
    lease = await expire_lease(engine, clock)
    execution, event = (
        await engine.executions.describe(lease.execution_id),
        await last_event(engine, lease.execution_id),
    )
    assert (execution.state, execution.vector.attempt_state) == (State.WAITING, "pending_reclaim_attempt")
    assert (execution.reclaim_count, execution.retry_count, execution.epoch) == (1, 0, lease.epoch + 1)
    assert [(attempt.outcome, attempt.worker) for attempt in execution.attempts] == [
        (AttemptOutcome.RECLAIMED, lease.worker)
    ]
    assert (event.family, event.name, event.ends_lease, event.worker) == ("lease", "expired", True, lease.worker)
    [next_lease] = await engine.leases.claim(["default"], "worker-2")
    assert (next_lease.execution_id, next_lease.origin) == (lease.execution_id, "reclaimed")
    assert (next_lease.attempt_index, next_lease.epoch) == (1, lease.epoch + 2)


async def test_owner_of_an_expired_lease_is_refused_in_every_write(engine: Engine, clock: VirtualClock) -> None:
    for policy in (Policy(), KEEPING, Policy(max_reclaims=0)):
        lease = await expire_lease(engine, clock, policy)
        await every_write_is_refused(engine, lease.fence, "lease_expired")


async def test_expired_lease_is_lost_even_before_the_duty_has_run(engine: Engine, clock: VirtualClock) -> None:
    lease = await leased(engine)
    clock.advance(lease.ttl)
    await every_write_is_refused(engine, lease.fence, "lease_expired")


async def test_kept_work_stays_active_without_an_owner(engine: Engine, clock: VirtualClock) -> None:
    lease = await expire_lease(engine, clock, KEEPING)
    execution = await engine.executions.describe(lease.execution_id)
    assert (execution.state, execution.lease, execution.epoch) == (State.ACTIVE, None, lease.epoch + 1)
    assert (execution.vector.ownership_state, execution.vector.attempt_state) == (
        "lease_expired_reclaimable",
        "pending_reclaim_attempt",
    )
    assert await engine.leases.claim(["default"], "worker-2") == []
    clock.advance("10d")
    await engine.reconcilers.tick()
    assert await engine.executions.describe(lease.execution_id) == execution


async def test_execution_fails_after_max_reclaims(engine: Engine, clock: VirtualClock) -> None:
    for cap in (0, 1):
        lease = await leased(engine, policy=Policy(max_reclaims=cap))
        for reclaims in range(cap):
            clock.advance("30s")
            await engine.reconcilers.tick()
            assert (await engine.executions.describe(lease.execution_id)).reclaim_count == reclaims + 1
            await engine.leases.claim_execution(lease.execution_id, "worker-2")
        clock.advance("30s")
        await engine.reconcilers.tick()
        execution = await engine.executions.describe(lease.execution_id)
        assert (execution.state, execution.reclaim_count, len(execution.attempts)) == (State.FAILED, cap, cap + 1)
        assert execution.last_failure is not None
        assert execution.last_failure.category == "max_reclaims_exceeded"
        assert (await event_names(engine, lease.execution_id)).count("completion.failed") == 1
        assert (await last_event(engine, lease.execution_id)).ends_lease


async def test_renewed_lease_is_checked_again_at_its_new_end(
    engine: Engine, clock: VirtualClock, store: TestStore
) -> None:
    lease = await leased(engine)
    clock.advance("20s")
    renewed = await engine.leases.renew(lease.fence)
    assert await is_check_due_at_expiry(store) is False
    clock.advance("10s")
    before = await engine.executions.describe(lease.execution_id)
    await engine.reconcilers.tick()
    assert await engine.executions.describe(lease.execution_id) == before
    assert await is_check_due_at_expiry(store) is True
    clock.advance(renewed.expires_at - clock.now() - MICROSECOND)
    await engine.reconcilers.tick()
    assert (await engine.executions.describe(lease.execution_id)).state is State.ACTIVE
    clock.advance(MICROSECOND)
    await engine.reconcilers.tick()
    assert (await engine.executions.describe(lease.execution_id)).state is State.WAITING


async def test_reclaims_do_not_use_retries(engine: Engine, clock: VirtualClock) -> None:
    lease = await expire_lease(engine, clock, Policy(max_retries=1))
    id_ = lease.execution_id
    second = await engine.leases.claim_execution(id_, "worker-2")
    assert isinstance(await engine.leases.fail(second.fence, "once"), RetryScheduled)
    execution = await engine.executions.describe(id_)
    assert (execution.retry_count, execution.reclaim_count, execution.attempt_index) == (1, 1, 2)
    clock.advance("1m")
    await engine.reconcilers.tick()
    third = await engine.leases.claim_execution(id_, "worker-3")
    assert third.origin == "retry"
    await engine.leases.fail(third.fence, "twice")
    assert (await engine.executions.describe(id_)).state is State.FAILED


async def test_work_of_a_dead_worker_is_claimed_within_two_lease_periods(engine: Engine, clock: VirtualClock) -> None:
    lease = await leased(engine, worker="worker-1")
    clock.advance("20s")
    await engine.leases.renew(lease.fence)
    claimed: list[UUID] = []
    while not claimed and clock.now() - lease.acquired_at < 3 * lease.ttl:
        clock.advance("10s")
        await engine.reconcilers.tick()
        claimed = [
            next_lease.execution_id for next_lease in await engine.leases.claim(["default"], WorkerId("two", "two-1"))
        ]
    assert claimed == [lease.execution_id]
    assert clock.now() - lease.acquired_at <= 2 * lease.ttl


async def is_check_due_at_expiry(store: TestStore) -> bool:
    """Return whether the next check of the only lease is due exactly when that lease expires."""
    [row] = await store.query("SELECT lease_check_at, lease_expires_at FROM ff.execution")
    return bool(row["lease_check_at"] == row["lease_expires_at"])


async def test_expired_lease_refuses_every_write_before_and_after_the_duty(
    store: TestStore, engine: Engine, clock: VirtualClock
) -> None:
    lease = await leased(engine)
    clock.advance("30s")
    before = await snapshot(store)
    assert await refusals(engine, lease.fence) == {"lease_expired"}
    assert await snapshot(store) == before
    await engine.reconcilers.tick()
    assert await refusals(engine, lease.fence) == {"lease_expired"}
    assert (await engine.executions.describe(lease.execution_id)).state == State.WAITING


async def test_timeout_of_a_lost_attempt_does_not_end_the_reclaimed_one(engine: Engine, clock: VirtualClock) -> None:
    lease = await leased(engine, policy=Policy(on_lease_loss=OnLeaseLoss.HAND_OFF, attempt_timeout="40s"))
    clock.advance("31s")
    await engine.reconcilers.tick()
    grant = await engine.operator.grant_reclaim(lease.execution_id, "heir")
    successor = await engine.leases.reclaim(grant, "heir")
    assert isinstance(successor, Lease)
    # Now the time limit of the first attempt is over, but the new attempt has its own timeout.
    clock.advance("10s")
    await engine.reconcilers.tick()
    assert successor.attempt_timeout_at == successor.acquired_at + timedelta(seconds=40)
    assert await engine.leases.complete(successor.fence) == Ended(State.COMPLETED)


async def test_dead_worker_uses_no_retry_and_ends_nothing(engine: Engine, clock: VirtualClock) -> None:
    lease = await leased(engine, policy=ONE_SHOT)
    clock.advance("31s")
    await engine.reconcilers.tick()
    execution = await engine.executions.describe(lease.execution_id)
    assert (execution.state, execution.retry_count, execution.reclaim_count) == (State.WAITING, 0, 1)


@pytest.mark.parametrize("policy", [CAPPED, CAPPED_KEEPING])
async def test_execution_that_exceeds_max_reclaims_writes_a_failed_event(
    engine: Engine, clock: VirtualClock, policy: Policy
) -> None:
    id_ = await submitted(engine, policy=policy)
    await engine.leases.claim_execution(id_, "w")
    for _ in range(2):
        clock.advance("31s")
        await engine.reconcilers.tick()
        if policy is CAPPED_KEEPING:
            await engine.leases.reclaim(await engine.operator.grant_reclaim(id_, "w"), "w")
        elif (await engine.executions.describe(id_)).state == State.WAITING:
            await engine.leases.claim_execution(id_, "w")
    execution = await engine.executions.describe(id_)
    assert execution.last_failure is not None
    assert (execution.state, execution.last_failure.category) == (State.FAILED, "max_reclaims_exceeded")
    last = (await engine.executions.history(id_))[-1]
    assert (last.family, last.name) == ("completion", "failed")
