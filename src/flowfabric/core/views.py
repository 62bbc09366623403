"""What reads show: executions with their whole public vector, their attempts and their outcome."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from typing import Any
from uuid import UUID

from flowfabric.core.conditions import Condition, required_signal_names
from flowfabric.core.evaluating import SignalFacts
from flowfabric.core.frozen import record
from flowfabric.core.policy import Policy
from flowfabric.core.records import Attempt, Execution, WorkerId
from flowfabric.core.states import State, StateVector, derive_vector
from flowfabric.core.waits import OnTimeout, Suspension, SuspensionReason, Waitpoint, WaitpointKind, WaitpointState
from flowfabric.core.why_not import why_not


@dataclass(frozen=True, slots=True)
class LeaseView:
    """Who holds the execution and for how long; never the lease's id."""

    worker: WorkerId
    acquired_at: datetime
    renewed_at: datetime
    expires_at: datetime


@dataclass(frozen=True, slots=True)
class Failure:
    """The last failure: what it said, its category, and, where an end is told, the detail that its worker gave."""

    message: str
    category: str
    detail: bytes | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitpointView:
    """A waitpoint as it may be shown: of its token only the key id and a fingerprint. `names` are the signals that help
    the present wait: None any, empty none."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class SuspendedView:
    """An open wait: since when, until when and then what, its condition, and what is missing, in words."""

    id: UUID
    execution_id: UUID
    reason: SuspensionReason
    condition: Condition
    missing: tuple[str, ...]
    opened_at: datetime
    timeout_at: datetime | None
    on_timeout: OnTimeout


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """An execution at a glance."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Description(Summary):
    """An execution with its input, its policy and every attempt that has ended."""

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
    """How an execution ended; `result` is there when it completed."""

    state: State
    result: bytes | None
    encoding: str | None
    failure: Failure | None
    cancelled_by: str | None
    cancel_reason: str | None
    ended_at: datetime


@record(frozen=True, slots=True)
class Glance:
    """Where an execution is, at a glance: its state, why it is held if it is, and how it ended if it has."""

    state: State
    hold_reason: str | None
    outcome: Outcome | None


@dataclass(frozen=True, slots=True)
class Page:
    """One page of a listing, and the cursor of the next one if there is more."""

    items: tuple[Summary, ...]
    next_cursor: str | None


@dataclass(frozen=True, slots=True)
class Tally:
    """How many; above 10,000 it is an estimate and says so."""

    number: int
    exact: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Backlog:
    """What waits for a worker on one lane, of one kind and with the same required capabilities; above 1,000 the number
    is the least that it is, and says so."""

    lane: str
    kind: str
    requires: tuple[str, ...]
    waiting: Tally


def summarize(execution: Execution) -> Summary:
    """The public view of an execution."""
    return Summary(**_summary_values(execution))


def describe_execution(
    execution: Execution, requires: Sequence[str], attempts: Sequence[Attempt], suspension: SuspendedView | None,
    waitpoints: Sequence[WaitpointView], hold_report: str | None = None,
) -> Description:  # fmt: skip
    """The full public view of an execution."""
    return Description(
        **_summary_values(execution), payload=execution.payload, encoding=execution.encoding, policy=execution.policy,
        requires=tuple(requires), attempts=tuple(attempts), suspension=suspension, waitpoints=tuple(waitpoints),
        hold_report=hold_report,
    )  # fmt: skip


def view_waitpoint(waitpoint: Waitpoint, suspension: Suspension | None) -> WaitpointView:
    """A waitpoint as it may be shown, with the signals that the suspension which has bound it waits for."""
    token = waitpoint.token
    return WaitpointView(
        id=waitpoint.id, execution_id=waitpoint.execution_id, key=waitpoint.key, kind=waitpoint.kind,
        state=waitpoint.state, approver=waitpoint.approver, kid=token.kid if token else None,
        names=required_signal_names(suspension.condition, waitpoint.key) if suspension else None,
        fingerprint=token.hash.hex()[:16] if token else None, created_at=waitpoint.created_at,
        expires_at=waitpoint.expires_at, closed_at=waitpoint.closed_at, close_reason=waitpoint.close_reason,
    )  # fmt: skip


def view_suspension(
    suspension: Suspension, waitpoints: Sequence[Waitpoint], counting: Sequence[SignalFacts]
) -> SuspendedView:
    """An open wait as it is shown."""
    bound = {item.key for item in waitpoints if item.approver is not None}
    return SuspendedView(
        id=suspension.id, execution_id=suspension.execution_id, reason=suspension.reason,
        condition=suspension.condition, missing=why_not(suspension.condition, counting, bound),
        opened_at=suspension.opened_at, timeout_at=suspension.timeout_at, on_timeout=suspension.on_timeout,
    )  # fmt: skip


def outcome_of(execution: Execution, attempt: Attempt | None) -> Outcome:
    """How a terminal execution ended, with the result of its last attempt."""
    assert execution.ended_at is not None, "only a terminal execution has an outcome"
    return Outcome(
        state=execution.state,
        result=attempt.result if attempt else None,
        encoding=attempt.encoding if attempt else None,
        failure=failure_of(
            execution.state,
            execution.failure_message,
            execution.failure_category,
            attempt.failure_detail if attempt else None,
        ),
        cancelled_by=execution.cancelled_by,
        cancel_reason=execution.cancel_reason,
        ended_at=execution.ended_at,
    )


def failure_of(state: State, message: str | None, category: str | None, detail: bytes | None) -> Failure | None:
    """Why it ended, if it ended badly: a failure before a good end is not part of the outcome."""
    return None if message is None or state not in _ENDED_BADLY else Failure(message, category or "", detail)


_ENDED_BADLY = frozenset({State.FAILED, State.EXPIRED})
_DERIVED = frozenset({"vector", "lease", "last_failure"})


def _summary_values(execution: Execution) -> dict[str, Any]:
    stored = {item.name: getattr(execution, item.name) for item in fields(Summary) if item.name not in _DERIVED}
    vector = derive_vector(execution.state, execution.blocking_reason, execution.attempt_state, execution.ownership)
    return stored | {"vector": vector, "lease": _lease_view(execution), "last_failure": _last_failure(execution)}


def _lease_view(execution: Execution) -> LeaseView | None:
    lease = execution.lease
    if lease is None:
        return None
    return LeaseView(lease.worker, lease.acquired_at, lease.expires_at - lease.ttl, lease.expires_at)


def _last_failure(execution: Execution) -> Failure | None:
    if execution.failure_message is None:
        return None
    return Failure(execution.failure_message, execution.failure_category or "")
