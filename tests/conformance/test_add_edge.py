"""Tests of add_edge, which adds a dependency to a flow member that has not started."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import pytest

from flowfabric.engine import (
    Conflict,
    Edge,
    EdgeAdded,
    EdgeKind,
    EdgeState,
    Engine,
    FlowFabricError,
    InvalidRequest,
    NotFound,
    Refused,
    any_of,
)
from flowfabric.testing import VirtualClock
from tests.concurrency.flow_soundness import assert_flows_sound
from tests.expectations import error_of, event_names, nothing_written, refused
from tests.flows import OUTCOMES, Flow, Shape, built, claimable
from tests.stores import TestStore

PAIR: Shape = {"a": [], "b": []}


async def open_flow(engine: Engine, **options: Any) -> Flow:
    return await built(engine, PAIR, seal=False, **options)


async def test_edge_blocks_a_waiting_member(engine: Engine) -> None:
    flow = await open_flow(engine)
    outcome = await engine.flows.add_edge(flow.id, "a", "b")
    assert isinstance(outcome, EdgeAdded)
    assert (outcome.revision, outcome.resolved) == (await flow.revision(), EdgeState.OPEN)
    assert await flow.states() == {"a": "waiting", "b": "blocked"}
    assert await claimable(engine) == {flow["a"]}
    assert (await event_names(engine, flow["b"]))[-1] == "lifecycle.blocked"


async def test_edge_accepts_ids_instead_of_names(engine: Engine) -> None:
    flow = await open_flow(engine)
    await engine.flows.add_edge(flow.id, flow["a"], flow["b"])
    await flow.complete("a")
    assert await flow.member("b") == "waiting"


@pytest.mark.parametrize("kind", EdgeKind)
async def test_edge_from_an_ended_upstream_is_resolved_immediately(
    engine: Engine, clock: VirtualClock, kind: EdgeKind
) -> None:
    satisfying_outcomes = {
        "on_success": ("completed",),
        "on_failure": ("failed", "expired"),
        "on_failure_or_skip": ("failed", "expired"),
        "on_completion": OUTCOMES,
    }[kind.value]
    for outcome in OUTCOMES:
        flow = await open_flow(engine)
        await flow.end("a", outcome, clock)
        result = await engine.flows.add_edge(flow.id, "a", "b", kind=kind)
        satisfied = outcome in satisfying_outcomes
        assert result.resolved is (EdgeState.SATISFIED if satisfied else EdgeState.IMPOSSIBLE), outcome
        assert await flow.member("b") == ("waiting" if satisfied else "skipped"), outcome


async def test_late_edge_from_a_skipped_member_remembers_the_failure(engine: Engine) -> None:
    shape: Shape = {"a": [], "b": ["a"], "x": [], "y": ["x"], "c": [], "d": [], "e": [], "f": []}
    flow = await built(engine, shape, seal=False)
    await flow.fail("a")
    await flow.cancel("x")
    kind = EdgeKind.ON_FAILURE_OR_SKIP
    assert (await engine.flows.add_edge(flow.id, "b", "c", kind=kind)).resolved is EdgeState.SATISFIED
    assert (await engine.flows.add_edge(flow.id, "y", "d", kind=kind)).resolved is EdgeState.IMPOSSIBLE
    await engine.flows.add_edge(flow.id, "b", "e")
    assert (await engine.flows.add_edge(flow.id, "e", "f", kind=kind)).resolved is EdgeState.SATISFIED
    await flow.add("g", Edge("e", kind))
    await flow.add("draft", "b", draft=True)
    await flow.add("h", Edge("draft", kind))
    assert (await flow.member("g"), await flow.member("draft")) == ("waiting", "blocked")
    await engine.flows.seal(flow.id)
    assert (await flow.member("draft"), await flow.member("h")) == ("skipped", "waiting")


async def test_impossible_edge_skips_all_downstream_members(engine: Engine) -> None:
    flow = await built(engine, {"a": [], "b": [], "c": ["b"], "d": ["c"]}, seal=False)
    await flow.fail("a")
    await engine.flows.add_edge(flow.id, "a", "b")
    assert await flow.states() == {"a": "failed", "b": "skipped", "c": "skipped", "d": "skipped"}


async def test_fired_group_waits_for_the_new_edge(engine: Engine) -> None:
    flow = await built(engine, {"a": [], "b": [], "c": ["a"]}, seal=False)
    await flow.complete("a")
    assert await flow.member("c") == "waiting"
    await engine.flows.add_edge(flow.id, "b", "c")
    assert await flow.member("c") == "blocked"
    await flow.complete("b")
    assert await flow.member("c") == "waiting"


async def test_race_that_was_won_stays_won(engine: Engine) -> None:
    flow = await built(engine, {"a": [], "b": [], "c": ["a"]}, joins={"c": any_of()}, seal=False)
    await flow.complete("a")
    await engine.flows.add_edge(flow.id, "b", "c")
    assert await flow.member("c") == "waiting"


async def test_blocked_member_keeps_its_delay(engine: Engine, clock: VirtualClock) -> None:
    flow = await open_flow(engine, options={"b": {"delay": "1h"}})
    assert await flow.member("b") == "delayed"
    await engine.flows.add_edge(flow.id, "a", "b")
    assert await flow.member("b") == "blocked"
    await flow.complete("a")
    assert await flow.member("b") == "delayed"
    clock.advance("1h")
    await engine.reconcilers.tick()
    assert await flow.member("b") == "waiting"


async def test_held_member_stays_held_after_its_edges_are_satisfied(engine: Engine) -> None:
    flow = await open_flow(engine)
    await engine.operator.hold(flow["b"], "look at it")
    outcome = await add_edge_or_return_error(engine, flow)
    assert isinstance(outcome, EdgeAdded)
    await flow.complete("a")
    assert await claimable(engine) == set()
    await engine.operator.unhold(flow["b"])
    assert await claimable(engine) == {flow["b"]}


async def add_edge_or_return_error(engine: Engine, flow: Flow) -> object:
    try:
        return await engine.flows.add_edge(flow.id, "a", "b")
    except FlowFabricError as error:
        return error


async def test_started_member_accepts_no_edge(engine: Engine, store: TestStore) -> None:
    flow = await built(
        engine, {"a": [], "active": [], "released": [], "suspended": [], "delayed": [], "retrying": []}, seal=False
    )
    fences = {name: (await flow.claim(name)).fence for name in flow.members if name != "a"}
    await engine.leases.release(fences["released"])
    await engine.leases.suspend(fences["suspended"], ["go"])
    await engine.leases.delay(fences["delayed"], after="1h")
    await engine.leases.fail(fences["retrying"], "not yet")
    async with nothing_written(store):
        for name in fences:
            await refused(engine.flows.add_edge(flow.id, "a", name), "downstream_already_started", FlowFabricError)


async def test_started_member_accepts_no_edge_even_if_it_would_not_block(engine: Engine, store: TestStore) -> None:
    shape: Shape = {"a": [], "b": [], "done": [], "race": ["a"], "all": ["a"]}
    flow = await built(engine, shape, joins={"race": any_of()}, seal=False)
    await flow.complete("a", "done")
    for name in ("race", "all"):
        await flow.claim(name)
    async with nothing_written(store):
        await refused(engine.flows.add_edge(flow.id, "b", "race"), "downstream_already_started", FlowFabricError)
        await refused(engine.flows.add_edge(flow.id, "done", "all"), "downstream_already_started", FlowFabricError)


async def test_two_inputs_of_a_member_need_different_names(engine: Engine, store: TestStore) -> None:
    flow = await built(engine, {"a": [], "b": [], "c": [Edge("a", input="left")]}, seal=False)
    async with nothing_written(store):
        await refused(engine.flows.add_edge(flow.id, "b", "c", input="left"), "duplicate_edge", InvalidRequest)
    await engine.flows.add_edge(flow.id, "b", "c", input="a")
    await flow.add("late")
    await flow.add("a-too")
    async with nothing_written(store):
        await refused(engine.flows.add_edge(flow.id, "late", "c", input="a"), "duplicate_edge", InvalidRequest)
    await engine.flows.add_edge(flow.id, "late", "c", input="a-too")
    async with nothing_written(store):
        await refused(engine.flows.add_edge(flow.id, "a-too", "c"), "duplicate_edge", InvalidRequest)


async def test_edge_into_a_terminal_member_is_recorded_without_effect(engine: Engine, clock: VirtualClock) -> None:
    for outcome in OUTCOMES:
        flow = await open_flow(engine)
        await flow.end("b", outcome, clock)
        before = await engine.executions.describe(flow["b"])
        assert isinstance(await engine.flows.add_edge(flow.id, "a", "b"), EdgeAdded)
        await flow.fail("a")
        assert await engine.executions.describe(flow["b"]) == before
        described = await engine.flows.describe(flow.id)
        assert len(described.edges) == 1


async def test_expected_revision_must_be_the_current_one(engine: Engine, store: TestStore) -> None:
    flow = await open_flow(engine)
    revision = await flow.revision()
    await flow.add("c")
    async with nothing_written(store):
        call = engine.flows.add_edge(flow.id, "a", "b", expected_revision=revision)
        error = await refused(call, "stale_revision", FlowFabricError)
    assert isinstance(error, Conflict | Refused)
    await engine.flows.add_edge(flow.id, "a", "b", expected_revision=revision + 1)


async def test_repeated_edge_is_stored_once(engine: Engine, store: TestStore) -> None:
    flow = await open_flow(engine)
    revision = await flow.revision()
    await engine.flows.add_edge(flow.id, "a", "b", expected_revision=revision)
    async with nothing_written(store):
        outcome = await engine.flows.add_edge(flow.id, "a", "b", expected_revision=revision)
        error = await error_of(engine.flows.add_edge(flow.id, "a", "b", kind=EdgeKind.ON_FAILURE))
    assert isinstance(outcome, EdgeAdded)
    assert error.code == "duplicate_edge"


async def test_edge_that_closes_a_cycle_is_refused(engine: Engine, store: TestStore) -> None:
    flow = await built(engine, {"a": [], "b": ["a"], "c": ["b"]}, seal=False)
    async with nothing_written(store):
        await refused(engine.flows.add_edge(flow.id, "c", "a"), "cycle", FlowFabricError)
        await refused(engine.flows.add_edge(flow.id, "b", "a"), "cycle", FlowFabricError)
        await refused(engine.flows.add_edge(flow.id, "a", "a"), "self_edge", InvalidRequest)


async def test_unknown_members_are_not_found(engine: Engine, store: TestStore) -> None:
    flow, other_flow = await open_flow(engine), await built(engine, {"x": []}, seal=False)
    async with nothing_written(store):
        await refused(engine.flows.add_edge(uuid4(), "a", "b"), "flow_not_found", NotFound)
        for unknown_member in ("x", other_flow["x"], uuid4()):
            await refused(engine.flows.add_edge(flow.id, unknown_member, "b"), "member_not_found", NotFound)
            await refused(engine.flows.add_edge(flow.id, "a", unknown_member), "member_not_found", NotFound)


async def test_closed_flow_accepts_no_edge(engine: Engine, store: TestStore) -> None:
    sealed, cancelled = await built(engine, PAIR), await open_flow(engine)
    await engine.flows.cancel(cancelled.id, "stop", policy="flow_only")
    async with nothing_written(store):
        await refused(engine.flows.add_edge(sealed.id, "a", "b"), "flow_sealed", FlowFabricError)
        await refused(engine.flows.add_edge(cancelled.id, "a", "b"), "flow_already_terminal", FlowFabricError)


async def test_edge_added_after_its_upstream_ended_is_not_lost(engine: Engine, store: TestStore) -> None:
    flow = await built(engine, {"a": [], "b": []}, seal=False)
    await flow.complete("a")
    await flow.add("c", "a", "b")
    await flow.complete("b")
    assert await flow.member("c") == "waiting"
    await assert_flows_sound(store)


async def test_refused_edge_does_not_count(engine: Engine, store: TestStore) -> None:
    flow = await built(engine, {"a": [], "b": [], "c": ["a"]}, seal=False)
    await error_of(engine.flows.add_edge(flow.id, "b", "c", expected_revision=99))
    await flow.complete("a")
    assert await flow.member("c") == "waiting"
    await assert_flows_sound(store)


async def test_cycles_started_downstreams_and_closed_flows_are_refused(engine: Engine, store: TestStore) -> None:
    flow = await built(engine, {"a": [], "b": ["a"], "c": []}, seal=False)
    closed = await built(engine, {"a": [], "b": []})
    await flow.claim("c")
    async with nothing_written(store):
        await refused(engine.flows.add_edge(flow.id, "b", "a"), "cycle", FlowFabricError)
        await refused(engine.flows.add_edge(flow.id, "a", "c"), "downstream_already_started", FlowFabricError)
        await refused(engine.flows.add_edge(closed.id, "a", "b"), "flow_sealed", FlowFabricError)
        await refused(engine.flows.add_edge(uuid4(), "a", "b"), "flow_not_found", NotFound)
        await refused(engine.flows.add(uuid4(), "x", "job", after=["a"], join=any_of()), "flow_not_found", NotFound)
