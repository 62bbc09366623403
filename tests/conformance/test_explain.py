"""Tests of explain, which gives one sentence and its facts for every reason why an execution is not running."""

from __future__ import annotations

from datetime import timedelta

import pytest

from flowfabric.engine import AllOf, AnyOf, Count, Engine, NewWaitpoint, NotFound, Single, State, Suspended
from flowfabric.testing import VirtualClock
from tests.expectations import refused
from tests.scenarios import SITUATIONS, leased, submitted
from tests.stores import TestStore

SENTENCES = {
    "waiting": "Waiting for a worker since ",
    "waiting: resumable": "Waiting for a worker to continue it since ",
    "waiting: resumed": "Waiting for a worker to continue it since ",
    "waiting: requeued": "Waiting for a worker since ",
    "waiting: replayed": "Waiting for a worker since ",
    "delayed": "Delayed until ",
    "delayed: resting": "Delayed until ",
    "delayed: retrying": "Retry 1 of 3 at ",
    "blocked: held": 'Held by an operator ("look at it"). Unhold it to continue.',
    "active": 'Running on worker "worker-1". Its lease lasts until ',
    "active: lease run out": 'The lease of worker "worker-1" expired at ',
    "active: kept, lease expired": "expired. The policy keeps it for a hand-off; grant a reclaim.",
    "active: kept, lease revoked": "was revoked. The policy keeps it for a hand-off; grant a reclaim.",
    "suspended": ' for a signal on waitpoint "go". No timeout.',
    "completed": "Completed at ",
    "failed": "Failed at ",
    "cancelled": "Cancelled at ",
    "expired": "Expired at ",
}


@pytest.mark.parametrize("situation", SITUATIONS)
async def test_every_situation_has_its_sentence(engine: Engine, clock: VirtualClock, situation: str) -> None:
    id_ = await SITUATIONS[situation](engine, clock)
    explanation = await engine.operator.explain(id_)
    assert SENTENCES[situation] in str(explanation)
    assert explanation.sentence.endswith(".")
    assert explanation.execution_id == id_
    assert explanation.state is (await engine.executions.describe(id_)).state


async def test_explanation_of_a_silent_worker_says_since_when(engine: Engine, clock: VirtualClock) -> None:
    lease = await leased(engine, lease_ttl="60s")
    clock.advance("29s")
    assert "Running on worker" in str(await engine.operator.explain(lease.execution_id))
    clock.advance("2s")
    explanation = await engine.operator.explain(lease.execution_id)
    assert explanation.sentence.startswith('Worker "worker-1" has not been')
    assert "Its lease lasts until " in explanation.sentence
    assert explanation.facts["renewed_at"] == clock.now() - timedelta(seconds=31)
    await engine.leases.renew(lease.fence)
    assert "Running on worker" in str(await engine.operator.explain(lease.execution_id))


async def test_explanation_names_who_paused_the_lane_and_why(engine: Engine, clock: VirtualClock) -> None:
    id_ = await submitted(engine, lane="mail")
    await engine.lanes.pause("mail", "provider outage", principal="ann")
    explanation = await engine.operator.explain(id_)
    assert explanation.sentence == 'Lane "mail" is paused by ann ("provider outage"). Resume the lane to start it.'
    assert explanation.facts["lane_state"] == "paused"
    by = [explanation.facts[fact] for fact in ("paused_by", "pause_reason", "paused_at")]
    assert by == ["ann", "provider outage", clock.now()]


async def test_lane_that_an_earlier_release_paused_is_explained_without_a_name(
    engine: Engine, store: TestStore
) -> None:
    id_ = await submitted(engine, lane="mail")
    await engine.lanes.pause("mail", "provider outage", principal="ann")
    await store.query("UPDATE ff.lane SET principal = NULL, reason = NULL")
    explanation = await engine.operator.explain(id_)
    assert explanation.sentence == 'Lane "mail" is paused. Resume the lane to start it.'


async def test_explanation_names_the_required_capabilities(engine: Engine) -> None:
    id_ = await submitted(engine, requires=["gpu", "cuda"])
    await engine.workers.register("w1", ["default"])
    explanation = await engine.operator.explain(id_)
    assert explanation.sentence.endswith(': no live worker on lane "default" offers "cuda" and "gpu".')
    assert explanation.facts["requires"] == ("cuda", "gpu")


async def test_explanation_of_a_wait_shows_missing_signals_timeout_and_what_follows(
    engine: Engine, clock: VirtualClock
) -> None:
    lease = await leased(engine)
    condition = AllOf([Single("payment", "paid"), Count(2, "sources", ["review"])])
    suspended = await engine.leases.suspend(
        lease.fence, ["payment", "review"], condition, timeout="1h", on_timeout="cancel"
    )
    assert isinstance(suspended, Suspended)
    await engine.signals.deliver(_token(suspended, "review"), "yes", source_identity="ann")
    explanation = await engine.operator.explain(lease.execution_id)
    assert 'signal "paid" on waitpoint "payment"' in explanation.sentence
    assert '1 more of 2 sources on "review" (sources are not verified)' in explanation.sentence
    assert explanation.sentence.endswith(" UTC, then is cancelled.")
    assert len(explanation.facts["missing"]) == 2


async def test_sources_verified_by_tokens_are_not_marked_as_trusted(engine: Engine) -> None:
    lease = await leased(engine)
    waitpoints = [NewWaitpoint("ann", approver="ann"), NewWaitpoint("bob", approver="bob")]
    await engine.leases.suspend(lease.fence, waitpoints, Count(2, "sources", ["ann", "bob"]))
    explanation = await engine.operator.explain(lease.execution_id)
    assert "2 more of 2 sources" in explanation.sentence
    assert "verified" not in explanation.sentence
    assert explanation.sentence.endswith(" No timeout.")


async def test_an_approval_names_who_has_decided_and_who_has_not(engine: Engine) -> None:
    lease = await leased(engine)
    keys = ["approval:refund[ops]", "approval:refund[finance]"]
    waitpoints = [NewWaitpoint(keys[0], approver="ops"), NewWaitpoint(keys[1], approver="finance")]
    condition = AnyOf([Count(2, "sources", keys, "approve"), Count(1, "sources", keys, "reject")])
    suspended = await engine.leases.suspend(lease.fence, waitpoints, condition, reason="waiting_for_approval")
    assert isinstance(suspended, Suspended)
    await engine.signals.deliver(_token(suspended, keys[0]), "approve")
    explanation = await engine.operator.explain(lease.execution_id)
    progress = 'approval "refund": 1 of 2 (ops approved; finance has not decided)'
    assert explanation.sentence == f"Waiting for {progress}. One rejection ends it. No timeout."
    facts = explanation.facts
    assert (facts["approval"], facts["required"], facts["rejections"]) == ("refund", 2, 1)
    assert (facts["approved"], facts["rejected"], facts["undecided"]) == (("ops",), (), ("finance",))
    [listed] = await engine.waitpoints.list_suspended()
    assert listed.missing == (progress,)


async def test_escalated_wait_asks_for_an_operator(engine: Engine, clock: VirtualClock) -> None:
    lease = await leased(engine)
    await engine.leases.suspend(lease.fence, ["review"], timeout="1m", on_timeout="escalate")
    clock.advance("2m")
    await engine.reconcilers.tick()
    explanation = await engine.operator.explain(lease.execution_id)
    assert explanation.state is State.SUSPENDED
    assert explanation.sentence.endswith("Its timeout has passed. Resume or cancel it.")


async def test_resume_delay_has_its_own_explanation(engine: Engine) -> None:
    lease = await leased(engine)
    suspended = await engine.leases.suspend(lease.fence, ["review"], resume_delay="1h")
    assert isinstance(suspended, Suspended)
    await engine.signals.deliver(_token(suspended, "review"), "yes")
    explanation = await engine.operator.explain(lease.execution_id)
    assert explanation.sentence.startswith("The wait is over. The resume delay ends at ")


async def test_unknown_execution_is_not_found(engine: Engine) -> None:
    id_ = await submitted(engine)
    await refused(engine.for_namespace("elsewhere").operator.explain(id_), "execution_not_found", NotFound)


def _token(suspended: Suspended, key: str) -> str:
    token = suspended.token(key)
    assert token is not None
    return token.reveal()
