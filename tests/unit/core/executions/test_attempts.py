"""Tests for the decisions of a worker about its attempt, and for attempt timeouts."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from flowfabric.core.executions.attempts import (
    decide_attempt_timeout,
    decide_complete,
    decide_delay,
    decide_fail,
    decide_own_cancel,
)
from flowfabric.core.executions.records import AttemptOrigin, Execution
from flowfabric.core.executions.requests import CancelOwnRequest, Completion, DelayRequest, FailureReport
from flowfabric.core.executions.states import AttemptState, BlockingReason
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
)
from tests.unit.builders import (
    EPOCH,
    LEASE_ID,
    MINUTE,
    SECOND,
    SITUATIONS,
    T0,
    WORKER,
    find_broken_invariants,
    get_fence,
    make_leased,
)

FENCE = get_fence(make_leased())
FIXED_BACKOFF = Policy(backoff=Backoff(kind=BackoffKind.FIXED, initial="10s", jitter=False))
COMPLETION = Completion(fence=FENCE, result=b"out", encoding="text")


def _make_failure_report(**changes: Any) -> FailureReport:
    values: dict[str, Any] = {
        "fence": FENCE, "message": "no route", "failure_class": FailureClass.TRANSIENT, "category": "net",
        "detail": b"trace", "chance": 0.5,
    }  # fmt: skip
    return FailureReport(**(values | changes))


def _require_valid(execution: Execution | None) -> Execution:
    assert execution is not None
    assert find_broken_invariants(execution) == []
    return execution


def test_complete_ends_the_execution_and_stores_the_result_in_the_attempt() -> None:
    decision = decide_complete(make_leased(), COMPLETION, T0)
    after, attempt = _require_valid(decision.after), decision.attempt
    assert decision.outcome == Ended(State.COMPLETED)
    assert (after.state, after.epoch, after.ended_at) == (State.COMPLETED, EPOCH, T0)
    assert attempt is not None
    assert (attempt.outcome, attempt.result, attempt.encoding) == (AttemptOutcome.SUCCESS, b"out", "text")
    assert after.former is not None
    assert (after.former.id, after.former.digest) == (LEASE_ID, COMPLETION.digest())


def test_retryable_failure_schedules_the_next_attempt_after_the_backoff() -> None:
    decision = decide_fail(make_leased(policy=FIXED_BACKOFF), _make_failure_report(), T0)
    after, attempt, event = _require_valid(decision.after), decision.attempt, decision.event
    at = T0 + 10 * SECOND
    assert decision.outcome == RetryScheduled(at)
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
    assert (after.former.until, after.former.digest) == (at, _make_failure_report().digest())


def test_backoff_uses_the_jitter_of_the_request_and_the_stored_retry_count() -> None:
    decision = decide_fail(make_leased(retry_count=2), _make_failure_report(chance=0.25), T0)
    assert decision.outcome == RetryScheduled(T0 + SECOND)


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
def test_failure_without_a_retry_ends_the_execution(
    policy: Policy, taken: int, failure_class: str, category: str
) -> None:
    report = _make_failure_report(failure_class=FailureClass(failure_class), category=category)
    decision = decide_fail(make_leased(policy=policy, retry_count=taken), report, T0)
    after = _require_valid(decision.after)
    assert decision.outcome == Ended(State.FAILED)
    assert (after.state, after.epoch, after.retry_count, after.attempt_index) == (State.FAILED, EPOCH, taken, 0)
    assert (after.failure_message, after.failure_category) == ("no route", "net")
    assert decision.attempt is not None
    assert decision.attempt.outcome is AttemptOutcome.FAILURE


@pytest.mark.parametrize("after", [MINUTE, timedelta(microseconds=1)])
def test_delay_keeps_the_attempt_until_its_time(after: timedelta) -> None:
    by_duration, by_time = DelayRequest(fence=FENCE, after=after), DelayRequest(fence=FENCE, until=T0 + after)
    for request in (by_duration, by_time):
        decision = decide_delay(make_leased(), request, T0)
        delayed = _require_valid(decision.after)
        assert decision.outcome == Delayed(T0 + after)
        assert (delayed.state, delayed.attempt_state) == (State.DELAYED, AttemptState.INTERRUPTED)
        assert (delayed.ready_at, delayed.blocking_reason) == (T0 + after, BlockingReason.WAITING_FOR_DELAY)
        assert (delayed.attempt_index, delayed.epoch, delayed.retry_count) == (0, EPOCH + 1, 0)
        assert decision.attempt is None
        assert decision.event is not None
        assert decision.event.details == {"until": (T0 + after).isoformat()}


@pytest.mark.parametrize(
    "request_", [DelayRequest(fence=FENCE, after=timedelta(0)), DelayRequest(fence=FENCE, until=T0 - SECOND)]
)
def test_delay_that_is_already_due_waits_for_a_worker(request_: DelayRequest) -> None:
    decision = decide_delay(make_leased(), request_, T0)
    after = _require_valid(decision.after)
    assert isinstance(decision.outcome, Delayed)
    assert (after.state, after.attempt_state, after.ready_at) == (State.WAITING, AttemptState.INTERRUPTED, None)
    assert after.former is not None
    assert after.former.until == decision.outcome.until, "a repeated request must get the same outcome"


def test_release_returns_to_waiting_without_changing_any_count() -> None:
    decision = decide_delay(make_leased(attempt_timeout_at=T0 + SECOND), DelayRequest(fence=FENCE), T0)
    after = _require_valid(decision.after)
    assert decision.outcome == Released()
    assert (after.state, after.attempt_state, after.epoch) == (State.WAITING, AttemptState.INTERRUPTED, EPOCH + 1)
    assert (after.attempt_index, after.retry_count, after.reclaim_count) == (0, 0, 0)
    assert after.attempt_timeout_left == SECOND
    assert decision.event is not None
    assert (decision.event.family, decision.event.name) == ("lease", "released")


def test_worker_may_cancel_its_own_execution() -> None:
    request = CancelOwnRequest(fence=FENCE, reason="not needed")
    decision = decide_own_cancel(make_leased(), request, T0)
    after, event = _require_valid(decision.after), decision.event
    assert decision.outcome == Ended(State.CANCELLED)
    assert (after.state, after.epoch) == (State.CANCELLED, EPOCH + 1)
    assert (after.cancelled_by, after.cancel_reason) == ("lease_holder", "not needed")
    assert decision.attempt is not None and event is not None and after.former is not None
    assert decision.attempt.outcome is AttemptOutcome.CANCELLED
    assert (event.principal, event.reason) == (WORKER.instance, "not needed")
    assert after.former.digest == request.digest()


@pytest.mark.parametrize("situation", sorted(set(SITUATIONS) - {"leased"}))
def test_only_a_leased_execution_can_be_completed_failed_or_delayed(situation: str) -> None:
    execution = SITUATIONS[situation]()
    for decide in (
        lambda: decide_complete(execution, COMPLETION, T0),
        lambda: decide_fail(execution, _make_failure_report(), T0),
        lambda: decide_delay(execution, DelayRequest(fence=FENCE), T0),
        lambda: decide_delay(execution, DelayRequest(fence=FENCE, after=MINUTE), T0),
    ):
        with pytest.raises(Refused) as refused:
            decide()
        assert refused.value.code == "execution_not_active"


@pytest.mark.parametrize("due", [None, T0 + timedelta(microseconds=1)])
def test_attempt_within_its_timeout_is_unchanged(due: Any) -> None:
    assert decide_attempt_timeout(make_leased(attempt_timeout_at=due), 0.5, T0) is None


@pytest.mark.parametrize("situation", sorted(set(SITUATIONS) - {"leased"}))
def test_attempt_without_a_lease_cannot_time_out(situation: str) -> None:
    assert decide_attempt_timeout(SITUATIONS[situation](), 0.5, T0 + 1000 * MINUTE) is None


def test_attempt_timeout_is_a_retryable_failure() -> None:
    policy = Policy(attempt_timeout="1m", backoff=FIXED_BACKOFF.backoff, retryable_categories=["attempt_timeout"])
    decision = decide_attempt_timeout(make_leased(attempt_timeout_at=T0, policy=policy), 0.5, T0)
    assert decision is not None
    after, attempt = _require_valid(decision.after), decision.attempt
    assert decision.outcome == RetryScheduled(T0 + 10 * SECOND)
    assert (after.state, after.retry_count, after.epoch) == (State.DELAYED, 1, EPOCH + 1)
    assert (after.failure_category, after.attempt_timeout_left) == ("attempt_timeout", None)
    assert attempt is not None and after.former is not None
    assert (attempt.failure_class, attempt.failure_category) == ("timeout", "attempt_timeout")
    assert "60 s" in (attempt.failure_message or "")
    assert after.former.digest is None, "the timeout must not match a repeated request of the worker"


@pytest.mark.parametrize(
    ("policy", "state"),
    [
        (Policy(attempt_timeout=1, max_retries=0), State.FAILED),
        (Policy(attempt_timeout=1, retryable_categories=["net"]), State.FAILED),
        (Policy(attempt_timeout=1, on_attempt_timeout=OnAttemptTimeout.EXPIRE), State.EXPIRED),
    ],
)
def test_attempt_timeout_may_end_the_execution(policy: Policy, state: State) -> None:
    decision = decide_attempt_timeout(make_leased(attempt_timeout_at=T0 - SECOND, policy=policy), 0.5, T0)
    assert decision is not None
    after = _require_valid(decision.after)
    assert decision.outcome == Ended(state)
    assert (after.state, after.epoch, after.failure_category) == (state, EPOCH + 1, "attempt_timeout")
    assert decision.attempt is not None and decision.event is not None
    assert decision.attempt.outcome is AttemptOutcome.FAILURE
    assert decision.event.details == {"category": "attempt_timeout"}
