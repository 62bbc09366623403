"""Every path that ends an execution writes exactly one completion event, which every filter can find."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from flowfabric.engine import Engine, Event
from flowfabric.testing import VirtualClock
from tests.faults.flow_operations import EVERY_OPERATION
from tests.faults.pictures import Camera, camera_on, wipe
from tests.stores import TestStore, opened

TAGS = {"team.owner": "ada"}
# What ends executions, so that the test cannot pass by ending nothing.
ENDING = {
    "complete", "complete with steps", "complete, not plain", "complete_many", "fail, for good", "own cancel",
    "operator cancel", "reclaim, once too often", "lease expiry, once too often", "attempt timeout, for good",
    "deadline", "complete a member", "complete a member with steps", "complete the last member", "fail a member",
    "cancel a member", "cancel_flow", "cancel_flow, pending", "cancel with children", "cancel whose grace is over",
    "suspension timeout, failing", "operator cancel, suspended", "complete with an open waitpoint",
    "complete a child that is joined", "complete a child that is waited for", "add_to_flow, skipped at once",
    "add_edge, impossible",
}  # fmt: skip

TWICE = {"operator cancel", "deadline"}
STATES = {"completed", "failed", "cancelled", "expired", "skipped"}


async def test_every_operation_leaves_one_completion_event_for_each_end(store: TestStore, clock: VirtualClock) -> None:
    camera = await camera_on(store)
    try:
        async with opened(store, clock) as engine:
            for name in EVERY_OPERATION:
                await wipe(camera)
                engine._context.routes.clear()
                await one_completion_event_for_each_end(engine, clock, camera, name)
    finally:
        await camera.close()


async def one_completion_event_for_each_end(engine: Engine, clock: VirtualClock, camera: Camera, name: str) -> None:
    operation = EVERY_OPERATION[name]
    given = await operation.arrange(engine, clock)
    arranged = await executions(camera)
    for id_ in arranged:
        await engine.executions.set_tags(id_, TAGS)
    cursor = await engine.events.cursor()
    await operation.act(engine, given)
    if name in TWICE:
        await operation.act(engine, given)
    ended = await ends_since(engine, cursor)
    assert bool(ended) or name not in ENDING, name
    assert len(ended) == len({event.execution_id for event in ended}), name
    now = await executions(camera)
    states = {id_: row["state"] for id_, row in now.items() if row["state"] in STATES}
    for event in ended:
        assert event.execution_id is not None
        row = now[event.execution_id]
        assert (event.name, event.state) == (row["state"], row["state"]), name
        found = event.namespace, event.lane, event.kind, event.flow_id and str(event.flow_id)
        assert found == (row["namespace"], row["lane"], row["kind"], row["flow_id"] and str(row["flow_id"])), name
        # What the operation itself has added, and skipped at once, has no tags.
        tags = TAGS if event.execution_id in arranged else None
        assert event.tags == tags, name
        by_all = engine.events.subscribe(
            ["completion"], cursor=cursor, follow=False, lane=event.lane, kind=event.kind, tags=tags,
            execution=event.execution_id, flow=event.flow_id,
        )  # fmt: skip
        assert [found.version async for found in by_all] == [event.version], name
    # Whatever is over now either was over before or is told of.
    over_before = await ended_until(engine, cursor)
    assert set(states) - over_before == {event.execution_id for event in ended} - over_before, name


async def executions(camera: Camera) -> dict[UUID, dict[str, Any]]:
    """Those of the namespace whose events are read; one operation erases another namespace."""
    rows = await camera.rows("SELECT id, namespace, lane, kind, flow_id, state FROM ff.execution")
    return {UUID(str(row["id"])): row for row in rows if row["namespace"] == "default"}


async def ends_since(engine: Engine, cursor: str) -> list[Event]:
    return [event async for event in engine.events.subscribe(["completion"], cursor=cursor, follow=False)]


async def ended_until(engine: Engine, cursor: str) -> set[UUID]:
    """What had ended before that cursor."""
    whole = [event async for event in engine.events.subscribe(["completion"], start="beginning", follow=False)]
    later = {event.cursor for event in await ends_since(engine, cursor)}
    return {event.execution_id for event in whole if event.cursor not in later and event.execution_id}
