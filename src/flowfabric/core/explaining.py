"""Why an execution is not running, or that it is, in one sentence with the facts behind it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from flowfabric.core.dependencies import Dependencies, tell_blocked, tell_skipped
from flowfabric.core.records import Execution
from flowfabric.core.states import AttemptState, BlockingReason, Ownership, State, derive_vector
from flowfabric.core.views import SuspendedView
from flowfabric.core.waits import OnTimeout
from flowfabric.core.workers import Worker, nobody_offers


@dataclass(frozen=True, slots=True)
class Explanation:
    """One sentence for people, and the facts in it for programs."""

    execution_id: UUID
    state: State
    sentence: str
    facts: Mapping[str, Any]

    def __str__(self) -> str:
        return self.sentence


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What else has a say: the lane, the capabilities that are required, the open wait if there is one, what a member
    of a flow hangs on, and the live workers that are registered for the lane."""

    lane_is_paused: bool
    requires: tuple[str, ...]
    wait: SuspendedView | None
    now: datetime
    dependencies: Dependencies | None = None
    workers: Sequence[Worker] = ()
    hold_report: str | None = None


def explain(execution: Execution, around: Surroundings) -> Explanation:
    """Why the execution is where it is, and what would move it on."""
    tell = _TELLERS[execution.state]
    sentence, facts = tell(execution, around)
    if execution.cancel_request is not None and not execution.state.is_terminal:
        due = execution.cancel_request.due_at
        sentence += f" It was asked to stop, and is cancelled at {_time(due)} if it has not ended by then."
        facts |= {"cancel_due_at": due, "cancel_reason": execution.cancel_request.reason}
    common = {"lane": execution.lane, "kind": execution.kind, "attempt": execution.attempt_index}
    return Explanation(execution.id, execution.state, sentence, common | facts)


_Told = tuple[str, dict[str, Any]]


def _waiting(execution: Execution, around: Surroundings) -> _Told:
    if around.lane_is_paused:
        return f"It waits because lane {execution.lane!r} is paused; resume the lane.", {"lane_state": "paused"}
    facts: dict[str, Any] = {"since": execution.changed_at, "priority": execution.priority}
    what = "to go on with it" if execution.attempt_state is AttemptState.INTERRUPTED else "to take it"
    sentence = f"It waits for a worker on lane {execution.lane!r} {what}"
    if around.requires:
        facts["requires"] = around.requires
        sentence += f"; only one that offers {_listed(around.requires)} may"
    sentence += f", since {_time(execution.changed_at)}"
    return f"{sentence}{_who_is_there(execution.kind, around, facts)}.", facts


def _who_is_there(kind: str, around: Surroundings, facts: dict[str, Any]) -> str:
    """What the register of workers says to it; nothing if somebody who may take it is there."""
    facts["live_workers"] = len(around.workers)
    if not around.workers:
        return "; no live worker is registered for that lane"
    knowing = [worker for worker in around.workers if worker.knows(kind)]
    if not knowing:
        facts["nobody_knows"] = kind
        return f"; no live worker knows the kind {kind!r}"
    lacking = nobody_offers(around.requires, knowing)
    if lacking:
        facts["nobody_offers"] = lacking
        return f"; no live worker offers {_listed(lacking)}"
    if not any(set(around.requires) <= set(worker.capabilities) for worker in knowing):
        facts["nobody_offers"] = around.requires
        return f"; no live worker offers all of {_listed(around.requires)}"
    return ""


def _delayed(execution: Execution, around: Surroundings) -> _Told:
    facts: dict[str, Any] = {"until": execution.ready_at}
    until = _until(execution.ready_at, around.now)
    if execution.blocking_reason is BlockingReason.WAITING_FOR_RETRY_BACKOFF:
        facts |= {"retries": execution.retry_count, "category": execution.failure_category}
        limit = execution.policy.max_retries
        why = (
            f"attempt {execution.attempt_index - 1} failed ({execution.failure_category}): {execution.failure_message}"
        )
        return f"It waits {until} for retry {execution.retry_count} of {limit}, because {why}.", facts
    if execution.blocking_reason is BlockingReason.WAITING_FOR_RESUME_DELAY:
        return f"Its wait is over, and it rests {until}, as the resume delay says.", facts
    return f"It was delayed, and waits {until}.", facts


def _blocked(execution: Execution, around: Surroundings) -> _Told:
    if execution.blocking_reason is BlockingReason.PAUSED_BY_OPERATOR:
        reason = execution.hold_reason or "no reason given"
        if around.hold_report is not None:
            facts = {"hold_reason": execution.hold_reason, "report": around.hold_report}
            first_line = around.hold_report.strip().partition("\n")[0]
            return f"Its worker holds it ({reason}): {first_line}; repair that, then unhold it to let it go on.", facts
        return f"An operator holds it ({reason}); unhold it to let it go on.", {"hold_reason": execution.hold_reason}
    if around.dependencies is not None:
        return tell_blocked(around.dependencies)
    return f"It is blocked: {execution.blocking_reason}.", {"blocking_reason": execution.blocking_reason}


def _active(execution: Execution, around: Surroundings) -> _Told:
    lease = execution.lease
    if lease is None:
        lost = "ran out" if execution.ownership is Ownership.EXPIRED else "was revoked"
        worker = execution.former.worker.name if execution.former else "?"
        sentence = f"The lease of worker {worker!r} {lost}, and its policy keeps it for a hand-off; grant a reclaim."
        return sentence, {"ownership": execution.ownership, "worker": worker}
    facts: dict[str, Any] = {"worker": lease.worker.name, "instance": lease.worker.instance, "until": lease.expires_at}
    if lease.expires_at <= around.now:
        ended = _time(lease.expires_at)
        return f"The lease of worker {lease.worker.name!r} ran out at {ended}; it is about to be ended.", facts
    return f"Worker {lease.worker.name!r} works on it, with a lease until {_time(lease.expires_at)}.", facts


def _suspended(execution: Execution, around: Surroundings) -> _Told:
    wait = around.wait
    if wait is None:
        return "It is suspended, and its wait is being closed.", {}
    facts: dict[str, Any] = {"suspension": wait.id, "reason": wait.reason, "missing": wait.missing}
    facts |= {"until": wait.timeout_at, "on_timeout": wait.on_timeout}
    missing = " and ".join(wait.missing) or "nothing more"
    sentence = f"It waits since {_time(wait.opened_at)} for {missing}"
    if wait.timeout_at is None and wait.on_timeout is OnTimeout.ESCALATE:
        return f"{sentence}; if its timeout has passed, an operator must resume or cancel it.", facts
    if wait.timeout_at is None:
        return f"{sentence}; it has no timeout.", facts
    then = _AT_TIMEOUT[wait.on_timeout]
    return f"{sentence}, {_until(wait.timeout_at, around.now)}; then it will {then}.", facts


def _ended(execution: Execution, around: Surroundings) -> _Told:
    vector = derive_vector(execution.state, execution.blocking_reason, execution.attempt_state, execution.ownership)
    facts: dict[str, Any] = {"outcome": vector.terminal_outcome, "ended_at": execution.ended_at}
    sentence = f"It has ended: {execution.state} at {_time(execution.ended_at)}"
    if execution.state is State.CANCELLED:
        facts |= {"cancelled_by": execution.cancelled_by, "reason": execution.cancel_reason}
        sentence += f" by {execution.cancelled_by} ({execution.cancel_reason or 'no reason given'})"
    elif execution.failure_message is not None and execution.state is not State.COMPLETED:
        facts |= {"category": execution.failure_category}
        sentence += f" ({execution.failure_category}): {execution.failure_message}"
    elif execution.state is State.SKIPPED and around.dependencies is not None:
        why, more = tell_skipped(around.dependencies)
        sentence, facts = sentence + why, facts | more
    return f"{sentence}.", facts


_TELLERS = {
    State.WAITING: _waiting,
    State.DELAYED: _delayed,
    State.BLOCKED: _blocked,
    State.ACTIVE: _active,
    State.SUSPENDED: _suspended,
    State.COMPLETED: _ended,
    State.FAILED: _ended,
    State.CANCELLED: _ended,
    State.EXPIRED: _ended,
    State.SKIPPED: _ended,
}
_AT_TIMEOUT = {
    OnTimeout.FAIL: "fail",
    OnTimeout.CANCEL: "be cancelled",
    OnTimeout.EXPIRE: "expire",
    OnTimeout.AUTO_RESUME: "go on without an answer",
    OnTimeout.ESCALATE: "be left to an operator",
}


def _listed(words: Sequence[str]) -> str:
    return ", ".join(words)


def _time(time: datetime | None) -> str:
    return "?" if time is None else time.strftime("%Y-%m-%d %H:%M:%S UTC")


def _until(time: datetime | None, now: datetime) -> str:
    if time is not None and time <= now:
        return f"(due since {_time(time)})"
    return f"until {_time(time)}"
