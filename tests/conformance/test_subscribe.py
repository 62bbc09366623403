"""Tests of subscribe, which reads filtered events in order from now, the beginning or a cursor."""

from __future__ import annotations

import asyncio
from uuid import uuid4

import pytest

from flowfabric.core.events.cursor import CursorScope, Position, write_cursor
from flowfabric.core.events.subscribers import MAX_SCANNED_EVENTS
from flowfabric.engine import Engine, Event, InvalidRequest, Refused, Submission, Subscription
from flowfabric.testing import VirtualClock
from tests.expectations import refused
from tests.scenarios import leased, submitted
from tests.stores import TestStore


async def read_all(subscription: Subscription) -> list[Event]:
    """Return all events that can be read now."""
    return [event async for event in subscription]


def event_names(events: list[Event]) -> list[str]:
    return [f"{event.family}.{event.name}" for event in events]


async def read_next(subscription: Subscription) -> Event:
    """Return the next event, which must arrive within ten seconds."""
    return await asyncio.wait_for(anext(subscription), 10)


async def test_subscription_starts_where_it_was_entered_and_waits_for_events(engine: Engine) -> None:
    await submitted(engine, kind="before")
    await engine.leases.claim(["default"], "worker-1")
    async with engine.events.subscribe() as events:
        waiting = asyncio.create_task(read_next(events))
        lease = await leased(engine)
        assert (await waiting).execution_id == lease.execution_id
        await engine.leases.complete(lease.fence, b"out")
        assert (await read_next(events)).name == "completed"


async def test_subscribed_event_equals_its_history_entry_and_has_a_cursor(engine: Engine) -> None:
    lease = await leased(engine, tags={"team.owner": "ada"})
    await engine.leases.fail(lease.fence, "bad", steps=[])
    events = await read_all(engine.events.subscribe(start="beginning", follow=False))
    history = await engine.executions.history(lease.execution_id)
    assert [(event.name, event.version, event.tags, event.worker) for event in events] == [
        (event.name, event.version, event.tags, event.worker) for event in history
    ]
    assert all(event.cursor for event in events)
    assert all(event.cursor is None for event in history)


async def test_cursor_continues_after_its_event(engine: Engine) -> None:
    for _ in range(3):
        lease = await leased(engine)
        await engine.leases.complete(lease.fence)
    events = await read_all(engine.events.subscribe(start="beginning", follow=False))
    for index, event in enumerate(events):
        rest = await read_all(engine.events.subscribe(cursor=event.cursor, follow=False))
        assert [event.cursor for event in rest] == [event.cursor for event in events[index + 1 :]]


async def test_now_and_beginning_can_be_obtained_as_cursors(engine: Engine) -> None:
    await leased(engine)
    beginning, end = await engine.events.cursor("beginning"), await engine.events.cursor()
    lease = await leased(engine)
    assert len(await read_all(engine.events.subscribe(cursor=beginning, follow=False))) == 2
    [later] = await read_all(engine.events.subscribe(cursor=end, follow=False))
    assert later.execution_id == lease.execution_id


async def test_event_must_match_every_filter(engine: Engine, store: TestStore) -> None:
    flow = uuid4()
    await submitted(engine, kind="mail", lane="post", tags={"team.owner": "ada", "team.size": "2"})
    [mail] = await engine.leases.claim(["post"], "worker-1")
    job = await leased(engine)
    await engine.leases.complete(mail.fence)
    await engine.leases.release(job.fence)
    await engine.lanes.pause("post")
    await store.query("UPDATE ff.event SET flow_id = ? WHERE execution_id = ?", flow, mail.execution_id)

    async def read_names(*families: str, **filters: object) -> list[str]:
        subscription = engine.events.subscribe(families or None, start="beginning", follow=False, **filters)  # type: ignore[arg-type]
        return event_names(await read_all(subscription))

    assert await read_names("completion") == ["completion.completed"]
    assert await read_names("operator") == ["operator.lane_paused"]
    assert await read_names("lease", lane="default") == ["lease.acquired", "lease.released"]
    assert await read_names(lane="post") == ["lease.acquired", "completion.completed", "operator.lane_paused"]
    assert await read_names(kind="mail") == ["lease.acquired", "completion.completed"]
    assert await read_names(execution=job.execution_id) == ["lease.acquired", "lease.released"]
    assert await read_names(tags={"team.size": "2", "team.owner": "ada"}) == ["lease.acquired", "completion.completed"]
    assert await read_names(flow=flow) == ["lease.acquired", "completion.completed"]
    assert (
        await read_names(tags={"team.owner": "eve"})
        == await read_names(flow=uuid4())
        == await read_names(kind="fax")
        == []
    )
    assert await read_names("signal", "worker") == []


async def test_subscriber_to_leases_receives_every_end_of_a_lease(engine: Engine) -> None:
    lease = await leased(engine)
    await engine.leases.complete(lease.fence)
    events = await read_all(engine.events.subscribe(["lease"], start="beginning", follow=False))
    assert [(event.family, event.ends_lease) for event in events] == [("lease", False), ("completion", True)]


async def test_only_events_of_the_namespace_are_read(engine: Engine) -> None:
    await leased(engine.for_namespace("other"))
    assert await read_all(engine.events.subscribe(start="beginning", follow=False)) == []
    assert len(await read_all(engine.for_namespace("other").events.subscribe(start="beginning", follow=False))) == 1


async def test_cursor_advances_over_filtered_events(engine: Engine) -> None:
    """Only one of more than a page of events matches, and the cursor moves past the others too."""
    noisy = engine.for_namespace("noise")
    for _ in range(6):
        ids = [await submitted(noisy) for _ in range(50)]
        leases = await noisy.leases.claim(["default"], "worker-1", limit=50)
        await noisy.leases.complete_many([(lease.fence, b"") for lease in leases])
        assert len(ids) == len(leases)
    lease = await leased(engine)
    subscription = engine.events.subscribe(start="beginning", follow=False)
    [event] = await read_all(subscription)
    assert event.execution_id == lease.execution_id
    assert subscription.cursor is not None
    assert await read_all(engine.events.subscribe(cursor=subscription.cursor, follow=False)) == []


async def test_slow_subscriber_reads_one_page_at_a_time(engine: Engine) -> None:
    await engine.executions.submit_many([Submission(kind="job") for _ in range(MAX_SCANNED_EVENTS + 100)])
    await engine.leases.claim(["default"], "worker-1", limit=MAX_SCANNED_EVENTS + 100)
    async with engine.events.subscribe(start="beginning") as events:
        await anext(events)
        for _ in range(10):
            await leased(engine)
        assert len(events._page) == MAX_SCANNED_EVENTS - 1, "the next page is not read in advance"
        events_read = [await read_next(events) for _ in range(MAX_SCANNED_EVENTS + 109)]
        assert len({event.execution_id for event in events_read}) == MAX_SCANNED_EVENTS + 109
        assert not events._page


async def test_cursor_of_another_namespace_is_refused(engine: Engine) -> None:
    cursor = await engine.events.cursor()
    other_namespace = engine.for_namespace("other").events.subscribe(cursor=cursor)
    error = await refused(anext(other_namespace), "cursor_foreign", InvalidRequest)
    assert "namespace" in error.message


async def test_cursor_of_another_store_is_refused(engine: Engine) -> None:
    foreign = write_cursor(CursorScope(uuid4(), engine.namespace), Position(0, 0))
    error = await refused(anext(engine.events.subscribe(cursor=foreign)), "cursor_foreign", InvalidRequest)
    assert "store" in error.message


async def test_damaged_cursor_is_refused_before_anything_is_read(engine: Engine) -> None:
    cursor = await engine.events.cursor()
    for damaged in (cursor[:-1], cursor + "A", cursor.replace("ffc1", "ffc2"), cursor[:20] + "B" + cursor[21:]):
        if damaged != cursor:
            with pytest.raises(InvalidRequest) as caught:
                engine.events.subscribe(cursor=damaged)
            assert caught.value.code == "cursor_invalid"


async def test_cursor_before_trimmed_events_has_expired(engine: Engine, clock: VirtualClock) -> None:
    await engine.lanes.pause("old")
    beginning = (await read_all(engine.events.subscribe(start="beginning", follow=False)))[0].cursor
    await engine.lanes.resume("old")
    clock.advance("8d")
    await engine.reconcilers.tick()
    await refused(anext(engine.events.subscribe(cursor=beginning)), "cursor_expired", Refused)
    assert await read_all(engine.events.subscribe(start="beginning", follow=False)) == []


async def test_open_subscription_overtaken_by_trimming_is_refused(engine: Engine, clock: VirtualClock) -> None:
    await engine.lanes.pause("old")
    async with engine.events.subscribe(start="beginning") as events, engine.events.subscribe() as idle:
        assert (await read_next(events)).name == "lane_paused"
        await engine.lanes.resume("old")
        clock.advance("8d")
        await engine.reconcilers.tick()
        for subscription in (events, idle):
            await refused(read_next(subscription), "cursor_expired", Refused)


async def test_events_trimmed_before_the_start_do_not_affect_a_subscription(
    engine: Engine, clock: VirtualClock
) -> None:
    kept_lease = await leased(engine, lease_ttl="7d")
    await engine.lanes.pause("old")
    clock.advance("7d")
    await engine.reconcilers.tick()
    events = engine.events.subscribe(start="beginning")
    assert [(await read_next(events)).execution_id for _ in range(2)] == [kept_lease.execution_id] * 2
    await engine.lanes.pause("new")
    assert (await read_next(events)).name == "lane_paused"
    clock.advance("8d")
    await engine.reconcilers.tick()
    await engine.lanes.resume("new")
    assert (await read_next(events)).name == "lane_resumed"


async def test_reading_can_be_cancelled_and_repeated(engine: Engine) -> None:
    async with engine.events.subscribe() as events:
        for _ in range(3):
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(anext(events), 0.05)
        lease = await leased(engine)
        assert (await read_next(events)).execution_id == lease.execution_id
