"""Tests of engine.now, which returns the time of the store's clock without a query."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta

import pytest

from flowfabric.engine import Engine, State
from flowfabric.testing import VirtualClock
from tests.scenarios import leased
from tests.stores import TestStore, opened


async def test_now_is_the_time_of_the_given_clock(engine: Engine, clock: VirtualClock) -> None:
    assert engine.now() == clock.now()
    clock.advance("3d")
    assert engine.now() == clock.now()
    assert engine.for_namespace("other").now() == clock.now()


async def test_now_without_a_clock_is_close_to_the_time_of_the_store(store: TestStore) -> None:
    async with opened(store) as engine:
        now = engine.now()
        lease = await engine.executions.submit("job")
        created = (await engine.executions.describe(lease.id)).created_at
    assert now.tzinfo is UTC
    assert abs(created - now) < timedelta(seconds=5)
    assert abs(datetime.now(UTC) - now) < timedelta(seconds=5)


@pytest.mark.parametrize("store", ["postgres"], indirect=True)
async def test_leases_and_timers_follow_the_clock_of_the_database(
    store: TestStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    ahead_s = 86_400
    real, real_ns = time.time, time.time_ns
    monkeypatch.setattr(time, "time", lambda: real() + ahead_s)
    monkeypatch.setattr(time, "time_ns", lambda: real_ns() + ahead_s * 10**9)
    async with opened(store) as engine:
        before = datetime.now(UTC)
        lease = await leased(engine, lease_ttl="30s")
        await engine.reconcilers.tick()
        execution = await engine.executions.describe(lease.execution_id)
    assert execution.state == State.ACTIVE
    assert abs((execution.created_at - before).total_seconds()) < 60
    assert abs((lease.expires_at - before).total_seconds()) < 90
