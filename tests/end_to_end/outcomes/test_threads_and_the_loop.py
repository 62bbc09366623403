"""A plain body runs in a thread, and its changes to objects of the loop are made on the loop."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from flowfabric import App, Diverged, sync
from flowfabric.engine import State
from flowfabric.runtime.branch import BRANCH
from flowfabric.testing import Kit
from tests.end_to_end.durable.kits import begin


@pytest.fixture
def strict_loop(session_loop: asyncio.AbstractEventLoop) -> Iterator[None]:
    """Set the loop to debug mode, in which it rejects calls from other threads."""
    session_loop.set_debug(True)
    yield
    session_loop.set_debug(False)


def beside_a_wait(act: Any) -> None:
    """Call `act` in one branch while another branch waits."""

    def act_once_waiting() -> None:
        unit = BRANCH.get()
        assert unit is not None
        while not unit.run.suspender.waiting:
            time.sleep(0.001)
        act()

    sync.gather(lambda: sync.sleep("1h"), act_once_waiting)


@pytest.mark.usefixtures("strict_loop")
async def test_plain_body_continues_as_new_while_a_branch_waits(app: App, kit: Kit) -> None:
    @app.task
    def task(number: int) -> int:
        if number == 0:
            beside_a_wait(lambda: task.sync.continue_with(1))
        return number

    handle = await kit.start(task, 0)

    assert await kit.finish(handle) == 1


@pytest.mark.usefixtures("strict_loop")
async def test_plain_body_diverges_while_a_branch_waits(app: App, kit: Kit) -> None:
    names = iter(["one", "two"])

    def act() -> None:
        sync.step.options(name=next(names))(str)
        sync.sleep("1s")

    @app.task
    def task() -> None:
        beside_a_wait(act)

    handle = await kit.start(task)

    with pytest.raises(Diverged):
        await kit.finish(handle)


@pytest.mark.usefixtures("strict_loop")
async def test_plain_body_drains_while_a_branch_waits(app: App, kit: Kit) -> None:
    begun, may_continue = threading.Event(), threading.Event()

    def act() -> None:
        begun.set()
        may_continue.wait(20)
        sync.step(str)

    @app.task
    def task() -> None:
        beside_a_wait(act)

    handle = await task.submit()
    run = await begin(kit)
    running = asyncio.create_task(run.run())
    assert await asyncio.to_thread(begun.wait, 20)
    run.drain()
    may_continue.set()
    await asyncio.wait_for(running, 20)

    assert (await handle.status()).state is State.WAITING
    assert (await handle.status()).attempt_index == 0


@pytest.mark.usefixtures("strict_loop")
async def test_branches_of_a_plain_body_call_now_concurrently(app: App, kit: Kit) -> None:
    def call_now() -> int:
        return len({sync.now() for _ in range(200)} | {sync.step(int, "1") for _ in range(10)})

    @app.task
    def task() -> int:
        counts = sync.gather(*[call_now] * 8)
        sync.sleep("1h")
        return len(counts)

    handle = await kit.start(task)

    assert await kit.finish(handle) == 8
