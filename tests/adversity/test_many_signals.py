"""Ten thousand signals cost ten thousand times one: what a delivery reads does not grow with those before it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

from flowfabric.backends.postgres.session import PostgresSession
from flowfabric.backends.sqlite.session import SqliteSession
from flowfabric.engine import Count, Engine, Single
from tests.scenarios import Wait, leased, suspended
from tests.stores import TestStore


class Meter:
    """Counts the statements that were run and the rows that they brought."""

    def __init__(self) -> None:
        self.statements = 0
        self.rows = 0


@asynccontextmanager
async def measured(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Meter]:
    """Counts what the block costs the store."""
    meter = Meter()
    with monkeypatch.context() as patch:
        for session in (SqliteSession, PostgresSession):
            for name in ("fetch", "fetch_each", "fetch_batch"):
                patch.setattr(session, name, _counting(getattr(session, name), meter))
        yield meter


def _counting(call: Any, meter: Meter) -> Any:
    async def counted(*arguments: Any, **named: Any) -> Sequence[Any]:
        found: Sequence[Any] = await call(*arguments, **named)
        meter.statements += 1
        meter.rows += len(found)
        return found

    return counted


async def deliver(engine: Engine, wait: Wait, number: int) -> None:
    for _ in range(number):
        await engine.signals.deliver(wait.token(), "noise")


async def test_a_delivery_costs_the_same_however_many_came_before(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, run_all: bool
) -> None:
    wait = await suspended(engine, ["go"], Single("go", "approved"))
    number = 5000 if run_all else 60
    costs = []
    for _ in range(2):
        async with measured(monkeypatch) as meter:
            await deliver(engine, wait, number)
        costs.append((meter.statements, meter.rows))
    assert costs[0] == costs[1]
    assert costs[0][0] < 20 * number, "the meter counts something, and not too much"


async def test_what_counts_is_bounded_by_the_condition(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, run_all: bool
) -> None:
    wait = await suspended(engine, ["go", "end"], Count(3, "sources", ["go", "end"]))
    number = 1000 if run_all else 40
    costs = []
    for _ in range(2):
        async with measured(monkeypatch) as meter:
            await deliver(engine, wait, number)
        costs.append(meter.rows)
    assert abs(costs[1] - costs[0]) <= 1, "only the first one counts, and is read from then on"


async def test_a_wait_does_not_read_what_came_to_waitpoints_that_it_does_not_bind(
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


async def test_the_observed_are_those_that_counted(engine: Engine, store: TestStore) -> None:
    wait = await suspended(engine, ["go"], Single("go", "approved"))
    await deliver(engine, wait, 50)
    await engine.signals.deliver(wait.token(), "approved")
    assert [signal.seq for signal in await engine.signals.observe(wait.id)] == [51]
    assert len(await engine.signals.observe(wait.id, include_unmatched=True)) == 51
