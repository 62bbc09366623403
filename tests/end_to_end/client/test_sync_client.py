"""The sync client for scripts and web servers without an event loop."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from flowfabric import App, Completed, ExecutionCancelled, TimedOut, Unavailable
from flowfabric.engine import State, connect
from tests.end_to_end.client.manual_worker import complete


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[App]:
    """Return an app on its own file, which plain code opens at first use."""
    app = App(str(tmp_path / "shop.db"))

    @app.task
    async def refund(order: str) -> str:
        return order

    yield app
    app.sync.close()


def finish(app: App, id_: object, result: str) -> None:
    """Complete an execution as a worker of another process would."""

    async def work() -> None:
        async with connect(app.store) as engine:
            await complete(engine, id_, result)  # type: ignore[arg-type]

    asyncio.run(work())


def test_every_handle_has_a_sync_view(shop: App) -> None:
    """A sync view has itself as its sync view, so that code need not know which kind of handle it has."""
    flow = shop.flow("etl")
    node = flow.add(shop.tasks["refund"], "a")
    submitted = flow.sync.submit()
    handle = shop.tasks["refund"].sync.submit("b")
    for view in (handle, submitted, submitted[node], shop.sync.handle(handle.id), shop.handle(handle.id).sync):
        assert view.sync is view
        assert view.sync.status() is not None


def test_methods_return_values(shop: App) -> None:
    handle = shop.tasks["refund"].sync.submit("a")
    assert handle.status().state is State.WAITING
    assert isinstance(handle.outcome(0.01), TimedOut)
    finish(shop, handle.id, "a paid back")
    assert handle.result() == "a paid back"
    assert handle.outcome() == Completed("a paid back")
    assert "Completed" in handle.explain()


def test_errors_are_raised_unchanged(shop: App) -> None:
    handle = shop.tasks["refund"].sync.submit("a")
    handle.cancel("no")
    with pytest.raises(ExecutionCancelled, match="no"):
        handle.result()


def test_submit_many_returns_handles(shop: App) -> None:
    refund = shop.tasks["refund"]
    handles = shop.sync.submit_many([refund.call(str(number)) for number in range(5)])
    assert [shop.sync.handle(handle.id).status().state for handle in handles] == 5 * [State.WAITING]


def test_submit_joins_a_transaction_on_its_thread(shop: App) -> None:
    refund = shop.tasks["refund"]
    refund.sync.submit("before")  # This creates the store.
    connection = sqlite3.connect(shop.store)
    connection.execute("BEGIN IMMEDIATE")
    handle = refund.options(connection=connection).sync.submit("a")
    connection.commit()
    connection.close()
    assert handle.status().state is State.WAITING


def test_submit_in_an_open_transaction_can_open_the_store(shop: App) -> None:
    shop.tasks["refund"].sync.submit("before")  # This creates the store.
    shop.sync.close()
    with closing(sqlite3.connect(shop.store)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        handle = shop.tasks["refund"].options(connection=connection).sync.submit("a")
        connection.commit()
    assert handle.status().state is State.WAITING


def test_flow_can_be_submitted(shop: App) -> None:
    flow = shop.flow("one")
    node = flow.add(shop.tasks["refund"], "a")
    handle = flow.sync.submit()
    finish(shop, handle[node].id, "done")
    assert handle[node].result() == "done"


def test_failed_members_of_a_flow_can_be_replayed(shop: App) -> None:
    flow = shop.flow("two")
    first, second = flow.add(shop.tasks["refund"], "a"), flow.add(shop.tasks["refund"], "b")
    flow.after(second, first)
    handle = flow.sync.submit()
    handle[first].cancel("by mistake")
    assert handle[second].status().state is State.SKIPPED
    assert handle.replay(failed=True) == 0
    handle[first].replay(downstream=False)
    assert handle[second].status().state is State.SKIPPED
    finish(shop, handle[first].id, "done")
    assert str(handle.wait()) == "failed"
    assert handle.replay(failed=True) == 0
    assert handle[second].status().state is State.WAITING
    finish(shop, handle[second].id, "done")
    assert str(handle.wait()) == "completed"


def test_forked_child_uses_its_own_thread(shop: App) -> None:
    refund = shop.tasks["refund"]
    refund.sync.submit("parent")
    queue = multiprocessing.get_context("fork").SimpleQueue()
    child = os.fork()
    if child == 0:
        try:
            # A hanging child must not block its parent.
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(60)
            queue.put(refund.sync.submit("child").status().kind)
        finally:
            os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert queue.get() == "refund"
    assert refund.sync.submit("parent again").status().kind == "refund"


def test_each_loop_has_its_own_engine(shop: App) -> None:
    async def use_app() -> object:
        async with shop:
            first, second = await asyncio.gather(shop.engine(), shop.engine())
            assert first is second
            return first

    assert asyncio.run(use_app()) is not asyncio.run(use_app())


def test_unclosed_engine_is_closed_with_its_loop(shop: App) -> None:
    async def use_app() -> None:
        _ = await shop.tasks["refund"].submit("a")

    asyncio.run(use_app())
    with sqlite3.connect(shop.store) as connection:
        assert connection.execute("SELECT count(*) FROM ff_execution").fetchone() == (1,)
    connection.close()


def test_failed_opening_of_the_store_is_retried(tmp_path: Path) -> None:
    app = App(str(tmp_path / "later" / "shop.db"))

    @app.task
    async def refund(order: str) -> str:
        return order

    with pytest.raises(Unavailable):
        refund.sync.submit("a")
    (tmp_path / "later").mkdir()
    assert refund.sync.submit("a").status().state is State.WAITING
    app.sync.close()
