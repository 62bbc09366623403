"""Named subscribers: they go on where they were, one process at a time, at least once; events are kept for them."""

from __future__ import annotations

import asyncio

import pytest

from flowfabric.engine import Engine, InvalidRequest, NotFound, Policy, Refused, Subscription, subscription
from flowfabric.testing import VirtualClock
from tests.facts import refused
from tests.scenarios import leased, submitted
from tests.stores import TestStore, opened

SHORT = Policy(retention="1h")


async def done(engine: Engine, number: int) -> None:
    """As many executions that completed: two events each."""
    for _ in range(number):
        lease = await leased(engine, policy=SHORT)
        await engine.leases.complete(lease.fence, b"out")


async def take(subscription: Subscription, number: int) -> list[str]:
    """The cursors of that many events."""
    return [str((await asyncio.wait_for(anext(subscription), 10)).cursor) for _ in range(number)]


async def rest(engine: Engine, name: str) -> list[str]:
    async with engine.events.subscribe(name=name, start="beginning", follow=False) as events:
        return [str(event.cursor) async for event in events]


async def test_it_goes_on_where_it_was(engine: Engine) -> None:
    await done(engine, 3)
    whole = [str(event.cursor) async for event in engine.events.subscribe(start="beginning", follow=False)]
    async with engine.events.subscribe(name="billing", start="beginning") as events:
        first = await take(events, 2)
        await events.commit()
    assert first + await rest(engine, "billing") == whole
    assert await rest(engine, "billing") == []
    await done(engine, 1)
    assert len(await rest(engine, "billing")) == 2


async def test_asking_for_the_next_says_that_the_last_is_done(engine: Engine) -> None:
    await done(engine, 2)
    async with engine.events.subscribe(name="billing", start="beginning") as events:
        cursors = await take(events, 3)
    again = await rest(engine, "billing")
    assert again[0] == cursors[2], "the last one may not have been processed"
    assert len(again) == 2


async def test_a_new_one_begins_now_and_later_its_place_counts(engine: Engine) -> None:
    await done(engine, 1)
    async with engine.events.subscribe(name="late", follow=False) as events:
        assert [event async for event in events] == []
    await done(engine, 1)
    assert len(await rest(engine, "late")) == 2


async def test_a_second_process_stands_by_until_the_first_is_gone(store: TestStore) -> None:
    async with opened(store) as one, opened(store) as two:
        first, second = (each.events.subscribe(name="billing", start="beginning") for each in (one, two))
        async with first:
            await done(one, 1)
            standing_by = asyncio.create_task(take(second, 1))
            cursors = await take(first, 2)
            await asyncio.sleep(0.1)
            assert not standing_by.done()
            await first.commit()
        await done(one, 1)
        [next_one] = await standing_by
        assert next_one not in cursors
        await second.close()


async def test_whoever_took_over_from_the_dead_gets_what_was_not_stored(engine: Engine, clock: VirtualClock) -> None:
    await done(engine, 2)
    dead = engine.events.subscribe(name="billing", start="beginning")
    cursors = await take(dead, 3)
    clock.advance("31s")
    heir = engine.events.subscribe(name="billing")
    assert (await take(heir, 4))[:3] == cursors
    await refused(dead.commit(), "subscription_lost", Refused)
    [subscriber] = await engine.events.subscribers()
    assert subscriber.name == "billing" and subscriber.holder is not None
    await heir.close()


async def test_the_living_keep_their_name_by_reading(engine: Engine, clock: VirtualClock) -> None:
    await done(engine, 1)
    one = engine.events.subscribe(name="billing", start="beginning")
    await take(one, 1)
    clock.advance("31s")
    await one.commit()
    other = engine.events.subscribe(name="billing")
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(anext(other), 0.2)
    await one.close()


async def test_a_page_that_takes_long_keeps_its_name_and_a_lost_one_gives_nothing_more(
    engine: Engine, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subscription, "_COMMIT_EVERY_S", 0.0)
    await done(engine, 4)
    slow = engine.events.subscribe(name="billing", start="beginning")
    for _ in range(4):
        await take(slow, 1)
        clock.advance("20s")
    clock.advance("31s")
    heir = engine.events.subscribe(name="billing")
    await take(heir, 1)
    for _ in range(2):
        await refused(anext(slow), "subscription_lost", Refused)
    await heir.close()


async def test_names_belong_to_their_namespace(engine: Engine) -> None:
    await done(engine, 1)
    other = engine.within("other")
    assert await rest(other, "billing") == []
    assert len(await rest(engine, "billing")) == 2
    assert [item.namespace for item in await other.events.subscribers()] == ["other"]
    await other.events.forget("billing")
    assert [item.name for item in await engine.events.subscribers()] == ["billing"]


async def test_forgetting_one_that_is_not_there(engine: Engine) -> None:
    await refused(engine.events.forget("nobody"), "subscriber_not_found", NotFound)


async def test_one_that_was_forgotten_is_told(engine: Engine) -> None:
    await done(engine, 1)
    events = engine.events.subscribe(name="billing", start="beginning")
    await take(events, 1)
    await engine.events.forget("billing")
    await refused(events.commit(), "subscriber_not_found", NotFound)


async def test_only_a_named_one_is_stored(engine: Engine) -> None:
    await refused(engine.events.subscribe().commit(), "invalid_request", InvalidRequest)


async def test_events_of_removed_executions_stay_until_every_name_has_passed(
    engine: Engine, store: TestStore, clock: VirtualClock
) -> None:
    await done(engine, 2)
    alive = await submitted(engine)
    await engine.operator.hold(alive)
    async with engine.events.subscribe(name="slow", start="beginning") as events:
        await take(events, 2)
        await events.commit()
    clock.advance("2h")
    await engine.reconcilers.tick()
    assert await count(store) == 5, "the executions are gone, their events are not"
    clock.advance("6d")
    await (await holding(engine)).close()
    clock.advance("2d")
    await engine.reconcilers.tick()
    assert await count(store) == 3, "what the slow one has passed is gone"
    assert len(await rest(engine, "slow")) == 3
    clock.advance("11m")
    await engine.reconcilers.tick()
    assert await count(store) == 1, "the living keep theirs"


async def test_a_name_that_is_silent_too_long_is_expired_and_told(
    engine: Engine, store: TestStore, clock: VirtualClock
) -> None:
    await done(engine, 2)
    async with engine.events.subscribe(name="dead", start="beginning") as events:
        await take(events, 1)
        await events.commit()
    clock.advance("10d")
    await engine.reconcilers.tick()
    clock.advance("7d")
    await engine.reconcilers.tick()
    assert await count(store) == 0
    error = await refused(anext(engine.events.subscribe(name="dead")), "cursor_expired", Refused)
    assert "forget" in error.message
    [subscriber] = await engine.events.subscribers()
    assert subscriber.expired_at is not None
    await engine.events.forget("dead")
    assert await rest(engine, "dead") == []


async def test_how_long_events_stay_can_be_said(store: TestStore, clock: VirtualClock) -> None:
    async with opened(store, clock, event_retention="1d", subscriber_expiry="2h") as engine:
        await done(engine, 1)
        async with engine.events.subscribe(name="dead", start="beginning") as events:
            await take(events, 1)
        clock.advance("2h")
        await engine.reconcilers.tick()
        assert (await engine.events.subscribers())[0].expired_at is not None
        assert await count(store) == 2
        clock.advance("1d")
        await engine.reconcilers.tick()
        assert await count(store) == 0


async def test_the_loop_knows_when_events_may_go(store: TestStore, clock: VirtualClock) -> None:
    async with opened(store, clock, event_retention="1d") as engine:
        await engine.lanes.pause("old")
        await done(engine, 1)
        clock.advance("2h")
        for _ in range(4):
            await engine.reconcilers._round()
        assert await count(store) == 3
        clock.advance("1d")
        for _ in range(4):
            await engine.reconcilers._round()
        assert await count(store) == 0


async def holding(engine: Engine) -> Subscription:
    """The slow one shows itself without reading on."""
    events = engine.events.subscribe(name="slow")
    await events.__aenter__()
    return events


async def count(store: TestStore) -> int:
    [row] = await store.query("SELECT COUNT(*) AS number FROM ff.event")
    return int(row["number"])
