"""What a worker may decide about its own attempt, and what the attempt's clock decides for it."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from flowfabric.core.decisions import Decision, decided, end_attempt, next_attempt
from flowfabric.core.outcomes import Delayed, Ended, Released, RetryScheduled
from flowfabric.core.policy import OnAttemptTimeout
from flowfabric.core.records import AttemptOrigin, AttemptOutcome, Execution
from flowfabric.core.requests import Completion, FailureReport, OwnCancel, Pause
from flowfabric.core.retry import FailureClass, backoff_delay, may_retry
from flowfabric.core.states import State
from flowfabric.core.transitions import (
    CANCEL,
    COMPLETE,
    DELAY,
    EXPIRE,
    FAIL,
    RELEASE,
    RETRY,
    TIME_OUT,
    Transition,
    move,
)

ATTEMPT_TIMEOUT = "attempt_timeout"
LEASE_HOLDER = "lease_holder"


def decide_complete(execution: Execution, request: Completion, now: datetime) -> Decision[Ended]:
    """The attempt and the execution end well; the result stays with the attempt."""
    after = move(execution, COMPLETE, now, digest=request.digest())
    attempt = end_attempt(execution, AttemptOutcome.SUCCESS, now, result=request.result, encoding=request.encoding)
    return decided(Ended(State.COMPLETED), execution, after, COMPLETE, attempt)


def decide_fail(execution: Execution, request: FailureReport, now: datetime) -> Decision[RetryScheduled | Ended]:
    """A retry is scheduled if the stored policy allows one more for such a failure; otherwise the execution fails."""
    failure: dict[str, Any] = {
        "failure_class": request.failure_class.value,
        "failure_category": request.category,
        "failure_message": request.message,
        "failure_detail": request.detail,
    }
    if may_retry(execution.policy, execution.retry_count, request.failure_class, request.category):
        at = now + backoff_delay(execution.policy.backoff, execution.retry_count, request.chance)
        return _retry(execution, at, now, failure, request.digest())
    return _give_up(execution, FAIL, now, failure, request.digest())


def decide_pause(execution: Execution, request: Pause, now: datetime) -> Decision[Delayed | Released]:
    """The same attempt goes on later: at its time, or at once when that has come already."""
    if request.until is None and request.after is None:
        after = move(execution, RELEASE, now, digest=request.digest())
        return decided(Released(), execution, after, RELEASE)
    until = now + request.after if request.after is not None else request.until
    assert until is not None, "a delay has a time or a duration"
    if until <= now:
        after = move(execution, RELEASE, now, digest=request.digest(), until=until)
        return decided(Delayed(until), execution, after, RELEASE)
    after = move(execution, DELAY, now, digest=request.digest(), until=until, ready_at=until)
    return decided(Delayed(until), execution, after, DELAY, details={"until": until.isoformat()})


def decide_own_cancel(execution: Execution, request: OwnCancel, now: datetime) -> Decision[Ended]:
    """The worker cancels the execution that it works on; without a reason of its own, for the reason it was asked."""
    asked = execution.cancel_request
    principal = execution.lease.worker.instance if execution.lease else LEASE_HOLDER
    reason = request.reason or (asked.reason if asked else "")
    after = move(execution, CANCEL, now, digest=request.digest(), cancelled_by=LEASE_HOLDER, cancel_reason=reason)
    attempt = end_attempt(execution, AttemptOutcome.CANCELLED, now)
    facts = {"principal": principal, "reason": reason, "details": {"source": LEASE_HOLDER}}
    return decided(Ended(State.CANCELLED), execution, after, CANCEL, attempt, **facts)


def decide_attempt_timeout(
    execution: Execution, chance: float, now: datetime
) -> Decision[RetryScheduled | Ended] | None:
    """An attempt past its time counts as a failure of category `attempt_timeout`, or expires the execution if the
    policy says so. None: its time has not come."""
    due = execution.attempt_timeout_at
    if execution.lease is None or due is None or due > now:
        return None
    failure = {
        "failure_class": FailureClass.TIMEOUT.value,
        "failure_category": ATTEMPT_TIMEOUT,
        "failure_message": f"the attempt ran past its time of {_seconds(execution.policy.attempt_timeout)} s",
    }
    if execution.policy.on_attempt_timeout is OnAttemptTimeout.EXPIRE:
        return _give_up(execution, EXPIRE, now, failure)
    if may_retry(execution.policy, execution.retry_count, FailureClass.TIMEOUT, ATTEMPT_TIMEOUT):
        at = now + backoff_delay(execution.policy.backoff, execution.retry_count, chance)
        return _retry(execution, at, now, failure)
    return _give_up(execution, TIME_OUT, now, failure)


def _retry(
    execution: Execution, at: datetime, now: datetime, failure: dict[str, Any], digest: str | None = None
) -> Decision[RetryScheduled | Ended]:
    attempt = end_attempt(execution, AttemptOutcome.FAILURE, now, **failure)
    after = move(
        execution, RETRY, now, digest=digest, until=at, ready_at=at, retry_count=execution.retry_count + 1,
        attempt_origin=AttemptOrigin.RETRY, **next_attempt(execution), **_last_failure(failure),
    )  # fmt: skip
    details = {"category": failure["failure_category"], "retry_at": at.isoformat()}
    return decided(
        RetryScheduled(at), execution, after, RETRY, attempt, reason=failure["failure_message"], details=details
    )


def _give_up(
    execution: Execution, transition: Transition, now: datetime, failure: dict[str, Any], digest: str | None = None
) -> Decision[RetryScheduled | Ended]:
    attempt = end_attempt(execution, AttemptOutcome.FAILURE, now, **failure)
    after = move(execution, transition, now, digest=digest, **_last_failure(failure))
    details = {"category": failure["failure_category"]}
    facts = {"reason": failure["failure_message"], "details": details}
    return decided(Ended(after.state), execution, after, transition, attempt, **facts)


def _last_failure(failure: dict[str, Any]) -> dict[str, Any]:
    return {key: failure[key] for key in ("failure_message", "failure_category")}


def _seconds(value: object) -> str:
    return f"{value.total_seconds():g}" if isinstance(value, timedelta) else "?"
