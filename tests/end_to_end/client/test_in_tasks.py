"""The client's verbs where tasks use them: as durable calls in a function, with keys of their own in a step."""

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


async def test_a_child_is_submitted_and_awaited_later(app: App) -> None:
    @app.task
    async def double(number: int) -> int:
        return 2 * number

    @app.task
    async def parent() -> int:
        child = await double.submit(4)
        return await child

    async with app.worker():
        assert await parent.run() == 8


async def test_many_calls_are_children_in_their_order(app: App) -> None:
    @app.task
    async def double(number: int) -> int:
        return 2 * number

    @app.task
    async def parent() -> list[int]:
        handles = await app.submit_many([double.call(number) for number in range(5)])
        return list(await gather(*(handle.result() for handle in handles)))

    async with app.worker():
        assert await parent.run() == [0, 2, 4, 6, 8]


async def test_a_signal_sent_by_a_task_is_sent_once(app: App, engine: Engine) -> None:
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
    assert "send:go" in [item.name for item in await engine.executions.steps(handle.id)]


async def test_a_cancel_by_a_task_is_recorded(app: App, engine: Engine) -> None:
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
    assert "cancel" in [item.name for item in await engine.executions.steps(handle.id)]


async def test_what_a_step_submits_has_a_key_that_is_equal_in_every_try(app: App) -> None:
    submitted: list[UUID] = []

    @app.task
    async def other(number: int) -> int:
        return number

    async def order() -> int:
        handle = await other.submit(1)
        many = await app.submit_many([other.call(2), other.call(3)])
        submitted.extend([handle.id, *(item.id for item in many)])
        if len(submitted) <= 3:
            raise ConnectionError("the first try fails after it has submitted")
        return len(submitted)

    @app.task
    async def parent() -> int:
        return await step.options(retries=1)(order)

    async with app.worker():
        assert await parent.run() == 6
    assert submitted[:3] == submitted[3:]
    assert len(set(submitted)) == 3


async def test_a_step_does_not_wait_for_executions(app: App) -> None:
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


async def test_a_flow_submitted_by_a_task_is_submitted_once(app: App, engine: Engine) -> None:
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


async def test_a_plain_function_uses_the_sync_face(app: App) -> None:
    @app.task
    def double(number: int) -> int:
        return 2 * number

    @app.task
    def parent(number: int) -> list[int]:
        child = double.sync.submit(number)
        many = app.sync.submit_many([double.call(5), double.call(6)])
        first, second = sync.gather(lambda: sync.step(abs, -3), lambda: double.sync.run(7))
        sync.sleep(0.01)
        return [child.result(), *(item.result() for item in many), first, second]

    async with app.worker():
        assert await parent.run(4) == [8, 10, 12, 3, 14]


async def test_a_plain_function_in_a_step_submits_with_a_key(app: App) -> None:
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


async def test_a_plain_saga_is_undone_newest_first(app: App) -> None:
    undone: list[str] = []

    def undo(what: str) -> None:
        undone.append(what)

    @app.task(retries=0)
    def trip() -> None:
        with sync.saga() as saga:
            for what in ("flight", "hotel"):
                saga.add(undo, what)
            raise ValueError("no car")

    async with app.worker():
        with pytest.raises(ExecutionFailed, match="no car"):
            await trip.run()
    assert undone == ["hotel", "flight"]


async def test_the_wrong_colour_says_so(app: App) -> None:
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
