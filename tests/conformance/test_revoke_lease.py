"""Tests of revoke_lease, which ends a live lease, or reports why there was nothing to end."""

from __future__ import annotations

from dataclasses import replace
from uuid import uuid4

from flowfabric.engine import AlreadySatisfied, AttemptOutcome, Engine, Policy, Revoked, State, WorkerId
from flowfabric.testing import VirtualClock
from tests.expectations import every_write_is_refused, last_event, refused
from tests.scenarios import KEEPING, SITUATIONS, leased

WORKER_2 = WorkerId("second", "second-7")


async def test_outcome_names_the_revoked_lease_and_the_new_epoch(engine: Engine) -> None:
    lease = await leased(engine, worker="worker-1")
    assert [held.fence for held in await engine.leases.held("worker-1")] == [lease.fence]
    outcome = await engine.operator.revoke_lease(lease.execution_id, "stuck", principal="ada")
    assert await engine.leases.held("worker-1") == []
    event = await last_event(engine, lease.execution_id)
    assert outcome == Revoked(lease.fence.lease_id, lease.epoch + 1)
    assert (event.family, event.name, event.epoch, event.ends_lease) == ("lease", "revoked", lease.epoch + 1, True)
    assert (event.principal, event.reason) == ("ada", "stuck")
    assert (event.lease_id, event.worker) == (lease.fence.lease_id, lease.worker)


async def test_only_the_named_lease_is_revoked(engine: Engine) -> None:
    for option in ("instance", "lease_id", "epoch"):
        lease = await leased(engine, worker="worker-9")
        value = {"instance": "worker-9", "lease_id": lease.fence.lease_id, "epoch": lease.epoch}[option]
        outcome = await engine.operator.revoke_lease(lease.execution_id, **{option: value})  # type: ignore[arg-type]
        assert isinstance(outcome, Revoked), option
    lease = await leased(engine)
    revoke, id_ = engine.operator.revoke_lease, lease.execution_id
    before = await engine.executions.describe(id_)
    assert await revoke(id_, instance="worker-9") == AlreadySatisfied("different_worker_instance")
    assert await revoke(id_, lease_id=uuid4()) == AlreadySatisfied("different_lease")
    assert await revoke(id_, epoch=lease.epoch - 1) == AlreadySatisfied("epoch_moved")
    assert await engine.executions.describe(id_) == before
    await engine.leases.renew(lease.fence)


async def test_revoke_without_a_live_lease_is_already_satisfied(engine: Engine, clock: VirtualClock) -> None:
    reasons = {
        "active: lease run out": "already_expired",
        "active: kept, lease expired": "already_expired",
        "active: kept, lease revoked": "already_revoked",
    }
    for situation, arrange in SITUATIONS.items():
        if situation == "active":
            continue
        id_ = await arrange(engine, clock)
        before = await engine.executions.describe(id_)
        outcome = await engine.operator.revoke_lease(id_, "stuck")
        assert outcome == AlreadySatisfied(reasons.get(situation, "no_active_lease")), situation
        assert await engine.executions.describe(id_) == before, situation


async def test_requeued_work_starts_the_next_attempt_and_counts_nothing(engine: Engine) -> None:
    lease = await leased(engine)
    await engine.operator.revoke_lease(lease.execution_id)
    execution = await engine.executions.describe(lease.execution_id)
    assert (execution.state, execution.vector.attempt_state) == (State.WAITING, "pending_reclaim_attempt")
    assert (execution.retry_count, execution.reclaim_count) == (0, 0)
    assert [attempt.outcome for attempt in execution.attempts] == [AttemptOutcome.RECLAIMED]
    next_lease = await engine.leases.claim_execution(lease.execution_id, WORKER_2)
    assert (next_lease.origin, next_lease.attempt_index, next_lease.epoch) == ("reclaimed", 1, lease.epoch + 2)


async def test_kept_work_stays_active_without_a_lease_until_it_is_handed_off(engine: Engine) -> None:
    lease = await leased(engine, policy=replace(KEEPING, max_reclaims=0))
    await engine.operator.revoke_lease(lease.execution_id)
    execution = await engine.executions.describe(lease.execution_id)
    assert (execution.state, execution.lease, execution.vector.ownership_state) == (State.ACTIVE, None, "lease_revoked")
    assert execution.vector.attempt_state == "pending_reclaim_attempt"
    assert await engine.leases.claim(["default"], WORKER_2) == []
    grant = await engine.operator.grant_reclaim(lease.execution_id, WORKER_2)
    await engine.leases.reclaim(grant, WORKER_2)
    after = await engine.executions.describe(lease.execution_id)
    assert (after.attempt_index, after.reclaim_count) == (1, 0)


async def test_owner_of_a_revoked_lease_is_refused_in_every_write(engine: Engine) -> None:
    for policy in (Policy(), KEEPING):
        lease = await leased(engine, policy=policy)
        await engine.operator.revoke_lease(lease.execution_id)
        await every_write_is_refused(engine, lease.fence, "lease_revoked")


async def test_former_owner_gets_lease_revoked_until_the_next_owner_ends_its_lease(engine: Engine) -> None:
    former = await leased(engine)
    await engine.operator.revoke_lease(former.execution_id)
    owner = await engine.leases.claim_execution(former.execution_id, WORKER_2)
    await every_write_is_refused(engine, former.fence, "lease_revoked")
    await engine.leases.release(owner.fence)
    await refused(engine.leases.renew(former.fence), "stale_lease")
    await refused(engine.leases.complete(former.fence, b"late"), "stale_lease")


async def test_revoke_does_not_affect_an_expired_lease_and_the_next_claim_is_another_attempt(
    engine: Engine, clock: VirtualClock
) -> None:
    lease = await leased(engine)
    clock.advance("30s")
    assert await engine.operator.revoke_lease(lease.execution_id) == AlreadySatisfied("already_expired")
    await engine.reconcilers.tick()
    assert await engine.operator.revoke_lease(lease.execution_id) == AlreadySatisfied("no_active_lease")
    second = await engine.leases.claim_execution(lease.execution_id, "w")
    await engine.operator.revoke_lease(lease.execution_id)
    third = await engine.leases.claim_execution(lease.execution_id, "w")
    assert [second.attempt_index, third.attempt_index] == [1, 2]
    execution = await engine.executions.describe(lease.execution_id)
    assert [attempt.outcome for attempt in execution.attempts] == ["interrupted_reclaimed"] * 2
