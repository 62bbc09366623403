"""Attempt timeout: an attempt past its time is retried or ends the work; its clock stands while it is interrupted."""

from __future__ import annotations

from datetime import timedelta
from uuid import UUID

from flowfabric.engine import (
    AttemptOutcome,
    Backoff,
    BackoffKind,
    Engine,
    Lease,
    OnAttemptTimeout,
    OnLeaseLoss,
    Policy,
    State,
)
from flowfabric.testing import VirtualClock
from tests.facts import event_names, every_write_is_refused, last_event
from tests.scenarios import leased

MICROSECOND = timedelta(microseconds=1)
STEADY = Backoff(kind=BackoffKind.FIXED, initial="5s", jitter=False)


def timed(**options: object) -> Policy:
    """Ten seconds for each attempt, under a lease that lasts longer."""
    return Policy(attempt_timeout="10s", lease_ttl="10m", backoff=STEADY, **options)  # type: ignore[arg-type]


async def test_an_attempt_past_its_time_is_retried(engine: Engine, clock: VirtualClock) -> None:
    lease = await leased(engine, policy=timed())
    assert lease.attempt_timeout_at == clock.now() + timedelta(seconds=10)
    clock.advance(timedelta(seconds=10) - MICROSECOND)
    await engine.reconcilers.tick()
    assert (await engine.executions.describe(lease.execution_id)).version == 1
    ended_at = clock.advance(MICROSECOND)
    await engine.reconcilers.tick()
    found, event = await engine.executions.describe(lease.execution_id), await last_event(engine, lease.execution_id)
    assert (found.state, found.vector.attempt_state) == (State.DELAYED, "pending_retry_attempt")
    assert found.ready_at == ended_at + timedelta(seconds=5)
    assert (found.retry_count, found.reclaim_count, found.epoch) == (1, 0, lease.epoch + 1)
    [attempt] = found.attempts
    assert (attempt.outcome, attempt.failure_category) == (AttemptOutcome.FAILURE, "attempt_timeout")
    assert (event.family, event.name, event.ends_lease) == ("lease", "retry_scheduled", True)
    await every_write_is_refused(engine, lease.fence, "execution_not_active")


async def test_a_renewal_does_not_move_the_end_of_the_attempt(engine: Engine, clock: VirtualClock) -> None:
    lease, endless = await leased(engine, policy=timed()), await leased(engine, policy=Policy(lease_ttl="7d"))
    clock.advance("9s")
    await engine.leases.renew(lease.fence)
    clock.advance("1s")
    await engine.reconcilers.tick()
    assert (await engine.executions.describe(lease.execution_id)).state is State.DELAYED
    clock.advance("6d")
    await engine.reconcilers.tick()
    assert (await engine.executions.describe(endless.execution_id)).version == 1


async def test_exhausted_retries_fail_the_execution(engine: Engine, clock: VirtualClock) -> None:
    for policy in (timed(max_retries=0), timed(retryable_categories=["network"])):
        lease = await leased(engine, policy=policy)
        clock.advance("10s")
        await engine.reconcilers.tick()
        found = await engine.executions.describe(lease.execution_id)
        assert found.state is State.FAILED
        assert found.last_failure is not None
        assert found.last_failure.category == "attempt_timeout"
        assert (await event_names(engine, lease.execution_id))[-1] == "completion.failed"
        await every_write_is_refused(engine, lease.fence, "execution_not_active")


async def test_a_policy_can_let_it_expire_the_execution(engine: Engine, clock: VirtualClock) -> None:
    lease = await leased(engine, policy=timed(on_attempt_timeout=OnAttemptTimeout.EXPIRE))
    clock.advance("10s")
    await engine.reconcilers.tick()
    found = await engine.executions.describe(lease.execution_id)
    assert (found.state, found.retry_count, found.epoch) == (State.EXPIRED, 0, lease.epoch + 1)
    assert [attempt.failure_category for attempt in found.attempts] == ["attempt_timeout"]
    assert (await event_names(engine, lease.execution_id))[-1] == "completion.expired"


async def test_the_clock_of_an_interrupted_attempt_stands(engine: Engine, clock: VirtualClock) -> None:
    lease = await leased(engine, policy=timed())
    clock.advance("4s")
    await engine.leases.delay(lease.fence, after="1h")
    clock.advance("1h")
    await engine.reconcilers.tick()
    assert (await engine.executions.describe(lease.execution_id)).retry_count == 0
    again = await taken(engine, lease.execution_id)
    assert again.attempt_timeout_at == clock.now() + timedelta(seconds=6)
    clock.advance("1s")
    await engine.leases.release(again.fence)
    clock.advance("1d")
    [last] = await engine.leases.claim(["default"], "worker-3")
    assert last.attempt_timeout_at == clock.now() + timedelta(seconds=5)
    clock.advance("5s")
    await engine.reconcilers.tick()
    assert (await engine.executions.describe(lease.execution_id)).retry_count == 1


async def test_each_new_attempt_has_the_whole_time(engine: Engine, clock: VirtualClock) -> None:
    lease = await leased(engine, policy=timed())
    id_ = lease.execution_id
    clock.advance("4s")
    await engine.leases.fail(lease.fence, "not yet")
    clock.advance("5s")
    await engine.reconcilers.tick()
    retried = await taken(engine, id_)
    assert retried.attempt_timeout_at == clock.now() + timedelta(seconds=10)
    clock.advance("4s")
    await engine.operator.revoke_lease(id_)
    requeued = await taken(engine, id_)
    assert requeued.attempt_timeout_at == clock.now() + timedelta(seconds=10)
    clock.advance("4s")
    await engine.leases.complete(requeued.fence)
    await engine.operator.replay(id_)
    assert (await taken(engine, id_)).attempt_timeout_at == clock.now() + timedelta(seconds=10)


async def test_kept_work_has_no_attempt_to_time_out_until_it_is_handed_off(engine: Engine, clock: VirtualClock) -> None:
    lease = await leased(engine, policy=timed(on_lease_loss=OnLeaseLoss.HAND_OFF))
    clock.advance("4s")
    await engine.operator.revoke_lease(lease.execution_id)
    clock.advance("1h")
    await engine.reconcilers.tick()
    assert (await engine.executions.describe(lease.execution_id)).state is State.ACTIVE
    heir = await engine.leases.reclaim(await engine.operator.grant_reclaim(lease.execution_id, "heir"), "heir")
    assert isinstance(heir, Lease)
    assert heir.attempt_timeout_at == clock.now() + timedelta(seconds=10)


async def taken(engine: Engine, id_: UUID) -> Lease:
    return await engine.leases.claim_execution(id_, "worker-2")
