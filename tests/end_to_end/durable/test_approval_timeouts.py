"""Approvals that nobody decides in time: the function is told, or the engine ends the execution."""

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

Answer = Approved | Rejected | TimedOut


async def test_a_timeout_tells_the_decisions_so_far(app: App, kit: Kit) -> None:
    seen: list[Answer] = []

    @app.task
    async def task() -> None:
        seen.append(await approval("refund", by=["ops", "finance"], timeout="1d"))
        await sleep("1h")

    handle = await kit.start(task)
    due = kit.now() + timedelta(days=1)
    await kit.approve(handle, "refund", by="ops")
    await kit.finish(handle)

    answer, again = seen
    assert answer == again
    assert isinstance(answer, TimedOut)
    assert answer.at == due
    assert [item.by for item in answer.decisions] == ["ops"]


async def test_a_decision_after_the_timeout_is_refused(app: App, kit: Kit) -> None:
    @app.task
    async def task() -> str:
        answer = await approval("refund", by="ops", timeout="1d")
        await sleep("1h")
        return type(answer).__name__

    handle = await kit.start(task)
    await kit.advance(timedelta(hours=24, minutes=30))
    with pytest.raises(NotFound, match="nobody asks ops for 'refund' now"):
        await kit.approve(handle, "refund", by="ops")

    assert await kit.finish(handle) == "TimedOut"


@pytest.mark.parametrize(
    ("on_timeout", "raised"),
    [("fail", ExecutionFailed), ("cancel", ExecutionCancelled), ("expire", ExecutionExpired)],
)
async def test_the_engine_ends_an_execution_on_timeout(
    app: App, kit: Kit, on_timeout: str, raised: type[Exception]
) -> None:
    @app.task
    async def task() -> None:
        await approval("refund", by="ops", timeout="1d", on_timeout=on_timeout)  # type: ignore[call-overload]

    with pytest.raises(raised):
        await kit.run(task)


async def test_an_escalated_approval_is_left_to_an_operator(app: App, kit: Kit) -> None:
    @app.task
    async def task() -> str:
        return type(await approval("refund", by="ops", timeout="1d", on_timeout="escalate")).__name__

    handle = await kit.start(task)
    await kit.advance("25h")
    assert (await handle.status()).state is State.SUSPENDED
    await kit.approve(handle, "refund", by="ops")

    assert await kit.finish(handle) == "Approved"


async def test_what_is_due_meanwhile_ends_the_execution_as_soon_as_it_rests(app: App, kit: Kit) -> None:
    async def work() -> None:
        kit.clock.advance(0.5)

    @app.task
    async def task() -> None:
        await gather(approval("refund", by="ops", timeout=0.1, on_timeout="fail"), step(work))

    with pytest.raises(ExecutionFailed, match="nothing ended the wait before its timeout"):
        await kit.run(task)


async def test_a_timeout_ends_the_execution_beside_other_waits(app: App, kit: Kit) -> None:
    @app.task
    async def task() -> None:
        await gather(approval("refund", by="ops", timeout="1d", on_timeout="cancel"), sleep("1h"), sleep("1000d"))

    handle = await kit.start(task)
    due = kit.now() + timedelta(days=1)

    with pytest.raises(ExecutionCancelled):
        await kit.finish(handle)
    assert kit.now() == due
