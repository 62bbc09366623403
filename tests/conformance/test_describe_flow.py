"""Tests of describe_flow and of the flow state, which is derived from the members."""

from __future__ import annotations

from uuid import uuid4

import pytest

from flowfabric.engine import Edge, EdgeKind, EdgeState, Engine, FlowState, JoinKind, NotFound, any_of, quorum
from flowfabric.ops.flows import read as flow_reading
from flowfabric.testing import VirtualClock
from tests.expectations import refused
from tests.flows import Shape, built, created


async def test_flow_shows_its_graph_with_every_edge_and_group(engine: Engine, clock: VirtualClock) -> None:
    shape: Shape = {"a": [], "b": [Edge("a", EdgeKind.ON_FAILURE)], "c": ["a", Edge("b", input="side")]}
    flow = await built(engine, shape, joins={"c": quorum(2)}, tags={"team.name": "data"})
    description = await engine.flows.describe(flow.id)
    assert (description.id, description.name, description.sealed, dict(description.tags)) == (
        flow.id,
        "etl",
        True,
        {"team.name": "data"},
    )
    assert (description.created_at, description.ended_at) == (clock.now(), None)
    edges = {(edge.upstream_id, edge.downstream_id): edge for edge in description.edges}
    assert set(edges) == {(flow["a"], flow["b"]), (flow["a"], flow["c"]), (flow["b"], flow["c"])}
    assert edges[flow["a"], flow["b"]].kind is EdgeKind.ON_FAILURE
    assert edges[flow["b"], flow["c"]].input == "side"
    assert {edge.state for edge in description.edges} == {EdgeState.OPEN}
    groups = {group.downstream_id: group for group in description.groups}
    assert (groups[flow["c"]].join.kind, groups[flow["c"]].join.k) == (JoinKind.QUORUM, 2)


async def test_description_of_a_large_graph_is_truncated_and_marked(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    flow = await built(engine, {"a": [], "b": ["a"], "c": ["a", "b"]})
    assert not (await engine.flows.describe(flow.id)).is_truncated
    monkeypatch.setattr(flow_reading, "_MAX_EDGES", 3)
    description = await engine.flows.describe(flow.id)
    assert (len(description.edges), len(description.groups), description.is_truncated) == (3, 2, False)
    monkeypatch.setattr(flow_reading, "_MAX_EDGES", 2)
    description = await engine.flows.describe(flow.id)
    assert (len(description.edges), len(description.groups), description.is_truncated) == (2, 2, True)


async def test_edges_and_groups_show_their_current_state(engine: Engine) -> None:
    flow = await built(engine, {"a": [], "b": [], "c": ["a", "b"], "d": ["c"]}, joins={"c": any_of()})
    await flow.fail("a")
    description = await engine.flows.describe(flow.id)
    states = {(edge.upstream_id, edge.downstream_id): edge.state for edge in description.edges}
    assert states == {
        (flow["a"], flow["c"]): EdgeState.IMPOSSIBLE,
        (flow["b"], flow["c"]): EdgeState.OPEN,
        (flow["c"], flow["d"]): EdgeState.OPEN,
    }
    [group] = [group for group in description.groups if group.downstream_id == flow["c"]]
    assert (group.n, group.satisfied, group.impossible, group.state.value) == (2, 0, 1, "open")
    await flow.complete("b")
    description = await engine.flows.describe(flow.id)
    [group] = [group for group in description.groups if group.downstream_id == flow["c"]]
    assert (group.n, group.satisfied, group.impossible, group.state.value) == (2, 1, 1, "fired")


async def test_counts_show_how_many_members_are_in_each_state(engine: Engine) -> None:
    flow = await built(engine, {"a": [], "b": [], "c": ["a"], "d": ["b"]})
    await flow.complete("a")
    await flow.fail("b")
    description = await engine.flows.describe(flow.id)
    counts = {str(getattr(state, "value", state)): number for state, number in description.counts.items() if number}
    assert counts == {"completed": 1, "failed": 1, "waiting": 1, "skipped": 1}


async def test_members_are_returned_in_pages(engine: Engine) -> None:
    flow = await built(engine, {f"m{number}": [] for number in range(25)})
    ids, cursor = [], None
    while True:
        page = await engine.flows.members(flow.id, cursor=cursor, limit=10)
        ids += [member.id for member in page.items]
        cursor = page.next_cursor
        if cursor is None:
            break
    assert len(ids) == 25
    assert set(ids) == set(flow.members.values())


async def test_flow_state_follows_its_members(engine: Engine, clock: VirtualClock) -> None:
    flow = await created(engine)
    assert await flow.state() == "open"
    await flow.add("a")
    await flow.add("b", "a")
    await engine.flows.seal(flow.id)
    lease = await flow.claim("a")
    assert await flow.state() == "running"
    await engine.leases.suspend(lease.fence, ["go"])
    assert await flow.state() == "blocked"
    await engine.operator.resume(flow["a"])
    await flow.complete("a", "b")
    assert await flow.state() == "completed"
    assert (await engine.flows.describe(flow.id)).ended_at == clock.now()


async def test_unhandled_failure_fails_the_flow(engine: Engine, clock: VirtualClock) -> None:
    for outcome in ("failed", "cancelled", "expired"):
        flow = await built(engine, {"a": [], "b": []})
        await flow.complete("a")
        await flow.end("b", outcome, clock)
        assert await flow.state() == "failed", outcome


async def test_handled_failure_does_not_fail_the_flow(engine: Engine, clock: VirtualClock) -> None:
    for outcome in ("failed", "expired"):
        flow = await built(engine, {"a": [], "repair": [Edge("a", EdgeKind.ON_FAILURE)], "next": ["a"]})
        await flow.end("a", outcome, clock)
        await flow.complete("repair")
        assert await flow.states() == {"a": outcome, "repair": "completed", "next": "skipped"}
        assert await flow.state() == "completed", outcome


async def test_cancelled_member_is_handled_by_an_on_completion_edge(engine: Engine) -> None:
    flow = await built(engine, {"a": [], "always": [Edge("a", EdgeKind.ON_COMPLETION)]})
    await flow.cancel("a")
    await flow.complete("always")
    assert await flow.state() == "completed"


async def test_failing_handler_fails_the_flow(engine: Engine) -> None:
    flow = await built(engine, {"a": [], "repair": [Edge("a", EdgeKind.ON_FAILURE)]})
    await flow.fail("a", "repair")
    assert await flow.state() == "failed"


async def test_failures_not_needed_by_a_race_or_a_quorum_do_not_fail_the_flow(engine: Engine) -> None:
    race = await built(engine, {"a": [], "b": [], "c": ["a", "b"]}, joins={"c": any_of()})
    await race.fail("a")
    await race.complete("b", "c")
    vote = await built(engine, {"a": [], "b": [], "c": [], "law": ["a", "b", "c"]}, joins={"law": quorum(2)})
    await vote.fail("a")
    await vote.complete("b", "c", "law")
    assert (await race.state(), await vote.state()) == ("completed", "completed")


async def test_skipped_members_do_not_fail_the_flow(engine: Engine) -> None:
    flow = await built(engine, {"a": [], "repair": [Edge("a", EdgeKind.ON_FAILURE)], "more": ["repair"]})
    await flow.complete("a")
    assert await flow.states() == {"a": "completed", "repair": "skipped", "more": "skipped"}
    assert await flow.state() == "completed"


async def test_wait_returns_the_final_state_of_the_flow(engine: Engine) -> None:
    flow = await built(engine, {"a": []})
    assert await engine.flows.wait(flow.id, "1ms") is None
    await flow.complete("a")
    assert await engine.flows.wait(flow.id, "10s") is FlowState.COMPLETED
    assert await engine.flows.wait(flow.id, 0) is FlowState.COMPLETED


async def test_unknown_flow_is_not_found(engine: Engine) -> None:
    await refused(engine.flows.describe(uuid4()), "flow_not_found", NotFound)
    await refused(engine.flows.members(uuid4()), "flow_not_found", NotFound)


async def test_flow_counts_include_every_member(engine: Engine) -> None:
    flow = await built(engine, {"a": [], "b": [], "c": ["b"]})
    lease = await flow.claim("a")
    assert await flow.state() == "running"
    await engine.leases.release(lease.fence)
    counts = (await engine.flows.describe(flow.id)).counts
    assert sum(counts.values()) == 3
    await flow.fail("a", "b")
    assert (await flow.member("c"), await flow.state()) == ("skipped", "failed")
