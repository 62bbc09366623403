"""submit_flow: a whole graph in one transaction; members run as their edges say, and the flow finishes by itself."""

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
from tests.facts import event_names, nothing_written, refused
from tests.flows import built, claimable, drawn, flow_events
from tests.stores import TestStore

DIAMOND = {"top": [], "left": ["top"], "right": ["top"], "bottom": ["left", "right"]}
CHAIN = [f"m{number}" for number in range(10)]
LINEAR = {name: CHAIN[number - 1 : number] if number else [] for number, name in enumerate(CHAIN)}


async def test_a_line_of_ten_runs_one_after_another(engine: Engine, store: TestStore) -> None:
    flow = await built(engine, LINEAR)
    for name in CHAIN:
        [lease] = await engine.leases.claim(["default"], "worker-1", limit=10)
        assert lease.execution_id == flow[name]
        await engine.leases.complete(lease.fence, name.encode())
    assert set((await flow.states()).values()) == {"completed"}
    assert await flow.state() == "completed"
    assert await flow_events(store, flow.id) == ["finished"]


async def test_a_diamond_joins_when_both_sides_are_done(engine: Engine) -> None:
    flow = await built(engine, DIAMOND)
    await flow.complete("top", "left")
    assert await flow.member("bottom") == "blocked"
    await flow.complete("right")
    assert await flow.member("bottom") == "waiting"
    await flow.complete("bottom")
    assert await flow.state() == "completed"


async def test_a_fan_out_opens_all_at_once_and_a_fan_in_waits_for_all(engine: Engine) -> None:
    sides = [f"side-{number}" for number in range(30)]
    flow = await built(engine, {"first": [], **{name: ["first"] for name in sides}, "last": sides})
    assert await claimable(engine) == {flow["first"]}
    await engine.operator.revoke_lease(flow["first"])
    await flow.complete("first")
    leases = await engine.leases.claim(["default"], "worker-1", limit=100)
    assert {lease.execution_id for lease in leases} == {flow[name] for name in sides}
    answers = await engine.leases.complete_many([(lease.fence, b"") for lease in leases[1:]])
    assert len(answers) == 29
    assert await flow.member("last") == "blocked"
    await engine.leases.complete(leases[0].fence, b"")
    assert await flow.member("last") == "waiting"


async def test_members_know_their_flow_and_their_name(engine: Engine) -> None:
    flow = await built(engine, DIAMOND, options={"left": {"kind": "other", "payload": b"in", "priority": 7}})
    found = await engine.executions.describe(flow["left"])
    assert (found.flow_id, found.member_name, found.parent_id) == (flow.id, "left", None)
    assert (found.kind, found.payload, found.priority) == ("other", b"in", 7)
    assert found.vector.public_state == "waiting_children"
    assert found.vector.eligibility_state == "blocked_by_dependencies"
    assert found.vector.blocking_reason == "waiting_for_children"


async def test_a_released_member_leaves_one_event(engine: Engine) -> None:
    flow = await built(engine, {"a": [], "b": ["a"]})
    await flow.complete("a")
    assert await event_names(engine, flow["b"]) == ["lifecycle.ready"]


async def test_a_release_keeps_the_delay_of_the_member(engine: Engine, clock: VirtualClock) -> None:
    flow = await built(engine, {"a": [], "b": ["a"], "c": ["a"]}, options={"b": {"delay": "1h"}, "c": {"delay": "1s"}})
    clock.advance("10s")
    await flow.complete("a")
    assert (await flow.member("b"), await flow.member("c")) == ("delayed", "waiting")
    assert await claimable(engine) == {flow["c"]}
    clock.advance("1h")
    await engine.reconcilers.tick()
    assert await flow.member("b") == "waiting"


async def test_a_deadline_ends_a_member_that_is_blocked(engine: Engine, clock: VirtualClock) -> None:
    flow = await built(engine, {"a": [], "b": ["a"], "c": ["b"]}, options={"b": {"policy": Policy(deadline="1s")}})
    clock.advance("2s")
    await engine.reconcilers.tick()
    assert await flow.states() == {"a": "waiting", "b": "expired", "c": "skipped"}


async def test_a_repeat_by_id_is_answered_with_the_same_members(engine: Engine, store: TestStore) -> None:
    id_ = uuid4()
    first = await engine.flows.submit(drawn(DIAMOND), id=id_)
    assert isinstance(first, FlowCreated)
    assert first.flow_id == id_
    async with nothing_written(store):
        again = await engine.flows.submit(drawn(DIAMOND), id=id_)
    assert again == FlowDuplicate(id_, first.members)


async def test_a_repeat_is_answered_when_the_flow_has_moved_on(engine: Engine) -> None:
    flow = await built(engine, DIAMOND)
    await flow.complete("top", "left", "right", "bottom")
    assert await engine.flows.submit(drawn(DIAMOND), id=flow.id) == FlowDuplicate(flow.id, flow.members)


async def test_the_id_of_another_graph_is_refused(engine: Engine, store: TestStore) -> None:
    flow = await built(engine, DIAMOND)
    others = {
        "member": drawn({**DIAMOND, "more": []}),
        "join": drawn(DIAMOND, joins={"bottom": quorum(1)}),
        "payload": drawn(DIAMOND, options={"left": {"payload": b"other"}}),
        "name": drawn(DIAMOND, name="other"),
        "edge": drawn({**DIAMOND, "right": []}),
    }
    async with nothing_written(store):
        for other in others.values():
            await refused(engine.flows.submit(other, id=flow.id), "idempotency_mismatch", Conflict)


async def test_two_flows_of_one_graph_have_nothing_in_common(engine: Engine) -> None:
    one, two = await built(engine, DIAMOND), await built(engine, DIAMOND)
    assert not set(one.members.values()) & set(two.members.values())
    await one.complete("top")
    assert (await one.member("left"), await two.member("left")) == ("waiting", "blocked")


async def test_a_flow_that_stays_open_does_not_finish(engine: Engine, store: TestStore) -> None:
    flow = await built(engine, {"a": [], "b": ["a"]}, seal=False)
    await flow.complete("a", "b")
    assert await flow.state() == "open"
    assert await flow_events(store, flow.id) == []
    await engine.flows.seal(flow.id)
    assert await flow.state() == "completed"
    assert await flow_events(store, flow.id) == ["finished"]


async def test_a_flow_is_found_only_in_its_namespace(engine: Engine) -> None:
    flow = await built(engine, DIAMOND)
    other = engine.within("other")
    await refused(other.flows.describe(flow.id), "flow_not_found", NotFound)
    await refused(other.flows.cancel(flow.id), "flow_not_found", NotFound)


def two(first: list[str], second: list[str]) -> Graph:
    graph = Graph("wrong")
    graph.add("a", "job", after=first)
    graph.add("b", "job", after=second)
    return graph


def twice() -> Graph:
    graph = two([], [])
    graph.add("a", "job")
    return graph


WRONG: dict[str, tuple[Callable[[], Graph], set[str]]] = {
    "cycle": (lambda: two(["b"], ["a"]), {"cycle", "unknown_member"}),
    "self edge": (lambda: two([], ["b"]), {"self_edge"}),
    "unknown member": (lambda: two([], ["c"]), {"unknown_member"}),
    "edge twice": (lambda: two([], ["a", "a"]), {"duplicate_edge"}),
    "member twice": (twice, {"duplicate_member"}),
    "quorum of none": (lambda: drawn({"a": [], "b": ["a"]}, joins={"b": quorum(0)}), {"invalid_quorum"}),
    "quorum of more": (lambda: drawn({"a": [], "b": ["a"]}, joins={"b": quorum(2)}), {"quorum_exceeds_edges"}),
}


async def test_a_graph_that_can_never_work_is_refused(engine: Engine, store: TestStore) -> None:
    async with nothing_written(store):
        for wrong, (draw, codes) in WRONG.items():
            with pytest.raises(InvalidRequest) as caught:
                await engine.flows.submit(draw())
            assert caught.value.code in codes, wrong


async def test_a_quorum_of_more_is_refused_when_it_is_sealed(engine: Engine) -> None:
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


async def test_a_flow_that_is_sealed_with_its_submit_has_no_drafts(engine: Engine, store: TestStore) -> None:
    drafts = {name: {"draft": True} for name in ("a", "b")}
    flow = await built(engine, {"a": [], "b": ["a"]}, options=drafts)
    assert await flow.states() == {"a": "waiting", "b": "blocked"}
    await flow.complete("a", "b")
    assert await flow.state() == "completed"
    async with nothing_written(store):
        graph = drawn({"a": [], "b": ["a"]}, joins={"b": quorum(2)}, options=drafts)
        await refused(engine.flows.submit(graph), "quorum_exceeds_edges", InvalidRequest)


async def test_a_graph_that_is_repeated_and_now_sealed_is_another(engine: Engine, store: TestStore) -> None:
    for first in (True, False):
        id_ = uuid4()
        await built(engine, DIAMOND, id=id_, seal=first)
        async with nothing_written(store):
            assert isinstance(await engine.flows.submit(drawn(DIAMOND), id=id_, seal=first), FlowDuplicate)
            again = engine.flows.submit(drawn(DIAMOND), id=id_, seal=not first)
            await refused(again, "idempotency_mismatch", Conflict)


async def test_more_members_than_a_call_may_have_are_refused(engine: Engine, store: TestStore) -> None:
    async with nothing_written(store):
        with pytest.raises(InvalidRequest) as caught:
            await engine.flows.submit(drawn({f"m{number}": () for number in range(10_001)}))
    assert caught.value.code == "too_many_members"
    assert "10,000" in str(caught.value) or "10000" in str(caught.value)
