"""Tests that work continues after the store's clock jumped forward and back, and that stored time never goes back."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from uuid import UUID

import pytest

from flowfabric.engine import Engine, State, StoreOptions, connect
from flowfabric.testing import VirtualClock
from tests.faults.kit.clock import HostClock, ServerClock, movable_clock
from tests.scenarios import leased, submitted
from tests.stores import PostgresTestStore, SqliteTestStore, TestStore, opened

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


@asynccontextmanager
async def engines_on_movable_clock(
    store: TestStore, folder: Path
) -> AsyncIterator[tuple[Engine, Engine, HostClock | ServerClock]]:
    """Yield two engines whose store has a clock that the test can move. The second engine runs the duties."""
    assert isinstance(store, SqliteTestStore | PostgresTestStore)
    clock = await movable_clock(store, folder)
    options: StoreOptions = {"durable": False}
    if isinstance(store, PostgresTestStore):
        options["schema"] = store.schema
    with clock.installed():
        async with (
            connect(clock.url, **options) as engine,
            connect(clock.url, **options) as other,
            other.reconcilers.run_in_background(),
        ):
            yield engine, other, clock
    await clock.remove()


async def test_dead_work_is_taken_over_within_two_leases_when_the_clock_goes_back_meanwhile(
    store: TestStore, tmp_path: Path
) -> None:
    async with engines_on_movable_clock(store, tmp_path) as (engine, other, clock):
        await clock.move_to(3600)
        other.reconcilers.wake_for()
        lease = await leased(engine, lease_ttl=LEASE_S)
        # The process that runs the duties has also granted a short lease, so it looks again within that time.
        await leased(other, lease_ttl=LEASE_S)
        await clock.move_to(0)
        took_s = await wait_until_waiting(other, lease.execution_id)
    assert took_s < 2 * LEASE_S


async def test_sleep_of_one_second_takes_a_second_at_every_offset(store: TestStore, tmp_path: Path) -> None:
    async with engines_on_movable_clock(store, tmp_path) as (engine, _, clock):
        for offset_s in (3600, -86_400, 60):
            await clock.move_to(offset_s)
            id_ = await submitted(engine, delay="1s")
            assert 0.9 < await wait_until_waiting(engine, id_) < 3.0


async def test_engine_knows_the_time_of_a_moved_clock_after_a_claim(store: TestStore, tmp_path: Path) -> None:
    async with engines_on_movable_clock(store, tmp_path) as (engine, _, clock):
        for offset_s in (3600, -86_400, 60):
            await clock.move_to(offset_s)
            lease = await leased(engine)
            assert abs(engine.now() - lease.acquired_at) < timedelta(seconds=1)


@pytest.mark.parametrize("store", ["sqlite"], indirect=True)
async def test_stored_times_never_go_back(store: TestStore, tmp_path: Path) -> None:
    async with engines_on_movable_clock(store, tmp_path) as (engine, other, clock):
        times = []
        for number, offset_s in enumerate((3600, 0, -86_400, 7200, 60)):
            await clock.move_to(offset_s)
            id_ = await submitted((engine, other)[number % 2])
            times.append((await other.executions.describe(id_)).created_at)
            times.append((await engine.store_info()).now)
    assert times == sorted(times)


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
