"""Decisions of a worker about its own attempt, and the attempt's timeout."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from flowfabric.core.executions.decision import Decision, end_attempt, make_decision, next_attempt
from flowfabric.core.executions.outcomes import Continued, Delayed, Ended, Held, Released, RetryScheduled
from flowfabric.core.executions.records import AttemptOrigin, AttemptOutcome, Execution, Fence, read_traceback
from flowfabric.core.executions.requests import (
    CancelOwnRequest,
    Completion,
    DelayRequest,
    FailureReport,
    Step,
    digest,
    step_parts,
)
from flowfabric.core.executions.states import State
from flowfabric.core.executions.transitions import (
    CANCEL,
    COMPLETE,
    CONTINUE,
    DELAY,
    EXPIRE,
    FAIL,
    HOLD_OWN,
    RELEASE,
    RETRY,
    RETRY_STEP,
    TIME_OUT,
    Transition,
    apply_transition,
)
from flowfabric.core.fast_dataclass import replace
from flowfabric.core.policy import FailureClass, OnAttemptTimeout, backoff_delay, may_retry
from flowfabric.core.waits.records import WaitChanges, Waitpoint, WaitpointKind

ATTEMPT_TIMEOUT = "attempt_timeout"
LEASE_HOLDER = "lease_holder"
MAX_EVENT_TRACEBACK = 4_000


def decide_complete(execution: Execution, request: Completion, now: datetime) -> Decision[Ended]:
    """Complete the attempt and the execution. The result is stored with the attempt."""
    after = apply_transition(execution, COMPLETE, now, digest=request.digest())
    attempt = end_attempt(execution, AttemptOutcome.SUCCESS, now, result=request.result, encoding=request.encoding)
    return make_decision(Ended(State.COMPLETED), execution, after, COMPLETE, attempt)


def decide_fail(execution: Execution, request: FailureReport, now: datetime) -> Decision[RetryScheduled | Ended]:
    """Schedule a retry if the stored policy allows one after this failure; otherwise fail the execution."""
    failure: dict[str, Any] = {
        "failure_class": request.failure_class.value,
        "failure_category": request.category,
        "failure_message": request.message,
        "failure_detail": request.detail,
    }
    if may_retry(execution.policy, execution.retry_count, request.failure_class, request.category):
        at = now + backoff_delay(execution.policy.backoff, execution.retry_count, request.chance)
        return _retry(execution, at, now, failure, request.digest())
    return _end_execution(execution, FAIL, now, failure, request.digest())


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRetry:
    """A step whose try failed and that is tried again: the number of failed tries, and the time of the next try."""

    step: str
    tries: int
    max_tries: int
    at: datetime
    message: str
    category: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRetries:
    """A worker's report of steps that are tried again, with the records of these steps and perhaps of others."""

    fence: Fence
    retries: tuple[StepRetry, ...]
    steps: tuple[Step, ...]


def decide_step_retry(execution: Execution, retry: StepRetry, now: datetime) -> Decision[None]:
    """Note in the history that a try of a step failed. It is the last failure, until there is another one."""
    message = f"step {retry.step}, try {retry.tries} of {retry.max_tries}: {retry.message}"
    after = apply_transition(execution, RETRY_STEP, now, failure_message=message, failure_category=retry.category)
    details = {
        "step": retry.step,
        "tries": retry.tries,
        "max_tries": retry.max_tries,
        "category": retry.category,
        "retry_at": retry.at.isoformat(),
    }
    return make_decision(None, execution, after, RETRY_STEP, reason=message, details=details)


def decide_delay(execution: Execution, request: DelayRequest, now: datetime) -> Decision[Delayed | Released]:
    """Give up the lease. The same attempt continues at the requested time, or immediately if that time has passed."""
    until = request.until if request.after is None else now + request.after
    if until is None or until <= now:
        after = apply_transition(execution, RELEASE, now, digest=request.digest(), until=until)
        return make_decision(Released() if until is None else Delayed(until), execution, after, RELEASE)
    after = apply_transition(execution, DELAY, now, digest=request.digest(), until=until, ready_at=until)
    return make_decision(Delayed(until), execution, after, DELAY, details={"until": until.isoformat()})


def decide_own_cancel(execution: Execution, request: CancelOwnRequest, now: datetime) -> Decision[Ended]:
    """Cancel the execution because its own worker asks for it.

    If the worker gives no reason, use the reason of the pending cancel request.
    """
    pending = execution.cancel_request
    principal = execution.lease.worker.instance if execution.lease else LEASE_HOLDER
    reason = request.reason or (pending.reason if pending else "")
    after = apply_transition(
        execution, CANCEL, now, digest=request.digest(), cancelled_by=LEASE_HOLDER, cancel_reason=reason
    )
    attempt = end_attempt(execution, AttemptOutcome.CANCELLED, now)
    facts: dict[str, Any] = {"principal": principal, "reason": reason, "details": {"source": LEASE_HOLDER}}
    return make_decision(Ended(State.CANCELLED), execution, after, CANCEL, attempt, **facts)


def decide_attempt_timeout(
    execution: Execution, chance: float, now: datetime
) -> Decision[RetryScheduled | Ended] | None:
    """Retry or end an execution whose attempt exceeded its timeout. Return None if its timeout has not passed.

    The timeout counts as a failure of category `attempt_timeout`. With `on_attempt_timeout="expire"`, the execution
    expires without a retry. An end also ends the children; a retry leaves them alone, because the next attempt needs
    them.
    """
    due = execution.attempt_timeout_at
    if execution.lease is None or due is None or due > now:
        return None
    failure = {
        "failure_class": FailureClass.TIMEOUT.value,
        "failure_category": ATTEMPT_TIMEOUT,
        "failure_message": f"the attempt exceeded its timeout of {_seconds(execution.policy.attempt_timeout)} s",
    }
    if execution.policy.on_attempt_timeout is OnAttemptTimeout.EXPIRE:
        return replace(_end_execution(execution, EXPIRE, now, failure), ends_children=True)
    if may_retry(execution.policy, execution.retry_count, FailureClass.TIMEOUT, ATTEMPT_TIMEOUT):
        at = now + backoff_delay(execution.policy.backoff, execution.retry_count, chance)
        return _retry(execution, at, now, failure)
    return replace(_end_execution(execution, TIME_OUT, now, failure), ends_children=True)


def _retry(
    execution: Execution, at: datetime, now: datetime, failure: dict[str, Any], digest: str | None = None
) -> Decision[RetryScheduled | Ended]:
    attempt = end_attempt(execution, AttemptOutcome.FAILURE, now, **failure)
    after = apply_transition(
        execution,
        RETRY,
        now,
        digest=digest,
        until=at,
        ready_at=at,
        retry_count=execution.retry_count + 1,
        attempt_origin=AttemptOrigin.RETRY,
        **next_attempt(execution),
        **_last_failure(failure),
    )
    details = _event_details(failure) | {"retry_at": at.isoformat()}
    outcome = RetryScheduled(at, retry=after.retry_count, max_retries=execution.policy.max_retries)
    return make_decision(outcome, execution, after, RETRY, attempt, reason=failure["failure_message"], details=details)


def _end_execution(
    execution: Execution, transition: Transition, now: datetime, failure: dict[str, Any], digest: str | None = None
) -> Decision[RetryScheduled | Ended]:
    attempt = end_attempt(execution, AttemptOutcome.FAILURE, now, **failure)
    after = apply_transition(execution, transition, now, digest=digest, **_last_failure(failure))
    facts = {"reason": failure["failure_message"], "details": _event_details(failure)}
    return make_decision(Ended(after.state), execution, after, transition, attempt, **facts)


def _last_failure(failure: dict[str, Any]) -> dict[str, Any]:
    return {key: failure[key] for key in ("failure_message", "failure_category")}


def _event_details(failure: dict[str, Any]) -> dict[str, str]:
    """Return the category and the traceback of a failure, shortened at its start to the limit of an event."""
    traceback = read_traceback(failure.get("failure_detail"))
    if len(traceback) > MAX_EVENT_TRACEBACK:
        traceback = f"[…]\n{traceback[-MAX_EVENT_TRACEBACK:]}"
    return {"category": failure["failure_category"]} | ({"traceback": traceback} if traceback else {})


def _seconds(value: object) -> str:
    return f"{value.total_seconds():g}" if isinstance(value, timedelta) else "?"


# A worker can also hold its execution for an operator, or restart it with new input.


MAX_REPORT_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class HoldRequest:
    """A worker's request to hold its execution until an operator has read the report."""

    fence: Fence
    reason: str
    report: str
    steps: tuple[Step, ...] = ()

    def digest(self) -> str:
        return digest("hold", self.reason, self.report, *step_parts(self.steps))


@dataclass(frozen=True, slots=True, kw_only=True)
class Continuation:
    """A worker's request to restart its execution as the next generation, with a new input and its first steps."""

    fence: Fence
    payload: bytes
    encoding: str
    steps: tuple[Step, ...] = ()

    def digest(self) -> str:
        return digest("continue_with", self.payload, self.encoding, *step_parts(self.steps))


def decide_own_hold(execution: Execution, request: HoldRequest, now: datetime) -> Decision[Held]:
    """Hold the execution because its own worker asks for it.

    The report is stored in the event. After an unhold, the same attempt continues.
    """
    assert execution.lease is not None, "the caller has checked that the fence owns the lease"
    after = apply_transition(execution, HOLD_OWN, now, digest=request.digest(), hold_reason=request.reason)
    return make_decision(
        Held(request.reason),
        execution,
        after,
        HOLD_OWN,
        principal=execution.lease.worker.instance,
        reason=request.reason,
        details={"report": request.report},
    )


def decide_continue(
    execution: Execution, request: Continuation, waitpoints: Sequence[Waitpoint], now: datetime
) -> Decision[Continued]:
    """Start the next generation of the execution with new input, within the same attempt.

    The counters for retries and reclaims restart at 0. All waitpoints close except the standing waitpoints.
    """
    after = apply_transition(
        execution,
        CONTINUE,
        now,
        digest=request.digest(),
        generation=execution.generation + 1,
        payload=request.payload,
        encoding=request.encoding,
        retry_count=0,
        reclaim_count=0,
        attempt_timeout_left=None,
        progress_percent=None,
        progress_message=None,
        failure_message=None,
        failure_category=None,
    )
    closed = tuple(item.close("continued", now) for item in waitpoints if item.kind is not WaitpointKind.STANDING)
    waits = WaitChanges(moved=closed) if closed else None
    details = {"generation": after.generation}
    return make_decision(Continued(), execution, after, CONTINUE, waits=waits, details=details)
