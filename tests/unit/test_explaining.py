"""Why an execution is not running: the exact sentence and facts for every reason, as pure as the decision itself."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from flowfabric.core.conditions import Single
from flowfabric.core.dependencies import Dependencies, Upstream
from flowfabric.core.explaining import Surroundings, explain
from flowfabric.core.flows import CancelPolicy, EdgeGroup, EdgeState, Flow, FlowCancel, GroupState, StoredEdge
from flowfabric.core.graph import EdgeKind, Join, all_of, any_of, quorum
from flowfabric.core.records import CancelRequest, Execution
from flowfabric.core.states import AttemptState, BlockingReason, State
from flowfabric.core.views import SuspendedView
from flowfabric.core.waits import OnTimeout, SuspensionReason
from tests.unit.builders import ID, MINUTE, SECOND, T0, delayed, ended, fresh, held, leased, suspended

FLOW = UUID(int=7)
COMMON = {"lane": "default", "kind": "job", "attempt": 0}
NOWHERE = Surroundings(lane_is_paused=False, requires=(), wait=None, now=T0)
WAIT = SuspendedView(
    id=UUID(int=3), execution_id=ID, reason=SuspensionReason.WAITING_FOR_SIGNAL, condition=Single("go"),
    missing=("any signal on 'go'",), opened_at=T0 - MINUTE, timeout_at=None, on_timeout=OnTimeout.FAIL,
)  # fmt: skip
WAITED = {
    "suspension": WAIT.id, "reason": WAIT.reason, "missing": WAIT.missing, "until": None, "on_timeout": OnTimeout.FAIL,
}  # fmt: skip


@dataclass(frozen=True)
class Case:
    """An execution in its surroundings, the sentence about it, and the facts beside those that all have."""

    execution: Execution
    sentence: str
    facts: dict[str, Any] = field(default_factory=dict)
    around: Surroundings = NOWHERE


def flow(policy: CancelPolicy | None = None, **changes: Any) -> Flow:
    cancel = FlowCancel(policy=policy, reason="", source="", principal="", at=T0) if policy else None
    base = Flow(
        id=FLOW, namespace="default", name="etl", implicit=False, tags={}, digest="", sealed=True, revision=0,
        open_members=3, ended_badly=0, created_at=T0, changed_at=T0, cancel=cancel,
    )  # fmt: skip
    return replace(base, **changes)


def hanging(states: dict[str, State], *, join: Join | None = None, seq: int = 0, **options: Any) -> Surroundings:
    """What a member hangs on: upstreams in these states, of which those that completed have satisfied their edge."""
    upstreams = tuple(_upstream(place, name, state, seq) for place, (name, state) in enumerate(states.items(), 10))
    found = [item.edge.state for item in upstreams]
    group = EdgeGroup(
        downstream_id=options.get("id", ID), seq=seq, flow_id=FLOW, join=join or all_of(), n=len(states),
        satisfied=found.count(EdgeState.SATISFIED), impossible=found.count(EdgeState.IMPOSSIBLE),
        state=GroupState.OPEN, draft=options.get("draft", False),
    )  # fmt: skip
    return replace(NOWHERE, dependencies=Dependencies(options.get("flow", flow()), group, upstreams))


def _upstream(place: int, name: str, state: State, seq: int) -> Upstream:
    resolved = {State.COMPLETED: EdgeState.SATISFIED, State.FAILED: EdgeState.IMPOSSIBLE}.get(state, EdgeState.OPEN)
    edge = StoredEdge(
        flow_id=FLOW, upstream_id=UUID(int=place), downstream_id=ID, seq=seq, kind=EdgeKind.ON_SUCCESS, input=name,
        state=resolved,
    )  # fmt: skip
    return Upstream(UUID(int=place), name, state, edge)


def blocked(reason: BlockingReason = BlockingReason.WAITING_FOR_CHILDREN) -> Execution:
    return fresh(state=State.BLOCKED, blocking_reason=reason)


def unused(reason: BlockingReason) -> Case:
    """A reason that nothing of the engine's gives yet, but a row may have."""
    return Case(blocked(reason), f"It is blocked: {reason.value}.", {"blocking_reason": reason})


def waiting_on(reason: BlockingReason, why: SuspensionReason) -> Case:
    sentence = "It waits since 2029-12-31 23:59:00 UTC for any signal on 'go'; it has no timeout."
    wait = replace(WAIT, reason=why)
    return Case(suspended(blocking_reason=reason), sentence, WAITED | {"reason": why}, replace(NOWHERE, wait=wait))


def facts_of(waits_for: dict[str, str], *, join: str = "all_of", needed: int, satisfied: int = 0) -> dict[str, Any]:
    return {"flow": FLOW, "join": join, "needed": needed, "satisfied": satisfied, "waits_for": waits_for}


REASONS: dict[BlockingReason, Case] = {
    BlockingReason.NONE: Case(
        leased(), "Worker 'packer' works on it, with a lease until 2030-01-01 00:00:20 UTC.",
        {"worker": "packer", "instance": "packer-7", "until": T0 + 20 * SECOND},
    ),
    BlockingReason.WAITING_FOR_WORKER: Case(
        fresh(),
        "It waits for a worker on lane 'default' to take it, since 2029-12-31 23:59:00 UTC; no live worker is "
        "registered for that lane.",
        {"since": T0 - MINUTE, "priority": 0, "live_workers": 0},
    ),
    BlockingReason.WAITING_FOR_RETRY_BACKOFF: Case(
        delayed(
            blocking_reason=BlockingReason.WAITING_FOR_RETRY_BACKOFF, attempt_index=1, retry_count=1,
            failure_category="transient", failure_message="no answer", attempt_state=AttemptState.PENDING_RETRY,
        ),
        "It waits until 2030-01-01 00:01:00 UTC for retry 1 of 3, because attempt 0 failed (transient): no answer.",
        {"until": T0 + MINUTE, "retries": 1, "category": "transient", "attempt": 1},
    ),
    BlockingReason.WAITING_FOR_RESUME_DELAY: Case(
        delayed(blocking_reason=BlockingReason.WAITING_FOR_RESUME_DELAY),
        "Its wait is over, and it rests until 2030-01-01 00:01:00 UTC, as the resume delay says.",
        {"until": T0 + MINUTE},
    ),
    BlockingReason.WAITING_FOR_DELAY: Case(
        delayed(), "It was delayed, and waits until 2030-01-01 00:01:00 UTC.", {"until": T0 + MINUTE},
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
        blocked(), "It waits for all of its upstreams: 'a' is active.", facts_of({"a": "active"}, needed=1),
        hanging({"a": State.ACTIVE}),
    ),
    BlockingReason.WAITING_FOR_BUDGET: waiting_on(
        BlockingReason.WAITING_FOR_BUDGET, SuspensionReason.PAUSED_BY_BUDGET
    ),
    BlockingReason.WAITING_FOR_QUOTA: unused(BlockingReason.WAITING_FOR_QUOTA),
    BlockingReason.WAITING_FOR_CAPABLE_WORKER: unused(BlockingReason.WAITING_FOR_CAPABLE_WORKER),
    BlockingReason.WAITING_FOR_LOCALITY_MATCH: unused(BlockingReason.WAITING_FOR_LOCALITY_MATCH),
    BlockingReason.PAUSED_BY_OPERATOR: Case(
        held(), "An operator holds it (look); unhold it to let it go on.", {"hold_reason": "look"},
    ),
    BlockingReason.PAUSED_BY_POLICY: waiting_on(BlockingReason.PAUSED_BY_POLICY, SuspensionReason.PAUSED_BY_POLICY),
    BlockingReason.PAUSED_BY_FLOW_CANCEL: unused(BlockingReason.PAUSED_BY_FLOW_CANCEL),
}  # fmt: skip

DOOMED = "Its flow was cancelled; it is about to be cancelled too."
SPARED = "It waits for all of its children: 'kid' is active."
KID = {"kid": State.ACTIVE}
A_AND_B = {"a": State.COMPLETED, "b": State.WAITING}
MANY = {f"m{number}": State.WAITING for number in range(7)}
SHOWN = ", ".join(f"'m{number}' is waiting" for number in range(5))

MORE: dict[str, Case] = {
    "some have come": Case(
        blocked(), "It waits for 1 more of its upstreams: 'b' is waiting.",
        facts_of({"b": "waiting"}, needed=2, satisfied=1), hanging(A_AND_B),
    ),
    "a race": Case(
        blocked(), "It waits for 1 more (any_of, 1 of 2) of its upstreams: 'a' is active, 'b' is delayed.",
        facts_of({"a": "active", "b": "delayed"}, join="any_of", needed=1),
        hanging({"a": State.ACTIVE, "b": State.DELAYED}, join=any_of()),
    ),
    "a quorum": Case(
        blocked(), "It waits for 1 more (quorum, 2 of 3) of its upstreams: 'b' is waiting.",
        facts_of({"b": "waiting"}, join="quorum", needed=2, satisfied=1),
        hanging({**A_AND_B, "c": State.FAILED}, join=quorum(2)),
    ),
    "more than can be listed": Case(
        blocked(), f"It waits for all of its upstreams: {SHOWN} and 2 more.",
        facts_of(dict.fromkeys(MANY, "waiting"), needed=7), hanging(MANY),
    ),
    "a draft": Case(
        blocked(), "It is a draft; seal it, or its flow, to let it start.",
        facts_of({"a": "waiting"}, needed=1), hanging({"a": State.WAITING}, draft=True),
    ),
    "children": Case(blocked(), SPARED, facts_of({"kid": "active"}, needed=1), hanging(KID, seq=1)),
    "blocked by nothing that is known": Case(
        blocked(), "It is blocked: waiting_for_children.", {"blocking_reason": BlockingReason.WAITING_FOR_CHILDREN},
    ),
    "due, and not yet ready": Case(
        delayed(ready_at=T0 - SECOND), "It was delayed, and waits (due since 2029-12-31 23:59:59 UTC).",
        {"until": T0 - SECOND},
    ),
    "suspended, and its wait has just been closed": Case(
        suspended(), "It is suspended, and its wait is being closed.",
    ),
    "a wait with a timeout": Case(
        suspended(),
        "It waits since 2029-12-31 23:59:00 UTC for any signal on 'go', until 2030-01-01 00:01:00 UTC; then it will "
        "expire.",
        WAITED | {"until": T0 + MINUTE, "on_timeout": OnTimeout.EXPIRE},
        replace(NOWHERE, wait=replace(WAIT, timeout_at=T0 + MINUTE, on_timeout=OnTimeout.EXPIRE)),
    ),
    "held by its worker": Case(
        held(hold_reason="diverged"),
        "Its worker holds it (diverged): no longer fits; repair that, then unhold it to let it go on.",
        {"hold_reason": "diverged", "report": "no longer fits\nmore"},
        replace(NOWHERE, hold_report="no longer fits\nmore"),
    ),
    "held for no reason": Case(
        held(hold_reason=""), "An operator holds it (no reason given); unhold it to let it go on.", {"hold_reason": ""},
    ),
    "skipped": Case(
        ended(State.SKIPPED),
        "It has ended: skipped at 2029-12-31 23:59:59 UTC, because what it came after did not end as needed: "
        "'a' is failed.",
        {
            "outcome": "skipped", "ended_at": T0 - SECOND, "flow": FLOW, "join": "all_of", "needed": 1, "satisfied": 0,
            "lost": {"a": "failed"},
        },
        hanging({"a": State.FAILED}),
    ),
    "asked to stop": Case(
        blocked(),
        f"{SPARED} It was asked to stop, and is cancelled at 2030-01-01 00:01:00 UTC if it has not ended by then.",
        facts_of({"kid": "active"}, needed=1) | {"cancel_due_at": T0 + MINUTE, "cancel_reason": "enough"},
        hanging(KID, seq=1),
    ),
}  # fmt: skip
ASKED = CancelRequest(due_at=T0 + MINUTE, principal="ada", source="ops", reason="enough")
MORE["asked to stop"] = replace(
    MORE["asked to stop"], execution=replace(MORE["asked to stop"].execution, cancel_request=ASKED)
)


@pytest.mark.parametrize("case", [*REASONS.values(), *MORE.values()], ids=[*REASONS, *MORE])
def test_the_sentence_and_the_facts_are_exactly_these(case: Case) -> None:
    found = explain(case.execution, case.around)
    assert found.sentence == str(found) == case.sentence
    assert found.facts == COMMON | case.facts
    assert (found.execution_id, found.state) == (case.execution.id, case.execution.state)


def test_every_blocking_reason_is_explained() -> None:
    assert set(REASONS) == set(BlockingReason)
    for reason, case in REASONS.items():
        assert case.execution.blocking_reason is reason


@pytest.mark.parametrize("on_timeout", OnTimeout)
def test_whatever_a_timeout_does_is_said(on_timeout: OnTimeout) -> None:
    wait = replace(WAIT, timeout_at=T0 + timedelta(hours=1), on_timeout=on_timeout)
    sentence = explain(suspended(), replace(NOWHERE, wait=wait)).sentence
    told = {
        OnTimeout.FAIL: "fail", OnTimeout.CANCEL: "be cancelled", OnTimeout.EXPIRE: "expire",
        OnTimeout.AUTO_RESUME: "go on without an answer", OnTimeout.ESCALATE: "be left to an operator",
    }  # fmt: skip
    assert sentence.endswith(f", until 2030-01-01 01:00:00 UTC; then it will {told[on_timeout]}.")


@pytest.mark.parametrize(
    ("policy", "seq", "is_root", "sentence"),
    [
        (CancelPolicy.CANCEL_ALL, 0, False, DOOMED),
        (CancelPolicy.CANCEL_PENDING, 0, False, DOOMED),
        (CancelPolicy.FLOW_ONLY, 0, False, "It waits for all of its upstreams: 'kid' is active."),
        (CancelPolicy.CANCEL_ALL, 1, False, DOOMED),
        (CancelPolicy.CANCEL_PENDING, 1, False, SPARED),
        (CancelPolicy.FLOW_ONLY, 1, False, SPARED),
        (CancelPolicy.CANCEL_ALL, 1, True, SPARED),
        (CancelPolicy.CANCEL_PENDING, 1, True, SPARED),
        (CancelPolicy.FLOW_ONLY, 1, True, SPARED),
    ],
)
def test_in_a_cancelled_flow_only_whom_the_policy_means_is_about_to_be_cancelled(
    policy: CancelPolicy, seq: int, is_root: bool, sentence: str
) -> None:
    around = hanging(KID, seq=seq, flow=flow(policy), id=FLOW if is_root else ID)
    found = explain(blocked(), around)
    assert found.sentence == sentence
    assert found.facts["waits_for"] == {"kid": "active"}
