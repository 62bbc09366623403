"""glance: where executions are, by reads that callers share."""

from __future__ import annotations

import asyncio

import pytest

from flowfabric.engine import Engine, NotFound, State
from tests.stores import TestStore


async def test_a_glance_at_waiting_work_has_no_outcome(engine: Engine) -> None:
    submitted = await engine.executions.submit("k")
    seen = await engine.executions.glance(submitted.id)
    assert (seen.state, seen.outcome) == (State.WAITING, None)


async def test_a_glance_at_ended_work_has_the_outcome_that_result_gives(engine: Engine) -> None:
    submitted = await engine.executions.submit("k")
    [lease] = await engine.leases.claim(["default"], "w")
    await engine.leases.complete(lease.fence, b"7")
    seen = await engine.executions.glance(submitted.id)
    assert seen.outcome == await engine.executions.result(submitted.id)


async def test_the_detail_of_a_failure_is_part_of_the_outcome(engine: Engine) -> None:
    submitted = await engine.executions.submit("k")
    [lease] = await engine.leases.claim(["default"], "w")
    await engine.leases.fail(lease.fence, "no", failure_class="permanent", detail=b'{"why": 1}')
    seen = (await engine.executions.glance(submitted.id)).outcome
    told = await engine.executions.result(submitted.id)
    assert seen is not None and seen.failure is not None
    assert seen.failure.detail == b'{"why": 1}'
    assert seen == told


async def test_held_work_says_why(engine: Engine) -> None:
    submitted = await engine.executions.submit("k")
    await engine.operator.hold(submitted.id, "look at it")
    seen = await engine.executions.glance(submitted.id)
    assert (seen.state, seen.hold_reason) == (State.BLOCKED, "look at it")


async def test_what_is_not_there_is_not_found_and_spoils_nothing_for_others(engine: Engine) -> None:
    submitted = await engine.executions.submit("k")
    missing = "01900000-0000-7000-8000-000000000000"
    found = await asyncio.gather(
        engine.executions.glance(submitted.id), engine.executions.glance(missing), return_exceptions=True
    )
    assert not isinstance(found[0], BaseException)
    assert isinstance(found[1], NotFound)


async def test_another_namespace_sees_nothing(engine: Engine) -> None:
    submitted = await engine.executions.submit("k")
    with pytest.raises(NotFound):
        await engine.within("other").executions.glance(submitted.id)


async def test_callers_at_once_share_few_reads(engine: Engine, store: TestStore) -> None:
    ids = [(await engine.executions.submit("k")).id for _ in range(20)]
    reads = 0
    read_single = engine._context.store.read_single

    async def counted(body):  # type: ignore[no-untyped-def]
        nonlocal reads
        reads += 1
        return await read_single(body)

    engine._context.store.read_single = counted  # type: ignore[method-assign]
    found = await asyncio.gather(*(engine.executions.glance(id_) for id_ in ids))
    assert len(found) == 20
    assert reads <= 2
