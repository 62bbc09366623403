"""A locked row, a slow `step.tx` or a slow disk blocks one execution of a worker. The others keep their leases."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from tests.faults.kit.bystanders import Station
from tests.faults.kit.disk import SlowDisk, slow_postgres_commits, slow_sqlite_commits
from tests.faults.rows.row import Row, Tally, Trial
from tests.postgres_server import postgres_server
from tests.stores import PostgresTestStore, SqliteTestStore, TestStore

LEASE_S = 1.5
BLOCKED_S = 3.2
OTHERS = tuple(f"bystander {number}" for number in range(4))
STATIONS = 6
SLOW_LEASE_S = 3.0
SQLITE_COMMIT_S = 0.8
POSTGRES_COMMIT_S = 0.8
POSTGRES_PAUSE_S = 0.1
PATIENCE_S = 300.0


async def _lock_rows(trial: Trial) -> Tally:
    return await _run_stations(trial, _lock_row)


async def _lock_row(trial: Trial, name: str) -> Tally:
    tally, store = Tally(injected=1), trial.new_store()
    assert isinstance(store, PostgresTestStore), "SQLite has no row locks"
    station = Station(store, name)
    async with station.working(LEASE_S):
        await station.begin("locked", *OTHERS)
        await asyncio.sleep(trial.random(name).uniform(0, LEASE_S / 3))
        async with store.locked(station.id_of("locked")):
            await asyncio.sleep(BLOCKED_S)
        unlocked_at = time.monotonic()
        await station.finish(tally)
    if "locked" in station.ends:
        tally.recoveries_s.append(max(0.0, station.ends["locked"] - unlocked_at))
    station.check_runs(tally, *OTHERS)
    await store.drop()
    return tally


async def _run_slow_transactions(trial: Trial) -> Tally:
    return await _run_stations(trial, _run_slow_transaction)


async def _run_slow_transaction(trial: Trial, name: str) -> Tally:
    tally, store = Tally(injected=1), trial.new_store()
    table = f'"{store.schema}".paid' if isinstance(store, PostgresTestStore) else "paid"

    def pay(db: sqlite3.Connection) -> None:
        db.execute(f"INSERT INTO {table} VALUES (1)")
        time.sleep(BLOCKED_S)

    async def pay_async(db: Any) -> None:
        await db.execute(f"INSERT INTO {table} VALUES (1)")
        await asyncio.sleep(BLOCKED_S)

    station = Station(store, name, pay_async if isinstance(store, PostgresTestStore) else pay)
    async with station.working(LEASE_S):
        await store.query(f"CREATE TABLE {table} (amount INTEGER)")
        await station.begin(*OTHERS)
        began = time.monotonic()
        outcome = await station.transact("slow")
        tally.recoveries_s.append(max(0.0, time.monotonic() - began - BLOCKED_S))
        await station.finish(tally)
    station.check_runs(tally, "slow", *OTHERS)
    _check_transaction(tally, name, outcome, len(await store.query(f"SELECT amount FROM {table}")), store)
    if isinstance(store, PostgresTestStore):
        await store.drop()
    return tally


def _check_transaction(tally: Tally, name: str, outcome: str, rows: int, store: TestStore) -> None:
    """Check that it committed once on PostgreSQL, and was refused and wrote nothing on SQLite."""
    if isinstance(store, SqliteTestStore):
        if "transaction_too_long" not in outcome or rows:
            tally.wrong.append(f"{name}: the slow step.tx ended with {outcome!r} and wrote {rows} rows")
    elif outcome != "committed" or not rows:
        tally.lost.append(f"{name}: the slow step.tx ended with {outcome!r} and wrote {rows} rows")
    elif rows > 1:
        tally.doubled.append(f"{name}: the slow step.tx wrote {rows} rows")


async def _run_on_a_slow_disk(trial: Trial) -> Tally:
    if trial.backend == "sqlite":
        return await _slow_down(trial, trial.new_store())
    with postgres_server() as server:
        return await _slow_down(trial, PostgresTestStore(server.dsn))


async def _slow_down(trial: Trial, store: TestStore) -> Tally:
    tally, station = Tally(), Station(store, "station")
    async with station.working(SLOW_LEASE_S):
        await station.begin(*OTHERS)
        async with _slow_disk(store) as disk:
            async with asyncio.timeout(PATIENCE_S):
                await disk.wait_for(trial.faults)
            tally.injected = disk.count
        await station.finish(tally)
    station.check_runs(tally, *OTHERS)
    return tally


@asynccontextmanager
async def _slow_disk(store: TestStore) -> AsyncIterator[SlowDisk]:
    if isinstance(store, SqliteTestStore):
        with slow_sqlite_commits(SQLITE_COMMIT_S) as disk:
            yield disk
    else:
        async with slow_postgres_commits(store.url, POSTGRES_COMMIT_S, POSTGRES_PAUSE_S) as disk:
            yield disk


async def _run_stations(trial: Trial, run: Callable[[Trial, str], Awaitable[Tally]]) -> Tally:
    """Inject one fault per station, some stations at the same time, and return the sum of their tallies."""
    tally = Tally()
    for start in range(0, trial.faults, STATIONS):
        names = [f"station {number}" for number in range(start, min(start + STATIONS, trial.faults))]
        for other in await asyncio.gather(*(run(trial, name) for name in names)):
            tally.add(other)
    return tally


ROWS = (
    Row(
        "locked row",
        "Another session locks the row of one execution for longer than its lease",
        _lock_rows,
        minimum=60,
        short_minimum=2,
        backends=("postgres",),
        lease_s=LEASE_S,
    ),
    Row(
        "slow step.tx",
        "A step.tx takes longer than its lease (PostgreSQL), or sleeps past its limit (SQLite)",
        _run_slow_transactions,
        minimum=60,
        short_minimum=2,
        lease_s=LEASE_S,
    ),
    Row(
        "slow fsync",
        "Every commit takes a quarter of the lease or more, while executions record steps all the time",
        _run_on_a_slow_disk,
        minimum=80,
        short_minimum=4,
        lease_s=SLOW_LEASE_S,
    ),
)
