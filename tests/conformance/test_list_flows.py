"""Tests of list_flows, which returns pages by state, name, tag and time without gaps or repetitions."""

from __future__ import annotations

from uuid import UUID

from flowfabric.engine import Engine, InvalidRequest
from flowfabric.testing import VirtualClock
from tests.expectations import refused
from tests.flows import built


async def list_ids(engine: Engine, **filters: object) -> set[UUID]:
    ids: set[UUID] = set()
    cursor = None
    while True:
        page = await engine.flows.list(cursor=cursor, limit=3, **filters)  # type: ignore[arg-type]
        assert not ids & {flow.id for flow in page.items}
        ids |= {flow.id for flow in page.items}
        cursor = page.next_cursor
        if cursor is None:
            return ids


async def test_every_flow_is_listed_once(engine: Engine) -> None:
    flows = [await built(engine, {"a": []}) for _ in range(10)]
    assert await list_ids(engine) == {flow.id for flow in flows}


async def test_flows_are_found_by_name_tag_and_time(engine: Engine, clock: VirtualClock) -> None:
    first = await built(engine, {"a": []}, name="one", tags={"team.name": "data"})
    clock.advance("1h")
    second = await built(engine, {"a": []}, name="two", tags={"team.name": "web"})
    assert await list_ids(engine, name="one") == {first.id}
    assert await list_ids(engine, tags={"team.name": "web"}) == {second.id}
    assert await list_ids(engine, created_from=clock.now()) == {second.id}
    assert await list_ids(engine, created_until=clock.now()) == {first.id}
    assert await list_ids(engine, name="one", tags={"team.name": "web"}) == set()


async def test_flows_are_found_by_state(engine: Engine) -> None:
    running, completed, failed, cancelled = [await built(engine, {"a": [], "b": ["a"]}) for _ in range(4)]
    await running.claim("a")
    await completed.complete("a", "b")
    await failed.fail("a")
    await engine.flows.cancel(cancelled.id, "enough")
    for state, flow in (("running", running), ("completed", completed), ("failed", failed), ("cancelled", cancelled)):
        assert await list_ids(engine, state=state) == {flow.id}, state


async def test_flows_are_found_by_the_start_of_their_id(engine: Engine) -> None:
    flows = [await built(engine, {"a": []}) for _ in range(5)]
    for flow in flows:
        assert await list_ids(engine, id_prefix=str(flow.id)) == {flow.id}
    assert await list_ids(engine, id_prefix=str(flows[2].id)[:4]) == {flow.id for flow in flows}
    assert await list_ids(engine, id_prefix="ffff") == await list_ids(engine, id_prefix="0000") == set()


async def test_unfinished_flow_is_found_behind_many_finished_ones(engine: Engine) -> None:
    first, second = await built(engine, {"a": []}), await built(engine, {"a": [], "b": ["a"]})
    for _ in range(8):
        await (await built(engine, {"a": []})).complete("a")
    await engine.operator.hold(first["a"])
    await second.complete("a")
    for state, flows in (("blocked", {first.id}), ("running", {second.id}), ("open", set())):
        assert await list_ids(engine, state=state) == flows, state
    await second.complete("b")
    await engine.operator.replay(second["b"])
    assert await list_ids(engine, state="running") == {second.id}


async def test_another_namespace_lists_none_of_the_flows(engine: Engine) -> None:
    await built(engine, {"a": []})
    assert await list_ids(engine.for_namespace("other")) == set()


async def test_malformed_cursor_is_refused(engine: Engine) -> None:
    await refused(engine.flows.list(cursor="nonsense"), "cursor_invalid", InvalidRequest)
