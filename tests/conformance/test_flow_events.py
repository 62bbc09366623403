"""Tests of flow events: reading them by flow, hints to waiting callers, and retention."""

from __future__ import annotations

from datetime import timedelta

from flowfabric.engine import Edge, EdgeKind, Engine, Event
from flowfabric.store.commit_hints import CommitHints
from flowfabric.testing import VirtualClock
from tests.flows import Flow, Shape, built, with_children
from tests.scenarios import leased, submitted
from tests.stores import TestStore

SHAPE: Shape = {"a": [], "b": ["a"], "handler": [Edge("a", EdgeKind.ON_FAILURE)]}


async def read_flow_events(flow: Flow) -> list[Event]:
    return [event async for event in flow.engine.events.subscribe(flow=flow.id, start="beginning", follow=False)]


async def count_rows(store: TestStore, table: str) -> int:
    [row] = await store.query(f"SELECT COUNT(*) AS number FROM ff.{table}")
    return int(row["number"])


async def test_events_of_a_flow_and_its_members_are_found_by_the_flow(engine: Engine) -> None:
    flow, other_flow = await built(engine, SHAPE), await built(engine, SHAPE)
    await flow.complete("a")
    await other_flow.complete("a")
    await engine.leases.release((await flow.claim("b")).fence)
    await engine.flows.cancel(flow.id, "enough")
    events = await read_flow_events(flow)
    assert {event.flow_id for event in events} == {flow.id}
    for name, id_ in flow.members.items():
        versions = [event.version for event in events if event.execution_id == id_]
        assert versions == [event.version for event in await engine.executions.history(id_)], name
    names = {event.name for event in events if event.execution_id in flow.members.values()}
    assert {"acquired", "completed", "ready", "skipped", "cancelled"} <= names
    assert [event.name for event in events if event.execution_id is None] == ["cancel_requested", "finished"]


async def test_events_of_children_are_found_by_the_flow_of_their_parent(engine: Engine) -> None:
    lease = await leased(engine)
    children = await with_children(engine, lease, "kid")
    kid = await engine.leases.claim_execution(children["kid"], "worker-2")
    await engine.leases.complete(kid.fence)
    events = await read_flow_events(Flow(engine, lease.execution_id, children))
    assert {event.name for event in events if event.execution_id == children["kid"]} == {"acquired", "completed"}


async def test_members_that_become_ready_or_end_are_in_the_commit_hints(engine: Engine) -> None:
    flow = await built(engine, SHAPE, options={"b": {"lane": "later"}})
    lease, hints = await flow.claim("a"), CommitHints()
    engine._context.store.notifier.on_commit(hints.merge)
    await engine.leases.complete(lease.fence)
    await submitted(engine)  # When this call returns, the hints of the first commit have been merged.
    assert ("default", "later") in hints.lanes
    assert "default" in hints.namespaces
    assert {flow["a"], flow["handler"]} <= hints.ended
    await engine.flows.cancel(flow.id, "enough")
    await submitted(engine)
    assert flow["b"] in hints.ended


async def test_time_of_a_member_that_becomes_ready_later_is_in_the_commit_hints(
    engine: Engine, clock: VirtualClock
) -> None:
    later = clock.now() + timedelta(hours=1)
    flow = await built(engine, SHAPE, options={"b": {"ready_at": later}})
    lease, hints = await flow.claim("a"), CommitHints()
    engine._context.store.notifier.on_commit(hints.merge)
    await engine.leases.complete(lease.fence)
    await submitted(engine)
    assert (await flow.member("b"), hints.due) == ("delayed", later)


async def test_events_of_a_purged_flow_are_purged_later(engine: Engine, clock: VirtualClock, store: TestStore) -> None:
    flow = await built(engine, SHAPE)
    await flow.complete("a", "b")
    clock.advance("31d")
    await engine.reconcilers.tick()
    assert (await count_rows(store, "execution"), await count_rows(store, "purged")) == (0, 3)
    event_ids = {event.execution_id for event in await read_flow_events(flow)}
    assert event_ids >= set(flow.members.values())
    clock.advance("8d")
    await engine.reconcilers.tick()
    assert (await count_rows(store, "event"), await count_rows(store, "purged")) == (0, 0)
