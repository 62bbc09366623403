"""Tests of lanes. Work in a paused lane is not claimed, and a draining lane accepts no new work."""

from __future__ import annotations

from typing import Any

from flowfabric.engine import (
    Created,
    Duplicate,
    Engine,
    InvalidRequest,
    LaneInfo,
    LanePage,
    LaneState,
    Lease,
    Refused,
    Submission,
)
from flowfabric.engine.cursors import make_cursor, query_digest
from flowfabric.testing import VirtualClock
from tests.expectations import nothing_written, refused
from tests.scenarios import submitted
from tests.stores import TestStore

# A cursor with a character that no name has, and that PostgreSQL does not store.
FORGED = make_cursor("a\0b", query_digest("default", {"lanes": True}))


async def claim(engine: Engine, *lanes: str) -> list[Lease]:
    return await engine.leases.claim(lanes or ("default",), "worker-1", limit=10)


async def read_states(engine: Engine) -> dict[str, LaneState]:
    return {lane.lane: lane.state for lane in (await engine.lanes.list()).items}


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
    expected = {"drained": "draining", "paused": "paused", "resumed": "active", "used": "active"}
    assert await read_states(engine) == expected


async def test_lanes_are_listed_in_pages(engine: Engine) -> None:
    names = [f"lane-{number}" for number in range(7)]
    for name in names[::2]:
        await submitted(engine, lane=name)
    for name in names[1:]:
        await engine.lanes.pause(name)
    page = await engine.lanes.list(limit=3)
    assert [lane.lane for lane in page.items] == names[:3]
    # A lane that sorts before the cursor does not change the next pages.
    await engine.lanes.pause("an earlier lane")
    second = await engine.lanes.list(limit=3, cursor=page.next_cursor)
    assert [lane.lane for lane in second.items] == names[3:6]
    last = await engine.lanes.list(limit=3, cursor=second.next_cursor)
    assert ([lane.lane for lane in last.items], last.next_cursor) == (names[6:], None)


async def test_last_page_of_lanes_that_is_full_has_no_next_page(engine: Engine) -> None:
    for name in ("one", "two"):
        await submitted(engine, lane=name)
    assert (await engine.lanes.list(limit=2)).next_cursor is None
    assert await engine.for_namespace("empty").lanes.list() == LanePage((), None)


async def test_cursor_of_lanes_is_valid_only_for_lanes_of_its_namespace(engine: Engine) -> None:
    for name in ("one", "two"):
        await submitted(engine, lane=name)
    cursor = (await engine.lanes.list(limit=1)).next_cursor
    assert cursor is not None
    for call in (
        engine.for_namespace("other").lanes.list(cursor=cursor),
        engine.workers.list(cursor=cursor),
        engine.executions.list(cursor=cursor),
        engine.lanes.list(cursor=cursor[:-4]),
        engine.lanes.list(cursor=FORGED),
    ):
        await refused(call, "cursor_invalid", InvalidRequest)
    await refused(engine.lanes.list(limit=0), "out_of_range", InvalidRequest)


async def test_listed_lane_names_who_changed_it_and_why(engine: Engine, clock: VirtualClock) -> None:
    await submitted(engine, lane="untouched")
    paused_at = clock.now()
    await engine.lanes.pause("mail", "provider outage", principal="ann")
    clock.advance("1m")
    await engine.lanes.pause("mail", "mine now", principal="bob")
    await engine.lanes.drain("old", principal="cyd")
    state = {lane.lane: lane for lane in (await engine.lanes.list()).items}
    assert state["untouched"] == LaneInfo(lane="untouched")
    assert state["mail"] == LaneInfo(
        lane="mail", state=LaneState.PAUSED, changed_at=paused_at, principal="ann", reason="provider outage"
    )
    assert (state["old"].principal, state["old"].reason) == ("cyd", "")
    await engine.lanes.resume("mail", "back", principal="bob")
    [mail, *_] = (await engine.lanes.list()).items
    assert (mail.state, mail.principal, mail.reason) == (LaneState.ACTIVE, "bob", "back")


async def test_claim_by_id_names_who_paused_the_lane(engine: Engine) -> None:
    id_ = await submitted(engine, lane="mail")
    await engine.lanes.pause("mail", "provider outage", principal="ann")
    error = await refused(engine.leases.claim_execution(id_, "worker-1"), "lane_paused")
    assert "lane 'mail' is paused by ann (\"provider outage\"); resume the lane first" in str(error)


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
    assert await read_states(engine) == {"default": LaneState.PAUSED}
    assert await read_states(other_namespace) == {"default": LaneState.ACTIVE}
    assert [lease.execution_id for lease in await claim(other_namespace)] == [id_]
