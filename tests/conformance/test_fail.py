"""Tests of fail. The stored policy decides whether and when another attempt follows."""

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
)
from flowfabric.testing import VirtualClock
from tests.expectations import event_names, nothing_written, refusals, refused
from tests.scenarios import ONE_SHOT, STEADY, leased, submitted
from tests.stores import TestStore

TICK = timedelta(microseconds=1)
FAILED = Ended(State.FAILED)


async def fail_until_final(engine: Engine, clock: VirtualClock, policy: Policy) -> list[float]:
    """Fail every attempt and return the delays before the retries, in seconds."""
    lease, delays = await leased(engine, policy=policy), []
    while isinstance(outcome := await engine.leases.fail(lease.fence, "broken"), RetryScheduled):
        delay = outcome.at - clock.now()
        delays.append(delay.total_seconds())
        clock.advance(delay)
        await engine.reconcilers.tick()
        lease = await engine.leases.claim_execution(lease.execution_id, "worker")
    assert outcome == FAILED
    execution = await engine.executions.describe(lease.execution_id)
    assert (execution.state, execution.retry_count, len(execution.attempts)) == (
        State.FAILED,
        len(delays),
        len(delays) + 1,
    )
    return delays


async def fail_and_claim_retry(engine: Engine, clock: VirtualClock, lease: Lease) -> Lease:
    """Fail the attempt and return the lease of the next one after its delay."""
    outcome = await engine.leases.fail(lease.fence, "not yet")
    assert isinstance(outcome, RetryScheduled)
    clock.advance(outcome.at - clock.now())
    await engine.reconcilers.tick()
    return await engine.leases.claim_execution(lease.execution_id, "worker")


async def test_failure_within_the_policy_schedules_the_next_attempt(engine: Engine, clock: VirtualClock) -> None:
    deadline = clock.now() + timedelta(days=1)
    lease = await leased(engine, policy=STEADY, deadline=deadline)
    clock.advance("1s")
    at = clock.now() + timedelta(seconds=10)
    assert await engine.leases.fail(lease.fence, "not yet") == RetryScheduled(at)
    execution = await engine.executions.describe(lease.execution_id)
    assert (execution.state, execution.ready_at, execution.deadline_at, execution.lease) == (
        State.DELAYED,
        at,
        deadline,
        None,
    )
    assert execution.vector.blocking_reason is BlockingReason.WAITING_FOR_RETRY_BACKOFF
    assert execution.vector.attempt_state is AttemptState.PENDING_RETRY
    assert (execution.epoch, execution.attempt_index, execution.retry_count) == (lease.epoch + 1, 1, 1)
    event = (await engine.executions.history(lease.execution_id))[-1]
    assert (event.family, event.name, event.reason) == ("lease", "retry_scheduled", "not yet")
    assert (event.ends_lease, event.lease_id, event.epoch) == (True, lease.fence.lease_id, execution.epoch)


async def test_retry_never_starts_early(engine: Engine, clock: VirtualClock) -> None:
    lease = await leased(engine, policy=STEADY)
    await engine.leases.fail(lease.fence, "not yet")
    clock.advance(timedelta(seconds=10) - TICK)
    await engine.reconcilers.tick()
    assert await engine.leases.claim(["default"], "worker") == []
    clock.advance(TICK)
    await engine.reconcilers.tick()
    [next_lease] = await engine.leases.claim(["default"], "worker")
    assert (next_lease.attempt_index, next_lease.origin) == (1, "retry")


@pytest.mark.parametrize(
    ("backoff", "delays"),
    [
        ({"kind": BackoffKind.FIXED, "initial": 10}, []),
        ({"kind": BackoffKind.FIXED, "initial": 10}, [10, 10]),
        ({"kind": BackoffKind.FIXED, "initial": 0}, [0]),
        ({}, [1, 2, 4]),
        ({"initial": 2, "multiplier": 3, "max_delay": "30s"}, [2, 6, 18, 30, 30]),
        ({"multiplier": 1000, "max_delay": "1h"}, [1, 1000, 3600, 3600]),
    ],
)
async def test_policy_sets_the_number_of_retries_and_their_delays(
    engine: Engine, clock: VirtualClock, backoff: dict[str, Any], delays: list[float]
) -> None:
    policy = Policy(max_retries=len(delays), backoff=Backoff(jitter=False, **backoff))
    assert await fail_until_final(engine, clock, policy) == delays


async def test_default_policy_retries_three_times_with_full_jitter(engine: Engine, clock: VirtualClock) -> None:
    runs = [await fail_until_final(engine, clock, Policy()) for _ in range(4)]
    for delays in runs:
        assert len(delays) == 3
        assert all(0 <= delay <= maximum for delay, maximum in zip(delays, (1, 2, 4), strict=True))
    fractions = [delay / maximum for delays in runs for delay, maximum in zip(delays, (1, 2, 4), strict=True)]
    assert len(set(fractions)) > 6
    # With full jitter, a delay is between zero and its maximum, so some delays are clearly below the maximum.
    assert min(fractions) < 0.75


async def test_permanent_and_cancelled_failures_are_never_retried(engine: Engine, clock: VirtualClock) -> None:
    at = clock.now() + timedelta(seconds=10)
    for failure_class in FailureClass:
        lease = await leased(engine, policy=STEADY)
        outcome = await engine.leases.fail(lease.fence, "broken", failure_class=failure_class)
        final = failure_class in (FailureClass.PERMANENT, FailureClass.CANCELLED)
        assert outcome == (FAILED if final else RetryScheduled(at))
        [attempt] = (await engine.executions.describe(lease.execution_id)).attempts
        # Without a category, a failure has the category of its class.
        assert (attempt.failure_class, attempt.failure_category) == (failure_class, failure_class.value)


async def test_only_categories_of_the_policy_are_retried(engine: Engine) -> None:
    policy = Policy(retryable_categories=["network", "transient"], backoff=STEADY.backoff)
    for category, is_retried in (("network", True), (None, True), ("disk", False), ("Network", False)):
        lease = await leased(engine, policy=policy)
        outcome = await engine.leases.fail(lease.fence, "broken", category=category)
        assert isinstance(outcome, RetryScheduled) == is_retried


async def test_failure_is_stored_on_the_attempt_and_shown_on_the_execution(engine: Engine, clock: VirtualClock) -> None:
    lease = await leased(engine, policy=STEADY)
    clock.advance("1s")
    await engine.leases.fail(
        lease.fence, "no route\nto host", failure_class="infra_crash", category="network", detail=b"\x00trace"
    )
    execution = await engine.executions.describe(lease.execution_id)
    assert execution.last_failure == Failure("no route\nto host", "network")
    [attempt] = execution.attempts
    assert (attempt.attempt_index, attempt.outcome, attempt.worker) == (0, AttemptOutcome.FAILURE, lease.worker)
    assert (attempt.failure_class, attempt.failure_category) == ("infra_crash", "network")
    assert (attempt.failure_message, attempt.failure_detail) == ("no route\nto host", b"\x00trace")
    assert (attempt.started_at, attempt.ended_at, attempt.result) == (lease.acquired_at, clock.now(), None)


async def test_final_failure_ends_the_execution_and_keeps_the_epoch(engine: Engine, clock: VirtualClock) -> None:
    lease = await leased(engine, policy=ONE_SHOT)
    assert await engine.leases.fail(lease.fence, "broken", category="disk") == FAILED
    execution = await engine.executions.describe(lease.execution_id)
    assert (execution.state, execution.epoch, execution.version, execution.lease) == (
        State.FAILED,
        lease.epoch,
        2,
        None,
    )
    assert (execution.ended_at, execution.ready_at, execution.retry_count) == (clock.now(), None, 0)
    assert execution.vector.terminal_outcome is TerminalOutcome.FAILED
    assert execution.vector.attempt_state is AttemptState.TERMINAL
    outcome = await engine.executions.result(lease.execution_id)
    assert outcome is not None
    assert (outcome.state, outcome.failure, outcome.result) == (State.FAILED, Failure("broken", "disk"), None)
    assert await event_names(engine, lease.execution_id) == ["lease.acquired", "completion.failed"]
    assert (await engine.executions.history(lease.execution_id))[-1].ends_lease


async def test_reclaims_open_attempts_but_use_no_retries(engine: Engine, clock: VirtualClock) -> None:
    policy = Policy(max_retries=2, backoff=STEADY.backoff)
    lease = await fail_and_claim_retry(engine, clock, await leased(engine, policy=policy))
    clock.advance("31s")
    await engine.reconcilers.tick()
    lease = await engine.leases.claim_execution(lease.execution_id, "worker")
    await engine.operator.revoke_lease(lease.execution_id)
    lease = await engine.leases.claim_execution(lease.execution_id, "worker")
    lease = await fail_and_claim_retry(engine, clock, lease)
    execution = await engine.executions.describe(lease.execution_id)
    assert (lease.attempt_index, execution.retry_count, execution.reclaim_count) == (4, 2, 1)
    assert [attempt.outcome for attempt in execution.attempts] == [
        AttemptOutcome.FAILURE,
        AttemptOutcome.RECLAIMED,
        AttemptOutcome.RECLAIMED,
        AttemptOutcome.FAILURE,
    ]
    assert await engine.leases.fail(lease.fence, "broken") == FAILED


async def test_interruption_does_not_count_as_an_attempt(engine: Engine, clock: VirtualClock) -> None:
    lease = await leased(engine, policy=STEADY)
    await engine.leases.release(lease.fence)
    next_lease = await engine.leases.claim_execution(lease.execution_id, "worker")
    await engine.leases.fail(next_lease.fence, "not yet")
    execution = await engine.executions.describe(lease.execution_id)
    assert [attempt.attempt_index for attempt in execution.attempts] == [0]
    assert (execution.attempt_index, execution.retry_count) == (1, 1)


@pytest.mark.parametrize("policy", [Policy(max_retries=5), ONE_SHOT])
async def test_repeated_failure_returns_the_first_outcome_and_counts_once(
    engine: Engine, clock: VirtualClock, store: TestStore, policy: Policy
) -> None:
    lease = await leased(engine, policy=policy)
    failure: dict[str, Any] = {"failure_class": "timeout", "category": "network", "detail": b"trace"}
    first = await engine.leases.fail(lease.fence, "broken", **failure)
    async with nothing_written(store):
        assert await engine.leases.fail(lease.fence, "broken", **failure) == first
        clock.advance("1h")
        assert await engine.leases.fail(lease.fence, "broken", **failure) == first
        other_failures: list[dict[str, Any]] = [
            {}, failure | {"failure_class": "transient"}, failure | {"category": "disk"}, failure | {"detail": None},
        ]  # fmt: skip
        for other_failure in other_failures:
            await refused(engine.leases.fail(lease.fence, "broken", **other_failure), "execution_not_active")
        error = await refused(engine.leases.fail(lease.fence, "other", **failure), "execution_not_active")
    execution = await engine.executions.describe(lease.execution_id)
    assert (error.fields["state"], error.fields["epoch"]) == (execution.state, execution.epoch)
    assert error.fields["outcome"] == execution.vector.terminal_outcome


async def test_failure_can_be_repeated_until_a_later_owner_ends_its_lease(
    engine: Engine, clock: VirtualClock, store: TestStore
) -> None:
    lease = await leased(engine, policy=STEADY)
    at: datetime = clock.now() + timedelta(seconds=10)
    later = await fail_and_claim_retry(engine, clock, lease)
    async with nothing_written(store):
        assert await engine.leases.fail(lease.fence, "not yet") == RetryScheduled(at)
    await engine.leases.release(later.fence)
    async with nothing_written(store):
        await refused(engine.leases.fail(lease.fence, "not yet"), "stale_lease")


async def test_deadline_expires_an_execution_that_waits_for_its_retry(engine: Engine, clock: VirtualClock) -> None:
    lease = await leased(engine, policy=STEADY, deadline=clock.now() + timedelta(seconds=5))
    await engine.leases.fail(lease.fence, "not yet")
    clock.advance("5s")
    await engine.reconcilers.tick()
    execution = await engine.executions.describe(lease.execution_id)
    assert (execution.state, execution.ready_at) == (State.EXPIRED, None)
    assert len(execution.attempts) == 1


async def test_fail_after_complete_does_not_revive_the_execution(engine: Engine) -> None:
    lease = await leased(engine)
    await engine.leases.complete(lease.fence)
    assert await refusals(engine, lease.fence) == {"execution_not_active"}
    assert (await engine.executions.describe(lease.execution_id)).state == State.COMPLETED


async def test_repeated_fail_uses_one_retry_and_returns_the_same_time(engine: Engine, clock: VirtualClock) -> None:
    lease = await leased(engine, policy=STEADY)
    first = await engine.leases.fail(lease.fence, "once")
    clock.advance("1s")
    assert await engine.leases.fail(lease.fence, "once") == first
    execution = await engine.executions.describe(lease.execution_id)
    assert (execution.retry_count, execution.attempt_index, len(execution.attempts)) == (1, 1, 1)


async def test_execution_that_always_fails_ends_after_its_delayed_retries(engine: Engine, clock: VirtualClock) -> None:
    policy = Policy(max_retries=2, backoff=Backoff(initial="4s", multiplier=2, jitter=False))
    id_ = await submitted(engine, policy=policy)
    delays = []
    while True:
        lease = await engine.leases.claim_execution(id_, "w")
        outcome = await engine.leases.fail(lease.fence, "poison", category="poison", detail=b"why")
        if isinstance(outcome, Ended):
            break
        delays.append(outcome.at - clock.now())
        assert await engine.leases.claim(["default"], "w") == []
        clock.advance(delays[-1])
        await engine.reconcilers.tick()
    assert delays == [timedelta(seconds=4), timedelta(seconds=8)]
    execution = await engine.executions.describe(id_)
    assert (execution.state, execution.vector.terminal_outcome) == (State.FAILED, "failed")
    assert [(attempt.failure_category, attempt.failure_detail) for attempt in execution.attempts] == [
        ("poison", b"why")
    ] * 3


async def test_only_categories_and_classes_of_the_policy_are_retried(engine: Engine) -> None:
    policy = Policy(retryable_categories=["network"])
    for category, failure_class, is_retried in (
        ("network", "transient", True),
        ("network", "timeout", True),
        ("network", "permanent", False),
        ("network", "cancelled", False),
        ("logic", "transient", False),
    ):
        lease = await leased(engine, policy=policy)
        outcome = await engine.leases.fail(lease.fence, "no", category=category, failure_class=failure_class)
        assert isinstance(outcome, RetryScheduled) == is_retried, (category, failure_class)


@pytest.mark.parametrize(
    ("detail", "traceback"),
    [
        (b'{"traceback": "shop.py, line 3"}', "shop.py, line 3"),
        (b'{"traceback": "a\\u0000b\\ud800"}', "a\\x00b\\ud800"),
        (b'{"traceback": 5}', None),
        (b'{"traceback": ""}', None),
        (b'["traceback"]', None),
        (b"\xff\x00", None),
        (b"[" * 100_000, None),
        (None, None),
    ],
    ids=["text", "unstorable", "number", "empty", "list", "binary", "nested", "none"],
)
async def test_event_of_a_failure_has_the_traceback_of_its_detail(
    engine: Engine, detail: bytes | None, traceback: str | None
) -> None:
    lease = await leased(engine, policy=ONE_SHOT)

    assert await engine.leases.fail(lease.fence, "broken", detail=detail) == FAILED

    *_, event = await engine.executions.history(lease.execution_id)
    assert event.details is not None and event.details.get("traceback") == traceback
    [attempt] = (await engine.executions.describe(lease.execution_id)).attempts
    assert attempt.traceback == (traceback or "")


async def test_reply_to_a_failure_numbers_the_retry(engine: Engine, clock: VirtualClock) -> None:
    lease = await leased(engine, policy=Policy(max_retries=2))
    first = await engine.leases.fail(lease.fence, "broken")
    repeated = await engine.leases.fail(lease.fence, "broken")

    assert isinstance(first, RetryScheduled) and isinstance(repeated, RetryScheduled)
    assert (first.retry, first.max_retries) == (1, 2)
    assert repeated == first and repeated.retry == 0
