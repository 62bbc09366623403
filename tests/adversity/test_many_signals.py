"""The cost of delivering a signal does not grow with the number of earlier signals."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

from flowfabric.backends.postgres.session import PostgresSession
from flowfabric.backends.sqlite.session import SqliteSession
from flowfabric.engine import Count, Engine, Single
from tests.faults.failing_driver import Fetched
from tests.scenarios import Wait, leased, suspended
from tests.sizes import Size
from tests.stores import TestStore

pytestmark = pytest.mark.full


class Meter:
    """Count executed statements and the rows that they return, including rows inside JSON arrays."""

    def __init__(self) -> None:
        self.statements = 0
        self.rows = 0

    def count(self, rows: Sequence[Any]) -> None:
        self.statements += 1
        self.rows += len(rows) + sum(_items(value) for row in rows for value in tuple(row))


def _items(value: object) -> int:
    """Return the number of rows in a JSON array, or 0 for any other value."""
    return len(json.loads(value)) if isinstance(value, str) and value.startswith("[") else 0


class Metered:
    """A connection of either backend that counts returned rows."""

    def __init__(self, connection: Any, meter: Meter) -> None:
        self._connection = connection
        self._meter = meter

    def execute(self, sql: str, *arguments: Any) -> Fetched:
        cursor = self._connection.execute(sql, *arguments)
        rows = cursor.fetchall()
        self._meter.count(rows)
        return Fetched(rows, cursor.description)

    async def fetch(self, sql: str, *arguments: Any) -> Any:
        rows = await self._connection.fetch(sql, *arguments)
        self._meter.count(rows)
        return rows

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)


@asynccontextmanager
async def measured(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Meter]:
    """Count the statements that the block executes and the rows that they return."""
    meter = Meter()
    with monkeypatch.context() as patch:
        for session in (SqliteSession, PostgresSession):
            patch.setattr(session, "__init__", _metering(session.__init__, meter))
        yield meter


def _metering(make: Any, meter: Meter) -> Any:
    def made(self: Any, connection: Any, *arguments: Any, **named: Any) -> None:
        make(self, Metered(connection, meter), *arguments, **named)

    return made


async def deliver(engine: Engine, wait: Wait, number: int) -> None:
    for _ in range(number):
        await engine.signals.deliver(wait.token(), "noise")


async def test_delivery_costs_the_same_after_many_signals(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, size: Size
) -> None:
    wait = await suspended(engine, ["go"], Single("go", "approved"))
    number = size.of(60, 5000, 5000)
    costs = []
    for _ in range(2):
        async with measured(monkeypatch) as meter:
            await deliver(engine, wait, number)
        costs.append((meter.statements, meter.rows))
    assert costs[0] == costs[1]
    assert number < costs[0][0] < 20 * number, "the meter counts the statements, and only a few for each signal"


async def test_counted_signals_are_bounded_by_the_condition(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, size: Size
) -> None:
    wait = await suspended(engine, ["go", "end"], Count(3, "sources", ["go", "end"]))
    number = size.of(40, 1000, 1000)
    costs = []
    for _ in range(2):
        async with measured(monkeypatch) as meter:
            await deliver(engine, wait, number)
        costs.append(meter.rows)
    assert costs[1] - costs[0] == 1, "only the first signal of a source counts, and only this one is read later"


async def test_wait_reads_no_signals_of_waitpoints_it_does_not_bind(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    await engine.keys.rotate("k1")
    costs = []
    for buffered in (0, 40):
        lease = await leased(engine, signals=["mail"])
        for _ in range(buffered):
            await engine.signals.send(lease.execution_id, "mail")
        async with measured(monkeypatch) as meter:
            await suspended(engine, ["go"], lease=lease)
        costs.append(meter.rows)
    assert costs[0] == costs[1]


async def test_listed_signals_are_those_that_counted(engine: Engine, store: TestStore) -> None:
    wait = await suspended(engine, ["go"], Single("go", "approved"))
    await deliver(engine, wait, 50)
    await engine.signals.deliver(wait.token(), "approved")
    assert [signal.seq for signal in await engine.signals.list(wait.id)] == [51]
    assert len(await engine.signals.list(wait.id, include_unmatched=True)) == 51
