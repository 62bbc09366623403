"""Tests of list_suspended, which returns pages of suspended executions with their missing signals."""

from __future__ import annotations

from flowfabric.engine import (
    Engine,
    SuspensionReason,
)
from flowfabric.testing import VirtualClock
from tests.scenarios import SITUATIONS, submitted, suspended


async def test_only_suspended_executions_are_listed(engine: Engine, clock: VirtualClock) -> None:
    ids = {situation: await make(engine, clock) for situation, make in SITUATIONS.items()}
    suspensions = await engine.waitpoints.list_suspended()
    assert [suspension.execution_id for suspension in suspensions] == [ids["suspended"]]
    assert [suspension.missing for suspension in suspensions] == [('a signal on waitpoint "go"',)]


async def test_pages_are_in_id_order_and_limited_to_the_namespace(engine: Engine) -> None:
    waits = [await suspended(engine, reason="manual_pause") for _ in range(5)]
    await suspended(engine.for_namespace("other"))
    first = await engine.waitpoints.list_suspended(limit=2)
    # If an execution is resumed between two pages, the order of the others does not change.
    await engine.signals.deliver(waits[1].token(), "go")
    second = await engine.waitpoints.list_suspended(after=first[-1].execution_id, limit=2)
    third = await engine.waitpoints.list_suspended(after=second[-1].execution_id, limit=2)
    ids = [suspension.execution_id for suspension in (*first, *second, *third)]
    assert ids == sorted(wait.id for wait in waits)
    assert {suspension.reason for suspension in first} == {SuspensionReason.MANUAL_PAUSE}


async def test_cursor_skips_nothing_while_executions_are_resumed_and_cancelled(engine: Engine) -> None:
    waits = [await suspended(engine) for _ in range(4)]
    [first] = await engine.waitpoints.list_suspended(limit=1)
    await engine.signals.deliver(waits[0].token(), "go")
    await engine.operator.cancel(waits[3].id)
    rest = await engine.waitpoints.list_suspended(after=first.execution_id)
    assert [view.execution_id for view in rest] == sorted(wait.id for wait in waits[1:3])
    await submitted(engine)
    assert len(await engine.waitpoints.list_suspended()) == 2
