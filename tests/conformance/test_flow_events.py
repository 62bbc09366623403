"""Events of flows: those of members are found by their flow, are told to whoever waits, and go after their members."""

from __future__ import annotations

from datetime import timedelta

from flowfabric.engine import Edge, EdgeKind, Engine, Event
from flowfabric.store.news import News
from flowfabric.testing import VirtualClock
from tests.flows import Flow, Shape, built, with_children
from tests.scenarios import leased, submitted
from tests.stores import TestStore

SHAPE: Shape = {"a": [], "b": ["a"], "handler": [Edge("a", EdgeKind.ON_FAILURE)]}


async def of_flow(flow: Flow) -> list[Event]:
    return [event async for event in flow.engine.events.subscribe(flow=flow.id, start="beginning", follow=False)]


async def count(store: TestStore, table: str) -> int:
    [row] = await store.query(f"SELECT COUNT(*) AS number FROM ff.{table}")
    return int(row["number"])


async def test_all_events_of_a_flow_and_its_members_are_found_by_the_flow(engine: Engine) -> None:
    flow, other = await built(engine, SHAPE), await built(engine, SHAPE)
    await flow.complete("a")
    await other.complete("a")
    await engine.leases.release((await flow.claim("b")).fence)
    await engine.flows.cancel(flow.id, "enough")
    found = await of_flow(flow)
    assert {event.flow_id for event in found} == {flow.id}
    for name, id_ in flow.members.items():
        told = [event.version for event in found if event.execution_id == id_]
        assert told == [event.version for event in await engine.executions.history(id_)], name
    names = {event.name for event in found if event.execution_id in flow.members.values()}
    assert {"acquired", "completed", "ready", "skipped", "cancelled"} <= names
    assert [event.name for event in found if event.execution_id is None] == ["cancel_requested", "finished"]


async def test_the_flow_of_children_is_that_of_their_parent(engine: Engine) -> None:
    lease = await leased(engine)
    children = await with_children(engine, lease, "kid")
    kid = await engine.leases.claim_execution(children["kid"], "worker-2")
    await engine.leases.complete(kid.fence)
    found = await of_flow(Flow(engine, lease.execution_id, children))
    assert {event.name for event in found if event.execution_id == children["kid"]} == {"acquired", "completed"}


async def test_members_that_go_on_or_end_are_told_to_whoever_waits(engine: Engine) -> None:
    flow = await built(engine, SHAPE, options={"b": {"lane": "later"}})
    lease, news = await flow.claim("a"), News()
    engine._context.store.telling.on_commit(news.merge)
    await engine.leases.complete(lease.fence)
    await submitted(engine)  # Whoever tells of the first has told of it before this one is answered.
    assert ("default", "later") in news.lanes
    assert "default" in news.namespaces
    assert {flow["a"], flow["handler"]} <= news.ended
    await engine.flows.cancel(flow.id, "enough")
    await submitted(engine)
    assert flow["b"] in news.ended


async def test_the_time_of_a_member_that_goes_on_later_is_told(engine: Engine, clock: VirtualClock) -> None:
    later = clock.now() + timedelta(hours=1)
    flow = await built(engine, SHAPE, options={"b": {"ready_at": later}})
    lease, news = await flow.claim("a"), News()
    engine._context.store.telling.on_commit(news.merge)
    await engine.leases.complete(lease.fence)
    await submitted(engine)
    assert (await flow.member("b"), news.due) == ("delayed", later)


async def test_events_of_a_flow_that_is_gone_go_later(engine: Engine, clock: VirtualClock, store: TestStore) -> None:
    flow = await built(engine, SHAPE)
    await flow.complete("a", "b")
    clock.advance("31d")
    await engine.reconcilers.tick()
    assert (await count(store, "execution"), await count(store, "purged")) == (0, 3)
    kept = {event.execution_id for event in await of_flow(flow)}
    assert kept >= set(flow.members.values())
    clock.advance("8d")
    await engine.reconcilers.tick()
    assert (await count(store, "event"), await count(store, "purged")) == (0, 0)
