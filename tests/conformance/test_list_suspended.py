"""list_suspended: what is suspended and what it waits for, page by page."""

from __future__ import annotations

from flowfabric.engine import (
    Engine,
    SuspensionReason,
)  # fmt: skip
from flowfabric.testing import VirtualClock
from tests.scenarios import SITUATIONS, suspended


async def test_only_what_is_suspended_is_listed(engine: Engine, clock: VirtualClock) -> None:
    made = {situation: await make(engine, clock) for situation, make in SITUATIONS.items()}
    listed = await engine.waitpoints.list_suspended()
    assert [item.execution_id for item in listed] == [made["suspended"]]
    assert [item.missing for item in listed] == [("any signal on 'go'",)]


async def test_what_is_suspended_comes_page_by_page_in_its_namespace(engine: Engine) -> None:
    waits = [await suspended(engine, reason="manual_pause") for _ in range(5)]
    await suspended(engine.within("other"))
    first = await engine.waitpoints.list_suspended(limit=2)
    # A row that goes away meanwhile does not disturb the order.
    await engine.signals.deliver(waits[1].token(), "go")
    second = await engine.waitpoints.list_suspended(after=first[-1].execution_id, limit=2)
    third = await engine.waitpoints.list_suspended(after=second[-1].execution_id, limit=2)
    seen = [item.execution_id for item in (*first, *second, *third)]
    assert seen == sorted(wait.id for wait in waits)
    assert {item.reason for item in first} == {SuspensionReason.MANUAL_PAUSE}
