"""Explanations of why an execution is or is not running: one short statement, with the facts as data.

A statement names the cause, its progress or age, and what to do about it. Times are in UTC; today's date is
omitted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from flowfabric.core.executions.operator import ENDS_OF_PARENTS
from flowfabric.core.executions.postpone import (
    MAX_DIVERGED_FOR,
    MAX_FAILED_RUNS,
    NO_SETBACKS,
    Divergence,
    Setbacks,
)
from flowfabric.core.executions.records import Execution
from flowfabric.core.executions.states import AttemptState, BlockingReason, Ownership, State
from flowfabric.core.executions.steps import StepView
from flowfabric.core.executions.views import SuspendedView
from flowfabric.core.flows.graph import JoinKind
from flowfabric.core.flows.records import (
    DEPENDENCIES,
    FAILURES,
    UPSTREAM_FAILED,
    EdgeGroup,
    EdgeState,
    FlowRecord,
    GroupState,
    StoredEdge,
)
from flowfabric.core.lanes import LaneInfo, LaneState
from flowfabric.core.waits.evaluate import join_names
from flowfabric.core.waits.records import AFTER_TIMEOUT, BLOCKING
from flowfabric.core.workers import WorkerInfo, unoffered_capabilities

Statement = tuple[str, dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Explanation:
    """An explanation: one statement for people, and the same facts as data for programs."""

    execution_id: UUID
    state: State
    sentence: str
    facts: Mapping[str, Any]

    def __str__(self) -> str:
        return self.sentence


@dataclass(frozen=True, slots=True)
class Upstream:
    """A member or child that an execution waits for, with the edge between the two."""

    id: UUID
    name: str
    state: State
    edge: StoredEdge


@dataclass(frozen=True, slots=True)
class Dependencies:
    """The edge group that decides whether a member may start or continue, with the upstream member of each edge."""

    flow: FlowRecord
    group: EdgeGroup
    upstreams: tuple[Upstream, ...]

    @property
    def is_doomed(self) -> bool:
        """True if the flow is cancelled and the cancellation has not reached the member yet.

        An execution that waits for children has started, so only the policy `cancel_all` cancels it. The root of an
        implicit flow is the parent of its members, not a member itself, so cancelling the flow spares it.
        """
        flow, group = self.flow, self.group
        if not flow.is_frozen or group.seq == DEPENDENCIES:
            return flow.is_frozen
        return flow.cancels_started and group.downstream_id != flow.id


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplainContext:
    """Everything outside the execution row that an explanation depends on.

    `workers` are the live workers on the lane, and `wait` is the open suspension. `hold_report` is the report of the
    worker that asked for the hold. `has_route` is False if the execution's route is missing or is that of other work.
    `setbacks` are earlier runs that could not continue. `skipped_signals` is the number of signals that the task could
    not read. `retrying` are the steps that wait for their next try.
    """

    lane: LaneInfo
    requires: tuple[str, ...]
    wait: SuspendedView | None
    now: datetime
    dependencies: Dependencies | None = None
    workers: Sequence[WorkerInfo] = ()
    hold_report: str | None = None
    has_route: bool = True
    setbacks: Setbacks = NO_SETBACKS
    skipped_signals: int = 0
    retrying: Sequence[StepView] = ()


def explain(execution: Execution, context: ExplainContext) -> Explanation:
    """Explain why the execution is in its state, and what will change that state."""
    sentence, facts = _EXPLAINERS.get(execution.state, _explain_ended)(execution, context)
    if context.retrying and execution.state is not State.DELAYED:
        sentence += f" {_describe_step_retries(execution, context, facts)}"
    request = execution.cancel_request
    if request is not None and not execution.state.is_terminal:
        due = _format_time(request.due_at, context.now, seconds=True)
        sentence += f" Cancellation was requested: it is cancelled at {due} unless it ends first."
        facts |= {"cancel_due_at": request.due_at, "cancel_reason": request.reason}
    common = {"lane": execution.lane, "kind": execution.kind, "attempt": execution.attempt_index}
    return Explanation(execution.id, execution.state, sentence, common | facts)


def deciding_group(groups: Sequence[EdgeGroup]) -> EdgeGroup | None:
    """Return the open edge group that a member waits for; if no group is open, return the last one."""
    still_open = [group for group in groups if group.state is GroupState.OPEN]
    return max(still_open or groups, key=lambda group: (group.state is GroupState.OPEN, group.seq), default=None)


def _explain_waiting(execution: Execution, context: ExplainContext) -> Statement:
    lane = context.lane
    if lane.state is LaneState.PAUSED:
        sentence = f'Lane "{lane.lane}" is {lane}. Resume the lane to start it.'
        by = {"paused_by": lane.principal, "pause_reason": lane.reason, "paused_at": lane.changed_at}
        return sentence, {"lane_state": "paused"} | by
    facts: dict[str, Any] = {"since": execution.changed_at, "priority": execution.priority}
    if not context.has_route:
        facts["route"] = "missing"
        sentence = (
            f'No worker can claim it: the route of "{execution.kind}" on lane "{execution.lane}" is missing. '
            "Submit another execution of this kind to create the route, or cancel this one and submit it again."
        )
        return sentence, facts
    if context.requires:
        facts["requires"] = context.requires
    if context.setbacks.divergence is not None:
        return _explain_divergence(context.setbacks.divergence, context, facts)
    continues = " to continue it" if execution.attempt_state is AttemptState.INTERRUPTED else ""
    since = _format_time(execution.changed_at, context.now)
    workers = _describe_workers(execution, context, facts)
    return f"Waiting for a worker{continues} since {since}: {workers}.", facts


def _describe_workers(execution: Execution, context: ExplainContext, facts: dict[str, Any]) -> str:
    """Describe the live workers on the lane: how many can run the execution, or which capability is missing."""
    lane = f'on lane "{execution.lane}"'
    facts["live_workers"] = len(context.workers)
    if not context.workers:
        return f"no live worker {lane}"
    knowing = [worker for worker in context.workers if worker.knows(execution.kind)]
    if not knowing:
        facts["unknown_kind"] = execution.kind
        return f'no live worker {lane} runs "{execution.kind}"'
    unoffered = unoffered_capabilities(context.requires, knowing)
    if unoffered:
        facts["unoffered"] = unoffered
        return f"no live worker {lane} offers {join_names(unoffered, quote=True)}"
    capable = [worker for worker in knowing if set(context.requires) <= set(worker.capabilities)]
    if not capable:
        facts["unoffered"] = context.requires
        return f"no live worker {lane} offers all of {join_names(context.requires, quote=True)}"
    return f"{len(capable)} live worker{'s' if len(capable) > 1 else ''} {lane} can run it"


def _explain_delayed(execution: Execution, context: ExplainContext) -> Statement:
    facts: dict[str, Any] = {"until": execution.ready_at}
    at = _format_time(execution.ready_at, context.now, seconds=True)
    is_due = execution.ready_at is not None and execution.ready_at <= context.now
    overdue = " The next reconciler pass makes it ready." if is_due else ""
    if execution.blocking_reason is BlockingReason.WAITING_FOR_RETRY_BACKOFF:
        facts |= {"retries": execution.retry_count, "category": execution.failure_category}
        retry = f"Retry {execution.retry_count} of {execution.policy.max_retries} at {at}."
        return f"{retry}{overdue} Last failure: {_first_sentence(execution.failure_message)}", facts
    if execution.blocking_reason is BlockingReason.WAITING_FOR_RESUME_DELAY:
        return f"The wait is over. The resume delay ends at {at}.{overdue}", facts
    if context.setbacks.divergence is not None:
        return _explain_divergence(context.setbacks.divergence, context, facts)
    if context.retrying:
        return f"{_describe_step_retries(execution, context, facts)}{overdue}", facts
    if context.setbacks.is_retrying:
        number = context.setbacks.failed_runs
        facts["failed_runs"] = number
        return (
            f"Its run failed inside the engine, {number} of {MAX_FAILED_RUNS} times. Next run at {at}.{overdue}",
            facts,
        )
    return f"Delayed until {at}.{overdue}", facts


def _describe_step_retries(execution: Execution, context: ExplainContext, facts: dict[str, Any]) -> str:
    """Describe the step whose next try comes first, and count the others."""
    steps = sorted(context.retrying, key=lambda step: (step.next_try_at or context.now, step.seq))
    facts["retrying"] = [
        {"step": step.name, "tries": step.tries, "next_try_at": step.next_try_at, "error": str(step.error)}
        for step in steps
    ]
    first, others = steps[0], len(steps) - 1
    of = "" if first.max_tries is None else f" of {first.max_tries - 1}"
    at = _format_time(first.next_try_at, context.now, seconds=True)
    is_due = first.next_try_at is not None and first.next_try_at <= context.now
    when = "at" if not is_due else "since" if execution.state is State.ACTIVE else "due since"
    sentence = f'Step "{first.name}": retry {first.tries}{of} {when} {at}.'
    if others:
        sentence += f" {others} other step{'s are' if others > 1 else ' is'} retried too."
    return f"{sentence} Last failure: {_first_sentence(str(first.error))}"


def _explain_divergence(divergence: Divergence, context: ExplainContext, facts: dict[str, Any]) -> Statement:
    held_at = divergence.since + MAX_DIVERGED_FOR
    facts |= {"diverged": divergence.versions, "diverged_since": divergence.since, "held_at": held_at}
    facts["code_versions"] = divergence.waits_for
    diverged, others = (join_names(names, quote=True) for names in (divergence.versions, divergence.waits_for))
    since, until = (_format_time(time, context.now) for time in (divergence.since, held_at))
    sentence = (
        f"Waiting for a worker with other code since {since}: version {diverged} does not match its journal, "
        f"and {others} has not run it. It is held at {until}."
    )
    return sentence, facts


def _explain_blocked(execution: Execution, context: ExplainContext) -> Statement:
    if execution.blocking_reason is BlockingReason.PAUSED_BY_OPERATOR:
        facts = {"hold_reason": execution.hold_reason}
        reason = _quote_reason(execution.hold_reason)
        if context.hold_report is None:
            return f"Held by an operator ({reason}). Unhold it to continue.", facts
        report = _first_sentence(context.hold_report)
        sentence = f"Held by its worker ({reason}): {report} Fix the cause, then unhold it."
        return sentence, facts | {"report": context.hold_report}
    if context.dependencies is not None:
        return _explain_dependencies(context.dependencies)
    reason_words = execution.blocking_reason.value.replace("_", " ")
    return f"Blocked: {reason_words}.", {"blocking_reason": execution.blocking_reason}


def _explain_dependencies(dependencies: Dependencies) -> Statement:
    group = dependencies.group
    facts = _dependency_facts(dependencies, EdgeState.OPEN)
    if dependencies.is_doomed:
        return "Its flow was cancelled. The next reconciler pass cancels it too.", facts
    if group.draft:
        return "It is a draft. Seal it or its flow to start it.", facts
    needed = group.join.needed(group.n)
    who = "upstream members" if group.seq == DEPENDENCIES else "children"
    enough = "" if group.join.kind is JoinKind.ALL_OF else f" ({needed} needed)"
    states = [_describe_state(each) for each in dependencies.upstreams if each.edge.state is EdgeState.OPEN]
    count = f"{needed - group.satisfied} of {group.n} {who}{enough}"
    return f"Waiting for {count}: {join_names(states)}.{_describe_stuck(dependencies)}", facts


def _describe_stuck(dependencies: Dependencies) -> str:
    """Name the ended upstream members to replay, if the others are too few for the group."""
    group = dependencies.group
    open_ = [each for each in dependencies.upstreams if each.edge.state is EdgeState.OPEN]
    ended = [each.name for each in open_ if each.state.is_terminal and each.state is not State.COMPLETED]
    is_stuck = group.satisfied + len(open_) - len(ended) < group.join.needed(group.n)
    if group.seq != DEPENDENCIES or not dependencies.flow.was_replayed or not is_stuck:
        return ""
    return f" Replay {join_names(ended, quote=True)} to continue."


def _dependency_facts(dependencies: Dependencies, state: EdgeState) -> dict[str, Any]:
    group = dependencies.group
    upstreams = {each.name: each.state.value for each in dependencies.upstreams if each.edge.state is state}
    return {
        "flow": dependencies.flow.id,
        "join": group.join.kind.value,
        "needed": group.join.needed(group.n),
        "satisfied": group.satisfied,
        "waits_for" if state is EdgeState.OPEN else "lost": upstreams,
    }


def _describe_state(upstream: Upstream) -> str:
    ended = {State.CANCELLED: "was cancelled", State.SKIPPED: "was skipped"}
    verb = upstream.state.value if upstream.state.is_terminal else f"is {upstream.state}"
    return f'"{upstream.name}" {ended.get(upstream.state, verb)}'


def _explain_active(execution: Execution, context: ExplainContext) -> Statement:
    lease = execution.lease
    if lease is None:
        lost = "expired" if execution.ownership is Ownership.EXPIRED else "was revoked"
        worker = execution.former.worker.name if execution.former else "?"
        sentence = f'The lease of worker "{worker}" {lost}. The policy keeps it for a hand-off; grant a reclaim.'
        return sentence, {"ownership": execution.ownership, "worker": worker}
    facts: dict[str, Any] = {"worker": lease.worker.name, "instance": lease.worker.instance, "until": lease.expires_at}
    until = _format_time(lease.expires_at, context.now, seconds=True)
    if lease.expires_at <= context.now:
        return f'The lease of worker "{lease.worker.name}" expired at {until}. A reconciler is about to end it.', facts
    renewed_at = lease.expires_at - lease.ttl
    if context.now >= renewed_at + lease.ttl / 2:
        since = _format_time(renewed_at, context.now, seconds=True)
        sentence = f'Worker "{lease.worker.name}" has not been heard from since {since}. Its lease lasts until {until}.'
        return sentence, {**facts, "renewed_at": renewed_at}
    return f'Running on worker "{lease.worker.name}". Its lease lasts until {until}.', facts


def _explain_suspended(execution: Execution, context: ExplainContext) -> Statement:
    wait = context.wait
    if wait is None:
        return "Suspended. Its wait is being closed.", {}
    facts: dict[str, Any] = {"suspension": wait.id, "reason": wait.reason, "missing": wait.missing}
    facts |= {"until": wait.timeout_at, "on_timeout": wait.on_timeout}
    if wait.approval is None:
        missing = " and ".join(wait.missing) or "a worker to continue it"
        sentence = f"Waiting since {_format_time(wait.opened_at, context.now)} for {missing}."
    else:
        sentence = f"Waiting for {wait.approval}."
        facts |= {name: getattr(wait.approval, name) for name in ("required", "approved", "rejected", "undecided")}
        facts["approval"] = wait.approval.name
        if wait.approval.rejections is not None:
            facts["rejections"] = wait.approval.rejections
            is_one = wait.approval.rejections == 1
            sentence += " One rejection ends it." if is_one else f" {wait.approval.rejections} rejections end it."
    sentence += f" {_describe_timeout(execution, wait, context.now)}"
    if number := context.skipped_signals:
        skipped = "1 signal was" if number == 1 else f"{number} signals were"
        sentence += (
            f" {skipped} skipped, because the task could not read the payload. See the history, then send again."
        )
        facts["skipped_signals"] = number
    return sentence, facts


def _describe_timeout(execution: Execution, wait: SuspendedView, now: datetime) -> str:
    if wait.timeout_at is None:
        is_paused = execution.blocking_reason is BlockingReason.PAUSED_BY_OPERATOR
        is_escalated = is_paused and BLOCKING[wait.reason] is not BlockingReason.PAUSED_BY_OPERATOR
        return "Its timeout has passed. Resume or cancel it." if is_escalated else "No timeout."
    time, consequence = _format_time(wait.timeout_at, now), AFTER_TIMEOUT[wait.on_timeout]
    if wait.timeout_at <= now:
        return f"Timed out at {time}. A reconciler is about to apply the timeout. The execution then {consequence}."
    return f"Times out at {time}, then {consequence}."


def _explain_ended(execution: Execution, context: ExplainContext) -> Statement:
    facts: dict[str, Any] = {"outcome": execution.vector.terminal_outcome, "ended_at": execution.ended_at}
    sentence = f"{execution.state.value.capitalize()} at {_format_time(execution.ended_at, context.now)}"
    if execution.state is State.CANCELLED:
        facts |= {"cancelled_by": execution.cancelled_by, "reason": execution.cancel_reason}
        if execution.cancelled_by in ENDS_OF_PARENTS:
            return f"{sentence} because {execution.cancel_reason}.", facts
        return f"{sentence} by {execution.cancelled_by} ({_quote_reason(execution.cancel_reason)}).", facts
    if execution.state is State.SKIPPED and context.dependencies is not None:
        return _explain_skipped(execution, context.dependencies, sentence, facts)
    if execution.failure_message is not None and execution.state is not State.COMPLETED:
        facts |= {"category": execution.failure_category}
        return f"{sentence}: {_first_sentence(execution.failure_message)}", facts
    return f"{sentence}.", facts


def _explain_skipped(
    execution: Execution, dependencies: Dependencies, sentence: str, facts: dict[str, Any]
) -> Statement:
    """Name the upstream members that cannot satisfy their edges, the failure behind them, and the way out."""
    facts |= _dependency_facts(dependencies, EdgeState.IMPOSSIBLE)
    lost = [each for each in dependencies.upstreams if each.edge.state is EdgeState.IMPOSSIBLE]
    names = join_names([_describe_state(each) for each in lost]) if lost else ""
    if execution.failure_category != UPSTREAM_FAILED:
        return f"{sentence}: upstream {names}." if lost else f"{sentence}.", facts
    failure = execution.failure_message or "an upstream failed"
    facts |= {"category": UPSTREAM_FAILED, "failure": failure}
    if not lost:
        replayed = "which was replayed without it. Replay this execution to run it."
        return f"{sentence}: {failure}, {replayed}", facts
    is_direct = any(each.state in FAILURES for each in lost)
    root = "" if is_direct else f" because {failure}"
    # A replay may have repaired the failure behind a skipped upstream member.
    what = "the flow with --failed" if dependencies.flow.was_replayed and not is_direct else "the failed member"
    return f"{sentence}: upstream {names}{root}. Replay {what} to bring this one back.", facts


_EXPLAINERS = {
    State.WAITING: _explain_waiting,
    State.DELAYED: _explain_delayed,
    State.BLOCKED: _explain_blocked,
    State.ACTIVE: _explain_active,
    State.SUSPENDED: _explain_suspended,
}


def _quote_reason(reason: str | None) -> str:
    return f'"{reason}"' if reason else "no reason given"


def _first_sentence(message: str | None) -> str:
    """Return the first line of a message, with a period at its end."""
    line = (message or "unknown").strip().partition("\n")[0]
    return line if line.endswith((".", "!", "?")) else f"{line}."


def _format_time(time: datetime | None, now: datetime, *, seconds: bool = False) -> str:
    if time is None:
        return "?"
    date = "" if time.date() == now.date() else f"{time:%Y-%m-%d} "
    return f"{date}{time:%H:%M:%S} UTC" if seconds else f"{date}{time:%H:%M} UTC"
