"""list_flows: pages by state, name, tag and time, with cursors that miss and repeat nothing."""

from __future__ import annotations

from uuid import UUID

from flowfabric.engine import Engine, InvalidRequest
from flowfabric.testing import VirtualClock
from tests.facts import refused
from tests.flows import built


async def listed(engine: Engine, **filters: object) -> set[UUID]:
    found: set[UUID] = set()
    cursor = None
    while True:
        page = await engine.flows.list(cursor=cursor, limit=3, **filters)  # type: ignore[arg-type]
        assert not found & {item.id for item in page.items}
        found |= {item.id for item in page.items}
        cursor = page.next_cursor
        if cursor is None:
            return found


async def test_every_flow_is_listed_once(engine: Engine) -> None:
    flows = [await built(engine, {"a": []}) for _ in range(10)]
    assert await listed(engine) == {flow.id for flow in flows}


async def test_flows_are_found_by_name_tag_and_time(engine: Engine, clock: VirtualClock) -> None:
    one = await built(engine, {"a": []}, name="one", tags={"team.name": "data"})
    clock.advance("1h")
    two = await built(engine, {"a": []}, name="two", tags={"team.name": "web"})
    assert await listed(engine, name="one") == {one.id}
    assert await listed(engine, tags={"team.name": "web"}) == {two.id}
    assert await listed(engine, created_from=clock.now()) == {two.id}
    assert await listed(engine, created_until=clock.now()) == {one.id}
    assert await listed(engine, name="one", tags={"team.name": "web"}) == set()


async def test_flows_are_found_by_state(engine: Engine) -> None:
    running, done, failed, stopped = [await built(engine, {"a": [], "b": ["a"]}) for _ in range(4)]
    await running.claim("a")
    await done.complete("a", "b")
    await failed.fail("a")
    await engine.flows.cancel(stopped.id, "enough")
    for state, flow in (("running", running), ("completed", done), ("failed", failed), ("cancelled", stopped)):
        assert await listed(engine, state=state) == {flow.id}, state


async def test_a_flow_that_has_not_finished_is_found_behind_many_that_have(engine: Engine) -> None:
    first, second = await built(engine, {"a": []}), await built(engine, {"a": [], "b": ["a"]})
    for _ in range(8):
        await (await built(engine, {"a": []})).complete("a")
    await engine.operator.hold(first["a"])
    await second.complete("a")
    for state, flows in (("blocked", {first.id}), ("running", {second.id}), ("open", set())):
        assert await listed(engine, state=state) == flows, state
    await second.complete("b")
    await engine.operator.replay(second["b"])
    assert await listed(engine, state="running") == {second.id}


async def test_another_namespace_sees_none_of_them(engine: Engine) -> None:
    await built(engine, {"a": []})
    assert await listed(engine.within("other")) == set()


async def test_a_cursor_of_something_else_is_refused(engine: Engine) -> None:
    await refused(engine.flows.list(cursor="nonsense"), "cursor_invalid", InvalidRequest)
