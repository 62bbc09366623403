"""What an operator decides, and what the clock decides about the whole life of an execution."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from flowfabric.core.decisions import Decision, decided, end_attempt, next_attempt
from flowfabric.core.flow_outcomes import CancelRequested
from flowfabric.core.outcomes import AlreadySatisfied, Ended, Held, PriorityChanged, Replayed, Unheld
from flowfabric.core.policy import optional_span
from flowfabric.core.records import AttemptOrigin, AttemptOutcome, CancelRequest, Execution
from flowfabric.core.requests import Command, ReplayFrom
from flowfabric.core.resuming import OpenWait, closing, resumed
from flowfabric.core.states import TERMINAL, AttemptState, BlockingReason, State, derive_vector
from flowfabric.core.transitions import (
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
    check,
    event_of,
    move,
    refusal,
)  # fmt: skip
from flowfabric.core.waits import Trigger

DEADLINE = "deadline"
_HELD = BlockingReason.PAUSED_BY_OPERATOR


def decide_cancel(execution: Execution, command: Command, source: str, now: datetime) -> Decision[Ended]:
    """The execution ends cancelled, whoever works on it; already cancelled is answered, another outcome refused."""
    if execution.state is State.CANCELLED:
        return Decision(Ended(State.CANCELLED), execution)
    after = move(execution, CANCEL, now, cancelled_by=source, cancel_reason=command.reason)
    attempt = end_attempt(execution, AttemptOutcome.CANCELLED, now)
    return decided(
        Ended(State.CANCELLED), execution, after, CANCEL, attempt, details={"source": source}, **_who(command)
    )


def decide_cancel_request(
    execution: Execution, wait: OpenWait | None, request: CancelRequest, now: datetime, *, has_steps: bool = False
) -> Decision[Ended | CancelRequested]:
    """The worker is asked to stop by a certain time. Whoever waits, rests, or backs off before its next attempt goes
    on, to clean up; what this generation has never begun, and has no steps from before, ends at once."""
    command = Command(principal=request.principal, reason=request.reason)
    is_new = execution.attempt_state is AttemptState.PENDING_FIRST
    is_anew = execution.attempt_state is AttemptState.PENDING_REPLAY and not has_steps
    if execution.state is State.CANCELLED or is_new or is_anew:
        ended = decide_cancel(execution, command, request.source, now)
        return Decision(ended.answer, execution, ended.after, ended.event, ended.attempt)
    if execution.cancel_request is not None and execution.cancel_request.due_at <= request.due_at:
        return Decision(CancelRequested(execution.cancel_request.due_at), execution)
    check(execution, REQUEST_CANCEL)
    asked = move(execution, REQUEST_CANCEL, now, cancel_request=request)
    details = {"source": request.source, "due_at": request.due_at.isoformat()}
    event = event_of(execution, asked, REQUEST_CANCEL, details=details, **_who(command))
    answer = CancelRequested(request.due_at)
    if wait is not None:
        after, transition = resumed(asked, wait.suspension, Trigger.OPERATOR, timedelta(0), now)
        also = event_of(asked, after, transition, details={"cause": "cancel_requested"}, **_who(command))
        waits = closing(wait.suspension, wait.waitpoints, Trigger.OPERATOR, now)
        return Decision(answer, execution, after, event, also=also, waits=waits)
    if execution.state in (State.DELAYED, State.BLOCKED) and not is_held(execution):
        transition = READY if execution.state is State.DELAYED else UNBLOCK
        after = move(asked, transition, now, ready_at=None)
        return Decision(answer, execution, after, event, also=event_of(asked, after, transition))
    return Decision(answer, execution, asked, event)


def decide_due_cancel(execution: Execution, now: datetime) -> Decision[Ended] | None:
    """A cancel request whose time is over becomes a cancel. None: it has ended by itself, or has time left."""
    request = execution.cancel_request
    if execution.state in TERMINAL or request is None or request.due_at > now:
        return None
    return decide_cancel(execution, Command(principal=request.principal, reason=request.reason), request.source, now)


def decide_change_priority(
    execution: Execution, priority: int, command: Command, now: datetime
) -> Decision[PriorityChanged]:
    """Eligible work moves to another place in its queue."""
    check(execution, PRIORITIZE)
    answer = PriorityChanged(execution.priority, priority)
    if priority == execution.priority:
        return Decision(answer, execution)
    after = move(execution, PRIORITIZE, now, priority=priority)
    details = {"old": execution.priority, "new": priority}
    return decided(answer, execution, after, PRIORITIZE, details=details, **_who(command))


def decide_hold(execution: Execution, command: Command, now: datetime) -> Decision[Held]:
    """Waiting or delayed work is blocked until somebody unholds it; its ready time is kept."""
    if is_held(execution):
        return Decision(Held(execution.hold_reason or ""), execution)
    after = move(execution, HOLD, now, hold_reason=command.reason)
    return decided(Held(command.reason), execution, after, HOLD, **_who(command))


def decide_unhold(
    execution: Execution, command: Command, now: datetime, *, has_open_group: bool = False
) -> Decision[Unheld | AlreadySatisfied]:
    """Held work goes on where it was: it waits, is delayed until the time that was kept, or waits for upstreams that it
    has got meanwhile."""
    if execution.state in (State.WAITING, State.DELAYED):
        return Decision(AlreadySatisfied("not_held"), execution)
    if not is_held(execution):
        raise refusal(execution, UNHOLD.refusal, "it is not held by an operator")
    if has_open_group:
        after = move(execution, UNHOLD_BLOCKED, now, hold_reason=None)
        return decided(Unheld(State.BLOCKED), execution, after, UNHOLD_BLOCKED, **_who(command))
    if execution.ready_at is not None and execution.ready_at > now:
        after = move(execution, UNHOLD_DELAYED, now, hold_reason=None, blocking_reason=_why_delayed(execution))
        return decided(Unheld(State.DELAYED), execution, after, UNHOLD_DELAYED, **_who(command))
    after = move(execution, UNHOLD, now, hold_reason=None, ready_at=None)
    return decided(Unheld(State.WAITING), execution, after, UNHOLD, **_who(command))


def decide_replay(
    execution: Execution, command: Command, start: ReplayFrom, now: datetime, *, has_open_group: bool = False
) -> Decision[Replayed]:
    """A terminal execution runs again as a new generation; a member whose group is open waits for it first. With the
    generation that the caller saw, a repeated request is answered as the first."""
    if start.generation is not None and execution.generation != start.generation:
        if execution.generation == start.generation + 1:
            return Decision(_replayed(execution), execution)
        raise refusal(execution, "generation_moved", f"generation {start.generation} is not the present one")
    check(execution, REPLAY)
    if execution.replay_count >= execution.policy.max_replays:
        raise refusal(
            execution, "max_replays_exhausted", f"it was replayed {execution.replay_count} times, which is the most"
        )
    relative = optional_span(execution.policy.deadline)
    transition = REPLAY_BLOCKED if has_open_group else REPLAY
    after = move(
        execution, transition, now, generation=execution.generation + 1, attempt_origin=AttemptOrigin.REPLAYED,
        replay_count=execution.replay_count + 1, retry_count=0, reclaim_count=0,
        deadline_at=None if relative is None else now + relative, ended_at=None, purge_at=None,
        progress_percent=None, progress_message=None, failure_message=None, failure_category=None,
        cancelled_by=None, cancel_reason=None, cancel_request=None, resumption=None, **next_attempt(execution),
    )  # fmt: skip
    details = {"generation": after.generation, "from_step": start.step}
    return decided(_replayed(after), execution, after, transition, details=details, **_who(command))


def decide_ready(execution: Execution, now: datetime) -> Decision[State] | None:
    """Delayed work whose time has come waits for a worker. None: it has not, or it is no longer delayed."""
    if execution.state is not State.DELAYED or execution.ready_at is None or execution.ready_at > now:
        return None
    after = move(execution, READY, now, ready_at=None)
    return decided(State.WAITING, execution, after, READY)


def decide_deadline(execution: Execution, now: datetime) -> Decision[Ended] | None:
    """An execution past its deadline expires, in whatever state it is. None: its time has not come, or it has ended."""
    if execution.state in TERMINAL or execution.deadline_at is None or execution.deadline_at > now:
        return None
    failure: dict[str, Any] = {
        "failure_message": f"the deadline {execution.deadline_at.isoformat()} passed",
        "failure_category": DEADLINE,
    }
    after = move(execution, EXPIRE, now, **failure)
    attempt = end_attempt(execution, AttemptOutcome.FAILURE, now, **failure)
    facts = {"reason": failure["failure_message"], "details": {"category": DEADLINE}}
    return decided(Ended(State.EXPIRED), execution, after, EXPIRE, attempt, **facts)


def is_held(execution: Execution) -> bool:
    """True while an operator holds the execution."""
    return execution.state is State.BLOCKED and execution.blocking_reason is _HELD


def _why_delayed(execution: Execution) -> BlockingReason:
    """What the time is for that a held execution has kept."""
    if execution.attempt_state is AttemptState.PENDING_RETRY:
        return BlockingReason.WAITING_FOR_RETRY_BACKOFF
    if execution.resumption is not None:
        return BlockingReason.WAITING_FOR_RESUME_DELAY
    return BlockingReason.WAITING_FOR_DELAY


def _replayed(execution: Execution) -> Replayed:
    vector = derive_vector(execution.state, execution.blocking_reason, execution.attempt_state, execution.ownership)
    return Replayed(execution.generation, vector.public_state)


def _who(command: Command) -> dict[str, Any]:
    return {"principal": command.principal, "reason": command.reason}
