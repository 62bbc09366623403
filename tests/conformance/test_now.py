"""engine.now: the store's clock, without asking it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from flowfabric.engine import Engine
from flowfabric.testing import VirtualClock
from tests.stores import TestStore, opened


async def test_now_is_exactly_the_clock_that_was_given(engine: Engine, clock: VirtualClock) -> None:
    assert engine.now() == clock.now()
    clock.advance("3d")
    assert engine.now() == clock.now()
    assert engine.within("other").now() == clock.now()


async def test_without_one_it_is_about_the_time_of_the_store(store: TestStore) -> None:
    async with opened(store) as engine:
        now = engine.now()
        lease = await engine.executions.submit("job")
        created = (await engine.executions.describe(lease.id)).created_at
    assert now.tzinfo is UTC
    assert abs(created - now) < timedelta(seconds=5)
    assert abs(datetime.now(UTC) - now) < timedelta(seconds=5)
