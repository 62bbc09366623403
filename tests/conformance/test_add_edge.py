"""add_edge: one more dependency for a member that has not started, judged at once by what the upstream has become."""

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
from tests.facts import error_of, event_names, nothing_written, refused
from tests.flows import OUTCOMES, Flow, Shape, built, claimable
from tests.stores import TestStore

PAIR: Shape = {"a": [], "b": []}


async def open_flow(engine: Engine, **options: Any) -> Flow:
    return await built(engine, PAIR, seal=False, **options)


async def test_an_edge_blocks_a_member_that_waits(engine: Engine) -> None:
    flow = await open_flow(engine)
    answer = await engine.flows.add_edge(flow.id, "a", "b")
    assert isinstance(answer, EdgeAdded)
    assert (answer.revision, answer.resolved) == (await flow.revision(), EdgeState.OPEN)
    assert await flow.states() == {"a": "waiting", "b": "blocked"}
    assert await claimable(engine) == {flow["a"]}
    assert (await event_names(engine, flow["b"]))[-1] == "lifecycle.blocked"


async def test_ids_do_as_well_as_names(engine: Engine) -> None:
    flow = await open_flow(engine)
    await engine.flows.add_edge(flow.id, flow["a"], flow["b"])
    await flow.complete("a")
    assert await flow.member("b") == "waiting"


@pytest.mark.parametrize("kind", EdgeKind)
async def test_an_upstream_that_has_ended_counts_at_once(engine: Engine, clock: VirtualClock, kind: EdgeKind) -> None:
    takes = {"on_success": ("completed",), "on_failure": ("failed", "expired"), "on_completion": OUTCOMES}[kind.value]
    for outcome in OUTCOMES:
        flow = await open_flow(engine)
        await flow.end("a", outcome, clock)
        answer = await engine.flows.add_edge(flow.id, "a", "b", kind=kind)
        satisfied = outcome in takes
        assert answer.resolved is (EdgeState.SATISFIED if satisfied else EdgeState.IMPOSSIBLE), outcome
        assert await flow.member("b") == ("waiting" if satisfied else "skipped"), outcome


async def test_an_impossible_edge_skips_to_the_end_of_the_line(engine: Engine) -> None:
    flow = await built(engine, {"a": [], "b": [], "c": ["b"], "d": ["c"]}, seal=False)
    await flow.fail("a")
    await engine.flows.add_edge(flow.id, "a", "b")
    assert await flow.states() == {"a": "failed", "b": "skipped", "c": "skipped", "d": "skipped"}


async def test_a_group_that_had_fired_waits_for_the_new_edge(engine: Engine) -> None:
    flow = await built(engine, {"a": [], "b": [], "c": ["a"]}, seal=False)
    await flow.complete("a")
    assert await flow.member("c") == "waiting"
    await engine.flows.add_edge(flow.id, "b", "c")
    assert await flow.member("c") == "blocked"
    await flow.complete("b")
    assert await flow.member("c") == "waiting"


async def test_a_race_that_was_won_stays_won(engine: Engine) -> None:
    flow = await built(engine, {"a": [], "b": [], "c": ["a"]}, joins={"c": any_of()}, seal=False)
    await flow.complete("a")
    await engine.flows.add_edge(flow.id, "b", "c")
    assert await flow.member("c") == "waiting"


async def test_a_delay_is_kept_while_an_edge_blocks(engine: Engine, clock: VirtualClock) -> None:
    flow = await open_flow(engine, options={"b": {"delay": "1h"}})
    assert await flow.member("b") == "delayed"
    await engine.flows.add_edge(flow.id, "a", "b")
    assert await flow.member("b") == "blocked"
    await flow.complete("a")
    assert await flow.member("b") == "delayed"
    clock.advance("1h")
    await engine.reconcilers.tick()
    assert await flow.member("b") == "waiting"


async def test_a_member_that_is_held_stays_held_after_its_release(engine: Engine) -> None:
    flow = await open_flow(engine)
    await engine.operator.hold(flow["b"], "look at it")
    answer = await error_or_answer(engine, flow)
    assert isinstance(answer, EdgeAdded)
    await flow.complete("a")
    assert await claimable(engine) == set()
    await engine.operator.unhold(flow["b"])
    assert await claimable(engine) == {flow["b"]}


async def error_or_answer(engine: Engine, flow: Flow) -> object:
    try:
        return await engine.flows.add_edge(flow.id, "a", "b")
    except FlowFabricError as error:
        return error


async def test_a_member_that_has_started_takes_no_edge(engine: Engine, store: TestStore) -> None:
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


async def test_a_member_that_has_started_takes_no_edge_that_would_not_stop_it_either(
    engine: Engine, store: TestStore
) -> None:
    shape: Shape = {"a": [], "b": [], "done": [], "race": ["a"], "all": ["a"]}
    flow = await built(engine, shape, joins={"race": any_of()}, seal=False)
    await flow.complete("a", "done")
    for name in ("race", "all"):
        await flow.claim(name)
    async with nothing_written(store):
        await refused(engine.flows.add_edge(flow.id, "b", "race"), "downstream_already_started", FlowFabricError)
        await refused(engine.flows.add_edge(flow.id, "done", "all"), "downstream_already_started", FlowFabricError)


async def test_two_inputs_of_a_member_have_two_names(engine: Engine, store: TestStore) -> None:
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


async def test_a_late_edge_into_a_terminal_member_is_recorded_and_does_nothing(
    engine: Engine, clock: VirtualClock
) -> None:
    for outcome in OUTCOMES:
        flow = await open_flow(engine)
        await flow.end("b", outcome, clock)
        before = await engine.executions.describe(flow["b"])
        assert isinstance(await engine.flows.add_edge(flow.id, "a", "b"), EdgeAdded)
        await flow.fail("a")
        assert await engine.executions.describe(flow["b"]) == before
        described = await engine.flows.describe(flow.id)
        assert len(described.edges) == 1


async def test_the_revision_that_was_seen_must_be_the_present_one(engine: Engine, store: TestStore) -> None:
    flow = await open_flow(engine)
    seen = await flow.revision()
    await flow.add("c")
    async with nothing_written(store):
        call = engine.flows.add_edge(flow.id, "a", "b", expected_revision=seen)
        error = await refused(call, "stale_revision", FlowFabricError)
    assert isinstance(error, Conflict | Refused)
    await engine.flows.add_edge(flow.id, "a", "b", expected_revision=seen + 1)


async def test_a_repeated_edge_is_one(engine: Engine, store: TestStore) -> None:
    flow = await open_flow(engine)
    seen = await flow.revision()
    await engine.flows.add_edge(flow.id, "a", "b", expected_revision=seen)
    async with nothing_written(store):
        answer = await engine.flows.add_edge(flow.id, "a", "b", expected_revision=seen)
        error = await error_of(engine.flows.add_edge(flow.id, "a", "b", kind=EdgeKind.ON_FAILURE))
    assert isinstance(answer, EdgeAdded)
    assert error.code == "duplicate_edge"


async def test_no_edge_closes_a_circle(engine: Engine, store: TestStore) -> None:
    flow = await built(engine, {"a": [], "b": ["a"], "c": ["b"]}, seal=False)
    async with nothing_written(store):
        await refused(engine.flows.add_edge(flow.id, "c", "a"), "cycle", FlowFabricError)
        await refused(engine.flows.add_edge(flow.id, "b", "a"), "cycle", FlowFabricError)
        await refused(engine.flows.add_edge(flow.id, "a", "a"), "self_edge", InvalidRequest)


async def test_strangers_are_not_found(engine: Engine, store: TestStore) -> None:
    flow, other = await open_flow(engine), await built(engine, {"x": []}, seal=False)
    async with nothing_written(store):
        await refused(engine.flows.add_edge(uuid4(), "a", "b"), "flow_not_found", NotFound)
        for stranger in ("x", other["x"], uuid4()):
            await refused(engine.flows.add_edge(flow.id, stranger, "b"), "member_not_found", NotFound)
            await refused(engine.flows.add_edge(flow.id, "a", stranger), "member_not_found", NotFound)


async def test_a_closed_flow_takes_no_edge(engine: Engine, store: TestStore) -> None:
    sealed, cancelled = await built(engine, PAIR), await open_flow(engine)
    await engine.flows.cancel(cancelled.id, "stop", policy="flow_only")
    async with nothing_written(store):
        await refused(engine.flows.add_edge(sealed.id, "a", "b"), "flow_sealed", FlowFabricError)
        await refused(engine.flows.add_edge(cancelled.id, "a", "b"), "flow_already_terminal", FlowFabricError)
