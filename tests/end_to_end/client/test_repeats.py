"""A call of the SDK has one effect, even if the reply is lost and the caller repeats it with the id in the error."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest

from flowfabric import App, Handle, InvalidRequest, Signal, Unavailable, step
from flowfabric.engine import Engine
from tests.faults.kit.replies import Losing, lose_each, losing_engine
from tests.scenarios import early, leased
from tests.stores import TestStore

GO = Signal("go", int)


def adopt(app: App, engine: Engine, losing: Losing, retry_for_s: float = 0.05) -> None:
    """Let the app use an engine that loses calls."""
    lossy, _ = losing_engine(engine, losing)
    app.engines.adopt(Engine(replace(lossy._context, retry_for_s=retry_for_s)))


async def count(store: TestStore, table: str) -> int:
    return len(await store.query(f"SELECT 1 FROM ff.{table}"))


def add_task(app: App) -> Any:
    @app.task(signals=[GO])
    async def order(n: int) -> int:
        return n

    return order


@pytest.mark.parametrize("lost", ["request", "reply"])
async def test_submit_repeated_with_the_id_of_its_error_stores_one_execution(
    app: App, engine: Engine, store: TestStore, lost: str
) -> None:
    order = add_task(app)
    adopt(app, engine, lambda: lost)
    with pytest.raises(Unavailable) as raised:
        await order.submit(1)
    app.engines.adopt(engine)
    handle = await order.options(id=raised.value.fields["id"]).submit(1)
    assert handle.id == raised.value.fields["id"]
    assert await count(store, "execution") == 1


async def test_submit_many_repeated_with_the_ids_of_its_errors_stores_each_execution_once(
    app: App, engine: Engine, store: TestStore
) -> None:
    order = add_task(app)
    adopt(app, engine, lambda: "reply")
    with pytest.raises(ExceptionGroup) as raised:
        await app.submit_many([order.call(n) for n in range(3)])
    ids = [error.fields["id"] for error in raised.value.exceptions if isinstance(error, Unavailable)]
    app.engines.adopt(engine)
    handles = await app.submit_many([order.options(id=id_).call(n) for n, id_ in enumerate(ids)])
    assert [handle.id for handle in handles] == ids
    assert await count(store, "execution") == 3


async def test_signal_repeated_with_the_id_of_its_error_is_stored_once(
    app: App, engine: Engine, store: TestStore
) -> None:
    handle: Handle[int] = await add_task(app).submit(1)
    adopt(app, engine, lambda: "reply")
    with pytest.raises(Unavailable) as raised:
        await handle.signal(GO, 1)
    app.engines.adopt(engine)
    await handle.signal(GO, 1, signal_id=raised.value.fields["signal_id"])
    assert await count(store, "signal") == 1


async def test_token_signal_repeated_with_the_id_of_its_error_is_stored_once(
    app: App, engine: Engine, store: TestStore
) -> None:
    token = (await early(engine, await leased(engine))).reveal()
    adopt(app, engine, lambda: "reply")
    with pytest.raises(Unavailable) as raised:
        await app.signal(token, "paid", 7)
    app.engines.adopt(engine)
    await app.signal(token, "paid", 7, signal_id=raised.value.fields["signal_id"])
    assert await count(store, "signal") == 1


async def test_flow_repeated_with_the_id_of_its_error_is_stored_once(
    app: App, engine: Engine, store: TestStore
) -> None:
    order = add_task(app)
    flow = app.flow("orders")
    flow.add(order, 1)
    adopt(app, engine, lambda: "reply")
    with pytest.raises(Unavailable) as raised:
        await flow.submit()
    app.engines.adopt(engine)
    handle = await flow.submit(id=raised.value.fields["id"])
    assert handle.id == raised.value.fields["id"]
    assert (await count(store, "flow"), await count(store, "execution")) == (1, 1)


CALLS: dict[str, Callable[[App, Any], Any]] = {
    "submit": lambda app, order: order.submit(1),
    "submit_many": lambda app, order: app.submit_many([order.call(1)]),
}


@pytest.mark.parametrize("name", CALLS)
async def test_engine_repeats_a_lost_submit(app: App, engine: Engine, store: TestStore, name: str) -> None:
    order = add_task(app)
    adopt(app, engine, lose_each("reply", "request", "reply"), retry_for_s=5)
    await CALLS[name](app, order)
    assert await count(store, "execution") == 1


async def test_engine_repeats_a_lost_signal(app: App, engine: Engine, store: TestStore) -> None:
    handle: Handle[int] = await add_task(app).submit(1)
    adopt(app, engine, lose_each("reply", "request", "reply"), retry_for_s=5)
    await handle.signal(GO, 1)
    assert await count(store, "signal") == 1


async def test_token_signal_of_a_retried_step_is_delivered_once(app: App, engine: Engine, store: TestStore) -> None:
    token, tries = (await early(engine, await leased(engine))).reveal(), list[int]()

    async def pay(token: str) -> None:
        await app.signal(token, "paid", 7)
        tries.append(1)
        if len(tries) == 1:
            raise ConnectionError("after the signal")

    @app.task
    async def shop(token: str) -> None:
        await step.options(retries=1)(pay, token)

    async with app.worker():
        await shop.run(token)
    assert len(tries) == 2
    assert await count(store, "signal") == 1


async def test_children_and_flow_members_refuse_an_id(app: App) -> None:
    order, id_ = add_task(app), UUID(int=7 << 96 | 7 << 76 | 2 << 62)
    with pytest.raises(InvalidRequest):
        app.flow("orders").add(order.options(id=id_), 1)

    @app.task
    async def parent() -> str:
        try:
            await order.options(id=id_).submit(1)
        except InvalidRequest as error:
            return error.message
        return "stored"

    async with app.worker():
        assert "derived from their parent" in await parent.run()


@pytest.mark.parametrize("bad", ["no id", 7])
def test_malformed_id_is_refused(bad: Any) -> None:
    with pytest.raises(InvalidRequest):
        add_task(App("never-opened.db")).options(id=bad)
