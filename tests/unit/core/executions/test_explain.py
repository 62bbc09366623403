"""Tests for the exact sentence and facts that explain every blocking reason."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from flowfabric.core.executions.explain import Dependencies, ExplainContext, Upstream, explain
from flowfabric.core.executions.records import CancelRequest, Execution
from flowfabric.core.executions.states import AttemptState, BlockingReason, State
from flowfabric.core.executions.views import SuspendedView
from flowfabric.core.flows.graph import EdgeKind, Join, all_of, any_of, quorum
from flowfabric.core.flows.records import (
    CancelPolicy,
    EdgeGroup,
    EdgeState,
    FlowCancel,
    FlowRecord,
    GroupState,
    StoredEdge,
)
from flowfabric.core.lanes import LaneInfo, LaneState
from flowfabric.core.waits.conditions import Single
from flowfabric.core.waits.evaluate import ApprovalProgress
from flowfabric.core.waits.records import OnTimeout, SuspensionReason
from tests.unit.builders import (
    ID,
    MINUTE,
    SECOND,
    T0,
    make_delayed,
    make_ended,
    make_held,
    make_leased,
    make_new,
    make_suspended,
)

FLOW = UUID(int=7)
COMMON = {"lane": "default", "kind": "job", "attempt": 0}
PAUSED_LANE = LaneInfo(lane="mail", state=LaneState.PAUSED, changed_at=T0, principal="ann", reason="")
NOWHERE = ExplainContext(lane=LaneInfo(lane="default"), requires=(), wait=None, now=T0)
WAIT = SuspendedView(
    id=UUID(int=3), execution_id=ID, reason=SuspensionReason.WAITING_FOR_SIGNAL, condition=Single("go"),
    missing=('a signal on waitpoint "go"',), opened_at=T0 - MINUTE, timeout_at=None, on_timeout=OnTimeout.FAIL,
)  # fmt: skip
WAITED = {
    "suspension": WAIT.id, "reason": WAIT.reason, "missing": WAIT.missing, "until": None, "on_timeout": OnTimeout.FAIL,
}  # fmt: skip

APPROVAL = ApprovalProgress(
    name="refund", required=2, rejections=1, approved=("ops",), rejected=(), undecided=("finance",)
)
APPROVAL_WAIT = replace(WAIT, reason=SuspensionReason.WAITING_FOR_APPROVAL, missing=(str(APPROVAL),), approval=APPROVAL)
APPROVAL_FACTS = WAITED | {
    "reason": SuspensionReason.WAITING_FOR_APPROVAL,
    "missing": (str(APPROVAL),),
    "approval": "refund",
    "required": 2,
    "rejections": 1,
    "approved": ("ops",),
    "rejected": (),
    "undecided": ("finance",),
}


@dataclass(frozen=True)
class Case:
    """An execution with its context, the expected sentence, and the expected facts that not all cases share."""

    execution: Execution
    sentence: str
    facts: dict[str, Any] = field(default_factory=dict)
    around: ExplainContext = NOWHERE


def flow(policy: CancelPolicy | None = None, **changes: Any) -> FlowRecord:
    cancel = FlowCancel(policy=policy, reason="", source="", principal="", at=T0) if policy else None
    base = FlowRecord(
        id=FLOW,
        namespace="default",
        name="etl",
        implicit=False,
        tags={},
        digest="",
        sealed=True,
        revision=0,
        open_members=3,
        ended_badly=0,
        created_at=T0,
        changed_at=T0,
        cancel=cancel,
    )
    return replace(base, **changes)


def hanging(states: dict[str, State], *, join: Join | None = None, seq: int = 0, **options: Any) -> ExplainContext:
    """Return a context in which a flow member depends on upstream members in these states."""
    upstreams = tuple(_upstream(place, name, state, seq) for place, (name, state) in enumerate(states.items(), 10))
    found = [item.edge.state for item in upstreams]
    group = EdgeGroup(
        downstream_id=options.get("id", ID),
        seq=seq,
        flow_id=FLOW,
        join=join or all_of(),
        n=len(states),
        satisfied=found.count(EdgeState.SATISFIED),
        impossible=found.count(EdgeState.IMPOSSIBLE),
        state=GroupState.OPEN,
        draft=options.get("draft", False),
    )
    return replace(NOWHERE, dependencies=Dependencies(options.get("flow", flow()), group, upstreams))


def _upstream(place: int, name: str, state: State, seq: int) -> Upstream:
    resolved = {State.COMPLETED: EdgeState.SATISFIED, State.FAILED: EdgeState.IMPOSSIBLE}.get(state, EdgeState.OPEN)
    edge = StoredEdge(
        flow_id=FLOW,
        upstream_id=UUID(int=place),
        downstream_id=ID,
        seq=seq,
        kind=EdgeKind.ON_SUCCESS,
        input=name,
        state=resolved,
    )
    return Upstream(UUID(int=place), name, state, edge)


def blocked(reason: BlockingReason = BlockingReason.WAITING_FOR_CHILDREN) -> Execution:
    return make_new(state=State.BLOCKED, blocking_reason=reason)


def unused(reason: BlockingReason) -> Case:
    """Return a case for a blocking reason that a stored row may have but that the engine does not set yet."""
    return Case(blocked(reason), f"Blocked: {reason.value.replace('_', ' ')}.", {"blocking_reason": reason})


def waiting_on(reason: BlockingReason, why: SuspensionReason) -> Case:
    sentence = 'Waiting since 2029-12-31 23:59 UTC for a signal on waitpoint "go". No timeout.'
    wait = replace(WAIT, reason=why)
    return Case(make_suspended(blocking_reason=reason), sentence, WAITED | {"reason": why}, replace(NOWHERE, wait=wait))


def facts_of(waits_for: dict[str, str], *, join: str = "all_of", needed: int, satisfied: int = 0) -> dict[str, Any]:
    return {"flow": FLOW, "join": join, "needed": needed, "satisfied": satisfied, "waits_for": waits_for}


REASONS: dict[BlockingReason, Case] = {
    BlockingReason.NONE: Case(
        make_leased(), 'Running on worker "packer". Its lease lasts until 00:00:20 UTC.',
        {"worker": "packer", "instance": "packer-7", "until": T0 + 20 * SECOND},
    ),
    BlockingReason.WAITING_FOR_WORKER: Case(
        make_new(),
        'Waiting for a worker since 2029-12-31 23:59 UTC: no live worker on lane "default".',
        {"since": T0 - MINUTE, "priority": 0, "live_workers": 0},
    ),
    BlockingReason.WAITING_FOR_RETRY_BACKOFF: Case(
        make_delayed(
            blocking_reason=BlockingReason.WAITING_FOR_RETRY_BACKOFF, attempt_index=1, retry_count=1,
            failure_category="transient", failure_message="no answer", attempt_state=AttemptState.PENDING_RETRY,
        ),
        "Retry 1 of 3 at 00:01:00 UTC. Last failure: no answer.",
        {"until": T0 + MINUTE, "retries": 1, "category": "transient", "attempt": 1},
    ),
    BlockingReason.WAITING_FOR_RESUME_DELAY: Case(
        make_delayed(blocking_reason=BlockingReason.WAITING_FOR_RESUME_DELAY),
        "The wait is over. The resume delay ends at 00:01:00 UTC.",
        {"until": T0 + MINUTE},
    ),
    BlockingReason.WAITING_FOR_DELAY: Case(
        make_delayed(), "Delayed until 00:01:00 UTC.", {"until": T0 + MINUTE},
    ),
    BlockingReason.WAITING_FOR_SIGNAL: waiting_on(
        BlockingReason.WAITING_FOR_SIGNAL, SuspensionReason.WAITING_FOR_SIGNAL
    ),
    BlockingReason.WAITING_FOR_APPROVAL: waiting_on(
        BlockingReason.WAITING_FOR_APPROVAL, SuspensionReason.WAITING_FOR_APPROVAL
    ),
    BlockingReason.WAITING_FOR_CALLBACK: waiting_on(
        BlockingReason.WAITING_FOR_CALLBACK, SuspensionReason.WAITING_FOR_CALLBACK
    ),
    BlockingReason.WAITING_FOR_TOOL_RESULT: waiting_on(
        BlockingReason.WAITING_FOR_TOOL_RESULT, SuspensionReason.WAITING_FOR_TOOL_RESULT
    ),
    BlockingReason.WAITING_FOR_CHILDREN: Case(
        blocked(), 'Waiting for 1 of 1 upstream members: "a" is active.', facts_of({"a": "active"}, needed=1),
        hanging({"a": State.ACTIVE}),
    ),
    BlockingReason.WAITING_FOR_BUDGET: waiting_on(
        BlockingReason.WAITING_FOR_BUDGET, SuspensionReason.PAUSED_BY_BUDGET
    ),
    BlockingReason.WAITING_FOR_QUOTA: unused(BlockingReason.WAITING_FOR_QUOTA),
    BlockingReason.WAITING_FOR_CAPABLE_WORKER: unused(BlockingReason.WAITING_FOR_CAPABLE_WORKER),
    BlockingReason.WAITING_FOR_LOCALITY_MATCH: unused(BlockingReason.WAITING_FOR_LOCALITY_MATCH),
    BlockingReason.PAUSED_BY_OPERATOR: Case(
        make_held(), 'Held by an operator ("look"). Unhold it to continue.', {"hold_reason": "look"},
    ),
    BlockingReason.PAUSED_BY_POLICY: waiting_on(BlockingReason.PAUSED_BY_POLICY, SuspensionReason.PAUSED_BY_POLICY),
    BlockingReason.PAUSED_BY_FLOW_CANCEL: unused(BlockingReason.PAUSED_BY_FLOW_CANCEL),
}  # fmt: skip

DOOMED = "Its flow was cancelled. The next reconciler pass cancels it too."
SPARED = 'Waiting for 1 of 1 children: "kid" is active.'
KID = {"kid": State.ACTIVE}
A_AND_B = {"a": State.COMPLETED, "b": State.WAITING}
MANY = {f"m{number}": State.WAITING for number in range(7)}
SHOWN = ", ".join(f'"m{number}" is waiting' for number in range(5))

MORE: dict[str, Case] = {
    "some have come": Case(
        blocked(), 'Waiting for 1 of 2 upstream members: "b" is waiting.',
        facts_of({"b": "waiting"}, needed=2, satisfied=1), hanging(A_AND_B),
    ),
    "a race": Case(
        blocked(), 'Waiting for 1 of 2 upstream members (1 needed): "a" is active and "b" is delayed.',
        facts_of({"a": "active", "b": "delayed"}, join="any_of", needed=1),
        hanging({"a": State.ACTIVE, "b": State.DELAYED}, join=any_of()),
    ),
    "a quorum": Case(
        blocked(), 'Waiting for 1 of 3 upstream members (2 needed): "b" is waiting.',
        facts_of({"b": "waiting"}, join="quorum", needed=2, satisfied=1),
        hanging({**A_AND_B, "c": State.FAILED}, join=quorum(2)),
    ),
    "more than can be listed": Case(
        blocked(), f"Waiting for 7 of 7 upstream members: {SHOWN} and 2 more.",
        facts_of(dict.fromkeys(MANY, "waiting"), needed=7), hanging(MANY),
    ),
    "a draft": Case(
        blocked(), "It is a draft. Seal it or its flow to start it.",
        facts_of({"a": "waiting"}, needed=1), hanging({"a": State.WAITING}, draft=True),
    ),
    "children": Case(blocked(), SPARED, facts_of({"kid": "active"}, needed=1), hanging(KID, seq=1)),
    "blocked by nothing that is known": Case(
        blocked(), "Blocked: waiting for children.", {"blocking_reason": BlockingReason.WAITING_FOR_CHILDREN},
    ),
    "due, and not yet ready": Case(
        make_delayed(ready_at=T0 - SECOND),
        "Delayed until 2029-12-31 23:59:59 UTC. The next reconciler pass makes it ready.",
        {"until": T0 - SECOND},
    ),
    "suspended, and its wait has just been closed": Case(
        make_suspended(), "Suspended. Its wait is being closed.",
    ),
    "a wait with a timeout": Case(
        make_suspended(),
        'Waiting since 2029-12-31 23:59 UTC for a signal on waitpoint "go". Times out at 00:01 UTC, then expires.',
        WAITED | {"until": T0 + MINUTE, "on_timeout": OnTimeout.EXPIRE},
        replace(NOWHERE, wait=replace(WAIT, timeout_at=T0 + MINUTE, on_timeout=OnTimeout.EXPIRE)),
    ),
    "an approval": Case(
        make_suspended(blocking_reason=BlockingReason.WAITING_FOR_APPROVAL),
        'Waiting for approval "refund": 1 of 2 (ops approved; finance has not decided). One rejection ends it. '
        "No timeout.",
        APPROVAL_FACTS, replace(NOWHERE, wait=APPROVAL_WAIT),
    ),
    "an approval that needs two rejections, and has a timeout": Case(
        make_suspended(blocking_reason=BlockingReason.WAITING_FOR_APPROVAL),
        'Waiting for approval "refund": 1 of 2 (ops approved; finance has not decided). 2 rejections end it. '
        "Times out at 08:00 UTC, then fails.",
        APPROVAL_FACTS | {"rejections": 2, "until": T0 + 480 * MINUTE},
        replace(NOWHERE, wait=replace(
            APPROVAL_WAIT, approval=replace(APPROVAL, rejections=2), timeout_at=T0 + 480 * MINUTE,
        )),
    ),
    "an escalated wait": Case(
        make_suspended(blocking_reason=BlockingReason.PAUSED_BY_OPERATOR),
        'Waiting since 2029-12-31 23:59 UTC for a signal on waitpoint "go". Its timeout has passed. '
        "Resume or cancel it.",
        WAITED | {"on_timeout": OnTimeout.ESCALATE},
        replace(NOWHERE, wait=replace(WAIT, on_timeout=OnTimeout.ESCALATE)),
    ),
    "a timeout that is due": Case(
        make_suspended(),
        'Waiting since 2029-12-31 23:59 UTC for a signal on waitpoint "go". Timed out at 00:00 UTC. '
        "A reconciler is about to apply the timeout. The execution then fails.",
        WAITED | {"until": T0}, replace(NOWHERE, wait=replace(WAIT, timeout_at=T0)),
    ),
    "a paused lane": Case(
        make_new(lane="mail"), 'Lane "mail" is paused by ann. Resume the lane to start it.',
        {"lane": "mail", "lane_state": "paused", "paused_by": "ann", "pause_reason": "", "paused_at": T0},
        replace(NOWHERE, lane=PAUSED_LANE),
    ),
    "held by its worker": Case(
        make_held(hold_reason="diverged"),
        'Held by its worker ("diverged"): no longer fits. Fix the cause, then unhold it.',
        {"hold_reason": "diverged", "report": "no longer fits\nmore"},
        replace(NOWHERE, hold_report="no longer fits\nmore"),
    ),
    "held for no reason": Case(
        make_held(hold_reason=""), "Held by an operator (no reason given). Unhold it to continue.",
        {"hold_reason": ""},
    ),
    "skipped": Case(
        make_ended(State.SKIPPED),
        'Skipped at 2029-12-31 23:59 UTC: upstream "a" failed.',
        {
            "outcome": "skipped", "ended_at": T0 - SECOND, "flow": FLOW, "join": "all_of", "needed": 1, "satisfied": 0,
            "lost": {"a": "failed"},
        },
        hanging({"a": State.FAILED}),
    ),
    "asked to stop": Case(
        blocked(),
        f"{SPARED} Cancellation was requested: it is cancelled at 00:01:00 UTC unless it ends first.",
        facts_of({"kid": "active"}, needed=1) | {"cancel_due_at": T0 + MINUTE, "cancel_reason": "enough"},
        hanging(KID, seq=1),
    ),
}  # fmt: skip
ASKED = CancelRequest(due_at=T0 + MINUTE, principal="ada", source="ops", reason="enough")
MORE["asked to stop"] = replace(
    MORE["asked to stop"], execution=replace(MORE["asked to stop"].execution, cancel_request=ASKED)
)


@pytest.mark.parametrize("case", [*REASONS.values(), *MORE.values()], ids=[*REASONS, *MORE])
def test_explain_returns_this_sentence_and_these_facts(case: Case) -> None:
    found = explain(case.execution, case.around)
    assert found.sentence == str(found) == case.sentence
    assert found.facts == COMMON | case.facts
    assert (found.execution_id, found.state) == (case.execution.id, case.execution.state)


def test_every_blocking_reason_is_explained() -> None:
    assert set(REASONS) == set(BlockingReason)
    for reason, case in REASONS.items():
        assert case.execution.blocking_reason is reason


@pytest.mark.parametrize("on_timeout", OnTimeout)
def test_sentence_includes_the_timeout_action(on_timeout: OnTimeout) -> None:
    wait = replace(WAIT, timeout_at=T0 + timedelta(hours=1), on_timeout=on_timeout)
    sentence = explain(make_suspended(), replace(NOWHERE, wait=wait)).sentence
    told = {
        OnTimeout.FAIL: "fails", OnTimeout.CANCEL: "is cancelled", OnTimeout.EXPIRE: "expires",
        OnTimeout.AUTO_RESUME: "continues", OnTimeout.ESCALATE: "waits for an operator",
    }  # fmt: skip
    assert sentence.endswith(f" Times out at 01:00 UTC, then {told[on_timeout]}.")


@pytest.mark.parametrize(
    ("policy", "seq", "is_root", "sentence"),
    [
        (CancelPolicy.CANCEL_ALL, 0, False, DOOMED),
        (CancelPolicy.CANCEL_PENDING, 0, False, DOOMED),
        (CancelPolicy.FLOW_ONLY, 0, False, 'Waiting for 1 of 1 upstream members: "kid" is active.'),
        (CancelPolicy.CANCEL_ALL, 1, False, DOOMED),
        (CancelPolicy.CANCEL_PENDING, 1, False, SPARED),
        (CancelPolicy.FLOW_ONLY, 1, False, SPARED),
        (CancelPolicy.CANCEL_ALL, 1, True, SPARED),
        (CancelPolicy.CANCEL_PENDING, 1, True, SPARED),
        (CancelPolicy.FLOW_ONLY, 1, True, SPARED),
    ],
)
def test_cancelled_flow_explains_by_its_cancel_policy(
    policy: CancelPolicy, seq: int, is_root: bool, sentence: str
) -> None:
    around = hanging(KID, seq=seq, flow=flow(policy), id=FLOW if is_root else ID)
    found = explain(blocked(), around)
    assert found.sentence == sentence
    assert found.facts["waits_for"] == {"kid": "active"}
