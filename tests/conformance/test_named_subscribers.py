"""Tests of named subscribers. One process at a time uses a name, resumes at its cursor, and misses no event."""

from __future__ import annotations

import asyncio

import pytest

from flowfabric.engine import Engine, InvalidRequest, NotFound, Policy, Refused, Subscription, subscription
from flowfabric.testing import VirtualClock
from tests.expectations import refused
from tests.scenarios import leased, submitted
from tests.stores import TestStore, opened

SHORT = Policy(retention="1h")


async def complete_executions(engine: Engine, number: int) -> None:
    """Complete this many executions. Each writes two events."""
    for _ in range(number):
        lease = await leased(engine, policy=SHORT)
        await engine.leases.complete(lease.fence, b"out")


async def read_cursors(subscription: Subscription, number: int) -> list[str]:
    """Return the cursors of the next `number` events."""
    return [str((await asyncio.wait_for(anext(subscription), 10)).cursor) for _ in range(number)]


async def read_remaining(engine: Engine, name: str) -> list[str]:
    async with engine.events.subscribe(name=name, start="beginning", follow=False) as events:
        return [str(event.cursor) async for event in events]


async def test_subscriber_resumes_at_its_committed_cursor(engine: Engine) -> None:
    await complete_executions(engine, 3)
    cursors = [str(event.cursor) async for event in engine.events.subscribe(start="beginning", follow=False)]
    async with engine.events.subscribe(name="billing", start="beginning") as events:
        first = await read_cursors(events, 2)
        await events.commit()
    assert first + await read_remaining(engine, "billing") == cursors
    assert await read_remaining(engine, "billing") == []
    await complete_executions(engine, 1)
    assert len(await read_remaining(engine, "billing")) == 2


async def test_reading_the_next_event_commits_the_previous_one(engine: Engine) -> None:
    await complete_executions(engine, 2)
    async with engine.events.subscribe(name="billing", start="beginning") as events:
        cursors = await read_cursors(events, 3)
    remaining = await read_remaining(engine, "billing")
    assert remaining[0] == cursors[2], "the last event may not have been processed"
    assert len(remaining) == 2


async def test_new_subscriber_starts_at_the_current_end(engine: Engine) -> None:
    await complete_executions(engine, 1)
    async with engine.events.subscribe(name="late", follow=False) as events:
        assert [event async for event in events] == []
    await complete_executions(engine, 1)
    assert len(await read_remaining(engine, "late")) == 2


async def test_second_process_waits_until_the_first_has_closed(store: TestStore) -> None:
    async with opened(store) as engine_1, opened(store) as engine_2:
        first, second = (engine.events.subscribe(name="billing", start="beginning") for engine in (engine_1, engine_2))
        async with first:
            await complete_executions(engine_1, 1)
            pending = asyncio.create_task(read_cursors(second, 1))
            cursors = await read_cursors(first, 2)
            await asyncio.sleep(0.1)
            assert not pending.done()
            await first.commit()
        await complete_executions(engine_1, 1)
        [next_cursor] = await pending
        assert next_cursor not in cursors
        await second.close()


async def test_successor_of_a_dead_subscriber_gets_the_uncommitted_events(engine: Engine, clock: VirtualClock) -> None:
    await complete_executions(engine, 2)
    dead = engine.events.subscribe(name="billing", start="beginning")
    cursors = await read_cursors(dead, 3)
    clock.advance("31s")
    successor = engine.events.subscribe(name="billing")
    assert (await read_cursors(successor, 4))[:3] == cursors
    await refused(dead.commit(), "subscription_lost", Refused)
    [subscriber] = await engine.events.subscribers()
    assert subscriber.name == "billing" and subscriber.holder is not None
    await successor.close()


async def test_reading_keeps_the_name(engine: Engine, clock: VirtualClock) -> None:
    await complete_executions(engine, 1)
    owner = engine.events.subscribe(name="billing", start="beginning")
    await read_cursors(owner, 1)
    clock.advance("31s")
    await owner.commit()
    competitor = engine.events.subscribe(name="billing")
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(anext(competitor), 0.2)
    await owner.close()


async def test_slow_subscriber_keeps_its_name_and_a_lost_one_reads_nothing(
    engine: Engine, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subscription, "_COMMIT_EVERY_S", 0.0)
    await complete_executions(engine, 4)
    slow = engine.events.subscribe(name="billing", start="beginning")
    for _ in range(4):
        await read_cursors(slow, 1)
        clock.advance("20s")
    clock.advance("31s")
    successor = engine.events.subscribe(name="billing")
    await read_cursors(successor, 1)
    for _ in range(2):
        await refused(anext(slow), "subscription_lost", Refused)
    await successor.close()


async def test_names_belong_to_their_namespace(engine: Engine) -> None:
    await complete_executions(engine, 1)
    other_namespace = engine.for_namespace("other")
    assert await read_remaining(other_namespace, "billing") == []
    assert len(await read_remaining(engine, "billing")) == 2
    assert [subscriber.namespace for subscriber in await other_namespace.events.subscribers()] == ["other"]
    await other_namespace.events.unsubscribe("billing")
    assert [subscriber.name for subscriber in await engine.events.subscribers()] == ["billing"]


async def test_unsubscribing_an_unknown_name_is_not_found(engine: Engine) -> None:
    await refused(engine.events.unsubscribe("nobody"), "subscriber_not_found", NotFound)


async def test_commit_after_unsubscribe_is_not_found(engine: Engine) -> None:
    await complete_executions(engine, 1)
    events = engine.events.subscribe(name="billing", start="beginning")
    await read_cursors(events, 1)
    await engine.events.unsubscribe("billing")
    await refused(events.commit(), "subscriber_not_found", NotFound)


async def test_only_a_named_subscription_can_commit(engine: Engine) -> None:
    await refused(engine.events.subscribe().commit(), "invalid_request", InvalidRequest)


async def test_events_of_purged_executions_are_kept_until_every_subscriber_has_read_them(
    engine: Engine, store: TestStore, clock: VirtualClock
) -> None:
    await complete_executions(engine, 2)
    alive = await submitted(engine)
    await engine.operator.hold(alive)
    async with engine.events.subscribe(name="slow", start="beginning") as events:
        await read_cursors(events, 2)
        await events.commit()
    clock.advance("2h")
    await engine.reconcilers.tick()
    assert await count_events(store) == 5, "the executions are purged, their events are not"
    clock.advance("6d")
    await (await open_slow_subscription(engine)).close()
    clock.advance("2d")
    await engine.reconcilers.tick()
    assert await count_events(store) == 3, "events that the slow subscriber has read are purged"
    assert len(await read_remaining(engine, "slow")) == 3
    clock.advance("11m")
    await engine.reconcilers.tick()
    assert await count_events(store) == 1, "live executions keep their events"


async def test_silent_subscriber_expires_and_gets_cursor_expired(
    engine: Engine, store: TestStore, clock: VirtualClock
) -> None:
    await complete_executions(engine, 2)
    async with engine.events.subscribe(name="dead", start="beginning") as events:
        await read_cursors(events, 1)
        await events.commit()
    clock.advance("10d")
    await engine.reconcilers.tick()
    clock.advance("7d")
    await engine.reconcilers.tick()
    assert await count_events(store) == 0
    error = await refused(anext(engine.events.subscribe(name="dead")), "cursor_expired", Refused)
    assert "unsubscribe" in error.message
    [subscriber] = await engine.events.subscribers()
    assert subscriber.expired_at is not None
    await engine.events.unsubscribe("dead")
    assert await read_remaining(engine, "dead") == []


async def test_event_retention_and_subscriber_expiry_can_be_configured(store: TestStore, clock: VirtualClock) -> None:
    async with opened(store, clock, event_retention="1d", subscriber_expiry="2h") as engine:
        await complete_executions(engine, 1)
        async with engine.events.subscribe(name="dead", start="beginning") as events:
            await read_cursors(events, 1)
        clock.advance("2h")
        await engine.reconcilers.tick()
        assert (await engine.events.subscribers())[0].expired_at is not None
        assert await count_events(store) == 2
        clock.advance("1d")
        await engine.reconcilers.tick()
        assert await count_events(store) == 0


async def test_reconciler_loop_trims_events_when_they_are_due(store: TestStore, clock: VirtualClock) -> None:
    async with opened(store, clock, event_retention="1d") as engine:
        await engine.lanes.pause("old")
        await complete_executions(engine, 1)
        clock.advance("2h")
        for _ in range(4):
            await engine.reconcilers._run_overdue()
        assert await count_events(store) == 3
        clock.advance("1d")
        for _ in range(4):
            await engine.reconcilers._run_overdue()
        assert await count_events(store) == 0


async def open_slow_subscription(engine: Engine) -> Subscription:
    """Open a subscription that holds the name `slow` but reads no events."""
    events = engine.events.subscribe(name="slow")
    await events.__aenter__()
    return events


async def count_events(store: TestStore) -> int:
    [row] = await store.query("SELECT COUNT(*) AS number FROM ff.event")
    return int(row["number"])
