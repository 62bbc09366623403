"""Tests of seal, which closes a flow to new members so that it can finish, and lets a draft start."""

from __future__ import annotations

from uuid import uuid4

from flowfabric.engine import Engine, FlowFabricError, NotFound, Refused, Sealed, any_of, quorum
from tests.expectations import nothing_written, refused
from tests.flows import Shape, built, created, flow_events
from tests.stores import TestStore


async def test_sealed_flow_finishes_with_its_last_member(engine: Engine, store: TestStore) -> None:
    flow = await built(engine, {"a": [], "b": ["a"]}, seal=False)
    assert isinstance(await engine.flows.seal(flow.id), Sealed)
    assert (await engine.flows.describe(flow.id)).sealed
    await flow.complete("a")
    assert await flow_events(store, flow.id) == []
    await flow.complete("b")
    assert await flow_events(store, flow.id) == ["finished"]
    description = await engine.flows.describe(flow.id)
    assert description.ended_at is not None


async def test_flow_whose_members_have_ended_finishes_when_it_is_sealed(engine: Engine, store: TestStore) -> None:
    good, bad = await built(engine, {"a": []}, seal=False), await built(engine, {"a": []}, seal=False)
    await good.complete("a")
    await bad.fail("a")
    for flow, state in ((good, "completed"), (bad, "failed")):
        assert await flow.state() == "open"
        await engine.flows.seal(flow.id)
        assert await flow.state() == state
        assert await flow_events(store, flow.id) == ["finished"]


async def test_second_seal_writes_nothing(engine: Engine, store: TestStore) -> None:
    flow = await built(engine, {"a": []}, seal=False)
    await engine.flows.seal(flow.id)
    async with nothing_written(store):
        assert isinstance(await engine.flows.seal(flow.id), Sealed)
    await flow.complete("a")
    async with nothing_written(store):
        assert isinstance(await engine.flows.seal(flow.id), Sealed)


async def test_sealing_the_flow_seals_its_drafts(engine: Engine) -> None:
    flow = await created(engine)
    await flow.add("a", draft=True)
    await flow.add("b", "a", draft=True)
    await engine.flows.seal(flow.id)
    assert await flow.states() == {"a": "waiting", "b": "blocked"}


async def test_sealed_draft_is_resolved_by_its_ended_upstreams(engine: Engine) -> None:
    flow = await created(engine)
    await flow.add("good")
    await flow.add("bad")
    await flow.add("runs", "good", draft=True)
    await flow.add("skipped", "bad", draft=True)
    await flow.complete("good")
    await flow.fail("bad")
    assert await flow.member("runs") == "blocked"
    await engine.flows.seal(flow.id, "runs")
    await engine.flows.seal(flow.id, "skipped")
    assert (await flow.member("runs"), await flow.member("skipped")) == ("waiting", "skipped")


async def test_second_seal_of_a_member_writes_nothing(engine: Engine, store: TestStore) -> None:
    flow = await created(engine)
    await flow.add("a", draft=True)
    await engine.flows.seal(flow.id, "a")
    async with nothing_written(store):
        assert isinstance(await engine.flows.seal(flow.id, "a"), Sealed)


async def test_expected_revision_must_be_the_current_one(engine: Engine, store: TestStore) -> None:
    flow = await created(engine)
    await flow.add("a")
    async with nothing_written(store):
        await refused(engine.flows.seal(flow.id, expected_revision=0), "stale_revision", FlowFabricError)
    await engine.flows.seal(flow.id, expected_revision=1)


async def test_unknown_flow_or_member_is_not_found(engine: Engine) -> None:
    flow = await created(engine)
    await refused(engine.flows.seal(uuid4()), "flow_not_found", NotFound)
    await refused(engine.flows.seal(flow.id, "nobody"), "member_not_found", NotFound)


async def test_sealing_a_cancelled_flow_starts_nothing(engine: Engine, store: TestStore) -> None:
    flow = await built(engine, {"a": [], "b": []}, options={"a": {"draft": True}}, seal=False)
    lease = await flow.claim("b")
    await engine.flows.cancel(flow.id, "stop", policy="cancel_pending")
    async with nothing_written(store):
        await refused(engine.flows.seal(flow.id), "flow_already_terminal", Refused)
        await refused(engine.flows.seal(flow.id, "a"), "flow_already_terminal", Refused)
    assert await flow.states() == {"a": "cancelled", "b": "active"}
    await engine.leases.complete(lease.fence, b"")


async def test_flow_cancelled_with_flow_only_has_no_drafts(engine: Engine, store: TestStore) -> None:
    options = {name: {"draft": True} for name in ("free", "next", "never")}
    shape: Shape = {"a": [], "free": [], "next": ["a"], "never": ["a"]}
    flow = await built(engine, shape, options=options, joins={"never": quorum(2)}, seal=False)
    await engine.flows.cancel(flow.id, "stop", policy="flow_only")
    assert await flow.states() == {"a": "waiting", "free": "waiting", "next": "blocked", "never": "skipped"}
    async with nothing_written(store):
        assert isinstance(await engine.flows.seal(flow.id), Sealed)
    await flow.complete("a", "free", "next")
    assert await flow_events(store, flow.id) == ["cancel_requested", "finished"]


async def test_cancelled_draft_is_a_draft_again_after_its_replay(engine: Engine) -> None:
    flow = await built(engine, {"a": []}, options={"a": {"draft": True}}, seal=False)
    await flow.cancel("a")
    await engine.operator.replay(flow["a"])
    assert await flow.member("a") == "blocked"
    await engine.flows.seal(flow.id, "a")
    assert await flow.member("a") == "waiting"


async def test_draft_whose_upstream_is_replayed_starts_when_it_is_sealed(engine: Engine) -> None:
    shape: Shape = {"a": [], "b": [], "race": ["a", "b"]}
    flow = await built(engine, shape, joins={"race": any_of()}, options={"race": {"draft": True}}, seal=False)
    await flow.complete("a", "b")
    await engine.operator.replay(flow["a"])
    assert await flow.member("race") == "blocked"
    await engine.flows.seal(flow.id)
    assert await flow.member("race") == "waiting"
