"""Functions that validate the arguments of `engine.leases` and build the longer requests from them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from flowfabric.core import validation
from flowfabric.core.errors import InvalidRequest
from flowfabric.core.executions import requests
from flowfabric.core.executions.attempts import (
    MAX_REPORT_BYTES,
    Continuation,
    HoldRequest,
    StepRetries,
    StepRetry,
)
from flowfabric.core.executions.postpone import DIVERGED, RUN_FAILED, Postponement
from flowfabric.core.executions.records import Fence
from flowfabric.core.executions.requests import (
    CancelOwnRequest,
    Checkpoint,
    Claim,
    Completion,
    DelayRequest,
    FailureReport,
    Progress,
    Step,
    StepStatus,
)
from flowfabric.core.flows.graph import ChildSubmission, EdgeKind, Join, check_quorum
from flowfabric.core.ids import parse_id, parse_new_id
from flowfabric.core.policy import FailureClass
from flowfabric.core.validation import parse_choice
from flowfabric.core.waits.bindings import Bound, parse_bindings, parse_skipped
from flowfabric.core.waits.conditions import AllOf, Condition, OperatorOnly, Single, validate
from flowfabric.core.waits.records import OnTimeout, SuspensionReason, UnusedWaitpoints
from flowfabric.core.waits.snapshot import WaitSnapshotRequest, parse_limits, parse_places
from flowfabric.core.waits.suspend import Suspend
from flowfabric.engine.context import Context, audit_info
from flowfabric.engine.waitpoints import draw_waitpoint
from flowfabric.ops.flows.cancel_children import CancelChildren
from flowfabric.ops.flows.descendants import CancelCommand
from flowfabric.ops.flows.submit_children import SubmitChildren
from flowfabric.ops.flows.wait_children import WaitChildren


def claim_request(
    lanes: object, worker: object, capabilities: object, limit: object, ttl: object, kinds: object
) -> Claim:
    """Validate the criteria of a claim, and return its request."""
    return Claim(
        lanes=validation.names(lanes, "lanes"),
        worker=requests.parse_worker(worker),
        capabilities=validation.capabilities(capabilities, "capabilities"),
        limit=validation.integer(limit, "limit", 1, validation.MAX_BATCH),
        lease_ttl=lease_ttl(ttl),
        kinds=None if kinds is None else validation.names(kinds, "kinds"),
    )


def checkpoint(fence: object, steps: object) -> Checkpoint:
    """Validate the steps of a checkpoint, and return its request."""
    request = Checkpoint(fence=requests.parse_fence(fence), steps=requests.parse_steps(steps))
    if not request.steps:
        raise InvalidRequest("invalid_request", "a checkpoint needs at least one step", field="steps")
    return request


def wait_snapshot_request(
    fence: object, waitpoints: object, children: object, skipped: object, limits: object
) -> WaitSnapshotRequest:
    """Validate what a worker wants to know about its waits, and return the request."""
    ids = [parse_id(child, "children") for child in validation.batch(children, "children")]
    return WaitSnapshotRequest(
        requests.parse_fence(fence).execution_id,
        parse_places(waitpoints),
        ids,
        parse_skipped(skipped),
        parse_limits({} if limits is None else limits),
    )


def submit_children_request(fence: object, submissions: object, steps: object) -> SubmitChildren:
    """Validate children and the steps that record them, and return the request."""
    children = tuple(child_submissions(submissions))
    return SubmitChildren(fence=requests.parse_fence(fence), children=children, steps=requests.parse_steps(steps))


def failure_report(
    fence: object,
    message: object,
    failure_class: object,
    category: object,
    detail: object,
    steps: object,
    *,
    chance: float,
) -> FailureReport:
    """Validate what a worker reports about a failure, and return the request. `chance` decides the retry's jitter."""
    kind = parse_choice(FailureClass, failure_class, "failure_class")
    return FailureReport(
        fence=requests.parse_fence(fence),
        message=validation.text(message, "message"),
        failure_class=kind,
        category=validation.name(kind.value if category is None else category, "category"),
        chance=chance,
        steps=requests.parse_steps(steps),
        detail=None if detail is None else validation.payload(detail, "detail"),
    )


def step_retries(fence: object, retries: object, steps: object) -> StepRetries:
    """Validate a report of steps that are tried again, and return the request."""
    request = StepRetries(
        fence=requests.parse_fence(fence),
        retries=tuple(_step_retry(retry) for retry in validation.batch(retries, "retries")),
        steps=requests.parse_steps(steps),
    )
    names = {step.name for step in request.steps if step.status is StepStatus.OPEN}
    if len({retry.step for retry in request.retries}) < len(request.retries):
        raise InvalidRequest("invalid_request", "retries must name each step only once", field="retries")
    for retry in request.retries:
        if retry.step not in names:
            message = f"retries must have an open step in steps, but {retry.step!r} has none"
            raise InvalidRequest("invalid_request", message, field="steps")
    return request


def _step_retry(retry: object) -> StepRetry:
    if not isinstance(retry, StepRetry):
        raise InvalidRequest("invalid_type", "retries must contain StepRetry records", field="retries")
    tries = validation.integer(retry.tries, "tries", 1, validation.MAX_INTEGER)
    return StepRetry(
        step=validation.name(retry.step, "step"),
        tries=tries,
        max_tries=validation.integer(retry.max_tries, "max_tries", tries, validation.MAX_INTEGER),
        at=validation.timestamp(retry.at, "at"),
        message=validation.text(retry.message, "message"),
        category=validation.name(retry.category, "category"),
    )


def delay_request(fence: object, until: object, after: object, steps: object) -> DelayRequest:
    """Validate the time of a delay, which is either absolute or relative, and return its request."""
    if (until is None) == (after is None):
        raise InvalidRequest("invalid_request", "give until or after, one of the two")
    return DelayRequest(
        fence=requests.parse_fence(fence),
        until=None if until is None else validation.timestamp(until, "until"),
        after=None if after is None else validation.duration(after, "after"),
        steps=requests.parse_steps(steps),
    )


def hold_request(fence: object, reason: object, report: object, steps: object) -> HoldRequest:
    """Validate the reason and the report of a hold, and return its request."""
    return HoldRequest(
        fence=requests.parse_fence(fence),
        reason=validation.text(reason, "reason"),
        report=validation.text(report, "report", MAX_REPORT_BYTES),
        steps=requests.parse_steps(steps),
    )


def postponement(
    fence: object, reason: object, report: object, version: object, after: object, steps: object
) -> Postponement:
    """Validate the reason and the report of a run that could not continue, and return the request."""
    if reason not in (DIVERGED, RUN_FAILED):
        raise InvalidRequest("invalid_choice", f"reason must be {DIVERGED!r} or {RUN_FAILED!r}", field="reason")
    return Postponement(
        fence=requests.parse_fence(fence),
        reason=str(reason),
        report=validation.text(report, "report", MAX_REPORT_BYTES),
        version=validation.name(version, "version"),
        after=None if after is None else validation.duration(after, "after"),
        steps=requests.parse_steps(steps),
    )


def continuation(fence: object, payload: object, encoding: object, steps: object) -> Continuation:
    """Validate the input of the next generation, and return the request."""
    return Continuation(
        fence=requests.parse_fence(fence),
        payload=validation.payload(payload, "payload"),
        encoding=validation.name(encoding, "encoding"),
        steps=requests.parse_steps(steps),
    )


def own_cancel(fence: object, reason: object, steps: object) -> CancelOwnRequest:
    """Validate the reason of a worker that cancels its execution, and return the request."""
    return CancelOwnRequest(
        fence=requests.parse_fence(fence),
        reason=validation.text(reason, "reason"),
        steps=requests.parse_steps(steps),
    )


def progress_report(fence: object, percent: object, message: object) -> Progress:
    """Validate a progress report, and return the request."""
    return Progress(
        fence=requests.parse_fence(fence),
        percent=None if percent is None else validation.integer(percent, "percent", 0, 100),
        message=None if message is None else validation.text(message, "message"),
    )


def check_functions(**functions: object) -> None:
    """Raise if one of the named arguments is not a function."""
    for name, function in functions.items():
        if not callable(function):
            message = f"{name} must be a function, not {type(function).__name__}"
            raise InvalidRequest("invalid_type", message, field=name)


def suspend_request(
    context: Context,
    fence: object,
    waitpoints: object,
    condition: object,
    timeout: object,
    timeout_at: object,
    **settings: Any,
) -> Suspend:
    """Validate the bindings, the condition and the times of a suspension, and return its request."""
    bound = parse_bindings(waitpoints)
    if timeout is not None and timeout_at is not None:
        raise InvalidRequest("invalid_request", "give timeout or timeout_at, not both")
    checked = _default_condition(bound) if condition is None else _check_condition(condition)
    has_timeout = timeout is not None or timeout_at is not None
    validate(checked, [binding.key for binding in bound], has_timeout=has_timeout)
    key = settings["key"]
    return Suspend(
        fence=requests.parse_fence(fence),
        bindings=bound,
        condition=checked,
        reason=parse_choice(SuspensionReason, settings["reason"], "reason"),
        timeout=None if timeout is None else validation.duration(timeout, "timeout"),
        timeout_at=None if timeout_at is None else validation.timestamp(timeout_at, "timeout_at"),
        on_timeout=parse_choice(OnTimeout, settings["on_timeout"], "on_timeout"),
        resume_delay=validation.duration(settings["resume_delay"], "resume_delay"),
        rest=parse_choice(UnusedWaitpoints, settings["rest"], "rest"),
        key=None if key is None else validation.name(key, "key"),
        suspension_id=context.ids.mint() if settings.get("id") is None else parse_new_id(settings["id"]),
        seeds=tuple(draw_waitpoint(context) for _ in bound),
        steps=requests.parse_steps(settings["steps"]),
    )


def _default_condition(bound: tuple[Bound, ...]) -> Condition:
    """Return a condition that needs a signal at every waitpoint.

    Without waitpoints, only an operator can end the wait.
    """
    members = [Single(binding.key) for binding in bound]
    if not members:
        return OperatorOnly()
    return members[0] if len(members) == 1 else AllOf(members)


def _check_condition(value: object) -> Condition:
    if isinstance(value, Condition):
        return value
    message = f"condition must be Single, AllOf, AnyOf, Count, OperatorOnly or TimeoutOnly, not {type(value).__name__}"
    raise InvalidRequest("invalid_type", message, field="condition")


def child_submissions(value: object) -> tuple[ChildSubmission, ...]:
    """Check that the children fit into one batch and have distinct keys, and return them."""
    children = tuple(validation.batch(value, "submissions"))
    for child in children:
        if not isinstance(child, ChildSubmission):
            message = f"submissions must hold ChildSubmission records, not {type(child).__name__}"
            raise InvalidRequest("invalid_type", message, field="submissions")
    if len({child.key for child in children}) != len(children):
        raise InvalidRequest("invalid_request", "two children of one call have the same key", field="submissions")
    return children


def cancel_children_request(
    fence: object, children: object, principal: object, reason: object, source: object
) -> CancelChildren:
    """Return the request to cancel children."""
    audit, source = audit_info(principal, reason), validation.name(source, "source")
    return CancelChildren(
        fence=requests.parse_fence(fence),
        children=tuple(parse_id(child, "children") for child in validation.batch(children, "children")),
        command=CancelCommand(audit=audit, source=source, children=True),
    )


def wait_children_request(
    fence: object, value: object, join: object, key: object, steps: object, edge: object = EdgeKind.ON_COMPLETION
) -> WaitChildren:
    """Validate the arguments of `wait_children`, drop repeated ids, and return its request."""
    if isinstance(value, str | bytes) or not isinstance(value, Sequence):
        message = f"children must be a list of ids, not {type(value).__name__}"
        raise InvalidRequest("invalid_type", message, field="children")
    validation.integer(len(value), "number of children", 0, validation.MAX_GRAPH_MEMBERS)
    ids = tuple(dict.fromkeys(parse_id(child, "child") for child in value))
    if not isinstance(join, Join):
        message = f"join must be made by all_of, any_of or quorum, not {type(join).__name__}"
        raise InvalidRequest("invalid_type", message, field="join")
    if ids:
        check_quorum(join, len(ids), "that waits")
    return WaitChildren(
        fence=requests.parse_fence(fence),
        children=ids,
        join=join,
        steps=requests.parse_steps(steps),
        edge=parse_choice(EdgeKind, edge, "edge"),
        key=None if key is None else validation.name(key, "key"),
    )


def completion(fence: Fence, result: bytes, encoding: str, steps: Sequence[Step]) -> Completion:
    """Validate the arguments of `complete`, and return its request."""
    return Completion(
        fence=requests.parse_fence(fence),
        result=validation.payload(result, "result"),
        encoding=validation.name(encoding, "encoding"),
        steps=requests.parse_steps(steps),
    )


def completions(results: object, encoding: object) -> list[Completion]:
    """Return the request for each pair of a fence and a result."""
    label = validation.name(encoding, "encoding")
    return [completion(*result_pair(pair), label, ()) for pair in validation.batch(results, "results")]


def result_pair(value: object) -> tuple[Fence, bytes]:
    """Check that the value is a pair, and return it; its fence and its result are validated later."""
    if not isinstance(value, tuple) or len(value) != 2:
        raise InvalidRequest("invalid_type", "results must hold pairs of a fence and a result", field="results")
    return value


def lease_ttl(value: object) -> timedelta | None:
    """Return the validated duration of a lease, or None, which means the default of the execution's policy."""
    if value is None:
        return None
    return validation.duration(value, "lease_ttl", validation.MIN_LEASE_TTL, validation.MAX_LEASE_TTL)
