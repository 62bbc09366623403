"""seal: nothing more will come; a draft member may start, and a flow may finish."""

from __future__ import annotations

from uuid import uuid4

from flowfabric.engine import Engine, FlowFabricError, NotFound, Refused, Sealed, any_of, quorum
from tests.facts import nothing_written, refused
from tests.flows import Shape, built, created, flow_events
from tests.stores import TestStore


async def test_a_sealed_flow_finishes_with_its_last_member(engine: Engine, store: TestStore) -> None:
    flow = await built(engine, {"a": [], "b": ["a"]}, seal=False)
    assert isinstance(await engine.flows.seal(flow.id), Sealed)
    assert (await engine.flows.describe(flow.id)).sealed
    await flow.complete("a")
    assert await flow_events(store, flow.id) == []
    await flow.complete("b")
    assert await flow_events(store, flow.id) == ["finished"]
    found = await engine.flows.describe(flow.id)
    assert found.ended_at is not None


async def test_a_flow_whose_members_have_all_ended_finishes_when_it_is_sealed(engine: Engine, store: TestStore) -> None:
    good, bad = await built(engine, {"a": []}, seal=False), await built(engine, {"a": []}, seal=False)
    await good.complete("a")
    await bad.fail("a")
    for flow, state in ((good, "completed"), (bad, "failed")):
        assert await flow.state() == "open"
        await engine.flows.seal(flow.id)
        assert await flow.state() == state
        assert await flow_events(store, flow.id) == ["finished"]


async def test_a_second_seal_writes_nothing(engine: Engine, store: TestStore) -> None:
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


async def test_a_sealed_draft_is_judged_by_what_came_before(engine: Engine) -> None:
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


async def test_a_member_is_sealed_once_and_then_nothing_is_written(engine: Engine, store: TestStore) -> None:
    flow = await created(engine)
    await flow.add("a", draft=True)
    await engine.flows.seal(flow.id, "a")
    async with nothing_written(store):
        assert isinstance(await engine.flows.seal(flow.id, "a"), Sealed)


async def test_the_revision_that_was_seen_must_be_the_present_one(engine: Engine, store: TestStore) -> None:
    flow = await created(engine)
    await flow.add("a")
    async with nothing_written(store):
        await refused(engine.flows.seal(flow.id, expected_revision=0), "stale_revision", FlowFabricError)
    await engine.flows.seal(flow.id, expected_revision=1)


async def test_what_is_not_there_is_not_found(engine: Engine) -> None:
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


async def test_a_flow_that_goes_on_though_it_is_cancelled_has_no_drafts_any_more(
    engine: Engine, store: TestStore
) -> None:
    options = {name: {"draft": True} for name in ("free", "next", "never")}
    shape: Shape = {"a": [], "free": [], "next": ["a"], "never": ["a"]}
    flow = await built(engine, shape, options=options, joins={"never": quorum(2)}, seal=False)
    await engine.flows.cancel(flow.id, "stop", policy="flow_only")
    assert await flow.states() == {"a": "waiting", "free": "waiting", "next": "blocked", "never": "skipped"}
    async with nothing_written(store):
        assert isinstance(await engine.flows.seal(flow.id), Sealed)
    await flow.complete("a", "free", "next")
    assert await flow_events(store, flow.id) == ["cancel_requested", "finished"]


async def test_a_draft_that_was_cancelled_and_is_replayed_is_a_draft_again(engine: Engine) -> None:
    flow = await built(engine, {"a": []}, options={"a": {"draft": True}}, seal=False)
    await flow.cancel("a")
    await engine.operator.replay(flow["a"])
    assert await flow.member("a") == "blocked"
    await engine.flows.seal(flow.id, "a")
    assert await flow.member("a") == "waiting"


async def test_a_draft_whose_upstream_is_replayed_starts_when_it_is_sealed(engine: Engine) -> None:
    shape: Shape = {"a": [], "b": [], "race": ["a", "b"]}
    flow = await built(engine, shape, joins={"race": any_of()}, options={"race": {"draft": True}}, seal=False)
    await flow.complete("a", "b")
    await engine.operator.replay(flow["a"])
    assert await flow.member("race") == "blocked"
    await engine.flows.seal(flow.id)
    assert await flow.member("race") == "waiting"
