"""grant_reclaim and reclaim: a kept execution is handed off to one named worker, once, as a new attempt."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from uuid import uuid4

from flowfabric.engine import AttemptOutcome, Ended, Engine, Grant, Lease, NotFound, State, WorkerId
from flowfabric.testing import VirtualClock
from tests.facts import error_of, event_names, every_write_is_refused, last_event, nothing_written, refused
from tests.scenarios import KEEPING, SITUATIONS, kept_expired, kept_revoked, leased
from tests.stores import TestStore

HEIR = WorkerId("heir", "heir-1")
NAMESAKE = WorkerId("heir", "heir-2")


async def reclaimed(engine: Engine, grant: Grant) -> Lease:
    """The lease that the heir gets for its grant."""
    lease = await engine.leases.reclaim(grant, HEIR)
    assert isinstance(lease, Lease)
    return lease


async def test_only_kept_executions_can_be_handed_off(engine: Engine, clock: VirtualClock) -> None:
    for situation, arrange in SITUATIONS.items():
        id_ = await arrange(engine, clock)
        if "kept" in situation:
            assert (await engine.operator.grant_reclaim(id_, HEIR)).execution_id == id_, situation
            continue
        before = await engine.executions.describe(id_)
        await refused(engine.operator.grant_reclaim(id_, HEIR), "execution_not_reclaimable")
        assert await engine.executions.describe(id_) == before, situation


async def test_a_reclaim_opens_a_new_attempt_at_a_new_epoch(engine: Engine, clock: VirtualClock) -> None:
    first = await leased(engine, policy=KEEPING, worker="worker-1", payload=b"in")
    clock.advance("30s")
    await engine.reconcilers.tick()
    kept = await engine.executions.describe(first.execution_id)
    lease = await reclaimed(engine, await engine.operator.grant_reclaim(first.execution_id, HEIR))
    found, event = await engine.executions.describe(first.execution_id), await last_event(engine, first.execution_id)
    assert (lease.attempt_index, lease.epoch, lease.origin) == (1, kept.epoch + 1, "reclaimed")
    assert lease.fence.lease_id != first.fence.lease_id
    assert (lease.worker, lease.payload, lease.expires_at - clock.now()) == (HEIR, b"in", first.ttl)
    assert (found.state, found.vector.ownership_state) == (State.ACTIVE, "leased")
    assert (found.reclaim_count, found.retry_count) == (1, 0)
    assert [(old.attempt_index, old.outcome) for old in found.attempts] == [(0, AttemptOutcome.RECLAIMED)]
    assert found.attempts[0].worker == first.worker
    assert (event.family, event.name, event.epoch, event.worker) == ("lease", "reclaimed", lease.epoch, HEIR)
    await every_write_is_refused(engine, first.fence, "lease_expired")
    assert await engine.leases.complete(lease.fence, b"out") == Ended(State.COMPLETED)


async def test_only_the_named_worker_can_use_a_grant(engine: Engine, clock: VirtualClock, store: TestStore) -> None:
    grant = await engine.operator.grant_reclaim(await kept_expired(engine, clock), HEIR)
    async with nothing_written(store):
        for other in ("worker-2", NAMESAKE):
            await refused(engine.leases.reclaim(grant, other), "different_worker")
    assert (await reclaimed(engine, grant)).worker == HEIR


async def test_a_grant_ends_at_its_time(engine: Engine, clock: VirtualClock) -> None:
    early = await engine.operator.grant_reclaim(await kept_revoked(engine, clock), HEIR, ttl="10s")
    grant = await engine.operator.grant_reclaim(await kept_revoked(engine, clock), HEIR, ttl="10s")
    clock.advance(9.999999)
    lease = await engine.leases.reclaim(early, HEIR, lease_ttl="5m")
    assert isinstance(lease, Lease)
    assert lease.expires_at - clock.now() == lease.ttl == timedelta(minutes=5)
    assert grant.expires_at == clock.advance(0.000001)
    await refused(engine.leases.reclaim(grant, HEIR), "grant_expired")
    fresh = await engine.operator.grant_reclaim(grant.execution_id, NAMESAKE)
    assert fresh.id != grant.id
    await refused(engine.leases.reclaim(grant, HEIR), "grant_expired")


async def test_the_same_worker_asking_again_gets_the_same_grant(engine: Engine, clock: VirtualClock) -> None:
    id_ = await kept_revoked(engine, clock)
    grant = await engine.operator.grant_reclaim(id_, HEIR)
    assert await engine.operator.grant_reclaim(id_, HEIR) == grant
    await refused(engine.operator.grant_reclaim(id_, NAMESAKE), "grant_already_exists")
    assert (await engine.executions.describe(id_)).vector.ownership_state == "lease_revoked"


async def test_who_grants_a_hand_off_and_why_is_in_its_history(engine: Engine, clock: VirtualClock) -> None:
    id_ = await kept_revoked(engine, clock)
    before = await engine.executions.describe(id_)
    grant = await engine.operator.grant_reclaim(id_, HEIR, "its disk is there", principal="ada")
    event = await last_event(engine, id_)
    assert (event.family, event.name, event.principal, event.reason) == (
        "operator", "reclaim_granted", "ada", "its disk is there",
    )  # fmt: skip
    told = {"grant": str(grant.id), "worker": "heir", "expires_at": grant.expires_at.isoformat()}
    assert (event.state, event.epoch, event.details) == (State.ACTIVE, before.epoch, told)
    await engine.operator.grant_reclaim(id_, HEIR)
    assert (await event_names(engine, id_)).count("operator.reclaim_granted") == 1


async def test_a_lost_reply_of_a_reclaim_is_answered_again(
    engine: Engine, clock: VirtualClock, store: TestStore
) -> None:
    grant = await engine.operator.grant_reclaim(await kept_expired(engine, clock), HEIR)
    lease = await reclaimed(engine, grant)
    async with nothing_written(store):
        assert await engine.leases.reclaim(grant.id, HEIR) == lease
        await refused(engine.operator.grant_reclaim(grant.execution_id, HEIR), "execution_not_reclaimable")
    assert (await event_names(engine, grant.execution_id)).count("lease.reclaimed") == 1


async def test_a_grant_is_consumed_once(engine: Engine, clock: VirtualClock) -> None:
    grant = await engine.operator.grant_reclaim(await kept_expired(engine, clock), HEIR, ttl="1h")
    await reclaimed(engine, grant)
    clock.advance("30s")
    await engine.reconcilers.tick()
    await refused(engine.leases.reclaim(grant, HEIR), "grant_already_consumed")
    again = await reclaimed(engine, await engine.operator.grant_reclaim(grant.execution_id, HEIR))
    assert again.attempt_index == 2


async def test_a_grant_is_worthless_once_its_execution_has_ended(engine: Engine, clock: VirtualClock) -> None:
    grant = await engine.operator.grant_reclaim(await kept_revoked(engine, clock), HEIR)
    await engine.operator.cancel(grant.execution_id)
    error = await refused(engine.leases.reclaim(grant, HEIR), "execution_not_reclaimable")
    assert error.fields["outcome"] == "cancelled"
    unknown = await error_of(engine.leases.reclaim(uuid4(), HEIR))
    assert isinstance(unknown, NotFound)
    assert unknown.code == "grant_not_found"


async def test_a_grant_ends_with_its_generation(engine: Engine, clock: VirtualClock) -> None:
    grant = await engine.operator.grant_reclaim(await kept_revoked(engine, clock), HEIR, ttl="1h")
    await engine.operator.cancel(grant.execution_id)
    await engine.operator.replay(grant.execution_id)
    await engine.leases.claim_execution(grant.execution_id, "worker-1")
    await engine.operator.revoke_lease(grant.execution_id)
    before = await engine.executions.describe(grant.execution_id)
    assert before.vector.ownership_state == "lease_revoked"
    await refused(engine.leases.reclaim(grant, HEIR), "grant_expired")
    assert await engine.executions.describe(grant.execution_id) == before
    fresh = await engine.operator.grant_reclaim(grant.execution_id, HEIR)
    assert (await reclaimed(engine, fresh)).generation == 1


async def test_the_heir_must_offer_what_the_execution_requires(engine: Engine) -> None:
    lease = await leased_with_requirements(engine)
    await engine.operator.revoke_lease(lease.execution_id)
    grant = engine.operator.grant_reclaim
    error = await refused(grant(lease.execution_id, HEIR, capabilities=["gpu"]), "capability_mismatch")
    assert error.fields["missing"] == ("tpu",)
    assert (await grant(lease.execution_id, HEIR, capabilities=["tpu", "gpu", "more"])).worker == HEIR


async def test_past_the_cap_a_reclaim_fails_the_execution(engine: Engine, clock: VirtualClock) -> None:
    first = await leased(engine, policy=replace(KEEPING, max_reclaims=1))
    id_ = first.execution_id
    answers = []
    for _ in range(2):
        clock.advance("30s")
        await engine.reconcilers.tick()
        answers.append(await engine.leases.reclaim(await engine.operator.grant_reclaim(id_, HEIR), HEIR))
    found = await engine.executions.describe(id_)
    assert isinstance(answers[0], Lease)
    assert answers[1] == Ended(State.FAILED)
    assert (found.state, found.reclaim_count, found.lease) == (State.FAILED, 1, None)
    assert found.last_failure is not None
    assert found.last_failure.category == "max_reclaims_exceeded"
    assert [attempt.attempt_index for attempt in found.attempts] == [0, 1]
    assert (await event_names(engine, id_))[-3:] == [
        "lease.expired", "operator.reclaim_granted", "completion.failed",
    ]  # fmt: skip


async def leased_with_requirements(engine: Engine) -> Lease:
    """A lease on a kept execution that only a worker with two capabilities may have."""
    answer = await engine.executions.submit("job", requires=["gpu", "tpu"], policy=KEEPING)
    return await engine.leases.claim_execution(answer.id, "worker-1", capabilities=["gpu", "tpu"])
