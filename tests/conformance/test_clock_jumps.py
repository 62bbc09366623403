"""Tests that work continues after the store's clock jumped forward and back, and that stored time never goes back."""

from __future__ import annotations

import asyncio
import time
from datetime import timedelta
from uuid import UUID

import pytest

from flowfabric.engine import Engine, State
from flowfabric.testing import VirtualClock
from tests.scenarios import leased, submitted
from tests.stores import SqliteTestStore, TestStore, opened

ONE_HOUR_US = 3_600_000_000
LEASE_S = 1.0
PATIENCE_S = 10.0


async def turn_clock_back(store: TestStore) -> None:
    """Make the store look as if its clock had been an hour ahead until now."""
    if isinstance(store, SqliteTestStore):
        await store.query(f"UPDATE ff.clock SET newest_at = {time.time_ns() // 1000 + ONE_HOUR_US}")
        return
    await move_leases(store, minutes=60)


async def move_leases(store: TestStore, *, minutes: int) -> None:
    """Make the leases end later, as if the store's clock had gone back since they were granted."""
    step = f"{minutes * 60_000_000}" if isinstance(store, SqliteTestStore) else f"INTERVAL '{minutes} minutes'"
    await store.query(
        f"UPDATE ff.execution SET lease_expires_at = lease_expires_at + {step}, "
        f"lease_check_at = lease_check_at + {step} WHERE lease_id IS NOT NULL"
    )


async def wait_until_waiting(engine: Engine, id_: UUID) -> float:
    """Return how long it took until the execution waited for a worker."""
    began = time.monotonic()
    while (await engine.executions.describe(id_)).state is not State.WAITING:
        assert time.monotonic() < began + PATIENCE_S, "the execution does not continue"
        await asyncio.sleep(0.02)
    return time.monotonic() - began


async def test_sleep_of_one_second_ends_within_three_seconds_after_the_clock_went_back(store: TestStore) -> None:
    async with opened(store) as engine, engine.reconcilers.run_in_background():
        await turn_clock_back(store)
        id_ = await submitted(engine, delay="1s")
        took_s = await wait_until_waiting(engine, id_)
    assert 0.9 < took_s < 3.0


async def test_dead_work_is_taken_over_within_two_leases_after_the_clock_went_back(store: TestStore) -> None:
    async with opened(store) as engine:
        if isinstance(store, SqliteTestStore):
            await turn_clock_back(store)
        lease = await leased(engine, lease_ttl=LEASE_S)
        if not isinstance(store, SqliteTestStore):
            await turn_clock_back(store)
    async with opened(store) as other, other.reconcilers.run_in_background():
        took_s = await wait_until_waiting(other, lease.execution_id)
    assert took_s < 2 * LEASE_S


async def test_lease_with_more_time_left_than_its_term_is_shortened_to_its_term(
    engine: Engine, clock: VirtualClock, store: TestStore
) -> None:
    long, short = await leased(engine, lease_ttl="1h"), await leased(engine, lease_ttl="10s")
    await move_leases(store, minutes=5)
    await engine.reconcilers.tick()
    left = {
        execution.id: execution.lease.expires_at - clock.now()
        for execution in [await engine.executions.describe(lease.execution_id) for lease in (long, short)]
        if execution.lease is not None
    }
    assert left == {long.execution_id: timedelta(hours=1), short.execution_id: timedelta(seconds=10)}
    clock.advance("10s")
    await engine.reconcilers.tick()
    assert (await engine.executions.describe(short.execution_id)).state is State.WAITING
    assert (await engine.executions.describe(long.execution_id)).state is State.ACTIVE


async def test_shortened_lease_can_still_be_renewed(engine: Engine, clock: VirtualClock, store: TestStore) -> None:
    lease = await leased(engine, lease_ttl="10s")
    await move_leases(store, minutes=60)
    await engine.reconcilers.tick()
    clock.advance("9s")
    assert (await engine.leases.renew(lease.fence)).expires_at == clock.now() + timedelta(seconds=10)


@pytest.mark.parametrize("store", ["sqlite"], indirect=True)
async def test_processes_agree_on_the_time_while_the_wall_clock_is_behind(store: TestStore) -> None:
    async with opened(store) as first:
        await turn_clock_back(store)
        await submitted(first)
        await asyncio.sleep(0.5)
        # The second process begins when the newest time in the file is half a second old.
        async with opened(store) as second:
            earlier, later = (await first.store_info()).now, (await second.store_info()).now
            assert timedelta(0) <= later - earlier < timedelta(seconds=0.4)
            assert timedelta(0) <= (await first.store_info()).now - later < timedelta(seconds=0.4)


@pytest.mark.parametrize("store", ["sqlite"], indirect=True)
async def test_time_passes_for_a_process_that_writes_nothing(store: TestStore) -> None:
    async with opened(store) as engine:
        await turn_clock_back(store)
        before, noted = (await engine.store_info()).now, engine.now()
        await asyncio.sleep(0.3)
        assert (await engine.store_info()).now - before >= timedelta(seconds=0.3)
        assert engine.now() - noted >= timedelta(seconds=0.3)
