"""Tests that every path that ends an execution writes exactly one completion event, found by every filter."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from flowfabric.engine import Engine, Event
from flowfabric.testing import VirtualClock
from tests.faults.flow_operations import EVERY_OPERATION
from tests.faults.store_dump import Camera, camera_on, wipe
from tests.stores import TestStore, opened

TAGS = {"team.owner": "ada"}
# Operations that must end an execution. Without this list the test would pass even if no operation ended an execution.
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


async def test_every_operation_writes_one_completion_event_per_ended_execution(
    store: TestStore, clock: VirtualClock
) -> None:
    camera = await camera_on(store)
    try:
        async with opened(store, clock) as engine:
            for name in EVERY_OPERATION:
                await wipe(camera)
                await assert_one_completion_event_per_end(engine, clock, camera, name)
    finally:
        await camera.close()


async def assert_one_completion_event_per_end(engine: Engine, clock: VirtualClock, camera: Camera, name: str) -> None:
    operation = EVERY_OPERATION[name]
    arguments = await operation.arrange(engine, clock)
    arranged = await read_executions(camera)
    for id_ in arranged:
        await engine.executions.set_tags(id_, TAGS)
    cursor = await engine.events.cursor()
    await operation.act(engine, arguments)
    if name in TWICE:
        await operation.act(engine, arguments)
    end_events = await read_ends_since(engine, cursor)
    assert bool(end_events) or name not in ENDING, name
    assert len(end_events) == len({event.execution_id for event in end_events}), name
    rows = await read_executions(camera)
    states = {id_: row["state"] for id_, row in rows.items() if row["state"] in STATES}
    for event in end_events:
        assert event.execution_id is not None
        row = rows[event.execution_id]
        assert (event.name, event.state) == (row["state"], row["state"]), name
        event_columns = event.namespace, event.lane, event.kind, event.flow_id and str(event.flow_id)
        assert event_columns == (row["namespace"], row["lane"], row["kind"], row["flow_id"] and str(row["flow_id"])), (
            name
        )
        # Only executions that existed before the operation have tags. A member that the operation adds has none.
        tags = TAGS if event.execution_id in arranged else None
        assert event.tags == tags, name
        matches = engine.events.subscribe(
            ["completion"],
            cursor=cursor,
            follow=False,
            lane=event.lane,
            kind=event.kind,
            tags=tags,
            execution=event.execution_id,
            flow=event.flow_id,
        )
        assert [match.version async for match in matches] == [event.version], name
    # Every terminal execution either ended before the operation or has a completion event since then.
    ended_before = await read_ended_before(engine, cursor)
    assert set(states) - ended_before == {event.execution_id for event in end_events} - ended_before, name


async def read_executions(camera: Camera) -> dict[UUID, dict[str, Any]]:
    """Return the executions of the default namespace. The temporary namespace of one operation is left out."""
    rows = await camera.rows("SELECT id, namespace, lane, kind, flow_id, state FROM ff.execution")
    return {UUID(str(row["id"])): row for row in rows if row["namespace"] == "default"}


async def read_ends_since(engine: Engine, cursor: str) -> list[Event]:
    return [event async for event in engine.events.subscribe(["completion"], cursor=cursor, follow=False)]


async def read_ended_before(engine: Engine, cursor: str) -> set[UUID]:
    """Return the executions that ended before the cursor."""
    events = [event async for event in engine.events.subscribe(["completion"], start="beginning", follow=False)]
    later_cursors = {event.cursor for event in await read_ends_since(engine, cursor)}
    return {event.execution_id for event in events if event.cursor not in later_cursors and event.execution_id}
