"""Every transition of an execution as data, and the function that applies one.

    submit ─→ waiting or delayed           delayed ─ ready ─→ waiting
    waiting, delayed ─ hold ─→ blocked     blocked ─ unhold ─→ waiting or delayed
    active ─ its worker holds it ─→ blocked, ─ continues with other input ─→ waiting
    waiting ─ claim ─→ active              active ─ delay, retry ─→ delayed
    suspended ─ resume ─→ waiting, delayed active ─ suspend ─→ suspended
    terminal ─ replay ─→ waiting           active ─ release, lease lost ─→ waiting
    blocked ─ its group fires ─→ waiting or delayed, ─ it cannot ─→ skipped
    not terminal ─→ cancelled, expired     active ─ lease lost, kept for a hand-off ─→ active ─ reclaim ─→ active
                                           active ─→ completed, failed

An operation names its transition. `apply_transition` raises the transition's code if the execution is in none of its
source states. Otherwise it returns the new execution, with its version advanced for the event row. Tests check that the
statements of the hot operations follow the same table.
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

_ACTIVE = frozenset({State.ACTIVE})
_BLOCKED = frozenset({State.BLOCKED})
_DELAYED = frozenset({State.DELAYED})
_SUSPENDED = frozenset({State.SUSPENDED})
_WAITING = frozenset({State.WAITING})
_NOT_ELIGIBLE = "execution_not_eligible"
_NOT_RECLAIMABLE = "execution_not_reclaimable"
_NOT_SIGNALABLE = "target_not_signalable"
_NOT_SUSPENDED = "execution_not_suspended"


@dataclass(frozen=True, slots=True, kw_only=True)
class Transition:
    """One legal transition: its source states, its target and the fields that it sets. None keeps the current value.

    Without a `reason`, an execution that is waiting waits for a worker, and one that has ended waits for nothing. The
    end of an execution also ends its attempt.
    """

    name: str
    event: tuple[str, str]
    sources: frozenset[State] = _ACTIVE
    target: State | None = None
    refusal: str = "execution_not_active"
    attempt: AttemptState | None = None
    reason: BlockingReason | None = None
    ownership: Ownership | None = None
    leased: bool | None = None
    new_epoch: bool = False


# A lease begins, or is kept for a hand-off.
CLAIM = Transition(
    name="claim", event=("lease", "acquired"), sources=_WAITING, target=State.ACTIVE, refusal="execution_not_leaseable",
    attempt=AttemptState.RUNNING, reason=BlockingReason.NONE, ownership=Ownership.LEASED, new_epoch=True,
)  # fmt: skip
RECLAIM = replace(
    CLAIM, name="reclaim", event=("lease", "reclaimed"), sources=_ACTIVE, refusal=_NOT_RECLAIMABLE, leased=False
)
GRANT = Transition(name="grant_reclaim", event=("operator", "reclaim_granted"), refusal=_NOT_RECLAIMABLE, leased=False)
RENEW = Transition(name="renew", event=("lease", "renewed"), leased=True)
REQUEUE_EXPIRED = Transition(
    name="lease_expired", event=("lease", "expired"), target=State.WAITING, leased=True, new_epoch=True,
    attempt=AttemptState.PENDING_RECLAIM, reason=BlockingReason.WAITING_FOR_WORKER,
)  # fmt: skip
REQUEUE_REVOKED = replace(REQUEUE_EXPIRED, name="lease_revoked", event=("lease", "revoked"))
KEEP_EXPIRED = replace(REQUEUE_EXPIRED, target=State.ACTIVE, ownership=Ownership.EXPIRED)
KEEP_REVOKED = replace(REQUEUE_REVOKED, target=State.ACTIVE, ownership=Ownership.REVOKED)

# A worker gives up its lease, and the execution continues later.
RELEASE = Transition(
    name="release", event=("lease", "released"), target=State.WAITING, attempt=AttemptState.INTERRUPTED, leased=True,
    new_epoch=True,
)  # fmt: skip
CONTINUE = replace(RELEASE, name="continue_with", event=("lease", "continued"))
DELAY = replace(
    RELEASE, name="delay", event=("lease", "delayed"), target=State.DELAYED, reason=BlockingReason.WAITING_FOR_DELAY
)
RETRY = Transition(
    name="retry", event=("lease", "retry_scheduled"), target=State.DELAYED, attempt=AttemptState.PENDING_RETRY,
    reason=BlockingReason.WAITING_FOR_RETRY_BACKOFF, leased=True, new_epoch=True,
)  # fmt: skip
HOLD_OWN = replace(
    RELEASE, name="hold", event=("operator", "held"), target=State.BLOCKED, reason=BlockingReason.PAUSED_BY_OPERATOR
)
WAIT_CHILDREN = replace(
    HOLD_OWN, name="wait_children", event=("lease", "waiting_children"), reason=BlockingReason.WAITING_FOR_CHILDREN
)
SUSPEND = replace(RELEASE, name="suspend", event=("lease", "suspended"), target=State.SUSPENDED)
SATISFY_IMMEDIATELY = Transition(name="suspend", event=("lifecycle", "resumed"), leased=True)

# An execution ends, or starts again.
COMPLETE = Transition(name="complete", event=("completion", "completed"), target=State.COMPLETED, leased=True)
FAIL = Transition(name="fail", event=("completion", "failed"), target=State.FAILED, leased=True)
TIME_OUT = replace(FAIL, name="attempt_timeout", new_epoch=True)
EXHAUST = replace(TIME_OUT, name="lease_expired", leased=None)
WAIT_FAILED = replace(EXHAUST, name="suspension_timeout", sources=_SUSPENDED, refusal=_NOT_SUSPENDED)
EXPIRE = Transition(name="expire", event=("completion", "expired"), sources=LIVE, target=State.EXPIRED, new_epoch=True)
CANCEL = replace(EXPIRE, name="cancel", event=("completion", "cancelled"), target=State.CANCELLED)
REQUEST_CANCEL = Transition(name="request_cancel", event=("operator", "cancel_requested"), sources=LIVE)
REPLAY = Transition(
    name="replay", event=("operator", "replayed"), sources=TERMINAL, target=State.WAITING,
    refusal="execution_not_terminal", attempt=AttemptState.PENDING_REPLAY, new_epoch=True,
)  # fmt: skip
REPLAY_BLOCKED = replace(REPLAY, target=State.BLOCKED, reason=BlockingReason.WAITING_FOR_CHILDREN)

# Signals arrive, and a suspension ends.
BUFFER = Transition(name="deliver_signal", event=("signal", "buffered"), sources=LIVE, refusal=_NOT_SIGNALABLE)
DELIVER = replace(BUFFER, event=("signal", "delivered"), sources=_SUSPENDED)
CLOSE_WAITPOINT = Transition(name="close_waitpoint", event=("operator", "waitpoint_closed"), sources=LIVE)
RESUME = Transition(
    name="resume", event=("lifecycle", "resumed"), sources=_SUSPENDED, target=State.WAITING, refusal=_NOT_SUSPENDED,
    attempt=AttemptState.INTERRUPTED,
)  # fmt: skip
RESUME_DELAYED = replace(RESUME, target=State.DELAYED, reason=BlockingReason.WAITING_FOR_RESUME_DELAY)
OVERRIDE = replace(RESUME, event=("operator", "resumed"))
OVERRIDE_DELAYED = replace(RESUME_DELAYED, event=("operator", "resumed"))
ESCALATE = Transition(
    name="escalate", event=("lifecycle", "blocked"), sources=_SUSPENDED, refusal=_NOT_SUSPENDED,
    reason=BlockingReason.PAUSED_BY_OPERATOR,
)  # fmt: skip

# An execution without a lease is delayed, held or blocked by its flow, and then waits for a worker.
READY = Transition(
    name="ready", event=("lifecycle", "ready"), sources=_DELAYED, target=State.WAITING, refusal=_NOT_ELIGIBLE
)
HOLD = Transition(
    name="hold", event=("operator", "held"), sources=_WAITING | _DELAYED, target=State.BLOCKED, refusal=_NOT_ELIGIBLE,
    reason=BlockingReason.PAUSED_BY_OPERATOR,
)  # fmt: skip
UNHOLD = replace(READY, name="unhold", event=("operator", "unheld"), sources=_BLOCKED)
UNHOLD_DELAYED = replace(UNHOLD, target=State.DELAYED, reason=BlockingReason.WAITING_FOR_DELAY)
UNHOLD_BLOCKED = replace(UNHOLD, target=State.BLOCKED, reason=BlockingReason.WAITING_FOR_CHILDREN)
BLOCK = replace(HOLD, name="block", event=("lifecycle", "blocked"), reason=BlockingReason.WAITING_FOR_CHILDREN)
UNBLOCK = replace(READY, name="unblock", sources=_BLOCKED)
UNBLOCK_DELAYED = replace(UNBLOCK, target=State.DELAYED, reason=BlockingReason.WAITING_FOR_DELAY)
SKIP = replace(UNBLOCK, name="skip", event=("completion", "skipped"), target=State.SKIPPED, new_epoch=True)
PRIORITIZE = Transition(
    name="change_priority", event=("operator", "priority_changed"), sources=_WAITING, refusal=_NOT_ELIGIBLE
)

TRANSITIONS = tuple(item for item in globals().values() if isinstance(item, Transition))


def check(execution: Execution, transition: Transition) -> None:
    """Raise the transition's code unless the execution may make it."""
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
    """Return the execution after the transition; `digest` and `until` allow repeating the outcome later."""
    check(execution, transition)
    target = transition.target or execution.state
    values: dict[str, Any] = {
        "state": target,
        "ownership": transition.ownership if transition.target else execution.ownership,
        "blocking_reason": _blocking_reason(execution, transition),
        "attempt_state": _attempt_state(execution, transition),
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
    # An event that ends a lease belongs to the attempt that was running, even if the next one is already pending.
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
    """Return a refusal that carries the current state of the execution."""
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


def _blocking_reason(execution: Execution, transition: Transition) -> BlockingReason:
    if transition.target in TERMINAL:
        return BlockingReason.NONE
    default = BlockingReason.WAITING_FOR_WORKER if transition.target is State.WAITING else execution.blocking_reason
    return transition.reason or default


def _attempt_state(execution: Execution, transition: Transition) -> AttemptState:
    if transition.target in TERMINAL:
        # Without a start, no attempt has ended.
        return AttemptState.TERMINAL if execution.started_at else execution.attempt_state
    return transition.attempt or execution.attempt_state


def _without_lease(
    execution: Execution, transition: Transition, now: datetime, digest: str | None, until: datetime | None
) -> dict[str, Any]:
    lease, due = execution.lease, execution.attempt_timeout_at
    assert lease is not None, "the caller has checked that there is a lease"
    former = FormerLease(
        id=lease.id, epoch=execution.epoch, worker=lease.worker, end=transition.name, digest=digest, until=until
    )
    # The remaining time is kept for when the attempt continues.
    remaining = max(due - now, timedelta(0)) if due else None
    ended: dict[str, Any] = {"lease": None, "former": former, "resumption": None}
    return ended | {"attempt_timeout_at": None, "attempt_timeout_left": remaining}
