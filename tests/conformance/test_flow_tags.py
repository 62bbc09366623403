"""Tests of the tags of a flow, which can be changed in every state."""

from __future__ import annotations

from uuid import uuid4

import pytest

from flowfabric.engine import Engine, FlowCreated, InvalidRequest, NotFound
from flowfabric.testing import VirtualClock
from tests.expectations import nothing_written, refused
from tests.flows import Flow, built, drawn
from tests.stores import TestStore


async def _complete(flow: Flow) -> None:
    await flow.complete("a")


async def _fail(flow: Flow) -> None:
    await flow.fail("a")


async def _cancel(flow: Flow) -> None:
    await flow.engine.flows.cancel(flow.id, "enough")


async def _nothing(flow: Flow) -> None:
    """Leave the flow open."""


@pytest.mark.parametrize("arrange", [_nothing, _complete, _fail, _cancel])
async def test_tags_of_a_flow_can_be_set_and_removed_in_every_state(
    engine: Engine, clock: VirtualClock, arrange: object
) -> None:
    flow = await built(engine, {"a": []}, tags={"team.cost": "7"})
    await arrange(flow)  # type: ignore[operator]
    before = await engine.flows.describe(flow.id)
    clock.advance("1s")
    tags = await engine.flows.set_tags(flow.id, {"team.owner": "ada", "team.cost": None, "team.none": None})
    after = await engine.flows.describe(flow.id)
    assert tags == after.tags == {"team.owner": "ada"}
    assert after.changed_at == clock.now() > before.changed_at
    assert (after.state, after.revision, after.ended_at) == (before.state, before.revision, before.ended_at)
    assert [item.id for item in (await engine.flows.list(tags={"team.owner": "ada"})).items] == [flow.id]
    member = await engine.executions.describe(flow["a"])
    assert member.tags == {}


async def test_event_of_a_flow_has_its_present_tags(engine: Engine) -> None:
    flow = await built(engine, {"a": []})
    await engine.flows.set_tags(flow.id, {"team.owner": "ada"})
    await flow.complete("a")
    events = engine.events.subscribe(flow=flow.id, start="beginning", follow=False)
    [event] = [event async for event in events if event.name == "finished"]
    assert event.tags == {"team.owner": "ada"}


async def test_flow_can_be_submitted_again_after_its_tags_changed(engine: Engine) -> None:
    id_, graph = uuid4(), drawn({"a": []}, tags={"team.cost": "7"})
    assert isinstance(await engine.flows.submit(graph, id=id_), FlowCreated)
    await engine.flows.set_tags(id_, {"team.cost": None})
    again = await engine.flows.submit(graph, id=id_)
    assert again.flow_id == id_


async def test_bad_tags_and_unknown_flows_are_refused(engine: Engine, store: TestStore) -> None:
    flow = await built(engine, {"a": []})
    other = engine.for_namespace("other")
    async with nothing_written(store):
        await refused(engine.flows.set_tags(flow.id, ["team.owner"]), "invalid_type", InvalidRequest)  # type: ignore[arg-type]
        await refused(engine.flows.set_tags(flow.id, {"": "x"}), "invalid_tag_key", InvalidRequest)
        await refused(engine.flows.set_tags(uuid4(), {}), "flow_not_found", NotFound)
        await refused(other.flows.set_tags(flow.id, {"team.owner": "eve"}), "flow_not_found", NotFound)
