"""explain: one sentence and its facts, for every reason why an execution is not running."""

from __future__ import annotations

import pytest

from flowfabric.engine import AllOf, Count, Engine, Fresh, NotFound, Single, State, Suspended
from flowfabric.testing import VirtualClock
from tests.facts import refused
from tests.scenarios import SITUATIONS, leased, submitted

SENTENCES = {
    "waiting": "It waits for a worker on lane 'default' to take it",
    "waiting: resumable": "It waits for a worker on lane 'default' to go on with it",
    "waiting: resumed": "It waits for a worker on lane 'default' to go on with it",
    "waiting: requeued": "It waits for a worker on lane 'default' to take it",
    "waiting: replayed": "It waits for a worker on lane 'default' to take it",
    "delayed": "It was delayed, and waits until ",
    "delayed: resting": "It was delayed, and waits until ",
    "delayed: retrying": "for retry 1 of 3, because attempt 0 failed (transient): ",
    "blocked: held": "An operator holds it (look at it); unhold it",
    "active": "Worker 'worker-1' works on it, with a lease until ",
    "active: lease run out": "The lease of worker 'worker-1' ran out at ",
    "active: kept, lease expired": "ran out, and its policy keeps it for a hand-off; grant a reclaim",
    "active: kept, lease revoked": "was revoked, and its policy keeps it for a hand-off; grant a reclaim",
    "suspended": " for any signal on 'go'; it has no timeout.",
    "completed": "It has ended: completed at ",
    "failed": "It has ended: failed at ",
    "cancelled": "It has ended: cancelled at ",
    "expired": "It has ended: expired at ",
}


@pytest.mark.parametrize("situation", SITUATIONS)
async def test_every_situation_has_its_sentence(engine: Engine, clock: VirtualClock, situation: str) -> None:
    id_ = await SITUATIONS[situation](engine, clock)
    explanation = await engine.operator.explain(id_)
    assert SENTENCES[situation] in str(explanation)
    assert explanation.sentence.endswith(".")
    assert explanation.execution_id == id_
    assert explanation.state is (await engine.executions.describe(id_)).state


async def test_a_paused_lane_is_named(engine: Engine) -> None:
    id_ = await submitted(engine, lane="mail")
    await engine.lanes.pause("mail")
    explanation = await engine.operator.explain(id_)
    assert explanation.sentence == "It waits because lane 'mail' is paused; resume the lane."
    assert explanation.facts["lane_state"] == "paused"


async def test_the_capabilities_that_a_worker_must_offer_are_named(engine: Engine) -> None:
    id_ = await submitted(engine, requires=["gpu", "cuda"])
    explanation = await engine.operator.explain(id_)
    assert "only one that offers cuda, gpu may" in explanation.sentence
    assert explanation.facts["requires"] == ("cuda", "gpu")


async def test_a_wait_says_what_is_missing_until_when_and_what_then(engine: Engine, clock: VirtualClock) -> None:
    lease = await leased(engine)
    condition = AllOf([Single("payment", "paid"), Count(2, "sources", ["review"])])
    suspended = await engine.leases.suspend(
        lease.fence, ["payment", "review"], condition, timeout="1h", on_timeout="cancel"
    )
    assert isinstance(suspended, Suspended)
    await engine.signals.deliver(_token(suspended, "review"), "yes", source_identity="ann")
    explanation = await engine.operator.explain(lease.execution_id)
    assert "a signal named 'paid' on 'payment'" in explanation.sentence
    assert "1 more of 2 distinct sources on 'review' (sources on trust)" in explanation.sentence
    assert explanation.sentence.endswith("; then it will be cancelled.")
    assert len(explanation.facts["missing"]) == 2


async def test_sources_that_tokens_vouch_for_are_not_on_trust(engine: Engine) -> None:
    lease = await leased(engine)
    waitpoints = [Fresh("ann", approver="ann"), Fresh("bob", approver="bob")]
    await engine.leases.suspend(lease.fence, waitpoints, Count(2, "sources", ["ann", "bob"]))
    explanation = await engine.operator.explain(lease.execution_id)
    assert "2 more of 2 distinct sources" in explanation.sentence
    assert "trust" not in explanation.sentence
    assert explanation.sentence.endswith("it has no timeout.")


async def test_a_wait_past_its_timeout_that_was_escalated_asks_for_an_operator(
    engine: Engine, clock: VirtualClock
) -> None:
    lease = await leased(engine)
    await engine.leases.suspend(lease.fence, ["review"], timeout="1m", on_timeout="escalate")
    clock.advance("2m")
    await engine.reconcilers.tick()
    explanation = await engine.operator.explain(lease.execution_id)
    assert explanation.state is State.SUSPENDED
    assert "an operator must resume or cancel it" in explanation.sentence


async def test_a_resume_delay_is_told_from_other_delays(engine: Engine) -> None:
    lease = await leased(engine)
    suspended = await engine.leases.suspend(lease.fence, ["review"], resume_delay="1h")
    assert isinstance(suspended, Suspended)
    await engine.signals.deliver(_token(suspended, "review"), "yes")
    explanation = await engine.operator.explain(lease.execution_id)
    assert explanation.sentence.startswith("Its wait is over, and it rests until ")


async def test_an_unknown_execution_has_nothing_to_explain(engine: Engine) -> None:
    id_ = await submitted(engine)
    await refused(engine.within("elsewhere").operator.explain(id_), "execution_not_found", NotFound)


def _token(suspended: Suspended, key: str) -> str:
    token = suspended.token(key)
    assert token is not None
    return token.reveal()
