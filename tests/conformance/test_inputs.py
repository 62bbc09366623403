"""Tests of inputs, which returns the results of the upstream members by name."""

from __future__ import annotations

from uuid import uuid4

from flowfabric.engine import Edge, EdgeKind, Engine, NotFound, any_of
from tests.expectations import nothing_written, refused
from tests.flows import built
from tests.scenarios import submitted
from tests.stores import TestStore


async def test_results_are_named_after_the_upstream_members(engine: Engine) -> None:
    flow = await built(engine, {"a": [], "b": [], "c": ["a", Edge("b", input="right")]})
    await flow.complete("a", "b")
    inputs = await engine.flows.inputs(flow["c"])
    assert {name: upstream.result for name, upstream in inputs.items()} == {"a": b"a", "right": b"b"}
    assert inputs["a"].encoding == "json"
    assert inputs["a"].outcome == "completed"


async def test_upstream_without_a_result_shows_its_outcome(engine: Engine) -> None:
    flow = await built(engine, {"a": [], "b": [Edge("a", EdgeKind.ON_FAILURE)]})
    await flow.fail("a")
    inputs = await engine.flows.inputs(flow["b"])
    assert (inputs["a"].result, inputs["a"].outcome) == (None, "failed")


async def test_losers_of_a_race_have_no_result(engine: Engine) -> None:
    flow = await built(engine, {"a": [], "b": [], "c": ["a", "b"]}, joins={"c": any_of()})
    await flow.complete("b")
    inputs = await engine.flows.inputs(flow["c"])
    assert inputs["b"].result == b"b"
    assert inputs["a"].result is None
    assert inputs["a"].outcome == "cancelled"


async def test_upstream_that_has_not_ended_has_no_outcome(engine: Engine) -> None:
    flow = await built(engine, {"a": [], "b": ["a"]})
    inputs = await engine.flows.inputs(flow["b"])
    assert (inputs["a"].result, inputs["a"].outcome) == (None, None)


async def test_replayed_upstream_has_its_newest_result(engine: Engine) -> None:
    flow = await built(engine, {"a": [], "b": ["a"]})
    await flow.complete("a")
    await engine.operator.replay(flow["a"])
    lease = await flow.claim("a")
    await engine.leases.complete(lease.fence, b"second")
    assert (await engine.flows.inputs(flow["b"]))["a"].result == b"second"


async def test_reading_inputs_writes_nothing_and_keeps_the_payload(engine: Engine, store: TestStore) -> None:
    flow = await built(engine, {"a": [], "b": ["a"]}, options={"b": {"payload": b"own"}})
    await flow.complete("a")
    async with nothing_written(store):
        await engine.flows.inputs(flow["b"])
    assert (await flow.claim("b")).payload == b"own"


async def test_execution_without_upstreams_has_no_inputs(engine: Engine) -> None:
    flow = await built(engine, {"a": []})
    assert dict(await engine.flows.inputs(flow["a"])) == {}
    assert dict(await engine.flows.inputs(await submitted(engine))) == {}
    await refused(engine.flows.inputs(uuid4()), "execution_not_found", NotFound)


async def test_inputs_have_the_results_of_two_upstreams_by_name(engine: Engine) -> None:
    flow = await built(engine, {"a": [], "b": [], "c": ["a", "b"]}, options={"c": {"payload": b"own"}})
    await flow.complete("a", "b")
    inputs = await engine.flows.inputs(flow["c"])
    assert {name: upstream.result for name, upstream in inputs.items()} == {"a": b"a", "b": b"b"}
    assert (await flow.claim("c")).payload == b"own"
