"""Tests of a transact that takes long.

On PostgreSQL it may take longer than its lease, and its commit extends the lease. On SQLite it blocks every other
write, so it ends with an error at its limit, and nothing of it is written.
"""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import Callable
from typing import Any

import pytest

from flowfabric.engine import Engine, InvalidRequest, Refused, Renewed, Step, connect
from flowfabric.testing import VirtualClock
from tests.expectations import refused
from tests.scenarios import leased
from tests.stores import PostgresTestStore, SqliteTestStore, TestStore, opened

ON_SQLITE = pytest.mark.parametrize("store", ["sqlite"], indirect=True)
ON_POSTGRES = pytest.mark.parametrize("store", ["postgres"], indirect=True)
ENDLESS = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT COUNT(*) FROM n"


def make_step(_: object = None) -> Step:
    return Step("slow", b"1")


async def test_commit_extends_the_lease(engine: Engine, store: TestStore, clock: VirtualClock) -> None:
    lease = await leased(engine)
    clock.advance("20s")

    async def on_postgres(_: object) -> None:
        return None

    body: Any = on_postgres if isinstance(store, PostgresTestStore) else lambda _: None
    await engine.leases.transact(lease.fence, body, make_step)
    clock.advance("25s")
    assert isinstance(await engine.leases.renew(lease.fence), Renewed)


@ON_POSTGRES
async def test_body_that_outlasts_its_lease_commits_once_and_keeps_the_lease(store: PostgresTestStore) -> None:
    async with opened(store) as engine:
        lease = await leased(engine, lease_ttl="1s")
        runs: list[int] = []

        async def body(_: object) -> None:
            runs.append(1)
            for _ in range(5):
                await asyncio.sleep(0.3)
                await engine.reconcilers.tick()  # Lease expiry skips the locked row.

        await engine.leases.transact(lease.fence, body, make_step)
        assert isinstance(await engine.leases.renew(lease.fence), Renewed)
        assert len(await engine.executions.steps(lease.execution_id)) == len(runs) == 1


@ON_POSTGRES
async def test_body_that_outlasts_its_lease_and_fails_leaves_the_lease_expired(store: PostgresTestStore) -> None:
    async with opened(store) as engine:
        lease = await leased(engine, lease_ttl="1s")

        async def body(_: object) -> None:
            await asyncio.sleep(1.2)
            raise ValueError("no")

        with pytest.raises(ValueError, match="no"):
            await engine.leases.transact(lease.fence, body, make_step)
        await refused(engine.leases.renew(lease.fence), "lease_expired")


def sleep_after_insert(db: sqlite3.Connection) -> None:
    db.execute("CREATE TABLE late (x)")
    time.sleep(1.0)


def sleep_then_write(db: sqlite3.Connection) -> None:
    time.sleep(1.0)
    db.execute("CREATE TABLE late (x)")


def write_after_every_error(db: sqlite3.Connection) -> None:
    db.execute("CREATE TABLE late (x)")
    ends = time.monotonic() + 1.0
    while time.monotonic() < ends:
        try:
            db.execute("INSERT INTO late VALUES (1)")
        except Exception:
            time.sleep(0.01)


def run_an_endless_statement(db: sqlite3.Connection) -> None:
    db.execute("CREATE TABLE late (x)")
    db.execute(ENDLESS).fetchone()


def fetch_endless_rows(db: sqlite3.Connection) -> None:
    db.execute("CREATE TABLE late (x)")
    for _ in db.execute("WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT i FROM n"):
        pass


SLOW_BODIES = (
    sleep_after_insert, sleep_then_write, write_after_every_error, run_an_endless_statement, fetch_endless_rows,
)  # fmt: skip


@ON_SQLITE
@pytest.mark.parametrize("body", SLOW_BODIES, ids=lambda body: body.__name__)
async def test_body_that_outlasts_its_limit_is_refused_and_writes_nothing(
    store: SqliteTestStore, body: Callable[[Any], Any]
) -> None:
    async with opened(store) as engine:
        lease = await leased(engine, lease_ttl="1s")
        await refused(engine.leases.transact(lease.fence, body, make_step), "transaction_too_long", Refused)
        assert await engine.executions.steps(lease.execution_id) == []
        assert await store.query("SELECT name FROM sqlite_master WHERE name = 'late'") == []
        await engine.executions.submit("job")


@ON_SQLITE
async def test_file_is_free_at_the_limit_while_the_body_sleeps(store: SqliteTestStore) -> None:
    async with opened(store) as engine, opened(store) as renewing_engine:
        lease, other = await leased(engine, lease_ttl="3s"), await leased(engine, lease_ttl="3s")

        def body(db: sqlite3.Connection) -> None:
            db.execute("CREATE TABLE late (x)")
            time.sleep(2.5)

        began = time.monotonic()
        transact = asyncio.create_task(engine.leases.transact(lease.fence, body, make_step))
        await asyncio.sleep(0.1)
        outcomes = await renewing_engine.leases.renew_many([lease.fence, other.fence])
        assert [type(outcome) for outcome in outcomes] == [Renewed, Renewed]
        assert time.monotonic() - began < 2.2
        await refused(transact, "transaction_too_long")


@ON_SQLITE
async def test_limit_is_a_third_of_the_lease_unless_it_is_configured(store: SqliteTestStore) -> None:
    def body(_: object) -> None:
        time.sleep(0.5)

    async with opened(store) as engine:
        short = await leased(engine, lease_ttl="1s")
        with pytest.raises(Refused) as caught:
            await engine.leases.transact(short.fence, body, make_step)
        assert caught.value.fields["limit_s"] == pytest.approx(1 / 3)
    async with opened(store, transaction_limit="5s") as engine:
        short = await leased(engine, lease_ttl="1s")
        await engine.leases.transact(short.fence, body, make_step)
    async with opened(store, transaction_limit="100ms") as engine:
        long = await leased(engine, lease_ttl="1h")
        await refused(engine.leases.transact(long.fence, body, make_step), "transaction_too_long")


async def test_limit_is_validated() -> None:
    for limit in ("0s", -1, "soon"):
        with pytest.raises(InvalidRequest):
            await connect(":memory:", transaction_limit=limit)


@ON_SQLITE
async def test_slow_body_is_logged_after_a_second(store: SqliteTestStore, caplog: pytest.LogCaptureFixture) -> None:
    async with opened(store) as engine:
        lease = await leased(engine, lease_ttl="1h")
        await engine.leases.transact(lease.fence, lambda _: time.sleep(1.2), make_step)
    assert caplog.text.count("has held the only write lock of the store for 1 s, and is stopped after 1200 s") == 1


async def test_body_in_memory_that_outlasts_its_limit_is_refused() -> None:
    async with connect(":memory:") as engine:
        lease = await leased(engine, lease_ttl="1s")
        await refused(engine.leases.transact(lease.fence, sleep_after_insert, make_step), "transaction_too_long")
        await engine.executions.submit("job")
