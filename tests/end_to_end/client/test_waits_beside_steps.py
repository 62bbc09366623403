"""Test waits beside a running step: senders reach them, although the execution is not suspended."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from flowfabric import (
    App,
    Approved,
    Handle,
    NotFound,
    Received,
    Signal,
    TimedOut,
    approval,
    gather,
    race,
    step,
    wait_signal,
)
from flowfabric.engine import Accepted, Engine, State, WaitpointState
from tests.conformance.test_operations import Seen
from tests.end_to_end.client.manual_worker import claim
from tests.end_to_end.client.test_undeclared_signals import accepted_signal

paid = Signal("paid", int)


class Gate:
    """A step that runs until the test opens the gate."""

    def __init__(self) -> None:
        self.is_running, self.may_end = asyncio.Event(), asyncio.Event()

    async def __call__(self) -> str:
        self.is_running.set()
        await self.may_end.wait()
        return "done"


@pytest.fixture
def gate() -> Iterator[Gate]:
    """Return a gate, and open it after the test."""
    gate = Gate()
    yield gate
    gate.may_end.set()


async def open_keys(engine: Engine, handle: Handle[Any]) -> list[str]:
    """Return the keys of the open waitpoints of an execution."""
    views = await engine.waitpoints.list(handle.id)
    return [view.key for view in views if view.state is not WaitpointState.CLOSED]


async def until_open(engine: Engine, handle: Handle[Any], *keys: str) -> None:
    """Return when these waitpoints are open."""
    async with asyncio.timeout(10):
        while not set(keys).issubset(await open_keys(engine, handle)):  # noqa: ASYNC110
            await asyncio.sleep(0.001)


async def test_undeclared_signal_is_accepted_while_another_branch_runs_a_step(
    app: App, engine: Engine, gate: Gate
) -> None:
    @app.task
    async def order() -> tuple[int, str]:
        received, done = await gather(wait_signal(paid), step(gate))
        return received.value, done

    async with app.worker():
        handle = await order.submit()
        await gate.is_running.wait()
        await until_open(engine, handle, "signal:paid")
        assert isinstance(await handle.signal(paid, 10), Accepted)
        assert (await handle.status()).state is State.ACTIVE
        gate.may_end.set()
        assert await handle == (10, "done")


async def test_approval_without_approvers_can_be_decided_while_another_branch_runs_a_step(
    app: App, engine: Engine, gate: Gate
) -> None:
    @app.task
    async def order() -> str:
        decision, _ = await gather(approval("refund"), step(gate))
        return decision.by[0] if isinstance(decision, Approved) else "rejected"

    async with app.worker():
        handle = await order.submit()
        await gate.is_running.wait()
        await until_open(engine, handle, "approval:refund")
        await engine.signals.approve(handle.id, "approval:refund", "approve", principal="ann")
        gate.may_end.set()
        assert await handle == "ann"


async def test_wait_that_opened_beside_a_step_is_bound_by_the_later_suspend(
    app: App, engine: Engine, gate: Gate
) -> None:
    @app.task
    async def order() -> int:
        return (await gather(wait_signal(paid), step(gate)))[0].value

    async with app.worker():
        handle = await order.submit()
        await gate.is_running.wait()
        await until_open(engine, handle, "signal:paid")
        [before] = await engine.waitpoints.list(handle.id)
        gate.may_end.set()
        while (await handle.status()).state is not State.SUSPENDED:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        [bound] = await engine.waitpoints.list(handle.id)
        assert (bound.id, bound.state) == (before.id, WaitpointState.ACTIVE)
        await handle.signal(paid, 3)
        assert await handle == 3


async def test_wait_alone_opens_its_waitpoint_with_its_suspend(app: App, engine: Engine) -> None:
    @app.task
    async def order() -> int:
        return (await wait_signal(paid)).value

    seen = Seen()
    app.engines.adopt(Engine(replace(engine._context, observer=seen)))
    async with app.worker():
        handle = await order.submit()
        await accepted_signal(handle, paid, 4)
        assert await handle == 4
    assert "create_waitpoints" not in [name for name, _ in seen.calls]


async def test_wait_beside_a_step_takes_one_undeclared_signal(app: App, engine: Engine, gate: Gate) -> None:
    seen: list[int] = []

    async def take() -> None:
        seen.append((await wait_signal(paid)).value)
        seen.append((await wait_signal(paid)).value)

    @app.task
    async def order() -> None:
        await gather(take(), step(gate))

    async with app.worker():
        handle = await order.submit()
        await gate.is_running.wait()
        for value in range(2):
            await accepted_signal(handle, paid, value)
        with pytest.raises(NotFound, match="signal_not_expected"):
            await handle.signal(paid, 9)
        gate.may_end.set()
        await handle
    assert seen == [0, 1]


async def test_pending_wait_for_an_undeclared_signal_takes_one_signal(app: App, engine: Engine) -> None:
    @app.task
    async def order() -> None: ...

    handle = await order.submit()
    lease = await claim(engine, handle.id)
    await engine.waitpoints.create_many(lease.fence, ["signal:paid", "signal:paid#2"])
    for value in range(2):
        assert isinstance(await handle.signal(paid, value), Accepted)
    with pytest.raises(NotFound, match="signal_not_expected"):
        await handle.signal(paid, 9)
    signals = (await engine.leases.read_waits(lease.fence, {"signal:paid": 0, "signal:paid#2": 0})).signals
    assert [(signal.waitpoint, signal.payload) for signal in signals] == [
        ("signal:paid", b"0"),
        ("signal:paid#2", b"1"),
    ]


async def test_waitpoints_of_waits_that_ended_beside_a_step_are_closed(app: App, engine: Engine, gate: Gate) -> None:
    ended = asyncio.Event()

    async def take() -> tuple[Any, Any, Any]:
        first = await wait_signal(paid)
        late = await wait_signal(Signal("late", int), timeout="1ms")
        won = await race(wait_signal(Signal("lost", int)), wait_signal(Signal("won", int)))
        ended.set()
        return first, late, won

    @app.task
    async def order() -> int:
        (first, late, won), _ = await gather(take(), step(gate))
        return int(isinstance(first, Received) + isinstance(late, TimedOut) + won.index)

    async with app.worker():
        handle = await order.submit()
        await accepted_signal(handle, paid, 1)
        await accepted_signal(handle, Signal("won", int), 1)
        await ended.wait()
        assert await open_keys(engine, handle) == []
        gate.may_end.set()
        assert await handle == 3
