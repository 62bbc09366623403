"""Tests of lanes. Work in a paused lane is not claimed, and a draining lane accepts no new work."""

from __future__ import annotations

from typing import Any

from flowfabric.engine import Created, Duplicate, Engine, LaneState, Lease, Refused, Submission
from flowfabric.testing import VirtualClock
from tests.expectations import nothing_written, refused
from tests.scenarios import submitted
from tests.stores import TestStore


async def claim(engine: Engine, *lanes: str) -> list[Lease]:
    return await engine.leases.claim(lanes or ("default",), "worker-1", limit=10)


async def read_lane_events(store: TestStore) -> list[dict[str, Any]]:
    return await store.query(
        "SELECT namespace, family, name, lane, principal, reason, execution_id, version FROM ff.event ORDER BY id"
    )


async def test_paused_lane_accepts_work_that_is_not_claimed(engine: Engine) -> None:
    before = await submitted(engine)
    assert await engine.lanes.pause("default") is LaneState.PAUSED
    after = await submitted(engine)
    assert await claim(engine) == []
    await refused(engine.leases.claim_execution(before, "worker-1"), "lane_paused")
    assert await engine.lanes.resume("default") is LaneState.ACTIVE
    assert [lease.execution_id for lease in await claim(engine)] == [before, after]


async def test_paused_lane_does_not_affect_other_lanes_or_running_work(engine: Engine) -> None:
    running = await submitted(engine, lane="stopped")
    [lease] = await claim(engine, "stopped")
    await submitted(engine, lane="stopped", priority=9)
    open_ = await submitted(engine, lane="open")
    await engine.lanes.pause("stopped")
    assert [lease.execution_id for lease in await claim(engine, "stopped", "open")] == [open_]
    await engine.leases.renew(lease.fence)
    await engine.leases.complete(lease.fence, b"out")
    assert (await engine.executions.describe(running)).state == "completed"


async def test_work_in_a_draining_lane_is_claimed_and_new_work_is_refused(engine: Engine) -> None:
    existing = await submitted(engine, key="once")
    assert await engine.lanes.drain("default") is LaneState.DRAINING
    assert await engine.executions.submit("job", b"in", key="once") == Duplicate(existing)
    assert await engine.executions.submit("job", b"in", id=existing) == Duplicate(existing)
    error = await refused(engine.executions.submit("job"), "lane_draining")
    assert error.fields["lane"] == "default"
    outcomes = await engine.executions.submit_many([Submission(kind="job"), Submission(kind="job", lane="other")])
    assert isinstance(outcomes[0], Refused)
    assert outcomes[0].code == "lane_draining"
    assert isinstance(outcomes[1], Created)
    assert [lease.execution_id for lease in await claim(engine)] == [existing]


async def test_work_in_a_draining_lane_runs_to_its_end(engine: Engine, clock: VirtualClock) -> None:
    id_ = await submitted(engine, delay="1m")
    await engine.lanes.drain("default")
    clock.advance("1m")
    await engine.reconcilers.tick()
    [lease] = await claim(engine)
    await engine.leases.release(lease.fence)
    [next_lease] = await claim(engine)
    assert (next_lease.execution_id, next_lease.origin) == (id_, "resumed")


async def test_every_used_or_changed_lane_is_listed(engine: Engine) -> None:
    await submitted(engine, lane="used")
    for lane in ("paused", "drained", "resumed"):
        await engine.lanes.pause(lane)
    await engine.lanes.drain("drained")
    await engine.lanes.resume("resumed")
    lanes = await engine.lanes.list()
    expected = {"drained": "draining", "paused": "paused", "resumed": "active", "used": "active"}
    assert lanes == {lane: LaneState(state) for lane, state in expected.items()}


async def test_each_change_writes_an_event_with_principal_and_reason(engine: Engine, store: TestStore) -> None:
    await engine.lanes.pause("mail", "provider down", principal="ada")
    await engine.lanes.drain("mail", "moving away", principal="bob")
    await engine.lanes.resume("mail", "back", principal="cyd")
    events = await read_lane_events(store)
    assert [(row["name"], row["principal"], row["reason"]) for row in events] == [
        ("lane_paused", "ada", "provider down"),
        ("lane_draining", "bob", "moving away"),
        ("lane_resumed", "cyd", "back"),
    ]
    for row in events:
        assert (row["namespace"], row["family"], row["lane"]) == ("default", "operator", "mail")
        assert (row["execution_id"], row["version"]) == (None, None)


async def test_repeated_change_writes_nothing(engine: Engine, store: TestStore) -> None:
    await engine.lanes.pause("mail", "provider down")
    await engine.lanes.drain("other")
    async with nothing_written(store):
        assert await engine.lanes.pause("mail", "again", principal="bob") is LaneState.PAUSED
        assert await engine.lanes.drain("other") is LaneState.DRAINING
        assert await engine.lanes.resume("never touched") is LaneState.ACTIVE


async def test_namespaces_have_separate_lanes(engine: Engine) -> None:
    other_namespace = engine.for_namespace("other")
    id_ = await submitted(other_namespace)
    await engine.lanes.pause("default")
    assert await engine.lanes.list() == {"default": LaneState.PAUSED}
    assert await other_namespace.lanes.list() == {"default": LaneState.ACTIVE}
    assert [lease.execution_id for lease in await claim(other_namespace)] == [id_]
