"""Approvals without a decision in time: the function gets `TimedOut`, or the engine ends the execution."""

from __future__ import annotations

from datetime import timedelta

import pytest

from flowfabric import (
    App,
    Approved,
    ExecutionCancelled,
    ExecutionExpired,
    ExecutionFailed,
    NotFound,
    Rejected,
    TimedOut,
    approval,
    gather,
    sleep,
    step,
)
from flowfabric.engine import State
from flowfabric.testing import Kit

Outcome = Approved | Rejected | TimedOut


async def test_timed_out_contains_the_decisions_so_far(app: App, kit: Kit) -> None:
    outcomes: list[Outcome] = []

    @app.task
    async def task() -> None:
        outcomes.append(await approval("refund", by=["ops", "finance"], timeout="1d"))
        await sleep("1h")

    handle = await kit.start(task)
    due = kit.now() + timedelta(days=1)
    await kit.approve(handle, "refund", by="ops")
    await kit.finish(handle)

    outcome, replayed_outcome = outcomes
    assert outcome == replayed_outcome
    assert isinstance(outcome, TimedOut)
    assert outcome.at == due
    assert [decision.by for decision in outcome.decisions] == ["ops"]


async def test_decision_after_the_timeout_is_rejected(app: App, kit: Kit) -> None:
    @app.task
    async def task() -> str:
        outcome = await approval("refund", by="ops", timeout="1d")
        await sleep("1h")
        return type(outcome).__name__

    handle = await kit.start(task)
    await kit.advance(timedelta(hours=24, minutes=30))
    with pytest.raises(NotFound, match="no approval 'refund' is open for ops"):
        await kit.approve(handle, "refund", by="ops")

    assert await kit.finish(handle) == "TimedOut"


@pytest.mark.parametrize(
    ("on_timeout", "raised"),
    [("fail", ExecutionFailed), ("cancel", ExecutionCancelled), ("expire", ExecutionExpired)],
)
async def test_engine_ends_the_execution_on_timeout(
    app: App, kit: Kit, on_timeout: str, raised: type[Exception]
) -> None:
    @app.task
    async def task() -> None:
        await approval("refund", by="ops", timeout="1d", on_timeout=on_timeout)  # type: ignore[call-overload]

    with pytest.raises(raised):
        await kit.run(task)


async def test_escalated_approval_stays_open_after_its_timeout(app: App, kit: Kit) -> None:
    @app.task
    async def task() -> str:
        return type(await approval("refund", by="ops", timeout="1d", on_timeout="escalate")).__name__

    handle = await kit.start(task)
    await kit.advance("25h")
    assert (await handle.status()).state is State.SUSPENDED
    await kit.approve(handle, "refund", by="ops")

    assert await kit.finish(handle) == "Approved"


async def test_timeout_during_a_step_ends_the_execution_when_it_suspends(app: App, kit: Kit) -> None:
    async def work() -> None:
        kit.clock.advance(0.5)

    @app.task
    async def task() -> None:
        await gather(approval("refund", by="ops", timeout=0.1, on_timeout="fail"), step(work))

    with pytest.raises(ExecutionFailed, match="the wait timed out at "):
        await kit.run(task)


async def test_timeout_ends_the_execution_despite_other_waits(app: App, kit: Kit) -> None:
    @app.task
    async def task() -> None:
        await gather(approval("refund", by="ops", timeout="1d", on_timeout="cancel"), sleep("1h"), sleep("1000d"))

    handle = await kit.start(task)
    due = kit.now() + timedelta(days=1)

    with pytest.raises(ExecutionCancelled):
        await kit.finish(handle)
    assert kit.now() == due
