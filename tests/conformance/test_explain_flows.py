"""explain: members say whom they wait for, and what became of it."""

from __future__ import annotations

from datetime import timedelta

from flowfabric.engine import Engine, any_of, quorum
from flowfabric.testing import VirtualClock
from tests.flows import built, created, ended, with_children
from tests.scenarios import leased


async def test_a_blocked_member_names_whom_it_waits_for(engine: Engine) -> None:
    flow = await built(engine, {"extract": [], "check": [], "load": ["extract", "check"]})
    await flow.complete("extract")
    await flow.claim("check")
    found = await engine.operator.explain(flow["load"])
    assert found.sentence == "It waits for 1 more of its upstreams: 'check' is active."
    assert found.facts["waits_for"] == {"check": "active"}
    assert (found.facts["flow"], found.facts["needed"], found.facts["satisfied"]) == (flow.id, 2, 1)


async def test_races_and_quorums_say_how_many_are_needed(engine: Engine) -> None:
    flow = await built(engine, {"a": [], "b": [], "c": [], "any": ["a", "b"], "two": ["a", "b", "c"]},
                       joins={"any": any_of(), "two": quorum(2)})  # fmt: skip
    await flow.fail("c")
    for name, needed in (("any", "1 more (any_of, 1 of 2)"), ("two", "2 more (quorum, 2 of 3)")):
        found = await engine.operator.explain(flow[name])
        assert found.facts["waits_for"] == {"a": "waiting", "b": "waiting"}
        assert found.sentence.startswith(f"It waits for {needed} of its upstreams: ")


async def test_a_draft_says_so(engine: Engine) -> None:
    flow = await created(engine)
    await flow.add("a", draft=True)
    found = await engine.operator.explain(flow["a"])
    assert found.sentence == "It is a draft; seal it, or its flow, to let it start."
    assert found.facts["waits_for"] == {}


async def test_a_parent_names_the_children_it_waits_for(engine: Engine) -> None:
    lease = await leased(engine)
    children = await with_children(engine, lease, "a", "b")
    await engine.leases.wait_children(lease.fence, list(children.values()))
    await ended(engine, children["a"])
    found = await engine.operator.explain(lease.execution_id)
    assert found.sentence == "It waits for 1 more of its children: 'b' is waiting."
    assert found.facts["waits_for"] == {"b": "waiting"}


async def test_what_was_skipped_says_why(engine: Engine, clock: VirtualClock) -> None:
    flow = await built(engine, {"a": [], "b": ["a"]})
    await flow.fail("a")
    found, at = await engine.operator.explain(flow["b"]), clock.now().strftime("%Y-%m-%d %H:%M:%S UTC")
    why = "because what it came after did not end as needed: 'a' is failed."
    assert found.sentence == f"It has ended: skipped at {at}, {why}"
    assert found.facts["lost"] == {"a": "failed"}


async def test_a_cancel_with_grace_shows_until_when(engine: Engine, clock: VirtualClock) -> None:
    lease = await leased(engine)
    await engine.operator.cancel(lease.execution_id, "enough", grace="1h")
    found, due = await engine.operator.explain(lease.execution_id), clock.now() + timedelta(hours=1)
    told = f"It was asked to stop, and is cancelled at {due:%Y-%m-%d %H:%M:%S} UTC if it has not ended by then."
    assert found.sentence.endswith(f". {told}")
    assert (found.facts["cancel_due_at"], found.facts["cancel_reason"]) == (due, "enough")
