"""Every transition of an execution as data, and the function that applies a transition.

    submit ─→ waiting or delayed           delayed ─ ready ─→ waiting
    waiting, delayed ─ hold ─→ blocked     blocked ─ unhold ─→ waiting or delayed
    active ─ its worker holds it ─→ blocked, ─ continues with new input ─→ waiting
    waiting ─ claim ─→ active              active ─ delay, retry ─→ delayed
    suspended ─ resume ─→ waiting, delayed active ─ suspend ─→ suspended
    terminal ─ replay ─→ waiting           active ─ release, lease lost ─→ waiting
    blocked ─ its group fires ─→ waiting or delayed, ─ it cannot fire ─→ skipped
    not terminal ─→ cancelled, expired     active ─ lease lost, kept for a hand-off ─→ active ─ reclaim ─→ active
                                           active ─→ completed, failed

Each operation passes its transition to `apply_transition`, which returns the changed execution with a new version for
the event row. If the execution is in none of the transition's source states, it raises an error with the transition's
code. The most frequent operations use SQL statements instead; tests check that these follow the same transitions.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from flowfabric.core.errors import Refused
from flowfabric.core.executions.records import Event, Execution, FormerLease
from flowfabric.core.executions.states import (
    LIVE,
    TERMINAL,
    AttemptState,
    BlockingReason,
    Ownership,
    State,
)
from flowfabric.core.fast_dataclass import copy_with, replace
from flowfabric.core.policy import span


@dataclass(frozen=True, slots=True, kw_only=True)
class Transition:
    """One legal transition: its source states, its target and the fields that it sets.

    A field with the value None does not change the execution.
    """

    name: str
    sources: frozenset[State]
    target: State | None
    event: tuple[str, str]
    refusal: str
    attempt: AttemptState | None = None
    reason: BlockingReason | None = None
    ownership: Ownership | None = None
    leased: bool | None = None
    new_epoch: bool = False


_ACTIVE = frozenset({State.ACTIVE})
_SUSPENDED = frozenset({State.SUSPENDED})
_NOT_ACTIVE = "execution_not_active"
_NOT_ELIGIBLE = "execution_not_eligible"

CLAIM = Transition(
    name="claim", sources=frozenset({State.WAITING}), target=State.ACTIVE, event=("lease", "acquired"),
    refusal="execution_not_leaseable", attempt=AttemptState.RUNNING, reason=BlockingReason.NONE,
    ownership=Ownership.LEASED, new_epoch=True,
)  # fmt: skip
COMPLETE = Transition(
    name="complete", sources=_ACTIVE, target=State.COMPLETED, event=("completion", "completed"),
    refusal=_NOT_ACTIVE, attempt=AttemptState.TERMINAL, reason=BlockingReason.NONE, leased=True,
)  # fmt: skip
FAIL = Transition(
    name="fail", sources=_ACTIVE, target=State.FAILED, event=("completion", "failed"),
    refusal=_NOT_ACTIVE, attempt=AttemptState.TERMINAL, reason=BlockingReason.NONE, leased=True,
)  # fmt: skip
RENEW = Transition(
    name="renew", sources=_ACTIVE, target=None, event=("lease", "renewed"), refusal=_NOT_ACTIVE, leased=True,
)  # fmt: skip
RETRY = Transition(
    name="retry", sources=_ACTIVE, target=State.DELAYED, event=("lease", "retry_scheduled"),
    refusal=_NOT_ACTIVE, attempt=AttemptState.PENDING_RETRY, reason=BlockingReason.WAITING_FOR_RETRY_BACKOFF,
    leased=True, new_epoch=True,
)  # fmt: skip
RETRY_STEP = Transition(
    name="retry_steps", sources=_ACTIVE, target=None, event=("lease", "step_retry_scheduled"), refusal=_NOT_ACTIVE,
    leased=True,
)  # fmt: skip
DELAY = Transition(
    name="delay", sources=_ACTIVE, target=State.DELAYED, event=("lease", "delayed"),
    refusal=_NOT_ACTIVE, attempt=AttemptState.INTERRUPTED, reason=BlockingReason.WAITING_FOR_DELAY,
    leased=True, new_epoch=True,
)  # fmt: skip
RELEASE = Transition(
    name="release", sources=_ACTIVE, target=State.WAITING, event=("lease", "released"),
    refusal=_NOT_ACTIVE, attempt=AttemptState.INTERRUPTED, reason=BlockingReason.WAITING_FOR_WORKER,
    leased=True, new_epoch=True,
)  # fmt: skip
REQUEUE_EXPIRED = Transition(
    name="lease_expired", sources=_ACTIVE, target=State.WAITING, event=("lease", "expired"),
    refusal=_NOT_ACTIVE, attempt=AttemptState.PENDING_RECLAIM, reason=BlockingReason.WAITING_FOR_WORKER,
    leased=True, new_epoch=True,
)  # fmt: skip
KEEP_EXPIRED = Transition(
    name="lease_expired", sources=_ACTIVE, target=State.ACTIVE, event=("lease", "expired"),
    refusal=_NOT_ACTIVE, attempt=AttemptState.PENDING_RECLAIM, reason=BlockingReason.WAITING_FOR_WORKER,
    ownership=Ownership.EXPIRED, leased=True, new_epoch=True,
)  # fmt: skip
REQUEUE_REVOKED = Transition(
    name="lease_revoked", sources=_ACTIVE, target=State.WAITING, event=("lease", "revoked"),
    refusal=_NOT_ACTIVE, attempt=AttemptState.PENDING_RECLAIM, reason=BlockingReason.WAITING_FOR_WORKER,
    leased=True, new_epoch=True,
)  # fmt: skip
KEEP_REVOKED = Transition(
    name="lease_revoked", sources=_ACTIVE, target=State.ACTIVE, event=("lease", "revoked"),
    refusal=_NOT_ACTIVE, attempt=AttemptState.PENDING_RECLAIM, reason=BlockingReason.WAITING_FOR_WORKER,
    ownership=Ownership.REVOKED, leased=True, new_epoch=True,
)  # fmt: skip
RECLAIM = Transition(
    name="reclaim", sources=_ACTIVE, target=State.ACTIVE, event=("lease", "reclaimed"),
    refusal="execution_not_reclaimable", attempt=AttemptState.RUNNING, reason=BlockingReason.NONE,
    ownership=Ownership.LEASED, leased=False, new_epoch=True,
)  # fmt: skip
GRANT = Transition(
    name="grant_reclaim", sources=_ACTIVE, target=None, event=("operator", "reclaim_granted"),
    refusal="execution_not_reclaimable", leased=False,
)  # fmt: skip
EXHAUST = Transition(
    name="lease_expired", sources=_ACTIVE, target=State.FAILED, event=("completion", "failed"),
    refusal=_NOT_ACTIVE, attempt=AttemptState.TERMINAL, reason=BlockingReason.NONE, new_epoch=True,
)  # fmt: skip
TIME_OUT = Transition(
    name="attempt_timeout", sources=_ACTIVE, target=State.FAILED, event=("completion", "failed"),
    refusal=_NOT_ACTIVE, attempt=AttemptState.TERMINAL, reason=BlockingReason.NONE, leased=True, new_epoch=True,
)  # fmt: skip
EXPIRE = Transition(
    name="expire", sources=LIVE, target=State.EXPIRED, event=("completion", "expired"),
    refusal=_NOT_ACTIVE, attempt=AttemptState.TERMINAL, reason=BlockingReason.NONE, new_epoch=True,
)  # fmt: skip
CANCEL = Transition(
    name="cancel", sources=LIVE, target=State.CANCELLED, event=("completion", "cancelled"),
    refusal=_NOT_ACTIVE, attempt=AttemptState.TERMINAL, reason=BlockingReason.NONE, new_epoch=True,
)  # fmt: skip
SUSPEND = Transition(
    name="suspend", sources=_ACTIVE, target=State.SUSPENDED, event=("lease", "suspended"),
    refusal=_NOT_ACTIVE, attempt=AttemptState.INTERRUPTED, leased=True, new_epoch=True,
)  # fmt: skip
SATISFY_IMMEDIATELY = Transition(
    name="suspend", sources=_ACTIVE, target=None, event=("lifecycle", "resumed"), refusal=_NOT_ACTIVE, leased=True,
)  # fmt: skip
DELIVER = Transition(
    name="deliver_signal", sources=_SUSPENDED, target=None, event=("signal", "delivered"),
    refusal="target_not_signalable",
)  # fmt: skip
BUFFER = Transition(
    name="deliver_signal", sources=LIVE, target=None, event=("signal", "buffered"), refusal="target_not_signalable",
)  # fmt: skip
SKIP_SIGNAL = Transition(
    name="skip_signal", sources=_ACTIVE, target=None, event=("signal", "unreadable"), refusal=_NOT_ACTIVE, leased=True,
)  # fmt: skip
RESUME = Transition(
    name="resume", sources=_SUSPENDED, target=State.WAITING, event=("lifecycle", "resumed"),
    refusal="execution_not_suspended", attempt=AttemptState.INTERRUPTED, reason=BlockingReason.WAITING_FOR_WORKER,
)  # fmt: skip
RESUME_DELAYED = replace(RESUME, target=State.DELAYED, reason=BlockingReason.WAITING_FOR_RESUME_DELAY)
OVERRIDE = replace(RESUME, event=("operator", "resumed"))
OVERRIDE_DELAYED = replace(RESUME_DELAYED, event=("operator", "resumed"))
WAIT_FAILED = Transition(
    name="suspension_timeout", sources=_SUSPENDED, target=State.FAILED, event=("completion", "failed"),
    refusal="execution_not_suspended", attempt=AttemptState.TERMINAL, reason=BlockingReason.NONE, new_epoch=True,
)  # fmt: skip
ESCALATE = Transition(
    name="escalate", sources=_SUSPENDED, target=None, event=("lifecycle", "blocked"),
    refusal="execution_not_suspended", reason=BlockingReason.PAUSED_BY_OPERATOR,
)  # fmt: skip
CLOSE_WAITPOINT = Transition(
    name="close_waitpoint", sources=LIVE, target=None, event=("operator", "waitpoint_closed"), refusal=_NOT_ACTIVE,
)  # fmt: skip
READY = Transition(
    name="ready", sources=frozenset({State.DELAYED}), target=State.WAITING, event=("lifecycle", "ready"),
    refusal=_NOT_ELIGIBLE, reason=BlockingReason.WAITING_FOR_WORKER,
)  # fmt: skip
HOLD = Transition(
    name="hold", sources=frozenset({State.WAITING, State.DELAYED}), target=State.BLOCKED, event=("operator", "held"),
    refusal=_NOT_ELIGIBLE, reason=BlockingReason.PAUSED_BY_OPERATOR,
)  # fmt: skip
HOLD_OWN = Transition(
    name="hold", sources=_ACTIVE, target=State.BLOCKED, event=("operator", "held"),
    refusal=_NOT_ACTIVE, attempt=AttemptState.INTERRUPTED, reason=BlockingReason.PAUSED_BY_OPERATOR,
    leased=True, new_epoch=True,
)  # fmt: skip
CONTINUE = replace(RELEASE, name="continue_with", event=("lease", "continued"))
UNHOLD = Transition(
    name="unhold", sources=frozenset({State.BLOCKED}), target=State.WAITING, event=("operator", "unheld"),
    refusal=_NOT_ELIGIBLE, reason=BlockingReason.WAITING_FOR_WORKER,
)  # fmt: skip
UNHOLD_DELAYED = replace(UNHOLD, target=State.DELAYED, reason=BlockingReason.WAITING_FOR_DELAY)
BLOCK = Transition(
    name="block", sources=frozenset({State.WAITING, State.DELAYED}), target=State.BLOCKED,
    event=("lifecycle", "blocked"), refusal=_NOT_ELIGIBLE, reason=BlockingReason.WAITING_FOR_CHILDREN,
)  # fmt: skip
UNBLOCK = Transition(
    name="unblock", sources=frozenset({State.BLOCKED}), target=State.WAITING, event=("lifecycle", "ready"),
    refusal=_NOT_ELIGIBLE, reason=BlockingReason.WAITING_FOR_WORKER,
)  # fmt: skip
UNBLOCK_DELAYED = replace(UNBLOCK, target=State.DELAYED, reason=BlockingReason.WAITING_FOR_DELAY)
SKIP = Transition(
    name="skip", sources=frozenset({State.BLOCKED}), target=State.SKIPPED, event=("completion", "skipped"),
    refusal=_NOT_ELIGIBLE, attempt=AttemptState.TERMINAL, reason=BlockingReason.NONE, new_epoch=True,
)  # fmt: skip
WAIT_CHILDREN = Transition(
    name="wait_children", sources=_ACTIVE, target=State.BLOCKED, event=("lease", "waiting_children"),
    refusal=_NOT_ACTIVE, attempt=AttemptState.INTERRUPTED, reason=BlockingReason.WAITING_FOR_CHILDREN,
    leased=True, new_epoch=True,
)  # fmt: skip
UNHOLD_BLOCKED = replace(UNHOLD, target=State.BLOCKED, reason=BlockingReason.WAITING_FOR_CHILDREN)
PRIORITIZE = Transition(
    name="change_priority", sources=frozenset({State.WAITING}), target=None, event=("operator", "priority_changed"),
    refusal=_NOT_ELIGIBLE,
)  # fmt: skip
REPLAY = Transition(
    name="replay", sources=TERMINAL, target=State.WAITING, event=("operator", "replayed"),
    refusal="execution_not_terminal", attempt=AttemptState.PENDING_REPLAY, reason=BlockingReason.WAITING_FOR_WORKER,
    new_epoch=True,
)  # fmt: skip
REQUEST_CANCEL = Transition(
    name="request_cancel", sources=LIVE, target=None, event=("operator", "cancel_requested"), refusal=_NOT_ACTIVE,
)  # fmt: skip
REPLAY_BLOCKED = replace(REPLAY, target=State.BLOCKED, reason=BlockingReason.WAITING_FOR_CHILDREN)

TRANSITIONS = (
    CLAIM, COMPLETE, FAIL, RETRY, RETRY_STEP, DELAY, RELEASE, REQUEUE_EXPIRED, KEEP_EXPIRED, REQUEUE_REVOKED,
    KEEP_REVOKED, RECLAIM, EXHAUST, TIME_OUT, EXPIRE, CANCEL, SUSPEND, SATISFY_IMMEDIATELY, DELIVER, BUFFER,
    SKIP_SIGNAL, RESUME, RESUME_DELAYED, OVERRIDE, OVERRIDE_DELAYED, WAIT_FAILED, ESCALATE, CLOSE_WAITPOINT, READY,
    HOLD, UNHOLD, UNHOLD_DELAYED, PRIORITIZE, REPLAY, BLOCK, UNBLOCK, UNBLOCK_DELAYED, SKIP, WAIT_CHILDREN,
    UNHOLD_BLOCKED, REQUEST_CANCEL, REPLAY_BLOCKED, HOLD_OWN, CONTINUE, GRANT, RENEW,
)  # fmt: skip


def check(execution: Execution, transition: Transition) -> None:
    """Raise `Refused` with the transition's code if the state or the lease of the execution does not allow it."""
    wrong_owner = transition.leased is not None and transition.leased != (execution.lease is not None)
    if execution.state not in transition.sources or wrong_owner:
        raise refusal(execution, transition.refusal, f"{transition.name} is not possible in this state")


def apply_transition(
    execution: Execution,
    transition: Transition,
    now: datetime,
    digest: str | None = None,
    until: datetime | None = None,
    **changes: Any,
) -> Execution:
    """Return the execution after the transition.

    If the transition ends a lease, `digest` and `until` are stored, so that a repeated request gets the same outcome.
    """
    check(execution, transition)
    target = transition.target or execution.state
    values: dict[str, Any] = {
        "state": target,
        "ownership": transition.ownership if transition.target else execution.ownership,
        "blocking_reason": transition.reason or execution.blocking_reason,
        "attempt_state": _attempt_state(execution, transition, target),
        "epoch": execution.epoch + transition.new_epoch,
        "version": execution.version + 1,
        "changed_at": now,
    }
    if execution.lease and transition.target and transition.ownership is not Ownership.LEASED:
        values |= _without_lease(execution, transition, now, digest, until)
    if target in TERMINAL:
        values |= {"ended_at": now, "ready_at": None, "hold_reason": None, "attempt_timeout_left": None}
        values |= {"purge_at": now + span(execution.policy.retention)}
    return copy_with(execution, values | changes)


def transition_event(before: Execution, after: Execution, transition: Transition, **facts: Any) -> Event:
    """Return the event row of a transition."""
    family, name = transition.event
    lease = after.lease or before.lease
    # An event that ends a lease belongs to the attempt that was running, even if the next attempt is already pending.
    ends_lease = before.lease is not None and after.lease is None
    return Event(
        namespace=after.namespace,
        family=family,
        name=name,
        at=after.changed_at,
        lane=after.lane,
        execution_id=after.id,
        version=after.version,
        kind=after.kind,
        state=after.state,
        epoch=after.epoch,
        generation=after.generation,
        tags=after.tags or None,
        lease_id=lease.id if lease else None,
        worker=lease.worker if lease else None,
        attempt_index=(before if ends_lease else after).attempt_index,
        ends_lease=ends_lease,
        flow_id=after.flow_id,
        **facts,
    )


def refusal(execution: Execution, code: str, problem: str) -> Refused:
    """Return a `Refused` error whose fields show the current state of the execution."""
    message = f"execution {execution.id} is {execution.state} at epoch {execution.epoch}: {problem}"
    return Refused(
        code,
        message,
        execution_id=execution.id,
        state=execution.state,
        epoch=execution.epoch,
        outcome=execution.vector.terminal_outcome,
        attempt_index=execution.attempt_index,
        generation=execution.generation,
    )


def _attempt_state(execution: Execution, transition: Transition, target: State) -> AttemptState:
    if target in TERMINAL and execution.started_at is None:
        return execution.attempt_state  # The execution never started, so no attempt has ended.
    return transition.attempt or execution.attempt_state


def _without_lease(
    execution: Execution, transition: Transition, now: datetime, digest: str | None, until: datetime | None
) -> dict[str, Any]:
    lease, due = execution.lease, execution.attempt_timeout_at
    assert lease is not None, "the caller has checked that there is a lease"
    former = FormerLease(
        id=lease.id, epoch=execution.epoch, worker=lease.worker, end=transition.name, digest=digest, until=until
    )
    # Store how much of its timeout the attempt has left, so that the timeout can continue with the attempt.
    remaining = max(due - now, timedelta(0)) if due else None
    ended: dict[str, Any] = {"lease": None, "former": former, "resumption": None}
    return ended | {"attempt_timeout_at": None, "attempt_timeout_left": remaining}
