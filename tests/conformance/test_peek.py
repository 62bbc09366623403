"""Tests of peek, which returns the states of executions; concurrent calls share one read."""

from __future__ import annotations

import asyncio

import pytest

from flowfabric.engine import Engine, NotFound, State
from tests.stores import TestStore


async def test_peek_at_waiting_work_has_no_outcome(engine: Engine) -> None:
    submitted = await engine.executions.submit("k")
    snapshot = await engine.executions.peek(submitted.id)
    assert (snapshot.state, snapshot.outcome) == (State.WAITING, None)


async def test_peek_at_ended_work_has_the_same_outcome_as_result(engine: Engine) -> None:
    submitted = await engine.executions.submit("k")
    [lease] = await engine.leases.claim(["default"], "w")
    await engine.leases.complete(lease.fence, b"7")
    snapshot = await engine.executions.peek(submitted.id)
    assert snapshot.outcome == await engine.executions.result(submitted.id)


async def test_outcome_includes_the_detail_of_a_failure(engine: Engine) -> None:
    submitted = await engine.executions.submit("k")
    [lease] = await engine.leases.claim(["default"], "w")
    await engine.leases.fail(lease.fence, "no", failure_class="permanent", detail=b'{"why": 1}')
    outcome = (await engine.executions.peek(submitted.id)).outcome
    result = await engine.executions.result(submitted.id)
    assert outcome is not None and outcome.failure is not None
    assert outcome.failure.detail == b'{"why": 1}'
    assert outcome == result


async def test_peek_at_held_work_has_the_hold_reason(engine: Engine) -> None:
    submitted = await engine.executions.submit("k")
    await engine.operator.hold(submitted.id, "look at it")
    snapshot = await engine.executions.peek(submitted.id)
    assert (snapshot.state, snapshot.hold_reason) == (State.BLOCKED, "look at it")


async def test_missing_execution_does_not_affect_other_peeks(engine: Engine) -> None:
    submitted = await engine.executions.submit("k")
    missing = "01900000-0000-7000-8000-000000000000"
    snapshots = await asyncio.gather(
        engine.executions.peek(submitted.id), engine.executions.peek(missing), return_exceptions=True
    )
    assert not isinstance(snapshots[0], BaseException)
    assert isinstance(snapshots[1], NotFound)


async def test_execution_of_another_namespace_is_not_found(engine: Engine) -> None:
    submitted = await engine.executions.submit("k")
    with pytest.raises(NotFound):
        await engine.for_namespace("other").executions.peek(submitted.id)


async def test_concurrent_peeks_share_few_reads(engine: Engine, store: TestStore) -> None:
    ids = [(await engine.executions.submit("k")).id for _ in range(20)]
    reads = 0
    read_single = engine._context.store.read_single

    async def count_read(body):  # type: ignore[no-untyped-def]
        nonlocal reads
        reads += 1
        return await read_single(body)

    engine._context.store.read_single = count_read  # type: ignore[method-assign]
    snapshots = await asyncio.gather(*(engine.executions.peek(id_) for id_ in ids))
    assert len(snapshots) == 20
    assert reads <= 2
