"""Tests of grant_reclaim and reclaim, which hand off an execution that lost its lease to one named worker."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from uuid import UUID, uuid4

import pytest

from flowfabric.engine import AttemptOutcome, Ended, Engine, Grant, Lease, NotFound, Refused, State, WorkerId
from flowfabric.testing import VirtualClock
from tests.expectations import error_of, event_names, every_write_is_refused, last_event, nothing_written, refused
from tests.scenarios import KEEPING, SITUATIONS, kept_expired, kept_revoked, leased
from tests.stores import TestStore

UNKNOWN = UUID(int=1)

SUCCESSOR = WorkerId("heir", "heir-1")
NAMESAKE = WorkerId("heir", "heir-2")


async def reclaim(engine: Engine, grant: Grant) -> Lease:
    """Return the lease that the successor gets for its grant."""
    lease = await engine.leases.reclaim(grant, SUCCESSOR)
    assert isinstance(lease, Lease)
    return lease


async def test_only_kept_executions_can_be_handed_off(engine: Engine, clock: VirtualClock) -> None:
    for situation, arrange in SITUATIONS.items():
        id_ = await arrange(engine, clock)
        if "kept" in situation:
            assert (await engine.operator.grant_reclaim(id_, SUCCESSOR)).execution_id == id_, situation
            continue
        before = await engine.executions.describe(id_)
        await refused(engine.operator.grant_reclaim(id_, SUCCESSOR), "execution_not_reclaimable")
        assert await engine.executions.describe(id_) == before, situation


async def test_reclaim_opens_a_new_attempt_at_a_new_epoch(engine: Engine, clock: VirtualClock) -> None:
    first = await leased(engine, policy=KEEPING, worker="worker-1", payload=b"in")
    clock.advance("30s")
    await engine.reconcilers.tick()
    before = await engine.executions.describe(first.execution_id)
    lease = await reclaim(engine, await engine.operator.grant_reclaim(first.execution_id, SUCCESSOR))
    execution, event = (
        await engine.executions.describe(first.execution_id),
        await last_event(engine, first.execution_id),
    )
    assert (lease.attempt_index, lease.epoch, lease.origin) == (1, before.epoch + 1, "reclaimed")
    assert lease.fence.lease_id != first.fence.lease_id
    assert (lease.worker, lease.payload, lease.expires_at - clock.now()) == (SUCCESSOR, b"in", first.ttl)
    assert (execution.state, execution.vector.ownership_state) == (State.ACTIVE, "leased")
    assert (execution.reclaim_count, execution.retry_count) == (1, 0)
    assert [(attempt.attempt_index, attempt.outcome) for attempt in execution.attempts] == [
        (0, AttemptOutcome.RECLAIMED)
    ]
    assert execution.attempts[0].worker == first.worker
    assert (event.family, event.name, event.epoch, event.worker) == ("lease", "reclaimed", lease.epoch, SUCCESSOR)
    await every_write_is_refused(engine, first.fence, "lease_expired")
    assert await engine.leases.complete(lease.fence, b"out") == Ended(State.COMPLETED)


async def test_only_the_named_worker_can_use_a_grant(engine: Engine, clock: VirtualClock, store: TestStore) -> None:
    grant = await engine.operator.grant_reclaim(await kept_expired(engine, clock), SUCCESSOR)
    async with nothing_written(store):
        for worker in ("worker-2", NAMESAKE):
            await refused(engine.leases.reclaim(grant, worker), "different_worker")
    assert (await reclaim(engine, grant)).worker == SUCCESSOR


async def test_grant_expires_at_its_time(engine: Engine, clock: VirtualClock) -> None:
    early = await engine.operator.grant_reclaim(await kept_revoked(engine, clock), SUCCESSOR, ttl="10s")
    grant = await engine.operator.grant_reclaim(await kept_revoked(engine, clock), SUCCESSOR, ttl="10s")
    clock.advance(9.999999)
    lease = await engine.leases.reclaim(early, SUCCESSOR, lease_ttl="5m")
    assert isinstance(lease, Lease)
    assert lease.expires_at - clock.now() == lease.ttl == timedelta(minutes=5)
    assert grant.expires_at == clock.advance(0.000001)
    await refused(engine.leases.reclaim(grant, SUCCESSOR), "grant_expired")
    fresh = await engine.operator.grant_reclaim(grant.execution_id, NAMESAKE)
    assert fresh.id != grant.id
    await refused(engine.leases.reclaim(grant, SUCCESSOR), "grant_expired")


async def test_repeated_grant_for_the_same_worker_is_the_same_grant(engine: Engine, clock: VirtualClock) -> None:
    id_ = await kept_revoked(engine, clock)
    grant = await engine.operator.grant_reclaim(id_, SUCCESSOR)
    assert await engine.operator.grant_reclaim(id_, SUCCESSOR) == grant
    await refused(engine.operator.grant_reclaim(id_, NAMESAKE), "grant_already_exists")
    assert (await engine.executions.describe(id_)).vector.ownership_state == "lease_revoked"


async def test_grant_event_records_principal_and_reason(engine: Engine, clock: VirtualClock) -> None:
    id_ = await kept_revoked(engine, clock)
    before = await engine.executions.describe(id_)
    grant = await engine.operator.grant_reclaim(id_, SUCCESSOR, "its disk is there", principal="ada")
    event = await last_event(engine, id_)
    assert (event.family, event.name, event.principal, event.reason) == (
        "operator",
        "reclaim_granted",
        "ada",
        "its disk is there",
    )
    details = {"grant": str(grant.id), "worker": "heir", "expires_at": grant.expires_at.isoformat()}
    assert (event.state, event.epoch, event.details) == (State.ACTIVE, before.epoch, details)
    await engine.operator.grant_reclaim(id_, SUCCESSOR)
    assert (await event_names(engine, id_)).count("operator.reclaim_granted") == 1


async def test_repeated_reclaim_returns_the_first_lease(engine: Engine, clock: VirtualClock, store: TestStore) -> None:
    grant = await engine.operator.grant_reclaim(await kept_expired(engine, clock), SUCCESSOR)
    lease = await reclaim(engine, grant)
    async with nothing_written(store):
        assert await engine.leases.reclaim(grant.id, SUCCESSOR) == lease
        await refused(engine.operator.grant_reclaim(grant.execution_id, SUCCESSOR), "execution_not_reclaimable")
    assert (await event_names(engine, grant.execution_id)).count("lease.reclaimed") == 1


async def test_grant_is_consumed_once(engine: Engine, clock: VirtualClock) -> None:
    grant = await engine.operator.grant_reclaim(await kept_expired(engine, clock), SUCCESSOR, ttl="1h")
    await reclaim(engine, grant)
    clock.advance("30s")
    await engine.reconcilers.tick()
    await refused(engine.leases.reclaim(grant, SUCCESSOR), "grant_already_consumed")
    next_lease = await reclaim(engine, await engine.operator.grant_reclaim(grant.execution_id, SUCCESSOR))
    assert next_lease.attempt_index == 2


async def test_grant_is_refused_after_its_execution_has_ended(engine: Engine, clock: VirtualClock) -> None:
    grant = await engine.operator.grant_reclaim(await kept_revoked(engine, clock), SUCCESSOR)
    await engine.operator.cancel(grant.execution_id)
    error = await refused(engine.leases.reclaim(grant, SUCCESSOR), "execution_not_reclaimable")
    assert error.fields["outcome"] == "cancelled"
    unknown = await error_of(engine.leases.reclaim(uuid4(), SUCCESSOR))
    assert isinstance(unknown, NotFound)
    assert unknown.code == "grant_not_found"


async def test_grant_ends_with_its_generation(engine: Engine, clock: VirtualClock) -> None:
    grant = await engine.operator.grant_reclaim(await kept_revoked(engine, clock), SUCCESSOR, ttl="1h")
    await engine.operator.cancel(grant.execution_id)
    await engine.operator.replay(grant.execution_id)
    await engine.leases.claim_execution(grant.execution_id, "worker-1")
    await engine.operator.revoke_lease(grant.execution_id)
    before = await engine.executions.describe(grant.execution_id)
    assert before.vector.ownership_state == "lease_revoked"
    await refused(engine.leases.reclaim(grant, SUCCESSOR), "grant_expired")
    assert await engine.executions.describe(grant.execution_id) == before
    fresh = await engine.operator.grant_reclaim(grant.execution_id, SUCCESSOR)
    assert (await reclaim(engine, fresh)).generation == 1


async def test_successor_must_have_the_required_capabilities(engine: Engine) -> None:
    lease = await lease_with_requirements(engine)
    await engine.operator.revoke_lease(lease.execution_id)
    grant = engine.operator.grant_reclaim
    error = await refused(grant(lease.execution_id, SUCCESSOR, capabilities=["gpu"]), "capability_mismatch")
    assert error.fields["missing"] == ("tpu",)
    assert (await grant(lease.execution_id, SUCCESSOR, capabilities=["tpu", "gpu", "more"])).worker == SUCCESSOR


async def test_reclaim_beyond_max_reclaims_fails_the_execution(engine: Engine, clock: VirtualClock) -> None:
    first = await leased(engine, policy=replace(KEEPING, max_reclaims=1))
    id_ = first.execution_id
    outcomes = []
    for _ in range(2):
        clock.advance("30s")
        await engine.reconcilers.tick()
        outcomes.append(await engine.leases.reclaim(await engine.operator.grant_reclaim(id_, SUCCESSOR), SUCCESSOR))
    execution = await engine.executions.describe(id_)
    assert isinstance(outcomes[0], Lease)
    assert outcomes[1] == Ended(State.FAILED)
    assert (execution.state, execution.reclaim_count, execution.lease) == (State.FAILED, 1, None)
    assert execution.last_failure is not None
    assert execution.last_failure.category == "max_reclaims_exceeded"
    assert [attempt.attempt_index for attempt in execution.attempts] == [0, 1]
    assert (await event_names(engine, id_))[-3:] == [
        "lease.expired",
        "operator.reclaim_granted",
        "completion.failed",
    ]


async def lease_with_requirements(engine: Engine) -> Lease:
    """Return a lease on an execution that requires two capabilities and is kept for hand-off if the lease is lost."""
    outcome = await engine.executions.submit("job", requires=["gpu", "tpu"], policy=KEEPING)
    return await engine.leases.claim_execution(outcome.id, "worker-1", capabilities=["gpu", "tpu"])


async def test_grant_does_not_apply_to_an_execution_with_a_new_owner(engine: Engine) -> None:
    lease = await leased(engine, policy=KEEPING)
    await engine.operator.revoke_lease(lease.execution_id)
    grant = await engine.operator.grant_reclaim(lease.execution_id, "heir")
    await engine.operator.cancel(lease.execution_id)
    await engine.operator.replay(lease.execution_id)
    owner = await engine.leases.claim_execution(lease.execution_id, "owner")
    with pytest.raises(Refused, match="execution_not_reclaimable"):
        await engine.leases.reclaim(grant, "heir")
    assert await engine.leases.complete(owner.fence) == Ended(State.COMPLETED)


@pytest.mark.parametrize("loss", ["expired", "revoked"])
async def test_kept_execution_can_be_reclaimed_at_any_later_time(
    engine: Engine, clock: VirtualClock, loss: str
) -> None:
    lease = await leased(engine, policy=KEEPING)
    if loss == "revoked":
        await engine.operator.revoke_lease(lease.execution_id)
    clock.advance("1d")
    await engine.reconcilers.tick()
    grant = await engine.operator.grant_reclaim(lease.execution_id, "heir")
    successor = await engine.leases.reclaim(grant, "heir")
    assert isinstance(successor, Lease)
    assert (successor.origin, successor.attempt_index) == ("reclaimed", 1)


async def test_grant_is_bound_to_its_worker_its_time_and_one_use(engine: Engine, clock: VirtualClock) -> None:
    lease = await leased(engine, policy=KEEPING)
    await engine.operator.revoke_lease(lease.execution_id)
    grant = await engine.operator.grant_reclaim(lease.execution_id, "heir", ttl="10s")
    with pytest.raises(Refused, match="different_worker"):
        await engine.leases.reclaim(grant, "thief")
    with pytest.raises(NotFound, match="grant_not_found"):
        await engine.leases.reclaim(UNKNOWN, "heir")
    clock.advance("10s")
    with pytest.raises(Refused, match="grant_expired"):
        await engine.leases.reclaim(grant, "heir")
    fresh = await engine.operator.grant_reclaim(lease.execution_id, "heir")
    assert isinstance(await engine.leases.reclaim(fresh, "heir"), Lease)
    await engine.operator.cancel(lease.execution_id)
    for call in (engine.operator.grant_reclaim(lease.execution_id, "heir"), engine.leases.reclaim(fresh, "heir")):
        with pytest.raises(Refused, match="execution_not_reclaimable"):
            await call


async def test_used_grant_is_refused_after_its_lease_was_lost(engine: Engine) -> None:
    lease = await leased(engine, policy=KEEPING)
    await engine.operator.revoke_lease(lease.execution_id)
    grant = await engine.operator.grant_reclaim(lease.execution_id, "heir")
    await engine.leases.reclaim(grant, "heir")
    await engine.operator.revoke_lease(lease.execution_id)
    with pytest.raises(Refused, match="grant_already_consumed"):
        await engine.leases.reclaim(grant, "heir")
