"""Test signals that a task awaits without declaring them: a single operation finds the wait and delivers the signal."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any
from uuid import uuid4

import pytest

from flowfabric import App, Handle, NotFound, Signal, gather, step, wait_signal
from flowfabric.engine import Accepted, DuplicateSignal, Engine, State
from tests.conformance.test_operations import Seen
from tests.end_to_end.client.manual_worker import claim, complete

paid = Signal("paid", int)
go = Signal("go", int)


async def wait_by_hand(engine: Engine, handle: Handle[Any], key: str = "signal:paid") -> None:
    """Suspend the execution as a worker does when its task awaits an undeclared signal."""
    lease = await claim(engine, handle.id)
    await engine.leases.suspend(lease.fence, [key])


async def submit_and_wait(app: App, engine: Engine, name: str = "order") -> Handle[Any]:
    """Return the handle of an execution that awaits the signal."""

    @app.task(name=name)
    async def order() -> None: ...

    handle = await order.submit()
    await wait_by_hand(engine, handle)
    return handle


def paths_of(engine: Engine) -> dict[str, int]:
    """Return how often the engine took each code path of deliver_signal."""
    return {path: count for path, count in engine._context.waits.deliver.paths.items() if count}


@pytest.mark.parametrize("key", [None, "once"])
async def test_one_operation_delivers_an_undeclared_signal(app: App, engine: Engine, key: str | None) -> None:
    handle, seen = await submit_and_wait(app, engine), Seen()
    app.engines.adopt(Engine(replace(engine._context, observer=seen)))
    accepted = await handle.signal(paid, 10, key=key)
    assert isinstance(accepted, Accepted)
    assert (await handle.status()).state is State.WAITING
    assert seen.calls == [("deliver_signal", "ok"), ("describe", "ok")]


async def test_one_operation_refuses_an_unexpected_signal(app: App, engine: Engine) -> None:
    handle, seen = await submit_and_wait(app, engine), Seen()
    app.engines.adopt(Engine(replace(engine._context, observer=seen)))
    with pytest.raises(NotFound, match="neither declares signal 'refund' nor waits for it now"):
        await handle.signal(Signal("refund", int), 10)
    assert seen.calls == [("deliver_signal", "signal_not_expected")]


async def test_undeclared_signal_needs_a_lock_only_with_a_key(app: App, engine: Engine) -> None:
    first, second = await submit_and_wait(app, engine), await submit_and_wait(app, engine, "another")
    await first.signal(paid, 10)
    assert paths_of(engine) == {"optimistic": 1}
    await second.signal(paid, 10, key="once")
    assert paths_of(engine) == {"optimistic": 1, "locked_batch": 1}


async def test_signal_to_a_missing_execution_takes_the_single_path(app: App, engine: Engine) -> None:
    with pytest.raises(NotFound, match="execution_not_found"):
        await app.handle(uuid4()).signal(paid, 10)
    assert paths_of(engine) == {"locked_single": 1}


@pytest.mark.parametrize("store", ["postgres"], indirect=True)
@pytest.mark.parametrize("signals", [[], [paid]])
async def test_signal_waits_on_the_single_path_while_a_step_holds_the_row(
    app: App, engine: Engine, signals: list[Signal[int]]
) -> None:
    """On PostgreSQL, `step.tx` locks the row of the execution until its transaction commits."""
    is_locked, may_commit = asyncio.Event(), asyncio.Event()

    async def hold_the_row(db: object) -> None:
        is_locked.set()
        await may_commit.wait()

    async def branch() -> None:
        await wait_signal(go)  # After this wait, the other branch already waits for `paid`.
        await step.tx(hold_the_row)

    @app.task(signals=signals)
    async def order() -> int:
        received, _ = await gather(wait_signal(paid), branch())
        return received.value

    async with app.worker():
        handle = await order.submit()
        await accepted_signal(handle, go, 1)
        await is_locked.wait()
        before = paths_of(engine).get("locked_single", 0)
        delivery = asyncio.ensure_future(handle.signal(paid, 10))
        while paths_of(engine).get("locked_single", 0) == before and not delivery.done():  # noqa: ASYNC110
            await asyncio.sleep(0)
        may_commit.set()
        assert isinstance(await delivery, Accepted)
        assert await handle == 10


async def test_late_repeat_with_a_key_is_a_duplicate_and_not_for_the_next_wait(app: App, engine: Engine) -> None:
    @app.task
    async def order() -> list[int]:
        return [(await wait_signal(paid)).value for _ in range(2)]

    async with app.worker():
        handle = await order.submit()
        first = await accepted_signal(handle, paid, 10, key="bank-1")
        assert await handle.signal(paid, 10, key="bank-1") == DuplicateSignal(first.signal_id)
        await accepted_signal(handle, paid, 20, key="bank-2")
        assert await handle == [10, 20]
        assert await handle.signal(paid, 10, key="bank-1") == DuplicateSignal(first.signal_id)


async def accepted_signal(handle: Handle[Any], signal: Signal[int], value: int, *, key: str | None = None) -> Accepted:
    """Send a signal again and again until it is accepted, because the task may not await it yet."""
    while True:
        try:
            delivery = await handle.signal(signal, value, key=key)
        except NotFound as error:
            if error.code != "signal_not_expected":
                raise
            await asyncio.sleep(0)
        else:
            assert isinstance(delivery, Accepted)
            return delivery


async def test_replayed_execution_accepts_a_used_key_again(app: App, engine: Engine) -> None:
    handle = await submit_and_wait(app, engine)
    await handle.signal(paid, 10, key="once")
    await complete(engine, handle.id, None)
    await handle.replay()
    await wait_by_hand(engine, handle)
    assert isinstance(await handle.signal(paid, 10, key="once"), Accepted)


async def test_of_concurrent_signals_with_one_key_one_is_accepted(app: App, engine: Engine) -> None:
    handle = await submit_and_wait(app, engine)
    deliveries = await asyncio.gather(*(handle.signal(paid, 10, key="once") for _ in range(8)))
    [accepted] = [delivery for delivery in deliveries if isinstance(delivery, Accepted)]
    assert {delivery.signal_id for delivery in deliveries} == {accepted.signal_id}


async def test_of_concurrent_signals_without_a_key_one_ends_the_wait(app: App, engine: Engine) -> None:
    handle = await submit_and_wait(app, engine)
    signals = (handle.signal(paid, 10) for _ in range(8))
    deliveries = await asyncio.gather(*signals, return_exceptions=True)
    refusals = [delivery for delivery in deliveries if not isinstance(delivery, Accepted)]
    assert {getattr(refusal, "code", refusal) for refusal in refusals} == {"signal_not_expected"}
    assert len(refusals) == 7
