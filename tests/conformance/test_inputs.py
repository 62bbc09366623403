"""inputs: the results of the upstream members by name, read from their rows when they are wanted."""

from __future__ import annotations

from uuid import uuid4

from flowfabric.engine import Edge, EdgeKind, Engine, NotFound, any_of
from tests.facts import nothing_written, refused
from tests.flows import built
from tests.scenarios import submitted
from tests.stores import TestStore


async def test_results_come_under_the_names_of_the_upstream_members(engine: Engine) -> None:
    flow = await built(engine, {"a": [], "b": [], "c": ["a", Edge("b", input="right")]})
    await flow.complete("a", "b")
    found = await engine.flows.inputs(flow["c"])
    assert {name: item.result for name, item in found.items()} == {"a": b"a", "right": b"b"}
    assert found["a"].encoding == "json"
    assert found["a"].outcome == "completed"


async def test_an_upstream_without_a_result_says_how_it_ended(engine: Engine) -> None:
    flow = await built(engine, {"a": [], "b": [Edge("a", EdgeKind.ON_FAILURE)]})
    await flow.fail("a")
    found = await engine.flows.inputs(flow["b"])
    assert (found["a"].result, found["a"].outcome) == (None, "failed")


async def test_the_losers_of_a_race_bring_nothing(engine: Engine) -> None:
    flow = await built(engine, {"a": [], "b": [], "c": ["a", "b"]}, joins={"c": any_of()})
    await flow.complete("b")
    found = await engine.flows.inputs(flow["c"])
    assert found["b"].result == b"b"
    assert found["a"].result is None
    assert found["a"].outcome == "cancelled"


async def test_an_upstream_that_has_not_ended_has_no_outcome(engine: Engine) -> None:
    flow = await built(engine, {"a": [], "b": ["a"]})
    found = await engine.flows.inputs(flow["b"])
    assert (found["a"].result, found["a"].outcome) == (None, None)


async def test_a_replayed_upstream_brings_its_newest_result(engine: Engine) -> None:
    flow = await built(engine, {"a": [], "b": ["a"]})
    await flow.complete("a")
    await engine.operator.replay(flow["a"])
    lease = await flow.claim("a")
    await engine.leases.complete(lease.fence, b"second")
    assert (await engine.flows.inputs(flow["b"]))["a"].result == b"second"


async def test_reading_writes_nothing_and_the_payload_stays(engine: Engine, store: TestStore) -> None:
    flow = await built(engine, {"a": [], "b": ["a"]}, options={"b": {"payload": b"own"}})
    await flow.complete("a")
    async with nothing_written(store):
        await engine.flows.inputs(flow["b"])
    assert (await flow.claim("b")).payload == b"own"


async def test_whoever_has_no_upstream_has_no_inputs(engine: Engine) -> None:
    flow = await built(engine, {"a": []})
    assert dict(await engine.flows.inputs(flow["a"])) == {}
    assert dict(await engine.flows.inputs(await submitted(engine))) == {}
    await refused(engine.flows.inputs(uuid4()), "execution_not_found", NotFound)
