"""A locked row, or a slow `step.tx`, costs the worker no other lease."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections import Counter
from typing import Any

import pytest

from flowfabric import App, Handle, StepFailed, step
from flowfabric.engine import StoreOptions
from tests.end_to_end.worker.scripted_runs import (
    ScriptedRun,
    ScriptedRunner,
    make_worker,
    submit_many,
    wait_until_completed,
)
from tests.stores import PostgresTestStore, TestStore, opened

LEASE_S = 2.0
FAULT_S = 5.0
EXECUTIONS = 5


@pytest.mark.parametrize("store", ["postgres"], indirect=True)
async def test_locked_row_costs_no_other_lease(store: PostgresTestStore) -> None:
    unlocked = asyncio.Event()

    async def work(run: ScriptedRun) -> None:
        waits: list[asyncio.Future[Any]] = [asyncio.ensure_future(unlocked.wait()), run.lost]
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        if not run.lost.done():
            await run.complete()

    runner = ScriptedRunner(work)
    async with opened(store) as engine:
        ids = await submit_many(engine, EXECUTIONS)
        async with make_worker(store, engine, runner, lease_ttl=LEASE_S):
            runs = [await runner.next() for _ in ids]
            async with store.locked(runs[0].lease.execution_id):
                await asyncio.sleep(FAULT_S)
            unlocked.set()
            for id_ in ids:
                await wait_until_completed(engine, id_)
    counts = Counter(runner.ids)
    assert [counts[run.lease.execution_id] for run in runs[1:]] == [1] * (EXECUTIONS - 1)


async def test_slow_step_tx_costs_no_other_lease(store: TestStore) -> None:
    """On PostgreSQL it commits once and keeps its lease. On SQLite it is refused at its limit and writes nothing."""
    on_postgres = isinstance(store, PostgresTestStore)
    options: StoreOptions = {"durable": False}
    table = "paid"
    if isinstance(store, PostgresTestStore):
        options["schema"] = store.schema
        table = f'"{store.schema}".paid'
    app = App(store.url, options=options)
    starts = Counter[str]()

    def pay_slowly(db: sqlite3.Connection) -> None:
        starts["pay"] += 1
        db.execute(f"INSERT INTO {table} VALUES (1)")
        time.sleep(FAULT_S)

    async def pay_slowly_async(db: Any) -> None:
        starts["pay"] += 1
        await db.execute(f"INSERT INTO {table} VALUES (1)")
        await asyncio.sleep(FAULT_S)

    @app.task(retries=0)
    async def slow() -> str:
        starts["slow"] += 1
        try:
            await step.options(retries=0).tx(pay_slowly_async if on_postgres else pay_slowly)
        except StepFailed as failure:
            return str(failure)
        return "paid"

    @app.task(retries=0)
    async def other(number: int) -> None:
        starts[f"other {number}"] += 1
        await asyncio.sleep(FAULT_S + LEASE_S)

    async with app:
        await (await app.engine()).ping()
        await store.query(f"CREATE TABLE {table} (amount INTEGER)")
        handles: list[Handle[Any]] = [await other.submit(number) for number in range(EXECUTIONS - 1)]
        async with app.worker(lease=f"{LEASE_S}s"), asyncio.timeout(60):
            handles.append(slowest := await slow.submit())
            result = await slowest
            for handle in handles:
                await handle
    assert set(starts.values()) == {1}, starts
    paid = await store.query(f"SELECT amount FROM {table}")
    if on_postgres:
        assert (result, len(paid)) == ("paid", 1)
    else:
        assert "transaction_too_long" in result
        assert paid == []
