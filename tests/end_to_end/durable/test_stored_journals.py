"""Journals that an earlier version stored: today's code replays them, and runs no step again.

`stored_journals.json` has the records of `stored_program.py` as commit b32c743 wrote them, at each wait of the program.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from flowfabric import Handle
from flowfabric.core.executions.requests import Step, StepStatus
from flowfabric.engine import State, WorkerId, view_step
from flowfabric.testing import Kit
from tests.end_to_end.durable import stored_program
from tests.end_to_end.durable.kits import kit_on
from tests.end_to_end.durable.stored_program import app, order
from tests.stores import TestStore

STORED = json.loads(Path(__file__).with_name("stored_journals.json").read_text(encoding="utf-8"))
POINTS = list(STORED["journals"])


@pytest.fixture(autouse=True)
def no_calls() -> None:
    """Clear the list of called functions, which an earlier test may have filled."""
    stored_program.called.clear()


@pytest.mark.parametrize("point", POINTS[:-1])
async def test_journal_of_a_waiting_execution_replays_and_waits_again(store: TestStore, point: str) -> None:
    steps = _records_until(point)
    async with kit_on(store, app) as kit:
        handle = await _restore(kit, steps)
        await kit.work()
        status = await handle.status()
        assert status.state in (State.SUSPENDED, State.DELAYED), status.hold_report
        assert stored_program.called == []
        assert await _journal(kit, handle) == steps


async def test_journal_of_an_ended_execution_replays_to_the_same_result(store: TestStore) -> None:
    steps = _records_until("end")
    async with kit_on(store, app) as kit:
        handle = await _restore(kit, steps)
        await kit.work()
        assert await handle == STORED["result"]
        assert stored_program.called == []
        assert await _journal(kit, handle) == steps


async def test_step_that_an_earlier_version_was_retrying_continues_its_tries(store: TestStore) -> None:
    stored_program.called.append("flaky")  # The earlier version made the first try.
    async with kit_on(store, app) as kit:
        handle = await _restore(kit, _records_until("retry"))
        await kit.work()
        await kit.advance("30m")
        [retried] = [view_step(row) for row in await kit.engine.executions.steps(handle.id) if row.name == "fail_twice"]
    assert (retried.status, retried.value, retried.tries) == ("ok", b"3", 3)
    assert str(retried.error) == "ConnectionError: not yet"
    assert retried.started_at is not None


async def test_view_of_a_step_of_an_earlier_version_has_no_times(store: TestStore) -> None:
    async with kit_on(store, app) as kit:
        handle = await _restore(kit, _records_until("end"))
        views = {row.name: view_step(row) for row in await kit.engine.executions.steps(handle.id)}
    assert (views["note"].value, views["note"].kind, views["note"].tries) == (b'"O-17"', "step", 1)
    assert {(view.started_at, view.took) for view in views.values()} == {(None, None)}
    assert str(views["reserve"].error) == "NoSeats: 2"


def _records_until(point: str) -> list[Step]:
    """Return the complete journal that the program had stored when it reached this wait."""
    journals = [STORED["journals"][name] for name in POINTS[: POINTS.index(point) + 1]]
    stored = {path: (status, payload) for journal in journals for path, status, payload in journal}
    return [Step(path, payload.encode(), status=StepStatus(status)) for path, (status, payload) in stored.items()]


async def _restore(kit: Kit, steps: list[Step]) -> Handle[Any]:
    """Store an execution with this journal and its consumed signals, as if a worker had just released its lease."""
    id_ = UUID(STORED["execution_id"])
    await kit.engine.executions.submit(replace(order.submission(("o-17",), {}), id=id_))
    for _ in range(max(_consumed_signals(step) for step in steps)):
        await kit.engine.signals.send(id_, "go", b"0")
    [lease] = await kit.engine.leases.claim(["default"], WorkerId("earlier", "earlier"), limit=1, lease_ttl=60)
    await kit.engine.leases.checkpoint(lease.fence, steps)
    await kit.engine.leases.release(lease.fence)
    return order.handle(id_)


def _consumed_signals(step: Step) -> int:
    """Return how many signals named `go` the execution had consumed when this record was stored."""
    [call, _] = json.loads(step.payload)
    consumed: int = call.get("facts", {}).get("used", {}).get("go", 0)
    return consumed


async def _journal(kit: Kit, handle: Handle[Any]) -> list[Step]:
    steps = await kit.engine.executions.steps(handle.id, limit=1_000)
    return [Step(step.name, step.payload, status=StepStatus(step.status)) for step in steps]
