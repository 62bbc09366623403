"""Client methods inside tasks: durable calls in a function, automatic keys in a step."""

from __future__ import annotations

from uuid import UUID

import pytest

from flowfabric import (
    App,
    Cancelled,
    ExecutionFailed,
    Handle,
    Received,
    Signal,
    current,
    gather,
    step,
    sync,
    wait_signal,
)
from flowfabric.engine import Engine, State

go = Signal("go", int)


async def test_child_can_be_submitted_and_awaited_later(app: App) -> None:
    @app.task
    async def double(number: int) -> int:
        return 2 * number

    @app.task
    async def parent() -> int:
        child = await double.submit(4)
        return await child

    async with app.worker():
        assert await parent.run() == 8


async def test_submit_many_returns_children_in_order(app: App) -> None:
    @app.task
    async def double(number: int) -> int:
        return 2 * number

    @app.task
    async def parent() -> list[int]:
        handles = await app.submit_many([double.call(number) for number in range(5)])
        return list(await gather(*(handle.result() for handle in handles)))

    async with app.worker():
        assert await parent.run() == [0, 2, 4, 6, 8]


async def test_signal_sent_by_a_task_is_recorded(app: App, engine: Engine) -> None:
    @app.task(signals=[go])
    async def waiting() -> int:
        received = await wait_signal(go)
        assert isinstance(received, Received)
        return received.value

    @app.task
    async def sender(other: Handle[int]) -> int:
        await other.signal(go, 3)
        return await other

    async with app.worker():
        other = await waiting.submit()
        handle = await sender.submit(other)
        assert await handle == 3
        assert await other == 3
    assert "send:go" in [step_record.name for step_record in await engine.executions.steps(handle.id)]


async def test_cancel_by_a_task_is_recorded(app: App, engine: Engine) -> None:
    @app.task(signals=[go])
    async def waiting() -> None:
        await wait_signal(go)

    @app.task
    async def parent() -> str:
        child = await waiting.submit()
        await child.cancel("enough")
        outcome = await child.outcome()
        assert isinstance(outcome, Cancelled)
        return outcome.reason

    async with app.worker():
        handle = await parent.submit()
        assert await handle == "enough"
    assert "cancel" in [step_record.name for step_record in await engine.executions.steps(handle.id)]


async def test_submit_in_a_step_has_the_same_key_in_every_try(app: App) -> None:
    ids: list[UUID] = []

    @app.task
    async def other(number: int) -> int:
        return number

    async def order() -> int:
        handle = await other.submit(1)
        handles = await app.submit_many([other.call(2), other.call(3)])
        ids.extend([handle.id, *(each.id for each in handles)])
        if len(ids) <= 3:
            raise ConnectionError("the first try fails after it has submitted")
        return len(ids)

    @app.task
    async def parent() -> int:
        return await step.options(retries=1)(order)

    async with app.worker():
        assert await parent.run() == 6
    assert ids[:3] == ids[3:]
    assert len(set(ids)) == 3


async def test_step_cannot_wait_for_executions(app: App) -> None:
    @app.task
    async def other() -> int:
        return 1

    async def order() -> int:
        return await other.run()

    @app.task(retries=0)
    async def parent() -> int:
        return await step(order)

    async with app.worker():
        with pytest.raises(ExecutionFailed, match="a step cannot contain durable calls"):
            await parent.run()


async def test_flow_submitted_by_a_task_is_submitted_once(app: App, engine: Engine) -> None:
    @app.task
    async def pick(field: str) -> int:
        return len(field)

    @app.task
    async def add_up(baskets: list[int]) -> int:
        return sum(baskets)

    @app.task
    async def harvest() -> int:
        flow = app.flow("harvest")
        total = flow.add(add_up, [flow.add(pick, field).result for field in ("north", "south")])
        handle = await flow.submit()
        return await handle[total]

    async with app.worker():
        assert await harvest.run() == 10
    assert [flow.name for flow in (await engine.flows.list()).items if not flow.implicit] == ["harvest"]


async def test_plain_function_uses_the_sync_client(app: App) -> None:
    @app.task
    def double(number: int) -> int:
        return 2 * number

    @app.task
    def parent(number: int) -> list[int]:
        child = double.sync.submit(number)
        handles = app.sync.submit_many([double.call(5), double.call(6)])
        first, second = sync.gather(lambda: sync.step(abs, -3), lambda: double.sync.run(7))
        sync.sleep(0.01)
        return [child.result(), *(handle.result() for handle in handles), first, second]

    async with app.worker():
        assert await parent.run(4) == [8, 10, 12, 3, 14]


async def test_plain_function_in_a_step_submits_with_a_key(app: App) -> None:
    @app.task
    def other() -> str:
        return current().kind

    def order() -> UUID:
        return other.sync.submit().id

    @app.task
    def parent() -> UUID:
        return sync.step(order)

    async with app.worker():
        id_ = await parent.run()
    assert (await app.handle(id_).status()).state in (State.WAITING, State.ACTIVE, State.COMPLETED)


async def test_plain_saga_compensates_newest_first(app: App) -> None:
    undone: list[str] = []

    def undo(part: str) -> None:
        undone.append(part)

    @app.task(retries=0)
    def trip() -> None:
        with sync.saga() as saga:
            for part in ("flight", "hotel"):
                saga.add(undo, part)
            raise ValueError("no car")

    async with app.worker():
        with pytest.raises(ExecutionFailed, match="no car"):
            await trip.run()
    assert undone == ["hotel", "flight"]


async def test_call_of_the_wrong_kind_raises(app: App) -> None:
    @app.task(retries=0)
    def plain() -> None:
        _ = step(abs, -1)

    @app.task(retries=0)
    async def asynchronous() -> int:
        return sync.step(abs, -1)

    async with app.worker():
        with pytest.raises(ExecutionFailed, match=r"flowfabric\.sync"):
            await plain.run()
        with pytest.raises(ExecutionFailed, match="await"):
            await asynchronous.run()
