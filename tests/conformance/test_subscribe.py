"""subscribe: events in order, filtered, from now, from the beginning or after a cursor."""

from __future__ import annotations

import asyncio
from uuid import uuid4

import pytest

from flowfabric.core.positions import Place, Position, write_cursor
from flowfabric.core.subscribing import SCAN
from flowfabric.engine import Engine, Event, InvalidRequest, Refused, Submission, Subscription
from flowfabric.testing import VirtualClock
from tests.facts import refused
from tests.scenarios import leased, submitted
from tests.stores import TestStore


async def everything(subscription: Subscription) -> list[Event]:
    """All that there is to read at present."""
    return [event async for event in subscription]


def names(events: list[Event]) -> list[str]:
    return [f"{event.family}.{event.name}" for event in events]


async def soon(subscription: Subscription) -> Event:
    """The next event, which must be there within reason."""
    return await asyncio.wait_for(anext(subscription), 10)


async def test_it_begins_where_it_was_entered_and_waits_for_what_happens(engine: Engine) -> None:
    await submitted(engine, kind="before")
    await engine.leases.claim(["default"], "worker-1")
    async with engine.events.subscribe() as events:
        waiting = asyncio.create_task(soon(events))
        lease = await leased(engine)
        assert (await waiting).execution_id == lease.execution_id
        await engine.leases.complete(lease.fence, b"out")
        assert (await soon(events)).name == "completed"


async def test_an_event_of_a_subscription_is_that_of_the_history_with_a_cursor(engine: Engine) -> None:
    lease = await leased(engine, tags={"team.owner": "ada"})
    await engine.leases.fail(lease.fence, "bad", steps=[])
    found = await everything(engine.events.subscribe(start="beginning", follow=False))
    history = await engine.executions.history(lease.execution_id)
    assert [(event.name, event.version, event.tags, event.worker) for event in found] == [
        (event.name, event.version, event.tags, event.worker) for event in history
    ]
    assert all(event.cursor for event in found)
    assert all(event.cursor is None for event in history)


async def test_a_cursor_goes_on_after_its_event(engine: Engine) -> None:
    for _ in range(3):
        lease = await leased(engine)
        await engine.leases.complete(lease.fence)
    whole = await everything(engine.events.subscribe(start="beginning", follow=False))
    for place, event in enumerate(whole):
        rest = await everything(engine.events.subscribe(cursor=event.cursor, follow=False))
        assert [item.cursor for item in rest] == [item.cursor for item in whole[place + 1 :]]


async def test_now_and_the_beginning_can_be_had_as_cursors(engine: Engine) -> None:
    await leased(engine)
    beginning, now = await engine.events.cursor("beginning"), await engine.events.cursor()
    lease = await leased(engine)
    assert len(await everything(engine.events.subscribe(cursor=beginning, follow=False))) == 2
    [later] = await everything(engine.events.subscribe(cursor=now, follow=False))
    assert later.execution_id == lease.execution_id


async def test_filters_let_pass_what_matches_all_of_them(engine: Engine, store: TestStore) -> None:
    flow = uuid4()
    await submitted(engine, kind="mail", lane="post", tags={"team.owner": "ada", "team.size": "2"})
    [mail] = await engine.leases.claim(["post"], "worker-1")
    job = await leased(engine)
    await engine.leases.complete(mail.fence)
    await engine.leases.release(job.fence)
    await engine.lanes.pause("post")
    await store.query("UPDATE ff.event SET flow_id = ? WHERE execution_id = ?", flow, mail.execution_id)

    async def passed(*families: str, **filters: object) -> list[str]:
        wanted = engine.events.subscribe(families or None, start="beginning", follow=False, **filters)  # type: ignore[arg-type]
        return names(await everything(wanted))

    assert await passed("completion") == ["completion.completed"]
    assert await passed("operator") == ["operator.lane_paused"]
    assert await passed("lease", lane="default") == ["lease.acquired", "lease.released"]
    assert await passed(lane="post") == ["lease.acquired", "completion.completed", "operator.lane_paused"]
    assert await passed(kind="mail") == ["lease.acquired", "completion.completed"]
    assert await passed(execution=job.execution_id) == ["lease.acquired", "lease.released"]
    assert await passed(tags={"team.size": "2", "team.owner": "ada"}) == ["lease.acquired", "completion.completed"]
    assert await passed(flow=flow) == ["lease.acquired", "completion.completed"]
    assert await passed(tags={"team.owner": "eve"}) == await passed(flow=uuid4()) == await passed(kind="fax") == []
    assert await passed("signal", "worker") == []


async def test_a_subscriber_to_leases_hears_of_every_end_of_a_lease(engine: Engine) -> None:
    lease = await leased(engine)
    await engine.leases.complete(lease.fence)
    found = await everything(engine.events.subscribe(["lease"], start="beginning", follow=False))
    assert [(event.family, event.ends_lease) for event in found] == [("lease", False), ("completion", True)]


async def test_only_the_namespace_of_the_engine_is_read(engine: Engine) -> None:
    await leased(engine.within("other"))
    assert await everything(engine.events.subscribe(start="beginning", follow=False)) == []
    assert len(await everything(engine.within("other").events.subscribe(start="beginning", follow=False))) == 1


async def test_what_is_not_wanted_is_passed_by(engine: Engine) -> None:
    """The filter lets one of more than a page through; the cursor is behind all of them."""
    many = engine.within("noise")
    for _ in range(6):
        ids = [await submitted(many) for _ in range(50)]
        leases = await many.leases.claim(["default"], "worker-1", limit=50)
        await many.leases.complete_many([(lease.fence, b"") for lease in leases])
        assert len(ids) == len(leases)
    lease = await leased(engine)
    subscription = engine.events.subscribe(start="beginning", follow=False)
    [event] = await everything(subscription)
    assert event.execution_id == lease.execution_id
    assert subscription.cursor is not None
    assert await everything(engine.events.subscribe(cursor=subscription.cursor, follow=False)) == []


async def test_a_slow_subscriber_is_given_one_page_at_a_time(engine: Engine) -> None:
    await engine.executions.submit_many([Submission(kind="job") for _ in range(SCAN + 100)])
    await engine.leases.claim(["default"], "worker-1", limit=SCAN + 100)
    async with engine.events.subscribe(start="beginning") as events:
        await anext(events)
        for _ in range(10):
            await leased(engine)
        assert len(events._page) == SCAN - 1, "nothing more is read before it is asked for"
        read = [await soon(events) for _ in range(SCAN + 109)]
        assert len({event.execution_id for event in read}) == SCAN + 109
        assert not events._page


async def test_a_cursor_of_another_namespace_is_refused(engine: Engine) -> None:
    cursor = await engine.events.cursor()
    other = engine.within("other").events.subscribe(cursor=cursor)
    error = await refused(anext(other), "cursor_foreign", InvalidRequest)
    assert "namespace" in error.message


async def test_a_cursor_of_another_store_is_refused(engine: Engine) -> None:
    foreign = write_cursor(Place(uuid4(), engine.namespace), Position(0, 0))
    error = await refused(anext(engine.events.subscribe(cursor=foreign)), "cursor_foreign", InvalidRequest)
    assert "store" in error.message


async def test_a_damaged_cursor_is_refused_before_anything_is_read(engine: Engine) -> None:
    cursor = await engine.events.cursor()
    for damaged in (cursor[:-1], cursor + "A", cursor.replace("ffc1", "ffc2"), cursor[:20] + "B" + cursor[21:]):
        if damaged != cursor:
            with pytest.raises(InvalidRequest) as caught:
                engine.events.subscribe(cursor=damaged)
            assert caught.value.code == "cursor_invalid"


async def test_a_cursor_before_what_was_trimmed_has_expired(engine: Engine, clock: VirtualClock) -> None:
    await engine.lanes.pause("old")
    beginning = (await everything(engine.events.subscribe(start="beginning", follow=False)))[0].cursor
    await engine.lanes.resume("old")
    clock.advance("8d")
    await engine.reconcilers.tick()
    await refused(anext(engine.events.subscribe(cursor=beginning)), "cursor_expired", Refused)
    assert await everything(engine.events.subscribe(start="beginning", follow=False)) == []


async def test_a_subscription_that_was_overtaken_by_trimming_is_told(engine: Engine, clock: VirtualClock) -> None:
    await engine.lanes.pause("old")
    async with engine.events.subscribe(start="beginning") as events, engine.events.subscribe() as idle:
        assert (await soon(events)).name == "lane_paused"
        await engine.lanes.resume("old")
        clock.advance("8d")
        await engine.reconcilers.tick()
        for overtaken in (events, idle):
            await refused(soon(overtaken), "cursor_expired", Refused)


async def test_what_was_trimmed_before_it_began_concerns_no_subscription(engine: Engine, clock: VirtualClock) -> None:
    kept = await leased(engine, lease_ttl="7d")
    await engine.lanes.pause("old")
    clock.advance("7d")
    await engine.reconcilers.tick()
    events = engine.events.subscribe(start="beginning")
    assert [(await soon(events)).execution_id for _ in range(2)] == [kept.execution_id] * 2
    await engine.lanes.pause("new")
    assert (await soon(events)).name == "lane_paused"
    clock.advance("8d")
    await engine.reconcilers.tick()
    await engine.lanes.resume("new")
    assert (await soon(events)).name == "lane_resumed"


async def test_it_is_safe_to_cancel_and_ask_again(engine: Engine) -> None:
    async with engine.events.subscribe() as events:
        for _ in range(3):
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(anext(events), 0.05)
        lease = await leased(engine)
        assert (await soon(events)).execution_id == lease.execution_id
