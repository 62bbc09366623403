"""Tests of engine.held_work, which groups the held executions for doctor and for a worker that starts."""

from __future__ import annotations

import pytest

from flowfabric.engine import Engine, HeldWork
from flowfabric.ops.executions import read
from tests.scenarios import leased

REPORT = "refund: the code no longer matches the journal\n> 1 sleep                       audit"


async def hold_by_worker(engine: Engine, kind: str, reason: str = "diverged") -> None:
    lease = await leased(engine, kind=kind)
    await engine.leases.hold(lease.fence, reason, REPORT)


async def test_held_work_is_grouped_by_kind_and_reason_with_the_report_of_the_oldest(engine: Engine) -> None:
    for kind in ("refund", "order", "refund"):
        await hold_by_worker(engine, kind)
    stopped = await engine.executions.submit("order")
    await engine.operator.hold(stopped.id, "incident")
    await hold_by_worker(engine.for_namespace("other"), "refund")
    await engine.executions.submit("order")

    held = await engine.held_work()

    assert [(each.kind, each.reason, each.number.value) for each in held] == [
        ("order", "diverged", 1),
        ("order", "incident", 1),
        ("refund", "diverged", 2),
    ]
    assert [each.report for each in held] == [REPORT, None, REPORT]
    assert held[1].first == stopped.id
    assert all(each.number.is_exact for each in held)


async def test_unheld_and_ended_work_is_not_held_work(engine: Engine) -> None:
    for _ in range(2):
        await hold_by_worker(engine, "refund")
    [held] = await engine.held_work()
    await engine.operator.unhold(held.first)
    [left] = await engine.held_work()
    await engine.operator.cancel(left.first)
    assert await engine.held_work() == []


async def test_held_work_is_bounded(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read, "MAX_EXACT_BACKLOG", 2)
    monkeypatch.setattr(read, "MAX_HELD_GROUPS", 2)
    for number, kind in enumerate(["a", "a", "a", "b", "c"]):
        execution = await engine.executions.submit(kind)
        await engine.operator.hold(execution.id, "x" * 16_000 if number == 0 else "")
    held = await engine.held_work()
    assert all(isinstance(each, HeldWork) for each in held)
    assert [(each.kind, each.number.value, each.number.is_exact) for each in held] == [("a", 2, False), ("a", 1, False)]
