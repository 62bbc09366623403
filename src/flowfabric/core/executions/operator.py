"""Decisions of an operator, and the deadlines of a whole execution."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from flowfabric.core.executions.attempts import ATTEMPT_TIMEOUT
from flowfabric.core.executions.decision import Decision, end_attempt, make_decision, next_attempt
from flowfabric.core.executions.outcomes import AlreadySatisfied, Ended, Held, PriorityChanged, Replayed, Unheld
from flowfabric.core.executions.records import AttemptOrigin, AttemptOutcome, CancelRequest, Execution
from flowfabric.core.executions.requests import AuditInfo, ReplayFrom
from flowfabric.core.executions.states import TERMINAL, AttemptState, BlockingReason, State
from flowfabric.core.executions.transitions import (
    CANCEL,
    EXPIRE,
    HOLD,
    PRIORITIZE,
    READY,
    REPLAY,
    REPLAY_BLOCKED,
    REQUEST_CANCEL,
    UNBLOCK,
    UNHOLD,
    UNHOLD_BLOCKED,
    UNHOLD_DELAYED,
    apply_transition,
    check,
    refusal,
    transition_event,
)
from flowfabric.core.fast_dataclass import replace
from flowfabric.core.flows.outcomes import CancelPending
from flowfabric.core.policy import optional_span
from flowfabric.core.waits.records import Trigger
from flowfabric.core.waits.resume import OpenWait, close_wait, resume_execution

DEADLINE = "deadline"
# The sources of a cancel that a parent's end caused.
ENDS_OF_PARENTS = (DEADLINE, ATTEMPT_TIMEOUT)
_HELD = BlockingReason.PAUSED_BY_OPERATOR


def decide_cancel(execution: Execution, command: AuditInfo, source: str, now: datetime) -> Decision[Ended]:
    """Cancel an execution that has not ended.

    If the execution is already cancelled, return the same outcome. Raise if it ended in a different way.
    """
    if execution.state is State.CANCELLED:
        return Decision(Ended(State.CANCELLED), execution)
    after = apply_transition(execution, CANCEL, now, cancelled_by=source, cancel_reason=command.reason)
    attempt = end_attempt(execution, AttemptOutcome.CANCELLED, now)
    return make_decision(
        Ended(State.CANCELLED), execution, after, CANCEL, attempt, details={"source": source}, **command.facts
    )


def decide_cancel_request(
    execution: Execution, wait: OpenWait | None, request: CancelRequest, now: datetime, *, has_steps: bool = False
) -> Decision[Ended | CancelPending]:
    """Ask the worker to stop before `request.due_at`.

    A suspended, delayed or blocked execution becomes runnable now, so that it can clean up; a held execution stays
    held. An execution is cancelled immediately if its generation has not started and it has no steps of an earlier
    generation.
    """
    command = AuditInfo(principal=request.principal, reason=request.reason)
    is_new = execution.attempt_state is AttemptState.PENDING_FIRST
    is_unstarted_replay = execution.attempt_state is AttemptState.PENDING_REPLAY and not has_steps
    if execution.state is State.CANCELLED or is_new or is_unstarted_replay:
        return decide_cancel(execution, command, request.source, now)
    if execution.cancel_request is not None and execution.cancel_request.due_at <= request.due_at:
        return Decision(CancelPending(execution.cancel_request.due_at), execution)
    requested = apply_transition(execution, REQUEST_CANCEL, now, cancel_request=request)
    details = {"source": request.source, "due_at": request.due_at.isoformat()}
    event = transition_event(execution, requested, REQUEST_CANCEL, details=details, **command.facts)
    outcome = CancelPending(request.due_at)
    if wait is not None:
        after, transition = resume_execution(requested, wait.suspension, Trigger.OPERATOR, timedelta(0), now)
        extra_event = transition_event(
            requested, after, transition, details={"cause": "cancel_requested"}, **command.facts
        )
        waits = close_wait(wait.suspension, wait.waitpoints, Trigger.OPERATOR, now)
        return Decision(outcome, execution, after, event, extra_event=extra_event, waits=waits)
    if execution.state in (State.DELAYED, State.BLOCKED) and not is_held(execution):
        transition = READY if execution.state is State.DELAYED else UNBLOCK
        after = apply_transition(requested, transition, now, ready_at=None)
        return Decision(outcome, execution, after, event, extra_event=transition_event(requested, after, transition))
    return Decision(outcome, execution, requested, event)


def decide_due_cancel(execution: Execution, now: datetime) -> Decision[Ended] | None:
    """Cancel an execution whose cancel request is due, with its children if the request includes them.

    Return None if the execution has ended or the request is not due.
    """
    request = execution.cancel_request
    if execution.state in TERMINAL or request is None or request.due_at > now:
        return None
    audit = AuditInfo(principal=request.principal, reason=request.reason)
    return replace(decide_cancel(execution, audit, request.source, now), ends_children=request.children)


def decide_change_priority(
    execution: Execution, priority: int, command: AuditInfo, now: datetime
) -> Decision[PriorityChanged]:
    """Change the priority of an execution that waits for a worker."""
    check(execution, PRIORITIZE)
    outcome = PriorityChanged(execution.priority, priority)
    if priority == execution.priority:
        return Decision(outcome, execution)
    after = apply_transition(execution, PRIORITIZE, now, priority=priority)
    details = {"old": execution.priority, "new": priority}
    return make_decision(outcome, execution, after, PRIORITIZE, details=details, **command.facts)


def decide_hold(execution: Execution, command: AuditInfo, now: datetime) -> Decision[Held]:
    """Block a waiting or delayed execution until an operator unholds it. The execution keeps its ready time."""
    if is_held(execution):
        return Decision(Held(execution.hold_reason or ""), execution)
    after = apply_transition(execution, HOLD, now, hold_reason=command.reason)
    return make_decision(Held(command.reason), execution, after, HOLD, **command.facts)


def decide_unhold(
    execution: Execution, command: AuditInfo, now: datetime, *, has_open_group: bool = False
) -> Decision[Unheld | AlreadySatisfied]:
    """Unhold an execution: it then waits for a worker, for its ready time, or for upstream members."""
    if execution.state in (State.WAITING, State.DELAYED):
        return Decision(AlreadySatisfied("not_held"), execution)
    if not is_held(execution):
        raise refusal(execution, UNHOLD.refusal, "it is not held")
    changes: dict[str, Any] = {"hold_reason": None}
    if has_open_group:
        transition = UNHOLD_BLOCKED
    elif execution.ready_at is not None and execution.ready_at > now:
        transition = UNHOLD_DELAYED
        changes["blocking_reason"] = _delay_reason(execution)
    else:
        transition = UNHOLD
        changes["ready_at"] = None
    after = apply_transition(execution, transition, now, **changes)
    return make_decision(Unheld(after.state), execution, after, transition, **command.facts)


def decide_replay(
    execution: Execution, command: AuditInfo, start: ReplayFrom, now: datetime, *, has_open_group: bool = False
) -> Decision[Replayed]:
    """Run an ended execution again as a new generation. If it has an open edge group, it waits for that group first.

    If the caller passes the generation that it saw, it can repeat the request and gets the same outcome.
    """
    if start.generation is not None and execution.generation != start.generation:
        if execution.generation == start.generation + 1:
            return Decision(Replayed(execution.generation, execution.vector.public_state), execution)
        message = f"generation {start.generation} is not the current one; read it again"
        raise refusal(execution, "generation_moved", message)
    check(execution, REPLAY)
    if execution.replay_count >= execution.policy.max_replays:
        message = f"it was replayed {execution.replay_count} times, the limit of its policy"
        raise refusal(execution, "max_replays_exhausted", message)
    details = {"generation": execution.generation + 1, "from_step": start.step}
    return _start_generation(
        execution,
        command,
        now,
        has_open_group=has_open_group,
        replay_count=execution.replay_count + 1,
        details=details,
    )


def decide_revival(
    execution: Execution, command: AuditInfo, now: datetime, *, upstream_id: UUID | None, has_open_group: bool
) -> Decision[Replayed]:
    """Bring back a member that was skipped because of the upstream member `upstream_id`, which runs again.

    This does not count as a replay of the member.
    """
    details: dict[str, Any] = {"generation": execution.generation + 1, "cause": "upstream_replayed"}
    if upstream_id is not None:
        details["upstream"] = str(upstream_id)
    return _start_generation(
        execution,
        command,
        now,
        has_open_group=has_open_group,
        replay_count=execution.replay_count,
        details=details,
    )


def _start_generation(
    execution: Execution,
    command: AuditInfo,
    now: datetime,
    *,
    has_open_group: bool,
    replay_count: int,
    details: dict[str, Any],
) -> Decision[Replayed]:
    relative = optional_span(execution.policy.deadline)
    transition = REPLAY_BLOCKED if has_open_group else REPLAY
    after = apply_transition(
        execution,
        transition,
        now,
        generation=execution.generation + 1,
        attempt_origin=AttemptOrigin.REPLAYED,
        replay_count=replay_count,
        retry_count=0,
        reclaim_count=0,
        deadline_at=None if relative is None else now + relative,
        ended_at=None,
        purge_at=None,
        progress_percent=None,
        progress_message=None,
        failure_message=None,
        failure_category=None,
        cancelled_by=None,
        cancel_reason=None,
        cancel_request=None,
        resumption=None,
        **next_attempt(execution),
    )
    outcome = Replayed(after.generation, after.vector.public_state)
    return make_decision(outcome, execution, after, transition, details=details, **command.facts)


def decide_ready(execution: Execution, now: datetime) -> Decision[State] | None:
    """Make a delayed execution claimable if its ready time has come; otherwise return None."""
    if execution.state is not State.DELAYED or execution.ready_at is None or execution.ready_at > now:
        return None
    after = apply_transition(execution, READY, now, ready_at=None)
    return make_decision(State.WAITING, execution, after, READY)


def decide_deadline(execution: Execution, now: datetime) -> Decision[Ended] | None:
    """Expire an execution past its deadline, with its children.

    Return None if it has ended or its deadline has not come.
    """
    if execution.state in TERMINAL or execution.deadline_at is None or execution.deadline_at > now:
        return None
    failure: dict[str, Any] = {
        "failure_message": f"the deadline {execution.deadline_at.isoformat()} passed",
        "failure_category": DEADLINE,
    }
    after = apply_transition(execution, EXPIRE, now, **failure)
    attempt = end_attempt(execution, AttemptOutcome.FAILURE, now, **failure)
    facts = {"reason": failure["failure_message"], "details": {"category": DEADLINE}}
    decision = make_decision(Ended(State.EXPIRED), execution, after, EXPIRE, attempt, **facts)
    return replace(decision, ends_children=True)


def is_held(execution: Execution) -> bool:
    """Return True if the execution is held, by an operator or by its own worker."""
    return execution.state is State.BLOCKED and execution.blocking_reason is _HELD


def _delay_reason(execution: Execution) -> BlockingReason:
    """Return the reason why an execution is still delayed after its unhold."""
    if execution.attempt_state is AttemptState.PENDING_RETRY:
        return BlockingReason.WAITING_FOR_RETRY_BACKOFF
    if execution.resumption is not None:
        return BlockingReason.WAITING_FOR_RESUME_DELAY
    return BlockingReason.WAITING_FOR_DELAY
