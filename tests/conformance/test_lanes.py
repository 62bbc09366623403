"""Lanes: a paused one gives out nothing, a draining one takes nothing new; each change says who and why."""

from __future__ import annotations

from typing import Any

from flowfabric.engine import Created, Duplicate, Engine, LaneState, Lease, Refused, Submission
from flowfabric.testing import VirtualClock
from tests.facts import nothing_written, refused
from tests.scenarios import submitted
from tests.stores import TestStore


async def claimed(engine: Engine, *lanes: str) -> list[Lease]:
    return await engine.leases.claim(lanes or ("default",), "worker-1", limit=10)


async def lane_events(store: TestStore) -> list[dict[str, Any]]:
    return await store.query(
        "SELECT namespace, family, name, lane, principal, reason, execution_id, version FROM ff.event ORDER BY id"
    )


async def test_a_paused_lane_accepts_work_and_gives_out_none(engine: Engine) -> None:
    before = await submitted(engine)
    assert await engine.lanes.pause("default") is LaneState.PAUSED
    after = await submitted(engine)
    assert await claimed(engine) == []
    await refused(engine.leases.claim_execution(before, "worker-1"), "lane_paused")
    assert await engine.lanes.resume("default") is LaneState.ACTIVE
    assert [lease.execution_id for lease in await claimed(engine)] == [before, after]


async def test_a_paused_lane_hides_nothing_of_another_and_stops_nobody_at_work(engine: Engine) -> None:
    running = await submitted(engine, lane="stopped")
    [lease] = await claimed(engine, "stopped")
    await submitted(engine, lane="stopped", priority=9)
    open_ = await submitted(engine, lane="open")
    await engine.lanes.pause("stopped")
    assert [lease.execution_id for lease in await claimed(engine, "stopped", "open")] == [open_]
    await engine.leases.renew(lease.fence)
    await engine.leases.complete(lease.fence, b"out")
    assert (await engine.executions.describe(running)).state == "completed"


async def test_a_draining_lane_gives_out_what_it_has_and_takes_nothing_new(engine: Engine) -> None:
    there = await submitted(engine, key="once")
    assert await engine.lanes.drain("default") is LaneState.DRAINING
    assert await engine.executions.submit("job", b"in", key="once") == Duplicate(there)
    assert await engine.executions.submit("job", b"in", id=there) == Duplicate(there)
    error = await refused(engine.executions.submit("job"), "lane_draining")
    assert error.fields["lane"] == "default"
    answers = await engine.executions.submit_many([Submission(kind="job"), Submission(kind="job", lane="other")])
    assert isinstance(answers[0], Refused)
    assert answers[0].code == "lane_draining"
    assert isinstance(answers[1], Created)
    assert [lease.execution_id for lease in await claimed(engine)] == [there]


async def test_work_of_a_draining_lane_goes_on_to_its_end(engine: Engine, clock: VirtualClock) -> None:
    id_ = await submitted(engine, delay="1m")
    await engine.lanes.drain("default")
    clock.advance("1m")
    await engine.reconcilers.tick()
    [lease] = await claimed(engine)
    await engine.leases.release(lease.fence)
    [again] = await claimed(engine)
    assert (again.execution_id, again.origin) == (id_, "resumed")


async def test_every_lane_that_was_used_or_touched_is_listed(engine: Engine) -> None:
    await submitted(engine, lane="used")
    for lane in ("paused", "drained", "resumed"):
        await engine.lanes.pause(lane)
    await engine.lanes.drain("drained")
    await engine.lanes.resume("resumed")
    found = await engine.lanes.list()
    expected = {"drained": "draining", "paused": "paused", "resumed": "active", "used": "active"}
    assert found == {lane: LaneState(state) for lane, state in expected.items()}


async def test_each_change_leaves_an_event_with_principal_and_reason(engine: Engine, store: TestStore) -> None:
    await engine.lanes.pause("mail", "provider down", principal="ada")
    await engine.lanes.drain("mail", "moving away", principal="bob")
    await engine.lanes.resume("mail", "back", principal="cyd")
    found = await lane_events(store)
    assert [(row["name"], row["principal"], row["reason"]) for row in found] == [
        ("lane_paused", "ada", "provider down"),
        ("lane_draining", "bob", "moving away"),
        ("lane_resumed", "cyd", "back"),
    ]
    for row in found:
        assert (row["namespace"], row["family"], row["lane"]) == ("default", "operator", "mail")
        assert (row["execution_id"], row["version"]) == (None, None)


async def test_a_repeated_change_writes_nothing(engine: Engine, store: TestStore) -> None:
    await engine.lanes.pause("mail", "provider down")
    await engine.lanes.drain("other")
    async with nothing_written(store):
        assert await engine.lanes.pause("mail", "again", principal="bob") is LaneState.PAUSED
        assert await engine.lanes.drain("other") is LaneState.DRAINING
        assert await engine.lanes.resume("never touched") is LaneState.ACTIVE


async def test_lanes_of_other_namespaces_are_others(engine: Engine) -> None:
    other = engine.within("other")
    id_ = await submitted(other)
    await engine.lanes.pause("default")
    assert await engine.lanes.list() == {"default": LaneState.PAUSED}
    assert await other.lanes.list() == {"default": LaneState.ACTIVE}
    assert [lease.execution_id for lease in await claimed(other)] == [id_]
