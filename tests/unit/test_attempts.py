"""What a worker decides about its attempt, and what the attempt's clock decides for it."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from flowfabric.core.attempts import (
    decide_attempt_timeout,
    decide_complete,
    decide_fail,
    decide_own_cancel,
    decide_pause,
)  # fmt: skip
from flowfabric.core.records import AttemptOrigin, Execution
from flowfabric.core.requests import Completion, FailureReport, OwnCancel, Pause
from flowfabric.core.states import AttemptState, BlockingReason
from flowfabric.engine import (
    AttemptOutcome,
    Backoff,
    BackoffKind,
    Delayed,
    Ended,
    FailureClass,
    OnAttemptTimeout,
    Policy,
    Refused,
    Released,
    RetryScheduled,
    State,
)  # fmt: skip
from tests.unit.builders import (
    EPOCH,
    LEASE_ID,
    MINUTE,
    SECOND,
    SITUATIONS,
    T0,
    WORKER,
    broken_invariants,
    fence_of,
    leased,
)  # fmt: skip

FENCE = fence_of(leased())
STEADY = Policy(backoff=Backoff(kind=BackoffKind.FIXED, initial="10s", jitter=False))
COMPLETION = Completion(fence=FENCE, result=b"out", encoding="text")


def _failure(**changes: Any) -> FailureReport:
    values: dict[str, Any] = {
        "fence": FENCE, "message": "no route", "failure_class": FailureClass.TRANSIENT, "category": "net",
        "detail": b"trace", "chance": 0.5,
    }  # fmt: skip
    return FailureReport(**(values | changes))


def _after(execution: Execution | None) -> Execution:
    assert execution is not None
    assert broken_invariants(execution) == []
    return execution


def test_completing_ends_the_execution_and_leaves_the_result_with_the_attempt() -> None:
    decision = decide_complete(leased(), COMPLETION, T0)
    after, attempt = _after(decision.after), decision.attempt
    assert decision.answer == Ended(State.COMPLETED)
    assert (after.state, after.epoch, after.ended_at) == (State.COMPLETED, EPOCH, T0)
    assert attempt is not None
    assert (attempt.outcome, attempt.result, attempt.encoding) == (AttemptOutcome.SUCCESS, b"out", "text")
    assert after.former is not None
    assert (after.former.id, after.former.digest) == (LEASE_ID, COMPLETION.digest())


def test_a_retryable_failure_schedules_the_next_attempt_after_the_backoff() -> None:
    decision = decide_fail(leased(policy=STEADY), _failure(), T0)
    after, attempt, event = _after(decision.after), decision.attempt, decision.event
    at = T0 + 10 * SECOND
    assert decision.answer == RetryScheduled(at)
    assert (after.state, after.attempt_state, after.epoch) == (State.DELAYED, AttemptState.PENDING_RETRY, EPOCH + 1)
    assert (after.ready_at, after.retry_count, after.attempt_index) == (at, 1, 1)
    assert (after.attempt_origin, after.attempt_started_at) == (AttemptOrigin.RETRY, None)
    assert (after.failure_message, after.failure_category) == ("no route", "net")
    assert attempt is not None and event is not None
    assert (attempt.outcome, attempt.attempt_index) == (AttemptOutcome.FAILURE, 0)
    assert (attempt.failure_class, attempt.failure_category) == ("transient", "net")
    assert (attempt.failure_message, attempt.failure_detail) == ("no route", b"trace")
    assert event.reason == "no route"
    assert event.details == {"category": "net", "retry_at": at.isoformat()}
    assert after.former is not None
    assert (after.former.until, after.former.digest) == (at, _failure().digest())


def test_the_draw_of_the_jitter_is_the_requests_and_the_number_of_retries_the_records() -> None:
    decision = decide_fail(leased(retry_count=2), _failure(chance=0.25), T0)
    assert decision.answer == RetryScheduled(T0 + SECOND)


@pytest.mark.parametrize(
    ("policy", "taken", "failure_class", "category"),
    [
        (Policy(max_retries=0), 0, "transient", "net"),
        (Policy(max_retries=2), 2, "transient", "net"),
        (Policy(), 0, "permanent", "net"),
        (Policy(), 0, "cancelled", "net"),
        (Policy(retryable_categories=["disk"]), 0, "transient", "net"),
    ],
)
def test_a_failure_that_the_policy_does_not_retry_is_the_end(
    policy: Policy, taken: int, failure_class: str, category: str
) -> None:
    report = _failure(failure_class=FailureClass(failure_class), category=category)
    decision = decide_fail(leased(policy=policy, retry_count=taken), report, T0)
    after = _after(decision.after)
    assert decision.answer == Ended(State.FAILED)
    assert (after.state, after.epoch, after.retry_count, after.attempt_index) == (State.FAILED, EPOCH, taken, 0)
    assert (after.failure_message, after.failure_category) == ("no route", "net")
    assert decision.attempt is not None
    assert decision.attempt.outcome is AttemptOutcome.FAILURE


@pytest.mark.parametrize("after", [MINUTE, timedelta(microseconds=1)])
def test_a_delay_keeps_the_attempt_until_its_time(after: timedelta) -> None:
    by_duration, by_time = Pause(fence=FENCE, after=after), Pause(fence=FENCE, until=T0 + after)
    for request in (by_duration, by_time):
        decision = decide_pause(leased(), request, T0)
        moved = _after(decision.after)
        assert decision.answer == Delayed(T0 + after)
        assert (moved.state, moved.attempt_state) == (State.DELAYED, AttemptState.INTERRUPTED)
        assert (moved.ready_at, moved.blocking_reason) == (T0 + after, BlockingReason.WAITING_FOR_DELAY)
        assert (moved.attempt_index, moved.epoch, moved.retry_count) == (0, EPOCH + 1, 0)
        assert decision.attempt is None
        assert decision.event is not None
        assert decision.event.details == {"until": (T0 + after).isoformat()}


@pytest.mark.parametrize("request_", [Pause(fence=FENCE, after=timedelta(0)), Pause(fence=FENCE, until=T0 - SECOND)])
def test_a_delay_whose_time_has_come_waits_for_a_worker_at_once(request_: Pause) -> None:
    decision = decide_pause(leased(), request_, T0)
    after = _after(decision.after)
    assert isinstance(decision.answer, Delayed)
    assert (after.state, after.attempt_state, after.ready_at) == (State.WAITING, AttemptState.INTERRUPTED, None)
    assert after.former is not None
    assert after.former.until == decision.answer.until, "so that a repeated request gets the same answer"


def test_a_release_is_a_delay_until_now_that_counts_nothing() -> None:
    decision = decide_pause(leased(attempt_timeout_at=T0 + SECOND), Pause(fence=FENCE), T0)
    after = _after(decision.after)
    assert decision.answer == Released()
    assert (after.state, after.attempt_state, after.epoch) == (State.WAITING, AttemptState.INTERRUPTED, EPOCH + 1)
    assert (after.attempt_index, after.retry_count, after.reclaim_count) == (0, 0, 0)
    assert after.attempt_timeout_left == SECOND
    assert decision.event is not None
    assert (decision.event.family, decision.event.name) == ("lease", "released")


def test_a_worker_cancels_its_own_execution() -> None:
    request = OwnCancel(fence=FENCE, reason="not needed")
    decision = decide_own_cancel(leased(), request, T0)
    after, event = _after(decision.after), decision.event
    assert decision.answer == Ended(State.CANCELLED)
    assert (after.state, after.epoch) == (State.CANCELLED, EPOCH + 1)
    assert (after.cancelled_by, after.cancel_reason) == ("lease_holder", "not needed")
    assert decision.attempt is not None and event is not None and after.former is not None
    assert decision.attempt.outcome is AttemptOutcome.CANCELLED
    assert (event.principal, event.reason) == (WORKER.instance, "not needed")
    assert after.former.digest == request.digest()


@pytest.mark.parametrize("situation", sorted(set(SITUATIONS) - {"leased"}))
def test_nothing_but_a_leased_execution_can_be_completed_failed_or_paused(situation: str) -> None:
    execution = SITUATIONS[situation]()
    for decide in (
        lambda: decide_complete(execution, COMPLETION, T0),
        lambda: decide_fail(execution, _failure(), T0),
        lambda: decide_pause(execution, Pause(fence=FENCE), T0),
        lambda: decide_pause(execution, Pause(fence=FENCE, after=MINUTE), T0),
    ):
        with pytest.raises(Refused) as refused:
            decide()
        assert refused.value.code == "execution_not_active"


@pytest.mark.parametrize("due", [None, T0 + timedelta(microseconds=1)])
def test_an_attempt_within_its_time_is_left_alone(due: Any) -> None:
    assert decide_attempt_timeout(leased(attempt_timeout_at=due), 0.5, T0) is None


@pytest.mark.parametrize("situation", sorted(set(SITUATIONS) - {"leased"}))
def test_an_attempt_that_nobody_runs_cannot_time_out(situation: str) -> None:
    assert decide_attempt_timeout(SITUATIONS[situation](), 0.5, T0 + 1000 * MINUTE) is None


def test_an_attempt_past_its_time_is_a_retryable_failure() -> None:
    policy = Policy(attempt_timeout="1m", backoff=STEADY.backoff, retryable_categories=["attempt_timeout"])
    decision = decide_attempt_timeout(leased(attempt_timeout_at=T0, policy=policy), 0.5, T0)
    assert decision is not None
    after, attempt = _after(decision.after), decision.attempt
    assert decision.answer == RetryScheduled(T0 + 10 * SECOND)
    assert (after.state, after.retry_count, after.epoch) == (State.DELAYED, 1, EPOCH + 1)
    assert (after.failure_category, after.attempt_timeout_left) == ("attempt_timeout", None)
    assert attempt is not None and after.former is not None
    assert (attempt.failure_class, attempt.failure_category) == ("timeout", "attempt_timeout")
    assert "60 s" in (attempt.failure_message or "")
    assert after.former.digest is None, "no request of the worker may be answered by it"


@pytest.mark.parametrize(
    ("policy", "state"),
    [
        (Policy(attempt_timeout=1, max_retries=0), State.FAILED),
        (Policy(attempt_timeout=1, retryable_categories=["net"]), State.FAILED),
        (Policy(attempt_timeout=1, on_attempt_timeout=OnAttemptTimeout.EXPIRE), State.EXPIRED),
    ],
)
def test_an_attempt_past_its_time_may_be_the_end(policy: Policy, state: State) -> None:
    decision = decide_attempt_timeout(leased(attempt_timeout_at=T0 - SECOND, policy=policy), 0.5, T0)
    assert decision is not None
    after = _after(decision.after)
    assert decision.answer == Ended(state)
    assert (after.state, after.epoch, after.failure_category) == (state, EPOCH + 1, "attempt_timeout")
    assert decision.attempt is not None and decision.event is not None
    assert decision.attempt.outcome is AttemptOutcome.FAILURE
    assert decision.event.details == {"category": "attempt_timeout"}
