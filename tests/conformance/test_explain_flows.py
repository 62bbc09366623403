"""Tests of explain for flow members, which names the upstream members and their states."""

from __future__ import annotations

from datetime import timedelta

from flowfabric.engine import Edge, EdgeKind, Engine, State, any_of, quorum
from flowfabric.testing import VirtualClock
from tests.flows import built, created, ended, with_children
from tests.scenarios import leased

PAIR = {"a": [], "b": ["a"]}


async def test_blocked_member_names_the_upstreams_it_waits_for(engine: Engine) -> None:
    flow = await built(engine, {"extract": [], "check": [], "load": ["extract", "check"]})
    await flow.complete("extract")
    await flow.claim("check")
    explanation = await engine.operator.explain(flow["load"])
    assert explanation.sentence == 'Waiting for 1 of 2 upstream members: "check" is active.'
    assert explanation.facts["waits_for"] == {"check": "active"}
    assert (explanation.facts["flow"], explanation.facts["needed"], explanation.facts["satisfied"]) == (flow.id, 2, 1)


async def test_races_and_quorums_show_how_many_upstreams_are_needed(engine: Engine) -> None:
    flow = await built(
        engine,
        {"a": [], "b": [], "c": [], "any": ["a", "b"], "two": ["a", "b", "c"]},
        joins={"any": any_of(), "two": quorum(2)},
    )
    await flow.fail("c")
    for name, needed in (("any", "1 of 2 upstream members (1 needed)"), ("two", "2 of 3 upstream members (2 needed)")):
        explanation = await engine.operator.explain(flow[name])
        assert explanation.facts["waits_for"] == {"a": "waiting", "b": "waiting"}
        assert explanation.sentence.startswith(f"Waiting for {needed}: ")


async def test_draft_is_explained_as_a_draft(engine: Engine) -> None:
    flow = await created(engine)
    await flow.add("a", draft=True)
    explanation = await engine.operator.explain(flow["a"])
    assert explanation.sentence == "It is a draft. Seal it or its flow to start it."
    assert explanation.facts["waits_for"] == {}


async def test_parent_names_the_children_it_waits_for(engine: Engine) -> None:
    lease = await leased(engine)
    children = await with_children(engine, lease, "a", "b")
    await engine.leases.wait_children(lease.fence, list(children.values()))
    await ended(engine, children["a"])
    explanation = await engine.operator.explain(lease.execution_id)
    assert explanation.sentence == 'Waiting for 1 of 2 children: "b" is waiting.'
    assert explanation.facts["waits_for"] == {"b": "waiting"}


async def test_skipped_member_names_the_cause(engine: Engine, clock: VirtualClock) -> None:
    flow = await built(engine, {"a": [], "b": ["a"]})
    await flow.fail("a")
    explanation, at = await engine.operator.explain(flow["b"]), clock.now().strftime("%H:%M UTC")
    way_out = "Replay the failed member to bring this one back."
    assert explanation.sentence == f'Skipped at {at}: upstream "a" failed. {way_out}'
    assert explanation.facts["lost"] == {"a": "failed"}


async def test_skipped_member_names_the_failure_behind_its_skipped_upstream(
    engine: Engine, clock: VirtualClock
) -> None:
    flow = await built(engine, {"a": [], "b": ["a"], "c": ["b"]})
    await flow.fail("a")
    explanation, at = await engine.operator.explain(flow["c"]), clock.now().strftime("%H:%M UTC")
    expected = f'Skipped at {at}: upstream "b" was skipped because upstream "a" failed. '
    assert explanation.sentence == expected + "Replay the failed member to bring this one back."
    assert (explanation.facts["category"], explanation.facts["failure"]) == ("upstream_failed", 'upstream "a" failed')
    failure = (await engine.executions.describe(flow["c"])).last_failure
    assert failure is not None
    assert (failure.message, failure.category) == ('upstream "a" failed', "upstream_failed")


async def test_member_left_behind_by_a_replay_says_so(engine: Engine, clock: VirtualClock) -> None:
    flow = await built(engine, {"a": [], "b": ["a"]})
    await flow.fail("a")
    await engine.operator.replay(flow["a"], downstream=False)
    await flow.complete("a")
    explanation, at = await engine.operator.explain(flow["b"]), clock.now().strftime("%H:%M UTC")
    replayed = "which was replayed without it. Replay this execution to run it."
    assert explanation.sentence == f'Skipped at {at}: upstream "a" failed, {replayed}'


async def test_member_behind_one_that_a_replay_left_skipped_names_the_flow(engine: Engine) -> None:
    flow = await built(engine, {"a": [], "b": ["a"], "c": ["b"]})
    await flow.fail("a")
    await engine.operator.replay(flow["a"], downstream=False)
    await flow.complete("a")
    sentence = (await engine.operator.explain(flow["c"])).sentence
    assert sentence.endswith('because upstream "a" failed. Replay the flow with --failed to bring this one back.')
    assert (await engine.flows.replay(flow.id, failed=True)).revived == 2


async def test_member_replayed_before_its_failed_upstream_names_that_one(engine: Engine) -> None:
    flow = await built(engine, {"a": [], "b": ["a"]})
    await flow.fail("a")
    await engine.operator.replay(flow["b"])
    sentence = (await engine.operator.explain(flow["b"])).sentence
    assert sentence == 'Waiting for 1 of 1 upstream members: "a" failed. Replay "a" to continue.'
    await engine.operator.replay(flow["a"])
    sentence = (await engine.operator.explain(flow["b"])).sentence
    assert sentence == 'Waiting for 1 of 1 upstream members: "a" is waiting.'


async def test_member_skipped_without_a_failure_needs_no_replay(engine: Engine, clock: VirtualClock) -> None:
    flow = await built(engine, {"a": [], "alarm": [Edge("a", EdgeKind.ON_FAILURE)]})
    await flow.complete("a")
    explanation, at = await engine.operator.explain(flow["alarm"]), clock.now().strftime("%H:%M UTC")
    assert explanation.sentence == f'Skipped at {at}: upstream "a" completed.'


async def test_cancel_with_grace_shows_its_due_time(engine: Engine, clock: VirtualClock) -> None:
    lease = await leased(engine)
    await engine.operator.cancel(lease.execution_id, "enough", grace="1h")
    explanation, due = await engine.operator.explain(lease.execution_id), clock.now() + timedelta(hours=1)
    date = "" if due.date() == clock.now().date() else f"{due:%Y-%m-%d} "
    at = f"{date}{due:%H:%M:%S} UTC"
    assert explanation.sentence.endswith(f". Cancellation was requested: it is cancelled at {at} unless it ends first.")
    assert (explanation.facts["cancel_due_at"], explanation.facts["cancel_reason"]) == (due, "enough")


async def test_blocked_member_is_explained_as_waiting_for_its_upstream(engine: Engine) -> None:
    flow = await built(engine, PAIR)
    explanation = await engine.operator.explain(flow["b"])
    assert explanation.state is State.BLOCKED
    assert explanation.sentence == 'Waiting for 1 of 1 upstream members: "a" is waiting.'
    assert explanation.facts["waits_for"] == {"a": "waiting"}
