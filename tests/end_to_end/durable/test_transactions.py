"""`step.tx` commits the rows that a function writes and the record of the step together, or commits neither."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import pytest

from flowfabric import App, PermanentError, StepFailed, now, sleep, step
from flowfabric.testing import Kit
from tests.end_to_end.durable.kits import KitFactory, statuses


@dataclass(frozen=True)
class Ledger:
    """Functions that use the store's connection: plain on SQLite, coroutine functions on PostgreSQL."""

    open: Callable[..., Any]
    debit: Callable[..., Any]
    total: Callable[..., Any]


def sqlite_ledger() -> Ledger:
    def open_(db: sqlite3.Connection) -> None:
        db.execute("CREATE TABLE IF NOT EXISTS ledger (amount INTEGER)")

    def debit(db: sqlite3.Connection, amount: int, *, fails: bool = False) -> int:
        db.execute("INSERT INTO ledger VALUES (?)", [amount])
        if fails:
            raise PermanentError("no funds")
        return total(db)

    def total(db: sqlite3.Connection) -> int:
        [amount_sum] = db.execute("SELECT COALESCE(SUM(amount), 0) FROM ledger").fetchone()
        return int(amount_sum)

    return Ledger(open_, debit, total)


def postgres_ledger(schema: str) -> Ledger:
    async def open_(db: Any) -> None:
        await db.execute(f'CREATE TABLE IF NOT EXISTS "{schema}".ledger (amount INTEGER)')

    async def debit(db: Any, amount: int, *, fails: bool = False) -> int:
        await db.execute(f'INSERT INTO "{schema}".ledger VALUES ($1)', amount)
        if fails:
            raise PermanentError("no funds")
        return await total(db)

    async def total(db: Any) -> int:
        return int(await db.fetchval(f'SELECT COALESCE(SUM(amount), 0) FROM "{schema}".ledger'))

    return Ledger(open_, debit, total)


@pytest.fixture
def ledger(new_kit: KitFactory) -> Ledger:
    schema = new_kit.options.get("schema")
    return sqlite_ledger() if schema is None else postgres_ledger(str(schema))


async def test_transaction_is_a_step_with_a_connection(app: App, kit: Kit, ledger: Ledger) -> None:
    @app.task
    async def task() -> list[int]:
        await step.tx(ledger.open)
        totals = [await step.tx(ledger.debit, 30), await step.tx(ledger.debit, 12)]
        await sleep("1h")
        return totals

    handle = await kit.start(task)

    assert await kit.finish(handle) == [30, 42]
    assert await kit.steps(handle) == ["open_", "debit", "debit#2", "sleep"]


@pytest.mark.parametrize("moment", ["before", "after"])
async def test_crash_around_a_transaction_commits_its_rows_once(
    app: App, kit: Kit, ledger: Ledger, moment: str
) -> None:
    @app.task
    async def task() -> int:
        await step.tx(ledger.open)
        await step.tx(ledger.debit, 30)
        return int(await step.tx(ledger.total))

    (kit.crash_before if moment == "before" else kit.crash_after)("debit")

    assert await kit.run(task) == 30


async def test_failed_transaction_rolls_back_its_rows(app: App, kit: Kit, ledger: Ledger) -> None:
    @app.task
    async def task() -> int:
        await step.tx(ledger.open)
        with pytest.raises(StepFailed, match="debit failed: PermanentError: no funds"):
            await step.tx(ledger.debit, 30, fails=True)
        return int(await step.tx(ledger.total))

    handle = await kit.start(task)

    assert await kit.finish(handle) == 0
    assert (await statuses(kit, handle))["debit"] == "failed"


async def test_now_before_a_transaction_is_stored_with_it(app: App, kit: Kit, ledger: Ledger) -> None:
    times: list[datetime] = []

    @app.task
    async def task() -> None:
        await step.tx(ledger.open)
        times.append(now())
        await step.tx(ledger.debit, times[-1].microsecond)
        await step(str, "after")

    handle = await task.submit()
    kit.crash_before("str")
    await kit.finish(handle)
    assert len(times) == 2 and times[0] == times[1]
