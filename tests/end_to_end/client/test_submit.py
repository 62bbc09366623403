"""Submitting executions from outside of tasks."""

from __future__ import annotations

import contextlib
import json
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import pytest

from flowfabric import App, InvalidRequest, Signal
from flowfabric.engine import Conflict, Engine, State
from tests.callers import ON_POSTGRES, ON_SQLITE, make_table
from tests.end_to_end.client.manual_worker import complete
from tests.stores import TestStore


@dataclass
class Order:
    id: str


async def test_submitted_execution_waits_with_its_input_and_options(app: App, engine: Engine) -> None:
    @app.task(lane="slow")
    async def refund(order: Order) -> str:
        return order.id

    handle = await refund.options(tags={"team.owner": "me"}, priority=3, creator="ann").submit(Order("a"))
    execution = await engine.executions.describe(handle.id)
    assert (execution.kind, execution.state, execution.lane, execution.priority) == ("refund", State.WAITING, "slow", 3)
    assert json.loads(execution.payload) == {"order": {"id": "a"}}
    assert (execution.tags, execution.creator) == ({"team.owner": "me"}, "ann")


async def test_submit_with_a_key_is_idempotent(app: App) -> None:
    @app.task
    async def job(number: int) -> int:
        return number

    first = await job.options(key="k").submit(1)
    assert await job.options(key="k").submit(1) == first
    with pytest.raises(Conflict, match="key 'k'"):
        _ = await job.options(key="k").submit(2)


async def test_delay_and_start_time_are_stored(app: App) -> None:
    @app.task
    async def job() -> None: ...

    at = datetime.now(UTC) + timedelta(hours=1)
    assert (await (await job.options(at=at).submit()).status()).ready_at == at
    assert (await (await job.options(delay="1h").submit()).status()).state is State.DELAYED


async def test_submit_many_stores_batches_in_order(app: App, engine: Engine) -> None:
    @app.task
    async def square(number: int) -> int:
        return number * number

    handles = await app.submit_many(square.call(number) for number in range(1100))
    assert len({handle.id for handle in handles}) == 1100
    executions = [await engine.executions.describe(handle.id) for handle in (handles[0], handles[1050])]
    assert [json.loads(execution.payload) for execution in executions] == [{"number": 0}, {"number": 1050}]


async def test_submit_many_accepts_calls_with_keys_and_signals(app: App) -> None:
    go = Signal("go", int)

    @app.task(signals=[go])
    async def waiting() -> None: ...

    @app.task
    async def job(number: int) -> None: ...

    calls = [waiting.call(), job.options(key="k").call(1), job.options(key="k").call(1), job.call(3)]
    handles = await app.submit_many(calls)
    assert handles[1] == handles[2]
    assert len(set(handles)) == 3


async def test_submit_many_raises_all_rejections_together(app: App) -> None:
    @app.task
    async def job(number: int) -> None: ...

    _ = await job.options(key="k").submit(1)
    with pytest.raises(ExceptionGroup, match="1 of 2 calls were refused"):
        await app.submit_many([job.call(5), job.options(key="k").call(2)])
    with pytest.raises(InvalidRequest, match=r"task\.call"):
        await app.submit_many([job])  # type: ignore[arg-type]


async def test_submit_in_a_transaction_commits_and_rolls_back_with_it(
    app: App, engine: Engine, store: TestStore
) -> None:
    @app.task
    async def job(number: int) -> None: ...

    await make_table(store)
    for open_caller in (ON_SQLITE if store.name == "sqlite" else ON_POSTGRES).values():
        async with open_caller(store, engine) as caller:
            kept = await job.options(connection=caller.connection).submit(1)
            await caller.commit()
            lost = await job.options(connection=caller.connection).submit(2)
            await caller.rollback()
        assert (await kept.status()).state is State.WAITING
        with contextlib.suppress(Exception):
            raise AssertionError(f"the rolled back execution exists: {await lost.status()}")


async def test_run_submits_and_waits_for_the_result(app: App, engine: Engine) -> None:
    import asyncio

    @app.task
    async def double(number: int) -> int:
        return 2 * number

    running = asyncio.ensure_future(double.options(key="k").run(2))
    handle = await double.options(key="k").submit(2)
    await complete(engine, handle.id, 4)
    assert await running == 4


async def test_newest_version_is_submitted(app: App, engine: Engine) -> None:
    @app.task(name="refund")
    async def old(order: str) -> str:
        return order

    @app.task(name="refund", version=2)
    async def new(order: str, fast: bool = False) -> int:
        return 1

    handle = await old.submit("a")
    assert (await handle.status()).kind == "refund@2"
    await complete(engine, handle.id, 7)
    assert await handle == 7  # type: ignore[comparison-overlap]
