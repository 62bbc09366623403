"""Members of a flow receive the results of their upstream members."""

from __future__ import annotations

import pytest

from flowfabric import App, InputMismatch, InvalidRequest, Node
from flowfabric.app.flow import FlowHandle
from flowfabric.app.task import Task
from flowfabric.engine import Engine, FlowState, State
from flowfabric.runtime.flow_inputs import fill_inputs
from tests.end_to_end.client.manual_worker import claim, complete


class Etl:
    """The tasks of the flows."""

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


async def read_arguments(engine: Engine, handle: FlowHandle, node: Node[int]) -> object:
    lease = await claim(engine, handle[node].id)
    return node.task.inputs.unpack(await fill_inputs(engine, lease))


async def test_references_are_replaced_by_results(app: App, engine: Engine, etl: Etl) -> None:
    flow = app.flow("etl")
    a, b = flow.add(etl.extract, "eu"), flow.add(etl.extract, "us")
    both = flow.add(etl.total, [a.result, 5, b.result], title="all")
    handle = await flow.submit()
    await complete(engine, handle[b].id, 2)
    assert (await handle[both].status()).state is State.BLOCKED
    await complete(engine, handle[a].id, 1)
    assert await read_arguments(engine, handle, both) == (([1, 5, 2], "all"), {})


async def test_first_uses_the_first_success(app: App, engine: Engine, etl: Etl) -> None:
    flow = app.flow("etl")
    a, b = flow.add(etl.extract, "eu"), flow.add(etl.extract, "us")
    first = flow.add(etl.total, [flow.first(a, b, cancel_rest=False)])
    handle = await flow.submit()
    await complete(engine, handle[b].id, 2)
    await complete(engine, handle[a].id, 1)
    assert await read_arguments(engine, handle, first) == (([2], "sum"), {})


async def test_quorum_contains_results_in_order_of_completion(app: App, engine: Engine, etl: Etl) -> None:
    flow = app.flow("etl")
    a, b, c = (flow.add(etl.extract, where) for where in ("eu", "us", "asia"))
    quorum = flow.add(etl.total, flow.quorum(2, a, b, c))
    handle = await flow.submit()
    await complete(engine, handle[c].id, 3)
    await complete(engine, handle[a].id, 1)
    assert (await handle[b].status()).state is State.CANCELLED
    assert await read_arguments(engine, handle, quorum) == (([3, 1], "sum"), {})


async def test_invalid_results_hold_the_member(app: App, engine: Engine, etl: Etl) -> None:
    flow = app.flow("etl")
    a = flow.add(etl.extract, "eu")
    after = flow.add(etl.total, [a.result])
    handle = await flow.submit()
    await complete(engine, handle[a].id, "many")
    with pytest.raises(InputMismatch):
        await read_arguments(engine, handle, after)


async def test_flow_can_be_awaited_and_cancelled(app: App, engine: Engine, etl: Etl) -> None:
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
