"""fail: the stored policy decides whether there is another attempt, and when."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest

from flowfabric.engine import (
    AttemptOutcome,
    AttemptState,
    Backoff,
    BackoffKind,
    BlockingReason,
    Ended,
    Engine,
    Failure,
    FailureClass,
    Lease,
    Policy,
    RetryScheduled,
    State,
    TerminalOutcome,
)  # fmt: skip
from flowfabric.testing import VirtualClock
from tests.facts import event_names, nothing_written, refused
from tests.scenarios import ONE_SHOT, STEADY, leased
from tests.stores import TestStore

TICK = timedelta(microseconds=1)
FAILED = Ended(State.FAILED)


async def fail_until_the_end(engine: Engine, clock: VirtualClock, policy: Policy) -> list[float]:
    """Fails every attempt; the delays before the retries, in seconds."""
    lease, delays = await leased(engine, policy=policy), []
    while isinstance(answer := await engine.leases.fail(lease.fence, "broken"), RetryScheduled):
        delay = answer.at - clock.now()
        delays.append(delay.total_seconds())
        clock.advance(delay)
        await engine.reconcilers.tick()
        lease = await engine.leases.claim_execution(lease.execution_id, "worker")
    assert answer == FAILED
    found = await engine.executions.describe(lease.execution_id)
    assert (found.state, found.retry_count, len(found.attempts)) == (State.FAILED, len(delays), len(delays) + 1)
    return delays


async def retried(engine: Engine, clock: VirtualClock, lease: Lease) -> Lease:
    """The lease of the next attempt, after a failure and its delay."""
    answer = await engine.leases.fail(lease.fence, "not yet")
    assert isinstance(answer, RetryScheduled)
    clock.advance(answer.at - clock.now())
    await engine.reconcilers.tick()
    return await engine.leases.claim_execution(lease.execution_id, "worker")


async def test_a_failure_within_the_policy_schedules_the_next_attempt(engine: Engine, clock: VirtualClock) -> None:
    deadline = clock.now() + timedelta(days=1)
    lease = await leased(engine, policy=STEADY, deadline=deadline)
    clock.advance("1s")
    at = clock.now() + timedelta(seconds=10)
    assert await engine.leases.fail(lease.fence, "not yet") == RetryScheduled(at)
    found = await engine.executions.describe(lease.execution_id)
    assert (found.state, found.ready_at, found.deadline_at, found.lease) == (State.DELAYED, at, deadline, None)
    assert found.vector.blocking_reason is BlockingReason.WAITING_FOR_RETRY_BACKOFF
    assert found.vector.attempt_state is AttemptState.PENDING_RETRY
    assert (found.epoch, found.attempt_index, found.retry_count) == (lease.epoch + 1, 1, 1)
    event = (await engine.executions.history(lease.execution_id))[-1]
    assert (event.family, event.name, event.reason) == ("lease", "retry_scheduled", "not yet")
    assert (event.ends_lease, event.lease_id, event.epoch) == (True, lease.fence.lease_id, found.epoch)


async def test_a_retry_never_starts_before_its_time(engine: Engine, clock: VirtualClock) -> None:
    lease = await leased(engine, policy=STEADY)
    await engine.leases.fail(lease.fence, "not yet")
    clock.advance(timedelta(seconds=10) - TICK)
    await engine.reconcilers.tick()
    assert await engine.leases.claim(["default"], "worker") == []
    clock.advance(TICK)
    await engine.reconcilers.tick()
    [again] = await engine.leases.claim(["default"], "worker")
    assert (again.attempt_index, again.origin) == (1, "retry")


@pytest.mark.parametrize(
    ("backoff", "delays"),
    [
        ({"kind": BackoffKind.FIXED, "initial": 10}, []),
        ({"kind": BackoffKind.FIXED, "initial": 10}, [10, 10]),
        ({"kind": BackoffKind.FIXED, "initial": 0}, [0]),
        ({}, [1, 2, 4]),
        ({"initial": 2, "multiplier": 3, "most": "30s"}, [2, 6, 18, 30, 30]),
        ({"multiplier": 1000, "most": "1h"}, [1, 1000, 3600, 3600]),
    ],
)
async def test_there_are_exactly_as_many_retries_as_allowed_each_after_its_delay(
    engine: Engine, clock: VirtualClock, backoff: dict[str, Any], delays: list[float]
) -> None:
    policy = Policy(max_retries=len(delays), backoff=Backoff(jitter=False, **backoff))
    assert await fail_until_the_end(engine, clock, policy) == delays


async def test_the_default_policy_retries_three_times_with_full_jitter(engine: Engine, clock: VirtualClock) -> None:
    runs = [await fail_until_the_end(engine, clock, Policy()) for _ in range(4)]
    for delays in runs:
        assert len(delays) == 3
        assert all(0 <= delay <= most for delay, most in zip(delays, (1, 2, 4), strict=True))
    drawn = [delay / most for delays in runs for delay, most in zip(delays, (1, 2, 4), strict=True)]
    assert len(set(drawn)) > 6
    # Full jitter draws from zero on, not from some part of the delay.
    assert min(drawn) < 0.75


async def test_permanent_and_cancelled_failures_are_never_retried(engine: Engine, clock: VirtualClock) -> None:
    at = clock.now() + timedelta(seconds=10)
    for failure_class in FailureClass:
        lease = await leased(engine, policy=STEADY)
        answer = await engine.leases.fail(lease.fence, "broken", failure_class=failure_class)
        final = failure_class in (FailureClass.PERMANENT, FailureClass.CANCELLED)
        assert answer == (FAILED if final else RetryScheduled(at))
        [attempt] = (await engine.executions.describe(lease.execution_id)).attempts
        # Without a category of its own, a failure is of the category of its class.
        assert (attempt.failure_class, attempt.failure_category) == (failure_class, failure_class.value)


async def test_only_the_categories_of_the_policy_are_retried(engine: Engine) -> None:
    policy = Policy(retryable_categories=["network", "transient"], backoff=STEADY.backoff)
    for category, again in (("network", True), (None, True), ("disk", False), ("Network", False)):
        lease = await leased(engine, policy=policy)
        answer = await engine.leases.fail(lease.fence, "broken", category=category)
        assert isinstance(answer, RetryScheduled) == again


async def test_what_failed_is_kept_on_the_attempt_and_shown_on_the_execution(
    engine: Engine, clock: VirtualClock
) -> None:
    lease = await leased(engine, policy=STEADY)
    clock.advance("1s")
    await engine.leases.fail(
        lease.fence, "no route\nto host", failure_class="infra_crash", category="network", detail=b"\x00trace"
    )
    found = await engine.executions.describe(lease.execution_id)
    assert found.last_failure == Failure("no route\nto host", "network")
    [attempt] = found.attempts
    assert (attempt.attempt_index, attempt.outcome, attempt.worker) == (0, AttemptOutcome.FAILURE, lease.worker)
    assert (attempt.failure_class, attempt.failure_category) == ("infra_crash", "network")
    assert (attempt.failure_message, attempt.failure_detail) == ("no route\nto host", b"\x00trace")
    assert (attempt.started_at, attempt.ended_at, attempt.result) == (lease.acquired_at, clock.now(), None)


async def test_a_final_failure_ends_the_execution_and_keeps_the_epoch(engine: Engine, clock: VirtualClock) -> None:
    lease = await leased(engine, policy=ONE_SHOT)
    assert await engine.leases.fail(lease.fence, "broken", category="disk") == FAILED
    found = await engine.executions.describe(lease.execution_id)
    assert (found.state, found.epoch, found.version, found.lease) == (State.FAILED, lease.epoch, 2, None)
    assert (found.ended_at, found.ready_at, found.retry_count) == (clock.now(), None, 0)
    assert found.vector.terminal_outcome is TerminalOutcome.FAILED
    assert found.vector.attempt_state is AttemptState.TERMINAL
    outcome = await engine.executions.result(lease.execution_id)
    assert outcome is not None
    assert (outcome.state, outcome.failure, outcome.result) == (State.FAILED, Failure("broken", "disk"), None)
    assert await event_names(engine, lease.execution_id) == ["lease.acquired", "completion.failed"]
    assert (await engine.executions.history(lease.execution_id))[-1].ends_lease


async def test_reclaims_open_attempts_but_use_up_no_retries(engine: Engine, clock: VirtualClock) -> None:
    policy = Policy(max_retries=2, backoff=STEADY.backoff)
    lease = await retried(engine, clock, await leased(engine, policy=policy))
    clock.advance("31s")
    await engine.reconcilers.tick()
    lease = await engine.leases.claim_execution(lease.execution_id, "worker")
    await engine.operator.revoke_lease(lease.execution_id)
    lease = await engine.leases.claim_execution(lease.execution_id, "worker")
    lease = await retried(engine, clock, lease)
    found = await engine.executions.describe(lease.execution_id)
    assert (lease.attempt_index, found.retry_count, found.reclaim_count) == (4, 2, 1)
    assert [item.outcome for item in found.attempts] == [
        AttemptOutcome.FAILURE, AttemptOutcome.RECLAIMED, AttemptOutcome.RECLAIMED, AttemptOutcome.FAILURE,
    ]  # fmt: skip
    assert await engine.leases.fail(lease.fence, "broken") == FAILED


async def test_an_interruption_is_no_attempt_of_its_own(engine: Engine, clock: VirtualClock) -> None:
    lease = await leased(engine, policy=STEADY)
    await engine.leases.release(lease.fence)
    again = await engine.leases.claim_execution(lease.execution_id, "worker")
    await engine.leases.fail(again.fence, "not yet")
    found = await engine.executions.describe(lease.execution_id)
    assert [item.attempt_index for item in found.attempts] == [0]
    assert (found.attempt_index, found.retry_count) == (1, 1)


@pytest.mark.parametrize("policy", [Policy(max_retries=5), ONE_SHOT])
async def test_a_repeated_failure_is_answered_with_the_same_time_and_counted_once(
    engine: Engine, clock: VirtualClock, store: TestStore, policy: Policy
) -> None:
    lease = await leased(engine, policy=policy)
    what: dict[str, Any] = {"failure_class": "timeout", "category": "network", "detail": b"trace"}
    first = await engine.leases.fail(lease.fence, "broken", **what)
    async with nothing_written(store):
        assert await engine.leases.fail(lease.fence, "broken", **what) == first
        clock.advance("1h")
        assert await engine.leases.fail(lease.fence, "broken", **what) == first
        others: list[dict[str, Any]] = [
            {}, what | {"failure_class": "transient"}, what | {"category": "disk"}, what | {"detail": None},
        ]  # fmt: skip
        for other in others:
            await refused(engine.leases.fail(lease.fence, "broken", **other), "execution_not_active")
        error = await refused(engine.leases.fail(lease.fence, "other", **what), "execution_not_active")
    found = await engine.executions.describe(lease.execution_id)
    assert (error.fields["state"], error.fields["epoch"]) == (found.state, found.epoch)
    assert error.fields["outcome"] == found.vector.terminal_outcome


async def test_a_failure_is_answered_again_until_a_later_owner_gives_up_the_lease(
    engine: Engine, clock: VirtualClock, store: TestStore
) -> None:
    lease = await leased(engine, policy=STEADY)
    at: datetime = clock.now() + timedelta(seconds=10)
    later = await retried(engine, clock, lease)
    async with nothing_written(store):
        assert await engine.leases.fail(lease.fence, "not yet") == RetryScheduled(at)
    await engine.leases.release(later.fence)
    async with nothing_written(store):
        await refused(engine.leases.fail(lease.fence, "not yet"), "stale_lease")


async def test_the_deadline_passes_while_a_retry_waits_for_its_time(engine: Engine, clock: VirtualClock) -> None:
    lease = await leased(engine, policy=STEADY, deadline=clock.now() + timedelta(seconds=5))
    await engine.leases.fail(lease.fence, "not yet")
    clock.advance("5s")
    await engine.reconcilers.tick()
    found = await engine.executions.describe(lease.execution_id)
    assert (found.state, found.ready_at) == (State.EXPIRED, None)
    assert len(found.attempts) == 1
