"""User code closes or loses the connection that `step.tx` lends it, or has a role that commits asynchronously."""

from __future__ import annotations

import asyncio
import sqlite3
from collections import Counter
from typing import Any

import asyncpg
import psycopg

from flowfabric import App, StepFailed, step
from flowfabric.engine import Engine, Lease, Step, StoreOptions
from tests.faults.rows.row import Row, Tally, Trial
from tests.postgres_server import PostgresServer, postgres_server
from tests.scenarios import leased
from tests.stores import PostgresTestStore, opened

PATIENCE_S = 60.0
WIDTH = 20
# The server writes the log of an asynchronous commit to disk only after this time.
LAX_SERVER = {"wal_writer_delay": "10s", "wal_writer_flush_after": "1GB", "checkpoint_timeout": "1h"}
LAX = ("ALTER ROLE lax SET synchronous_commit = off", "ALTER DATABASE postgres SET synchronous_commit = off")
LEASES = 5


class Shop:
    """An app whose task loses its lent connection once, and then pays in another transaction."""

    def __init__(self, trial: Trial) -> None:
        self.store = trial.new_store()
        self.on_postgres = isinstance(self.store, PostgresTestStore)
        options: StoreOptions = {"durable": False}
        self.table = "paid"
        if isinstance(self.store, PostgresTestStore):
            options["schema"] = self.store.schema
            self.table = f'"{self.store.schema}".paid'
        self.app = App(self.store.url, options=options)
        self.task = self.app.task(name="buy", retries=0)(self._make_task())
        self._tries = Counter[int]()

    def _make_task(self) -> Any:
        async def buy(number: int, way: str) -> str:
            lose = self._lose_async if self.on_postgres else self._lose
            try:
                outcome = str(await step.options(retries=0).tx(lose, number, way))
            except StepFailed:
                outcome = "failed"
            await step.tx(self._pay_async if self.on_postgres else self._pay, number)
            return outcome

        return buy

    def _lose(self, db: sqlite3.Connection, number: int, way: str) -> str:
        db.execute(f"INSERT INTO {self.table} VALUES (?)", [-number])
        if way == "close":
            db.close()
        else:
            sqlite3.Connection.close(db)
        return "committed"

    async def _lose_async(self, db: Any, number: int, way: str) -> str:
        self._tries[number] += 1
        await db.execute(f"INSERT INTO {self.table} VALUES ($1)", -number)
        if way == "close":
            await db.close()
        elif self._tries[number] == 1:
            await db.execute("SELECT pg_terminate_backend(pg_backend_pid())")
        # A connection that the server ended is replaced, and the step is tried again.
        return "committed"

    def _pay(self, db: sqlite3.Connection, number: int) -> None:
        db.execute(f"INSERT INTO {self.table} VALUES (?)", [number])

    async def _pay_async(self, db: Any, number: int) -> None:
        await db.execute(f"INSERT INTO {self.table} VALUES ($1)", number)


async def _close_connections(trial: Trial) -> Tally:
    shop, chance = Shop(trial), trial.random("ways")
    ways = [chance.choice(("close", "lose")) for _ in range(trial.faults)]
    tally = Tally(injected=trial.faults, executions=trial.faults)
    async with shop.app:
        await (await shop.app.engine()).ping()
        await shop.store.query(f"CREATE TABLE {shop.table} (number INTEGER)")
        async with shop.app.worker(concurrency=WIDTH):
            handles = [await shop.task.submit(number, way) for number, way in enumerate(ways, start=1)]
            for number, (way, handle) in enumerate(zip(ways, handles, strict=True), start=1):
                try:
                    async with asyncio.timeout(PATIENCE_S):
                        outcome = await handle
                except TimeoutError:
                    tally.stuck.append(f"execution {number} ({way}) did not end within {PATIENCE_S:g} s")
                    continue
                is_repeated = shop.on_postgres and way == "lose"
                if outcome != ("committed" if is_repeated else "failed"):
                    tally.wrong.append(f"execution {number} ({way}) returned {outcome!r}")
    _check_rows(tally, shop, ways, Counter(row["number"] for row in await _read(shop)))
    if isinstance(shop.store, PostgresTestStore):
        await shop.store.drop()
    return tally


async def _read(shop: Shop) -> list[dict[str, Any]]:
    return await shop.store.query(f"SELECT number FROM {shop.table}")


def _check_rows(tally: Tally, shop: Shop, ways: list[str], rows: Counter[int]) -> None:
    """Check that each execution paid once, and that only a repeated step left its row."""
    for number, way in enumerate(ways, start=1):
        if rows[number] == 0:
            tally.lost.append(f"the payment of execution {number} ({way}) is gone")
        elif rows[number] > 1:
            tally.doubled.append(f"execution {number} ({way}) paid {rows[number]} times")
        expected = int(shop.on_postgres and way == "lose")
        if rows[-number] != expected:
            tally.wrong.append(f"the failed step of execution {number} ({way}) left {rows[-number]} rows")


async def _crash_servers(trial: Trial) -> Tally:
    tally, chance = Tally(), trial.random("crashes")
    with postgres_server(**LAX_SERVER) as server:
        with psycopg.connect(server.dsn, autocommit=True) as connection:
            connection.execute("CREATE ROLE lax LOGIN")
            connection.execute("GRANT CREATE ON DATABASE postgres TO lax")
            connection.execute(chance.choice(LAX).encode())
        store = PostgresTestStore(server.dsn.replace("postgres@", "lax@"))
        async with opened(store):
            await store.query("CREATE TABLE ff.paid (number INTEGER)")
        for number in range(trial.faults):
            await _crash(server, store, tally, number * LEASES, pooler=chance.random() < 0.5)
    return tally


async def _crash(server: PostgresServer, store: PostgresTestStore, tally: Tally, first: int, *, pooler: bool) -> None:
    """Record steps, crash the server when the last is acknowledged, and check that all are there."""
    # A notification would be a synchronous commit, which also writes the log of earlier ones.
    async with opened(store, pooler=pooler, notify=False) as engine:
        leases = [await leased(engine) for _ in range(LEASES)]
        await asyncio.gather(*(_pay(engine, store, lease, first + n) for n, lease in enumerate(leases)))
        await asyncio.to_thread(server.stop, "immediate")
    began = asyncio.get_running_loop().time()
    await asyncio.to_thread(server.start)
    tally.injected += 1
    tally.executions += LEASES
    async with opened(store, pooler=pooler, notify=False) as engine:
        tally.recoveries_s.append(asyncio.get_running_loop().time() - began)
        paid = Counter(row["number"] for row in await store.query("SELECT number FROM ff.paid"))
        for number, lease in enumerate(leases, start=first):
            steps = await engine.executions.steps(lease.execution_id)
            if not steps or not paid[number]:
                tally.lost.append(f"crash {tally.injected} lost {1 - len(steps)} steps and {1 - paid[number]} rows")


async def _pay(engine: Engine, store: PostgresTestStore, lease: Lease, number: int) -> None:
    async def body(db: asyncpg.Connection[Any]) -> None:
        await db.execute(f'INSERT INTO "{store.schema}".paid VALUES ($1)', number)

    await engine.leases.transact(lease.fence, body, lambda _: Step("pay", b"1"))


ROWS = (
    Row(
        "closed lent connections",
        "User code in a step.tx closes its connection, or loses it",
        _close_connections,
        minimum=300,
        short_minimum=12,
    ),
    Row(
        "server crash with a lax role",
        "The server crashes after a step.tx of a role or database with synchronous_commit off",
        _crash_servers,
        minimum=20,
        short_minimum=1,
        backends=("postgres",),
    ),
)
