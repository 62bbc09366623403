"""Flows submitted by a client: their members get the results of their upstreams."""

from __future__ import annotations

import pytest

from flowfabric import App, InputMismatch, InvalidRequest, Node
from flowfabric.engine import Engine, FlowState, State
from flowfabric.sdk.flow_inputs import filled_inputs
from flowfabric.sdk.flows import FlowHandle
from flowfabric.sdk.tasks import Task
from tests.end_to_end.client.working_by_hand import claimed, complete


class Etl:
    """The tasks that the flows are made of."""

    def __init__(self, app: App) -> None:
        @app.task
        async def extract(region: str) -> int:
            return len(region)

        @app.task
        async def total(parts: list[int], title: str = "sum") -> int:
            return sum(parts)

        self.extract = extract
        self.total: Task[..., int] = total


@pytest.fixture
def etl(app: App) -> Etl:
    return Etl(app)


async def arguments(engine: Engine, handle: FlowHandle, node: Node[int]) -> object:
    lease = await claimed(engine, handle[node].id)
    return node.task.inputs.unpack(await filled_inputs(engine, lease))


async def test_results_take_the_place_of_references(app: App, engine: Engine, etl: Etl) -> None:
    flow = app.flow("etl")
    a, b = flow.add(etl.extract, "eu"), flow.add(etl.extract, "us")
    both = flow.add(etl.total, [a.result, 5, b.result], title="all")
    handle = await flow.submit()
    await complete(engine, handle[b].id, 2)
    assert (await handle[both].status()).state is State.BLOCKED
    await complete(engine, handle[a].id, 1)
    assert await arguments(engine, handle, both) == (([1, 5, 2], "all"), {})


async def test_the_first_to_succeed_is_taken(app: App, engine: Engine, etl: Etl) -> None:
    flow = app.flow("etl")
    a, b = flow.add(etl.extract, "eu"), flow.add(etl.extract, "us")
    first = flow.add(etl.total, [flow.first(a, b, cancel_rest=False)])
    handle = await flow.submit()
    await complete(engine, handle[b].id, 2)
    await complete(engine, handle[a].id, 1)
    assert await arguments(engine, handle, first) == (([2], "sum"), {})


async def test_a_quorum_is_taken_in_the_order_of_its_ends(app: App, engine: Engine, etl: Etl) -> None:
    flow = app.flow("etl")
    a, b, c = (flow.add(etl.extract, where) for where in ("eu", "us", "asia"))
    quorum = flow.add(etl.total, flow.quorum(2, a, b, c))
    handle = await flow.submit()
    await complete(engine, handle[c].id, 3)
    await complete(engine, handle[a].id, 1)
    assert (await handle[b].status()).state is State.CANCELLED
    assert await arguments(engine, handle, quorum) == (([3, 1], "sum"), {})


async def test_results_that_do_not_fit_hold_the_member(app: App, engine: Engine, etl: Etl) -> None:
    flow = app.flow("etl")
    a = flow.add(etl.extract, "eu")
    after = flow.add(etl.total, [a.result])
    handle = await flow.submit()
    await complete(engine, handle[a].id, "many")
    with pytest.raises(InputMismatch):
        await arguments(engine, handle, after)


async def test_a_flow_is_waited_for_and_cancelled_as_a_whole(app: App, engine: Engine, etl: Etl) -> None:
    flow = app.flow("etl")
    a = flow.add(etl.extract, "eu")
    handle = await flow.submit()
    assert await handle.wait(0.01) is None
    await handle.cancel()
    assert await handle.wait() is FlowState.CANCELLED
    assert (await handle[a].status()).state is State.CANCELLED
    assert (await handle.status()).name == "etl"
    with pytest.raises(InvalidRequest, match="no member 'extract#2'"):
        _ = handle[flow.add(etl.extract, "us")]
