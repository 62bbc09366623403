"""Tests of the attempt timeout, which ends an attempt that takes too long and does not count interruptions."""

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
from tests.expectations import event_names, every_write_is_refused, last_event
from tests.scenarios import leased, submitted

MICROSECOND = timedelta(microseconds=1)
STEADY = Backoff(kind=BackoffKind.FIXED, initial="5s", jitter=False)


def policy_with_attempt_timeout(**options: object) -> Policy:
    """Return a policy whose attempt timeout of ten seconds is shorter than the lease."""
    return Policy(attempt_timeout="10s", lease_ttl="10m", backoff=STEADY, **options)  # type: ignore[arg-type]


async def test_timed_out_attempt_is_retried(engine: Engine, clock: VirtualClock) -> None:
    lease = await leased(engine, policy=policy_with_attempt_timeout())
    assert lease.attempt_timeout_at == clock.now() + timedelta(seconds=10)
    clock.advance(timedelta(seconds=10) - MICROSECOND)
    await engine.reconcilers.tick()
    assert (await engine.executions.describe(lease.execution_id)).version == 1
    ended_at = clock.advance(MICROSECOND)
    await engine.reconcilers.tick()
    execution, event = (
        await engine.executions.describe(lease.execution_id),
        await last_event(engine, lease.execution_id),
    )
    assert (execution.state, execution.vector.attempt_state) == (State.DELAYED, "pending_retry_attempt")
    assert execution.ready_at == ended_at + timedelta(seconds=5)
    assert (execution.retry_count, execution.reclaim_count, execution.epoch) == (1, 0, lease.epoch + 1)
    [attempt] = execution.attempts
    assert (attempt.outcome, attempt.failure_category) == (AttemptOutcome.FAILURE, "attempt_timeout")
    assert (event.family, event.name, event.ends_lease) == ("lease", "retry_scheduled", True)
    await every_write_is_refused(engine, lease.fence, "execution_not_active")


async def test_renewal_does_not_move_the_attempt_timeout(engine: Engine, clock: VirtualClock) -> None:
    lease, endless = (
        await leased(engine, policy=policy_with_attempt_timeout()),
        await leased(engine, policy=Policy(lease_ttl="7d")),
    )
    clock.advance("9s")
    await engine.leases.renew(lease.fence)
    clock.advance("1s")
    await engine.reconcilers.tick()
    assert (await engine.executions.describe(lease.execution_id)).state is State.DELAYED
    clock.advance("6d")
    await engine.reconcilers.tick()
    assert (await engine.executions.describe(endless.execution_id)).version == 1


async def test_exhausted_retries_fail_the_execution(engine: Engine, clock: VirtualClock) -> None:
    for policy in (
        policy_with_attempt_timeout(max_retries=0),
        policy_with_attempt_timeout(retryable_categories=["network"]),
    ):
        lease = await leased(engine, policy=policy)
        clock.advance("10s")
        await engine.reconcilers.tick()
        execution = await engine.executions.describe(lease.execution_id)
        assert execution.state is State.FAILED
        assert execution.last_failure is not None
        assert execution.last_failure.category == "attempt_timeout"
        assert (await event_names(engine, lease.execution_id))[-1] == "completion.failed"
        await every_write_is_refused(engine, lease.fence, "execution_not_active")


async def test_policy_can_expire_the_execution_on_attempt_timeout(engine: Engine, clock: VirtualClock) -> None:
    lease = await leased(engine, policy=policy_with_attempt_timeout(on_attempt_timeout=OnAttemptTimeout.EXPIRE))
    clock.advance("10s")
    await engine.reconcilers.tick()
    execution = await engine.executions.describe(lease.execution_id)
    assert (execution.state, execution.retry_count, execution.epoch) == (State.EXPIRED, 0, lease.epoch + 1)
    assert [attempt.failure_category for attempt in execution.attempts] == ["attempt_timeout"]
    assert (await event_names(engine, lease.execution_id))[-1] == "completion.expired"


async def test_timeout_of_an_interrupted_attempt_is_paused(engine: Engine, clock: VirtualClock) -> None:
    lease = await leased(engine, policy=policy_with_attempt_timeout())
    clock.advance("4s")
    await engine.leases.delay(lease.fence, after="1h")
    clock.advance("1h")
    await engine.reconcilers.tick()
    assert (await engine.executions.describe(lease.execution_id)).retry_count == 0
    next_lease = await claim_again(engine, lease.execution_id)
    assert next_lease.attempt_timeout_at == clock.now() + timedelta(seconds=6)
    clock.advance("1s")
    await engine.leases.release(next_lease.fence)
    clock.advance("1d")
    [last] = await engine.leases.claim(["default"], "worker-3")
    assert last.attempt_timeout_at == clock.now() + timedelta(seconds=5)
    clock.advance("5s")
    await engine.reconcilers.tick()
    assert (await engine.executions.describe(lease.execution_id)).retry_count == 1


async def test_each_new_attempt_has_the_full_timeout(engine: Engine, clock: VirtualClock) -> None:
    lease = await leased(engine, policy=policy_with_attempt_timeout())
    id_ = lease.execution_id
    clock.advance("4s")
    await engine.leases.fail(lease.fence, "not yet")
    clock.advance("5s")
    await engine.reconcilers.tick()
    retried = await claim_again(engine, id_)
    assert retried.attempt_timeout_at == clock.now() + timedelta(seconds=10)
    clock.advance("4s")
    await engine.operator.revoke_lease(id_)
    requeued = await claim_again(engine, id_)
    assert requeued.attempt_timeout_at == clock.now() + timedelta(seconds=10)
    clock.advance("4s")
    await engine.leases.complete(requeued.fence)
    await engine.operator.replay(id_)
    assert (await claim_again(engine, id_)).attempt_timeout_at == clock.now() + timedelta(seconds=10)


async def test_work_kept_for_hand_off_has_no_attempt_timeout(engine: Engine, clock: VirtualClock) -> None:
    lease = await leased(engine, policy=policy_with_attempt_timeout(on_lease_loss=OnLeaseLoss.HAND_OFF))
    clock.advance("4s")
    await engine.operator.revoke_lease(lease.execution_id)
    clock.advance("1h")
    await engine.reconcilers.tick()
    assert (await engine.executions.describe(lease.execution_id)).state is State.ACTIVE
    successor = await engine.leases.reclaim(await engine.operator.grant_reclaim(lease.execution_id, "heir"), "heir")
    assert isinstance(successor, Lease)
    assert successor.attempt_timeout_at == clock.now() + timedelta(seconds=10)


async def claim_again(engine: Engine, id_: UUID) -> Lease:
    return await engine.leases.claim_execution(id_, "worker-2")


async def test_attempt_timeout_counts_against_max_retries(engine: Engine, clock: VirtualClock) -> None:
    policy = Policy(max_retries=1, attempt_timeout="5s", backoff=Backoff(initial=0))
    id_ = await submitted(engine, policy=policy)
    for state in (State.DELAYED, State.FAILED):
        await engine.leases.claim_execution(id_, "w", lease_ttl="1h")
        clock.advance("5s")
        await engine.reconcilers.tick()
        execution = await engine.executions.describe(id_)
        assert execution.state == state
        assert execution.last_failure is not None
        assert execution.last_failure.category == "attempt_timeout"
        await engine.reconcilers.tick()
