"""A store that went back to an earlier state, as after a failover to an asynchronous standby or a restored backup.

Subscribers then hold positions ahead of the store. They return to a position that the store knows, and deliver at least
once. These tests move the positions ahead instead. tests/adversity/test_failover.py promotes a real standby.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from flowfabric.core.events.cursor import CursorScope, Position, read_cursor, write_cursor
from flowfabric.engine import Engine
from flowfabric.engine.subscription import Subscription
from flowfabric.ops.events.subscribe import ResumeRequest, resume_position
from tests.conformance.test_emptied_tables import EMPTIED, empty, recreate
from tests.scenarios import leased, submitted
from tests.stores import TestStore, opened

AHEAD = 1_000_000


async def done(engine: Engine, kind: str) -> None:
    await engine.leases.complete((await leased(engine, kind=kind)).fence)


async def scope_of(engine: Engine) -> tuple[CursorScope, Position]:
    start = await engine._context.call(resume_position, await current_position(engine))
    return start.place, start.position


async def current_position(engine: Engine) -> ResumeRequest:
    """Return the newest position of the store, without noting it."""
    state = await engine._context.store.read(lambda tx: tx.events.outbox_state())
    assert state is not None
    return ResumeRequest(CursorScope(state.store, engine.namespace, state.era), state.present)


async def ahead(engine: Engine) -> tuple[CursorScope, Position]:
    """Return the scope of the store, and a position that the store has not reached."""
    scope, position = await scope_of(engine)
    return scope, Position(position.xid + AHEAD, position.id + AHEAD) if position.xid else Position(0, AHEAD)


async def go_back(engine: Engine) -> int:
    """Let the store notice that it is behind a position, and return the new era."""
    return (await engine._context.call(resume_position, ResumeRequest(*await ahead(engine)))).place.era


async def kinds(subscription: Subscription, number: int) -> list[str]:
    async with asyncio.timeout(10):
        return [str((await anext(subscription)).kind) for _ in range(number)]


async def test_cursor_ahead_of_the_store_returns_to_a_known_position(engine: Engine) -> None:
    await done(engine, "before")
    cursor = write_cursor(*await ahead(engine))
    await done(engine, "after")
    async with engine.events.subscribe(["completion"], cursor=cursor) as events:
        assert (await kinds(events, 1))[-1] in ("before", "after")
        await done(engine, "later")
        received = await kinds(events, 1)
        while received[-1] != "later":
            received += await kinds(events, 1)


async def test_new_era_is_reported_and_part_of_every_cursor(engine: Engine) -> None:
    before = await engine.events.cursor()
    status = await engine.events.status()
    assert (status.era, status.era_since, before[:5]) == (0, None, "ffc1.")
    assert await go_back(engine) == 1
    status = await engine.events.status()
    assert status.era == 1 and status.era_since is not None
    scope, _ = await scope_of(engine)
    assert read_cursor(await engine.events.cursor(), scope)[0] == 1
    assert read_cursor(before, scope)[0] == 0


async def test_cursor_of_an_earlier_era_still_works(engine: Engine) -> None:
    cursor = await engine.events.cursor()
    await go_back(engine)
    await done(engine, "after")
    async with engine.events.subscribe(["completion"], cursor=cursor) as events:
        assert await kinds(events, 1) == ["after"]
        assert (events.cursor or "")[:5] == "ffc2."


async def test_cursor_of_a_later_era_begins_an_era_after_it(engine: Engine) -> None:
    scope, position = await scope_of(engine)
    cursor = write_cursor(CursorScope(scope.store, scope.namespace, 4), position)
    async with engine.events.subscribe(cursor=cursor):
        assert (await engine.events.status()).era == 5


async def test_live_subscriber_ahead_of_the_store_misses_no_event(
    engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    async with engine.events.subscribe(["completion"]) as events:
        _, position = await ahead(engine)
        events._read = events._returned = position
        with caplog.at_level(logging.WARNING, "flowfabric.events"):
            reading = asyncio.create_task(kinds(events, 1))
            await done(engine, "after")
            assert await reading == ["after"]
        assert "went back" in caplog.text


async def test_named_subscriber_ahead_of_the_store_misses_no_event(engine: Engine, store: TestStore) -> None:
    async with engine.events.subscribe(["completion"], name="billing") as events:
        await done(engine, "first")
        assert await kinds(events, 1) == ["first"]
    _, position = await ahead(engine)
    await move_subscriber(store, position)
    await done(engine, "second")
    async with engine.events.subscribe(["completion"], name="billing") as events:
        assert (await kinds(events, 1))[-1] in ("first", "second")
    [subscriber] = await engine.events.subscribers()
    assert subscriber.position <= (await scope_of(engine))[1]


async def test_position_of_an_earlier_era_is_not_stored(engine: Engine) -> None:
    async with engine.events.subscribe(["completion"], name="billing", start="beginning") as events:
        await done(engine, "first")
        assert await kinds(events, 1) == ["first"]
        [before] = await engine.events.subscribers()
        await go_back(engine)
        await events.commit()
        [after] = await engine.events.subscribers()
        assert after.position == before.position
        assert await kinds(events, 1) == ["first"]
        await events.commit()
        await done(engine, "second")
        assert await kinds(events, 1) == ["second"]


async def test_position_ahead_of_the_store_is_not_stored(engine: Engine) -> None:
    async with engine.events.subscribe(["completion"], name="billing", start="beginning") as events:
        await done(engine, "first")
        assert await kinds(events, 1) == ["first"]
        [before] = await engine.events.subscribers()
        _, events._returned = await ahead(engine)
        await events.commit()
        [after] = await engine.events.subscribers()
        assert after.position == before.position
        await done(engine, "second")
        assert "second" in await kinds(events, 1) + await kinds(events, 1)


async def test_named_subscriber_that_the_store_lost_continues(engine: Engine, store: TestStore) -> None:
    async with engine.events.subscribe(["completion"], name="billing") as events:
        await done(engine, "first")
        assert await kinds(events, 1) == ["first"]
        await store.query("DELETE FROM ff.subscriber")
        await go_back(engine)
        await done(engine, "second")
        assert "second" in await kinds(events, 1) + await kinds(events, 1)


@pytest.mark.parametrize("name", [None, "billing"])
@pytest.mark.parametrize("emptied", [("store",), (*EMPTIED, "store"), ()], ids=["store row", "all rows", "all tables"])
async def test_subscriber_continues_in_an_emptied_store(
    engine: Engine, store: TestStore, name: str | None, emptied: tuple[str, ...]
) -> None:
    async with engine.events.subscribe(["completion"], name=name) as events:
        await done(engine, "before")
        assert await kinds(events, 1) == ["before"]
        await (empty(store, *emptied) if emptied else recreate(store))
        await done(engine, "after")
        received = await kinds(events, 1)
        if received == ["before"]:
            received = await kinds(events, 1)
        assert received == ["after"]


async def test_status_of_an_emptied_store_is_readable(engine: Engine, store: TestStore) -> None:
    await empty(store, "store")
    assert (await engine.events.status()).era == 0
    [lease] = [await leased(engine)]
    assert lease.era == 0


async def claim_one(engine: Engine) -> Any:
    [lease] = await engine.leases.claim(["default"], "worker-1")
    return lease


async def test_lease_of_a_new_era_has_a_higher_number_than_every_earlier_one(engine: Engine) -> None:
    await submitted(engine)
    early = await claim_one(engine)
    assert early.ordered_epoch == early.epoch == 1
    await go_back(engine)
    await submitted(engine)
    late = await claim_one(engine)
    assert (late.epoch, late.era) == (1, 1)
    assert late.ordered_epoch == 2**40 + 1 > early.ordered_epoch
    assert {lease.era for lease in await engine.leases.held(late.worker.instance)} == {1}
    assert (await leased(engine)).era == 1


async def test_other_processes_learn_of_a_new_era(engine: Engine, store: TestStore) -> None:
    async with opened(store) as other, other.events.subscribe(["completion"]) as events:
        await go_back(engine)
        await done(other, "after")
        assert await kinds(events, 1) == ["after"]
        assert (events.cursor or "")[:5] == "ffc2."


async def move_subscriber(store: TestStore, position: Position) -> None:
    xid = f"transaction_id = '{position.xid}', " if store.name == "postgres" else ""
    await store.query(f"UPDATE ff.subscriber SET {xid}event_id = {position.id}")
