"""Tests of add_to_flow, which adds a member and its inbound edges to a running flow in one transaction."""

from __future__ import annotations

from uuid import uuid4

from flowfabric.engine import (
    Conflict,
    Edge,
    EdgeKind,
    Engine,
    FlowCreated,
    FlowDuplicate,
    FlowFabricError,
    MemberAdded,
    MemberDuplicate,
    NotFound,
    Refused,
    any_of,
)
from tests.expectations import error_of, nothing_written, refused
from tests.flows import built, claimable, created, flow_events
from tests.stores import TestStore


async def test_flow_is_built_member_by_member(engine: Engine, store: TestStore) -> None:
    flow = await created(engine, tags={"team.name": "data"})
    assert (await flow.state(), await flow.revision()) == ("open", 0)
    await flow.add("a")
    await flow.add("b", "a")
    await flow.add("c", "a", "b", join=any_of())
    assert await flow.states() == {"a": "waiting", "b": "blocked", "c": "blocked"}
    await engine.flows.seal(flow.id)
    await flow.complete("a", "c")
    assert await flow.states() == {"a": "completed", "b": "cancelled", "c": "completed"}
    assert await flow.state() == "completed"
    assert await flow_events(store, flow.id) == ["finished"]


async def test_repeated_create_returns_a_duplicate(engine: Engine, store: TestStore) -> None:
    id_ = uuid4()
    assert await engine.flows.create("etl", id=id_) == FlowCreated(id_, {})
    async with nothing_written(store):
        assert await engine.flows.create("etl", id=id_) == FlowDuplicate(id_, {})
        await refused(engine.flows.create("other", id=id_), "idempotency_mismatch", Conflict)


async def test_each_member_increments_the_revision(engine: Engine) -> None:
    flow = await created(engine)
    for number, name in enumerate("abc", start=1):
        outcome = await engine.flows.add(flow.id, name, "job")
        assert isinstance(outcome, MemberAdded)
        assert outcome.revision == number
    assert await flow.revision() == 3


async def test_member_added_twice_is_stored_once(engine: Engine, store: TestStore) -> None:
    flow = await created(engine)
    await flow.add("a")
    first = await engine.flows.add(flow.id, "b", "job", b"in", after=["a"], expected_revision=1)
    async with nothing_written(store):
        again = await engine.flows.add(flow.id, "b", "job", b"in", after=["a"], expected_revision=1)
    assert isinstance(again, MemberDuplicate)
    assert again.execution_id == first.execution_id


async def test_different_member_with_the_same_name_is_refused(engine: Engine, store: TestStore) -> None:
    flow = await created(engine)
    await flow.add("a")
    await engine.flows.add(flow.id, "b", "job", b"in", after=["a"])
    async with nothing_written(store):
        for call in (
            engine.flows.add(flow.id, "b", "job", b"other", after=["a"]),
            engine.flows.add(flow.id, "b", "job", b"in"),
            engine.flows.add(flow.id, "b", "job", b"in", after=["a"], join=any_of()),
        ):
            assert (await error_of(call)).code in ("idempotency_mismatch", "duplicate_member")


async def test_edge_from_an_ended_upstream_is_resolved_immediately(engine: Engine) -> None:
    flow = await built(engine, {"good": [], "bad": []}, seal=False)
    await flow.complete("good")
    await flow.fail("bad")
    await flow.add("after good", "good")
    await flow.add("after bad", "bad")
    await flow.add("handler", Edge("bad", EdgeKind.ON_FAILURE))
    await flow.add("any", "good", "bad", join=any_of())
    await flow.add("next", "after bad")
    states = await flow.states()
    assert [states[name] for name in ("after good", "after bad", "handler", "any", "next")] == [
        "waiting",
        "skipped",
        "waiting",
        "waiting",
        "skipped",
    ]


async def test_race_won_when_added_cancels_the_other_upstreams(engine: Engine) -> None:
    flow = await built(engine, {"a": [], "b": []}, seal=False)
    await flow.complete("a")
    await flow.add("c", "a", "b", join=any_of())
    assert await flow.states() == {"a": "completed", "b": "cancelled", "c": "waiting"}
    description = await engine.flows.describe(flow.id)
    assert {edge.state.value for edge in description.edges} == {"satisfied", "impossible"}


async def test_running_member_fans_out_into_its_own_flow(engine: Engine) -> None:
    flow = await built(engine, {"plan": []}, seal=False)
    lease = await flow.claim("plan")
    parts = [f"part-{number}" for number in range(5)]
    for name in parts:
        await flow.add(name, "plan")
    await flow.add("join", *parts)
    assert await claimable(engine) == set()
    await engine.leases.complete(lease.fence, b"")
    await engine.flows.seal(flow.id)
    await flow.complete(*parts, "join")
    assert await flow.state() == "completed"


async def test_upstream_can_be_named_by_its_id(engine: Engine) -> None:
    flow = await built(engine, {"a": []}, seal=False)
    outcome = await engine.flows.add(flow.id, "b", "job", after=[Edge(str(flow["a"]))])
    assert (await engine.executions.describe(outcome.execution_id)).state == "blocked"


async def test_expected_revision_must_be_the_current_one(engine: Engine, store: TestStore) -> None:
    flow = await created(engine)
    await flow.add("a")
    async with nothing_written(store):
        call = engine.flows.add(flow.id, "b", "job", expected_revision=0)
        error = await refused(call, "stale_revision", FlowFabricError)
    assert isinstance(error, Conflict | Refused)
    assert error.fields["revision"] == 1
    await flow.add("b", expected_revision=1)


async def test_closed_flow_accepts_no_member(engine: Engine, store: TestStore) -> None:
    sealed, finished, ended = await built(engine, {"a": []}), await built(engine, {"a": []}), await created(engine)
    await finished.complete("a")
    await engine.flows.cancel(ended.id, "stop")
    codes = ("flow_sealed",), ("flow_already_terminal", "flow_sealed"), ("flow_already_terminal",)
    async with nothing_written(store):
        for flow, allowed in zip((sealed, finished, ended), codes, strict=True):
            error = await error_of(engine.flows.add(flow.id, "b", "job"))
            assert isinstance(error, Refused)
            assert error.code in allowed


async def test_unknown_flows_and_members_are_not_found(engine: Engine, store: TestStore) -> None:
    flow, other_flow = await built(engine, {"a": []}, seal=False), await built(engine, {"x": []}, seal=False)
    async with nothing_written(store):
        await refused(engine.flows.add(uuid4(), "b", "job"), "flow_not_found", NotFound)
        for unknown_member in ("x", str(other_flow["x"]), str(uuid4())):
            await refused(engine.flows.add(flow.id, "b", "job", after=[unknown_member]), "member_not_found", NotFound)


async def test_draft_waits_until_it_is_sealed(engine: Engine) -> None:
    flow = await created(engine)
    await flow.add("a", draft=True)
    await flow.add("b", "a")
    assert await claimable(engine) == set()
    assert await flow.states() == {"a": "blocked", "b": "blocked"}
    await engine.flows.seal(flow.id, "a")
    assert await flow.states() == {"a": "waiting", "b": "blocked"}


async def test_satisfied_dependencies_do_not_release_a_draft(engine: Engine) -> None:
    flow = await created(engine)
    await flow.add("a")
    await flow.add("b", "a", draft=True)
    await flow.complete("a")
    assert await flow.member("b") == "blocked"
    await flow.add("c")
    await engine.flows.add_edge(flow.id, "c", "b")
    await engine.flows.seal(flow.id, "b")
    assert await flow.member("b") == "blocked"
    await flow.complete("c")
    assert await flow.member("b") == "waiting"
