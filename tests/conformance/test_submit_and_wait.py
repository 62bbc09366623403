"""Tests of submit_and_wait, whose caller gets the outcome from the process that ends the execution."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from flowfabric.core.executions.views import StateSnapshot
from flowfabric.engine import Engine, Lease, State, Submission, Unavailable
from flowfabric.engine.context import Context
from flowfabric.ops.leases import complete
from flowfabric.ops.leases.read import PEEK
from flowfabric.ops.operation import Operation
from tests.stores import TestStore, opened


async def test_waiting_caller_gets_the_stored_outcome_without_a_read(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    call = Context.call

    async def call_without_news(self: Context, operation: Operation[Any, Any], request: Any) -> Any:
        if operation is PEEK:
            return StateSnapshot(State.ACTIVE, None, None)
        return await call(self, operation, request)

    monkeypatch.setattr(Context, "call", call_without_news)
    running = asyncio.create_task(engine.executions.submit_and_wait(Submission(kind="job"), _never))
    await engine.leases.complete((await _claim(engine)).fence, b"7", encoding="text")
    id_, snapshot = await asyncio.wait_for(running, 10)
    monkeypatch.undo()
    assert snapshot == await engine.executions.peek(id_)
    assert snapshot.outcome == await engine.executions.result(id_)


async def test_caller_gets_the_end_of_an_execution_with_waitpoints(engine: Engine) -> None:
    running = asyncio.create_task(engine.executions.submit_and_wait(Submission(kind="job", signals=["go"]), _never))
    await engine.leases.complete((await _claim(engine)).fence, b"7")
    id_, snapshot = await running
    assert snapshot == await engine.executions.peek(id_)


async def test_caller_gets_a_failed_outcome(engine: Engine) -> None:
    running = asyncio.create_task(engine.executions.submit_and_wait(Submission(kind="job"), _never))
    await engine.leases.fail((await _claim(engine)).fence, "broken", failure_class="permanent")
    id_, snapshot = await running
    assert snapshot.state is State.FAILED
    assert snapshot == await engine.executions.peek(id_)


async def test_repeated_submission_waits_for_the_first_one(engine: Engine) -> None:
    first = await engine.executions.submit("job", key="once")
    running = asyncio.create_task(engine.executions.submit_and_wait(Submission(kind="job", key="once"), _never))
    await engine.leases.complete((await _claim(engine)).fence, b"7")
    id_, snapshot = await running
    assert (id_, snapshot.state) == (first.id, State.COMPLETED)
    assert (await engine.executions.submit_and_wait(Submission(kind="job", key="once"), _never))[1] == snapshot


async def test_wait_ends_when_the_predicate_is_true(engine: Engine) -> None:
    _, snapshot = await engine.executions.submit_and_wait(
        Submission(kind="job"), lambda snapshot: snapshot.state is State.WAITING
    )
    assert snapshot == StateSnapshot(State.WAITING, None, None)


async def test_caller_gets_an_end_by_another_process(store: TestStore) -> None:
    async with opened(store) as waiter, opened(store) as worker:
        running = asyncio.create_task(waiter.executions.submit_and_wait(Submission(kind="job"), _never))
        await worker.leases.complete((await _claim(worker)).fence, b"7")
        id_, snapshot = await asyncio.wait_for(running, 10)
        assert snapshot == await worker.executions.peek(id_)


async def test_rolled_back_end_is_not_published(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    async def raise_unavailable(*_: object, **__: object) -> None:
        raise Unavailable("storage_busy", "the store did not respond")

    running = asyncio.create_task(engine.executions.submit_and_wait(Submission(kind="job", signals=["go"]), _never))
    lease = await _claim(engine)
    monkeypatch.setattr(complete, "signal_waiting", raise_unavailable)
    with pytest.raises(Unavailable):
        await engine.leases.complete(lease.fence, b"7")
    monkeypatch.undo()
    await asyncio.sleep(0.1)
    assert not running.done()
    await engine.leases.complete(lease.fence, b"8")
    _, snapshot = await running
    assert snapshot.outcome is not None and snapshot.outcome.result == b"8"


def _never(_: StateSnapshot) -> bool:
    return False


async def _claim(engine: Engine) -> Lease:
    while True:
        leases = await engine.leases.claim(["default"], "worker-1")
        if leases:
            return leases[0]
        await asyncio.sleep(0.01)
