"""Tests of submit_flow, which stores a whole graph in one transaction."""

from __future__ import annotations

from collections.abc import Callable
from uuid import uuid4

import pytest

from flowfabric.engine import (
    Conflict,
    Engine,
    FlowCreated,
    FlowDuplicate,
    Graph,
    InvalidRequest,
    NotFound,
    Policy,
    quorum,
)
from flowfabric.testing import VirtualClock
from tests.expectations import error_of, event_names, nothing_written, refused
from tests.flows import built, claimable, created, drawn, flow_events
from tests.stores import TestStore

DIAMOND = {"top": [], "left": ["top"], "right": ["top"], "bottom": ["left", "right"]}
CHAIN = [f"m{number}" for number in range(10)]
LINEAR = {name: CHAIN[number - 1 : number] if number else [] for number, name in enumerate(CHAIN)}


async def test_chain_of_ten_runs_in_order(engine: Engine, store: TestStore) -> None:
    flow = await built(engine, LINEAR)
    for name in CHAIN:
        [lease] = await engine.leases.claim(["default"], "worker-1", limit=10)
        assert lease.execution_id == flow[name]
        await engine.leases.complete(lease.fence, name.encode())
    assert set((await flow.states()).values()) == {"completed"}
    assert await flow.state() == "completed"
    assert await flow_events(store, flow.id) == ["finished"]


async def test_diamond_joins_when_both_sides_have_completed(engine: Engine) -> None:
    flow = await built(engine, DIAMOND)
    await flow.complete("top", "left")
    assert await flow.member("bottom") == "blocked"
    await flow.complete("right")
    assert await flow.member("bottom") == "waiting"
    await flow.complete("bottom")
    assert await flow.state() == "completed"


async def test_fan_out_releases_all_members_and_a_fan_in_waits_for_all(engine: Engine) -> None:
    sides = [f"side-{number}" for number in range(30)]
    flow = await built(engine, {"first": [], **{name: ["first"] for name in sides}, "last": sides})
    assert await claimable(engine) == {flow["first"]}
    await engine.operator.revoke_lease(flow["first"])
    await flow.complete("first")
    leases = await engine.leases.claim(["default"], "worker-1", limit=100)
    assert {lease.execution_id for lease in leases} == {flow[name] for name in sides}
    outcomes = await engine.leases.complete_many([(lease.fence, b"") for lease in leases[1:]])
    assert len(outcomes) == 29
    assert await flow.member("last") == "blocked"
    await engine.leases.complete(leases[0].fence, b"")
    assert await flow.member("last") == "waiting"


async def test_members_know_their_flow_and_their_name(engine: Engine) -> None:
    flow = await built(engine, DIAMOND, options={"left": {"kind": "other", "payload": b"in", "priority": 7}})
    execution = await engine.executions.describe(flow["left"])
    assert (execution.flow_id, execution.member_name, execution.parent_id) == (flow.id, "left", None)
    assert (execution.kind, execution.payload, execution.priority) == ("other", b"in", 7)
    assert execution.vector.public_state == "waiting_children"
    assert execution.vector.eligibility_state == "blocked_by_dependencies"
    assert execution.vector.blocking_reason == "waiting_for_children"


async def test_released_member_has_one_event(engine: Engine) -> None:
    flow = await built(engine, {"a": [], "b": ["a"]})
    await flow.complete("a")
    assert await event_names(engine, flow["b"]) == ["lifecycle.ready"]


async def test_release_keeps_the_delay_of_the_member(engine: Engine, clock: VirtualClock) -> None:
    flow = await built(engine, {"a": [], "b": ["a"], "c": ["a"]}, options={"b": {"delay": "1h"}, "c": {"delay": "1s"}})
    clock.advance("10s")
    await flow.complete("a")
    assert (await flow.member("b"), await flow.member("c")) == ("delayed", "waiting")
    assert await claimable(engine) == {flow["c"]}
    clock.advance("1h")
    await engine.reconcilers.tick()
    assert await flow.member("b") == "waiting"


async def test_deadline_expires_a_blocked_member(engine: Engine, clock: VirtualClock) -> None:
    flow = await built(engine, {"a": [], "b": ["a"], "c": ["b"]}, options={"b": {"policy": Policy(deadline="1s")}})
    clock.advance("2s")
    await engine.reconcilers.tick()
    assert await flow.states() == {"a": "waiting", "b": "expired", "c": "skipped"}


async def test_repeated_submit_by_id_returns_the_same_members(engine: Engine, store: TestStore) -> None:
    id_ = uuid4()
    first = await engine.flows.submit(drawn(DIAMOND), id=id_)
    assert isinstance(first, FlowCreated)
    assert first.flow_id == id_
    async with nothing_written(store):
        repeated = await engine.flows.submit(drawn(DIAMOND), id=id_)
    assert repeated == FlowDuplicate(id_, first.members)


async def test_repeated_submit_is_recognized_after_the_flow_has_completed(engine: Engine) -> None:
    flow = await built(engine, DIAMOND)
    await flow.complete("top", "left", "right", "bottom")
    assert await engine.flows.submit(drawn(DIAMOND), id=flow.id) == FlowDuplicate(flow.id, flow.members)


async def test_id_of_another_graph_is_refused(engine: Engine, store: TestStore) -> None:
    flow = await built(engine, DIAMOND)
    other_graphs = {
        "member": drawn({**DIAMOND, "more": []}),
        "join": drawn(DIAMOND, joins={"bottom": quorum(1)}),
        "payload": drawn(DIAMOND, options={"left": {"payload": b"other"}}),
        "name": drawn(DIAMOND, name="other"),
        "edge": drawn({**DIAMOND, "right": []}),
    }
    async with nothing_written(store):
        for graph in other_graphs.values():
            await refused(engine.flows.submit(graph, id=flow.id), "idempotency_mismatch", Conflict)


async def test_two_flows_of_one_graph_are_independent(engine: Engine) -> None:
    first, second = await built(engine, DIAMOND), await built(engine, DIAMOND)
    assert not set(first.members.values()) & set(second.members.values())
    await first.complete("top")
    assert (await first.member("left"), await second.member("left")) == ("waiting", "blocked")


async def test_unsealed_flow_does_not_finish(engine: Engine, store: TestStore) -> None:
    flow = await built(engine, {"a": [], "b": ["a"]}, seal=False)
    await flow.complete("a", "b")
    assert await flow.state() == "open"
    assert await flow_events(store, flow.id) == []
    await engine.flows.seal(flow.id)
    assert await flow.state() == "completed"
    assert await flow_events(store, flow.id) == ["finished"]


async def test_flow_is_found_only_in_its_namespace(engine: Engine) -> None:
    flow = await built(engine, DIAMOND)
    other_namespace = engine.for_namespace("other")
    await refused(other_namespace.flows.describe(flow.id), "flow_not_found", NotFound)
    await refused(other_namespace.flows.cancel(flow.id), "flow_not_found", NotFound)


def make_pair(first: list[str], second: list[str]) -> Graph:
    graph = Graph("wrong")
    graph.add("a", "job", after=first)
    graph.add("b", "job", after=second)
    return graph


def make_duplicate_member() -> Graph:
    graph = make_pair([], [])
    graph.add("a", "job")
    return graph


INVALID_GRAPHS: dict[str, tuple[Callable[[], Graph], set[str]]] = {
    "cycle": (lambda: make_pair(["b"], ["a"]), {"cycle", "unknown_member"}),
    "self edge": (lambda: make_pair([], ["b"]), {"self_edge"}),
    "unknown member": (lambda: make_pair([], ["c"]), {"unknown_member"}),
    "edge twice": (lambda: make_pair([], ["a", "a"]), {"duplicate_edge"}),
    "member twice": (make_duplicate_member, {"duplicate_member"}),
    "quorum of none": (lambda: drawn({"a": [], "b": ["a"]}, joins={"b": quorum(0)}), {"invalid_quorum"}),
    "quorum of more": (lambda: drawn({"a": [], "b": ["a"]}, joins={"b": quorum(2)}), {"quorum_exceeds_edges"}),
}


async def test_invalid_graph_is_refused(engine: Engine, store: TestStore) -> None:
    async with nothing_written(store):
        for name, (make_graph, codes) in INVALID_GRAPHS.items():
            with pytest.raises(InvalidRequest) as caught:
                await engine.flows.submit(make_graph())
            assert caught.value.code in codes, name


async def test_unreachable_quorum_is_refused_when_it_is_sealed(engine: Engine) -> None:
    draft = {"b": {"draft": True}}
    flow = await built(engine, {"a": [], "b": ["a"]}, joins={"b": quorum(2)}, options=draft, seal=False)
    for member in (None, "b"):
        await refused(engine.flows.seal(flow.id, member), "quorum_exceeds_edges", InvalidRequest)
    await flow.complete("a")
    assert await flow.member("b") == "blocked"
    await flow.add("c")
    await engine.flows.add_edge(flow.id, "c", "b")
    await engine.flows.seal(flow.id)
    await flow.complete("c", "b")
    assert await flow.state() == "completed"


async def test_flow_sealed_with_its_submit_has_no_drafts(engine: Engine, store: TestStore) -> None:
    drafts = {name: {"draft": True} for name in ("a", "b")}
    flow = await built(engine, {"a": [], "b": ["a"]}, options=drafts)
    assert await flow.states() == {"a": "waiting", "b": "blocked"}
    await flow.complete("a", "b")
    assert await flow.state() == "completed"
    async with nothing_written(store):
        graph = drawn({"a": [], "b": ["a"]}, joins={"b": quorum(2)}, options=drafts)
        await refused(engine.flows.submit(graph), "quorum_exceeds_edges", InvalidRequest)


async def test_repeated_graph_with_another_seal_is_refused(engine: Engine, store: TestStore) -> None:
    for is_sealed in (True, False):
        id_ = uuid4()
        await built(engine, DIAMOND, id=id_, seal=is_sealed)
        async with nothing_written(store):
            assert isinstance(await engine.flows.submit(drawn(DIAMOND), id=id_, seal=is_sealed), FlowDuplicate)
            conflicting = engine.flows.submit(drawn(DIAMOND), id=id_, seal=not is_sealed)
            await refused(conflicting, "idempotency_mismatch", Conflict)


async def test_too_many_members_are_refused(engine: Engine, store: TestStore) -> None:
    async with nothing_written(store):
        with pytest.raises(InvalidRequest) as caught:
            await engine.flows.submit(drawn({f"m{number}": () for number in range(10_001)}))
    assert caught.value.code == "too_many_members"
    assert "10,000" in str(caught.value) or "10000" in str(caught.value)


async def test_empty_flow_is_open_and_unknown_policies_are_refused(engine: Engine) -> None:
    flow = await created(engine)
    assert await flow.state() == "open"
    error = await error_of(engine.flows.cancel(flow.id, "enough", policy="everything"))
    assert isinstance(error, InvalidRequest)
