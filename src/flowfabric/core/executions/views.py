"""Public views of executions: the state vector, attempts, waits and outcome."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from typing import Any
from uuid import UUID

from flowfabric.core.executions.records import Attempt, Event, Execution, WorkerId
from flowfabric.core.executions.states import State, StateVector
from flowfabric.core.fast_dataclass import record, replace
from flowfabric.core.policy import Policy
from flowfabric.core.waits.conditions import Condition, required_signal_names
from flowfabric.core.waits.evaluate import (
    ApprovalProgress,
    SignalFacts,
    approval_progress,
    is_approval,
    missing_signals,
)
from flowfabric.core.waits.prompts import ApprovalPrompt, read_prompt
from flowfabric.core.waits.records import (
    OnTimeout,
    Suspension,
    SuspensionReason,
    Waitpoint,
    WaitpointKind,
    WaitpointState,
)


@dataclass(frozen=True, slots=True)
class LeaseView:
    """The worker that has the lease of an execution, and the times of the lease. The lease id is never shown."""

    worker: WorkerId
    acquired_at: datetime
    renewed_at: datetime
    expires_at: datetime


@dataclass(frozen=True, slots=True)
class Failure:
    """The last failure: its message, its category and, in an outcome, the detail that the worker sent."""

    message: str
    category: str
    detail: bytes | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitpointView:
    """Public view of a waitpoint. It never shows the token, only its key id and a fingerprint.

    `names` are the names of the signals that the current wait needs; None means any name, an empty tuple means no
    signal. `prompt` is shown to the approver.
    """

    id: UUID
    execution_id: UUID
    key: str
    kind: WaitpointKind
    state: WaitpointState
    names: tuple[str, ...] | None
    approver: str | None
    kid: str | None
    fingerprint: str | None
    created_at: datetime
    expires_at: datetime | None
    closed_at: datetime | None
    close_reason: str | None
    prompt: ApprovalPrompt | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SuspendedView:
    """Public view of an open wait: its times, its condition, the missing signals, and the progress of an approval."""

    id: UUID
    execution_id: UUID
    reason: SuspensionReason
    condition: Condition
    missing: tuple[str, ...]
    opened_at: datetime
    timeout_at: datetime | None
    on_timeout: OnTimeout
    approval: ApprovalProgress | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """An execution in brief."""

    id: UUID
    namespace: str
    lane: str
    kind: str
    priority: int
    tags: Mapping[str, str]
    state: State
    vector: StateVector
    epoch: int
    version: int
    generation: int
    attempt_index: int
    retry_count: int
    reclaim_count: int
    replay_count: int
    created_at: datetime
    started_at: datetime | None
    changed_at: datetime
    ended_at: datetime | None
    ready_at: datetime | None
    deadline_at: datetime | None
    lease: LeaseView | None
    progress_percent: int | None
    progress_message: str | None
    last_failure: Failure | None
    cancelled_by: str | None
    cancel_reason: str | None
    hold_reason: str | None
    flow_id: UUID | None
    member_name: str | None
    parent_id: UUID | None
    creator: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Description(Summary):
    """An execution with its input, its policy and every attempt that has ended."""

    key: str | None
    payload: bytes
    encoding: str
    policy: Policy
    requires: tuple[str, ...]
    attempts: tuple[Attempt, ...]
    suspension: SuspendedView | None
    waitpoints: tuple[WaitpointView, ...]
    hold_report: str | None = None


@record(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How an execution ended. `result` is set only if the execution completed."""

    state: State
    result: bytes | None
    encoding: str | None
    failure: Failure | None
    cancelled_by: str | None
    cancel_reason: str | None
    ended_at: datetime


@record(frozen=True, slots=True)
class StateSnapshot:
    """The state of an execution, its hold reason if it is held, and its outcome if it has ended."""

    state: State
    hold_reason: str | None
    outcome: Outcome | None


@record(frozen=True, slots=True)
class LeaseSnapshot:
    """The id of the live lease of an execution, and the time when a requested cancel becomes final."""

    lease_id: UUID | None
    cancel_due_at: datetime | None


@dataclass(frozen=True, slots=True)
class Page:
    """One page of a list, and the cursor of the next page if there is one."""

    items: tuple[Summary, ...]
    next_cursor: str | None


@dataclass(frozen=True, slots=True)
class ApproximateCount:
    """A count. Large counts are estimates and have `is_exact` False."""

    value: int
    is_exact: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Backlog:
    """How many executions of one kind, with the same required capabilities, wait on one lane.

    Above 1,000, `waiting` is a lower bound.
    """

    lane: str
    kind: str
    requires: tuple[str, ...]
    waiting: ApproximateCount


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldWork:
    """The held executions of one kind with the same hold reason: how many, and the oldest of them.

    `report` is the report of the worker that held the oldest one, or None if an operator held it.
    """

    kind: str
    reason: str
    number: ApproximateCount
    first: UUID
    report: str | None


def summarize(execution: Execution) -> Summary:
    """Return the summary of an execution."""
    return Summary(**_summary_values(execution))


def describe_execution(
    execution: Execution,
    requires: Sequence[str],
    attempts: Sequence[Attempt],
    suspension: SuspendedView | None,
    waitpoints: Sequence[WaitpointView],
    hold_report: str | None = None,
) -> Description:
    """Return the full public view of an execution."""
    return Description(
        **_summary_values(execution),
        key=execution.idempotency_key,
        payload=execution.payload,
        encoding=execution.encoding,
        policy=execution.policy,
        requires=tuple(requires),
        attempts=tuple(attempts),
        suspension=suspension,
        waitpoints=tuple(waitpoints),
        hold_report=hold_report,
    )


def view_waitpoint(waitpoint: Waitpoint, suspension: Suspension | None) -> WaitpointView:
    """Return the public view of a waitpoint, with the signals that the suspension needs from it."""
    token = waitpoint.token
    return WaitpointView(
        id=waitpoint.id,
        execution_id=waitpoint.execution_id,
        key=waitpoint.key,
        kind=waitpoint.kind,
        state=waitpoint.state,
        approver=waitpoint.approver,
        kid=token.kid if token else None,
        names=required_signal_names(suspension.condition, waitpoint.key) if suspension else None,
        fingerprint=token.hash.hex()[:16] if token else None,
        created_at=waitpoint.created_at,
        expires_at=waitpoint.expires_at,
        closed_at=waitpoint.closed_at,
        close_reason=waitpoint.close_reason,
        prompt=read_prompt(waitpoint.prompt),
    )


def view_suspension(
    suspension: Suspension, waitpoints: Sequence[Waitpoint], counting: Sequence[SignalFacts]
) -> SuspendedView:
    """Return the public view of an open wait."""
    condition = suspension.condition
    approvers = {waitpoint.key: waitpoint.approver for waitpoint in waitpoints if waitpoint.approver is not None}
    asks_people = suspension.reason is SuspensionReason.WAITING_FOR_APPROVAL or is_approval(condition)
    return SuspendedView(
        id=suspension.id,
        execution_id=suspension.execution_id,
        reason=suspension.reason,
        condition=condition,
        missing=missing_signals(condition, counting, approvers, _engine_signals(waitpoints)),
        opened_at=suspension.opened_at,
        timeout_at=suspension.timeout_at,
        on_timeout=suspension.on_timeout,
        approval=approval_progress(condition, counting, approvers) if asks_people else None,
    )


def _engine_signals(waitpoints: Sequence[Waitpoint]) -> dict[str, str]:
    """Describe, by key, the waitpoints that the engine itself signals when a child ends or a time comes."""
    children = {point.key: f'child "{point.key}" to end' for point in waitpoints if point.child_id is not None}
    timers = {point.key: f"{point.fires_at:%Y-%m-%d %H:%M:%S} UTC" for point in waitpoints if point.fires_at}
    return children | timers


def make_outcome(execution: Execution, attempt: Attempt | None) -> Outcome:
    """Return the outcome of an ended execution; `attempt` is its last attempt, which has the result."""
    assert execution.ended_at is not None, "only a terminal execution has an outcome"
    return Outcome(
        state=execution.state,
        result=attempt.result if attempt else None,
        encoding=attempt.encoding if attempt else None,
        failure=make_failure(
            execution.state,
            execution.failure_message,
            execution.failure_category,
            attempt.failure_detail if attempt else None,
        ),
        cancelled_by=execution.cancelled_by,
        cancel_reason=execution.cancel_reason,
        ended_at=execution.ended_at,
    )


def make_failure(state: State, message: str | None, category: str | None, detail: bytes | None) -> Failure | None:
    """Return the failure of an execution that failed or expired.

    Return None for any other state, even if an attempt failed.
    """
    return None if message is None or state not in _ENDED_BADLY else Failure(message, category or "", detail)


_ENDED_BADLY = frozenset({State.FAILED, State.EXPIRED})
_DERIVED = frozenset({"vector", "lease", "last_failure"})


def _summary_values(execution: Execution) -> dict[str, Any]:
    stored = {item.name: getattr(execution, item.name) for item in fields(Summary) if item.name not in _DERIVED}
    lease, message = execution.lease, execution.failure_message
    return stored | {
        "vector": execution.vector,
        "lease": lease and LeaseView(lease.worker, lease.acquired_at, lease.expires_at - lease.ttl, lease.expires_at),
        "last_failure": None if message is None else Failure(message, execution.failure_category or ""),
    }


# The history of an execution also shows when its children were submitted, and when and how they ended. These events are
# derived from the rows of the children, because the parent's own history has no events about its children.

CHILD = "child"


def with_children(events: Iterable[Event], children: Iterable[Summary]) -> list[Event]:
    """Return the events of an execution and of its children, sorted by time.

    Among events with the same time, the execution's own events come first, and the ends of children come last.
    """
    child_events = [event for child in children for event in _child_events(child)]
    return sorted([*events, *child_events], key=_sort_key)


def _child_events(child: Summary) -> Iterator[Event]:
    submitted = Event(
        namespace=child.namespace,
        family=CHILD,
        name="submitted",
        at=child.created_at,
        lane=child.lane,
        execution_id=child.id,
        kind=child.kind,
    )
    yield submitted
    if child.ended_at is not None:
        yield replace(submitted, name=child.state.value, at=child.ended_at, state=child.state)


def _sort_key(event: Event) -> tuple[datetime, int]:
    is_own = event.family != CHILD
    return event.at, 0 if is_own else 1 if event.state is None else 2
