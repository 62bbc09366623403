"""revoke_lease: takes a live lease away and says what it did; an execution that exists is never an error."""

from __future__ import annotations

from dataclasses import replace
from uuid import uuid4

from flowfabric.engine import AlreadySatisfied, AttemptOutcome, Engine, Policy, Revoked, State, WorkerId
from flowfabric.testing import VirtualClock
from tests.facts import every_write_is_refused, last_event, refused
from tests.scenarios import KEEPING, SITUATIONS, leased

WORKER_2 = WorkerId("second", "second-7")


async def test_a_revoked_lease_is_named_with_the_new_epoch(engine: Engine) -> None:
    lease = await leased(engine, worker="worker-1")
    assert [held.fence for held in await engine.leases.held("worker-1")] == [lease.fence]
    answer = await engine.operator.revoke_lease(lease.execution_id, "stuck", principal="ada")
    assert await engine.leases.held("worker-1") == []
    event = await last_event(engine, lease.execution_id)
    assert answer == Revoked(lease.fence.lease_id, lease.epoch + 1)
    assert (event.family, event.name, event.epoch, event.ends_lease) == ("lease", "revoked", lease.epoch + 1, True)
    assert (event.principal, event.reason) == ("ada", "stuck")
    assert (event.lease_id, event.worker) == (lease.fence.lease_id, lease.worker)


async def test_only_the_named_lease_is_revoked(engine: Engine) -> None:
    for which in ("instance", "lease_id", "epoch"):
        lease = await leased(engine, worker="worker-9")
        named = {"instance": "worker-9", "lease_id": lease.fence.lease_id, "epoch": lease.epoch}[which]
        answer = await engine.operator.revoke_lease(lease.execution_id, **{which: named})  # type: ignore[arg-type]
        assert isinstance(answer, Revoked), which
    lease = await leased(engine)
    revoke, id_ = engine.operator.revoke_lease, lease.execution_id
    before = await engine.executions.describe(id_)
    assert await revoke(id_, instance="worker-9") == AlreadySatisfied("different_worker_instance")
    assert await revoke(id_, lease_id=uuid4()) == AlreadySatisfied("different_lease")
    assert await revoke(id_, epoch=lease.epoch - 1) == AlreadySatisfied("epoch_moved")
    assert await engine.executions.describe(id_) == before
    await engine.leases.renew(lease.fence)


async def test_where_no_lease_lives_it_is_satisfied_already(engine: Engine, clock: VirtualClock) -> None:
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
        answer = await engine.operator.revoke_lease(id_, "whatever")
        assert answer == AlreadySatisfied(reasons.get(situation, "no_active_lease")), situation
        assert await engine.executions.describe(id_) == before, situation


async def test_requeued_work_opens_the_next_attempt_and_counts_nothing(engine: Engine) -> None:
    lease = await leased(engine)
    await engine.operator.revoke_lease(lease.execution_id)
    found = await engine.executions.describe(lease.execution_id)
    assert (found.state, found.vector.attempt_state) == (State.WAITING, "pending_reclaim_attempt")
    assert (found.retry_count, found.reclaim_count) == (0, 0)
    assert [attempt.outcome for attempt in found.attempts] == [AttemptOutcome.RECLAIMED]
    again = await engine.leases.claim_execution(lease.execution_id, WORKER_2)
    assert (again.origin, again.attempt_index, again.epoch) == ("reclaimed", 1, lease.epoch + 2)


async def test_kept_work_stays_active_without_a_lease_until_it_is_handed_off(engine: Engine) -> None:
    lease = await leased(engine, policy=replace(KEEPING, max_reclaims=0))
    await engine.operator.revoke_lease(lease.execution_id)
    found = await engine.executions.describe(lease.execution_id)
    assert (found.state, found.lease, found.vector.ownership_state) == (State.ACTIVE, None, "lease_revoked")
    assert found.vector.attempt_state == "pending_reclaim_attempt"
    assert await engine.leases.claim(["default"], WORKER_2) == []
    grant = await engine.operator.grant_reclaim(lease.execution_id, WORKER_2)
    await engine.leases.reclaim(grant, WORKER_2)
    after = await engine.executions.describe(lease.execution_id)
    assert (after.attempt_index, after.reclaim_count) == (1, 0)


async def test_the_zombie_of_a_revoked_lease_gets_nowhere(engine: Engine) -> None:
    for policy in (Policy(), KEEPING):
        lease = await leased(engine, policy=policy)
        await engine.operator.revoke_lease(lease.execution_id)
        await every_write_is_refused(engine, lease.fence, "lease_revoked")


async def test_the_zombie_is_told_of_the_revocation_until_the_next_owner_gives_up(engine: Engine) -> None:
    zombie = await leased(engine)
    await engine.operator.revoke_lease(zombie.execution_id)
    owner = await engine.leases.claim_execution(zombie.execution_id, WORKER_2)
    await every_write_is_refused(engine, zombie.fence, "lease_revoked")
    await engine.leases.release(owner.fence)
    await refused(engine.leases.renew(zombie.fence), "stale_lease")
    await refused(engine.leases.complete(zombie.fence, b"late"), "stale_lease")
