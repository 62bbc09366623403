"""Operations on an execution by its handle or by a token."""

from __future__ import annotations

import json
from dataclasses import dataclass

import pytest

from flowfabric import App, InvalidRequest, NotFound, Signal, ValueRefused
from flowfabric.engine import Accepted, DuplicateSignal, Engine, Lease, State, Suspended
from tests.end_to_end.client.manual_worker import claim, complete


@dataclass
class Payment:
    amount: int


paid = Signal("paid", Payment)


async def suspend(engine: Engine, lease: Lease, key: str) -> Suspended:
    outcome = await engine.leases.suspend(lease.fence, [key])
    assert isinstance(outcome, Suspended)
    return outcome


async def test_declared_signal_is_accepted_after_the_submit(app: App, engine: Engine) -> None:
    @app.task(signals=[paid])
    async def order() -> None: ...

    handle = await order.submit()
    assert isinstance(await handle.signal(paid, Payment(10)), Accepted)
    signals = await engine.signals.list(handle.id, include_unmatched=True)
    assert [(signal.name, json.loads(signal.payload)) for signal in signals] in ([("paid", {"amount": 10})], [])


async def test_signal_with_a_key_is_accepted_once(app: App) -> None:
    @app.task(signals=[paid])
    async def order() -> None: ...

    handle = await order.submit()
    first = await handle.signal(paid, Payment(10), key="k")
    second = await handle.signal(paid, Payment(10), key="k")
    assert isinstance(second, DuplicateSignal)
    assert second.signal_id == first.signal_id


@pytest.mark.parametrize("key", ["signal:paid", "signal:paid#2", "gather[1]/signal:paid", "signal:paid[a]"])
async def test_undeclared_signal_goes_to_the_open_wait(app: App, engine: Engine, key: str) -> None:
    @app.task
    async def order() -> None: ...

    handle = await order.submit()
    await suspend(engine, await claim(engine, handle.id), key)
    await handle.signal(paid, Payment(10))
    assert (await handle.status()).state is State.WAITING


async def test_unexpected_signal_is_rejected(app: App, engine: Engine) -> None:
    @app.task
    async def order() -> None: ...

    handle = await order.submit()
    with pytest.raises(NotFound, match="neither declares signal 'paid' nor waits"):
        await handle.signal(paid, Payment(10))
    await suspend(engine, await claim(engine, handle.id), "signal:paid_back")
    with pytest.raises(NotFound, match="neither declares"):
        await handle.signal(paid, Payment(10))


async def test_payload_of_another_type_is_rejected_before_it_is_sent(app: App) -> None:
    @app.task(signals=[paid])
    async def order() -> None: ...

    handle = await order.submit()
    with pytest.raises(ValueRefused, match="signal 'paid'"):
        _ = handle.signal(paid, "ten")  # type: ignore[misc]
    with pytest.raises(InvalidRequest, match="must be a Signal"):
        _ = handle.signal("paid", 3)  # type: ignore[arg-type]


async def test_first_decision_by_token_counts(app: App, engine: Engine) -> None:
    @app.task
    async def order() -> None: ...

    handle = await order.submit()
    lease = await claim(engine, handle.id)
    waitpoint = await engine.waitpoints.create(lease.fence, "approval:x", approver="ops")
    assert waitpoint.token is not None
    token = waitpoint.token.reveal()
    assert isinstance(await app.reject(token, "too dear"), Accepted)
    assert isinstance(await app.approve(token), DuplicateSignal)


async def test_plain_json_can_be_sent_to_a_token(app: App, engine: Engine) -> None:
    @app.task
    async def order() -> None: ...

    handle = await order.submit()
    token = (await suspend(engine, await claim(engine, handle.id), "callback:x")).token("callback:x")
    assert token is not None
    await app.signal(token.reveal(), "callback", {"rows": 3})
    [signal] = await engine.signals.list(handle.id)
    assert json.loads(signal.payload) == {"rows": 3}


async def test_graceful_cancel_keeps_the_execution_active(app: App, engine: Engine) -> None:
    @app.task(cancel_grace="1h")
    async def graceful() -> None: ...

    @app.task
    async def plain() -> None: ...

    handles = [await graceful.submit(), app.handle((await graceful.submit()).id), await plain.submit()]
    for handle in handles:
        await claim(engine, handle.id)
    await handles[0].cancel()
    await handles[1].cancel()
    await handles[2].cancel(grace="1h")
    assert [(await handle.status()).state for handle in handles] == 3 * [State.ACTIVE]
    without_grace = await plain.submit()
    await claim(engine, without_grace.id)
    await without_grace.cancel()
    assert (await without_grace.status()).state is State.CANCELLED


async def test_execution_can_be_replayed_and_unheld(app: App, engine: Engine) -> None:
    @app.task
    async def job() -> int:
        return 1

    handle = await job.submit()
    await complete(engine, handle.id, 1)
    await handle.replay()
    assert (await handle.status()).generation == 1
    await engine.operator.hold(handle.id, "look at it")
    assert "look at it" in await handle.explain()
    await handle.unhold()
    assert (await handle.status()).state is State.WAITING


async def test_history_is_in_order(app: App, engine: Engine) -> None:
    @app.task
    async def job() -> int:
        return 1

    handle = await job.submit()
    await complete(engine, handle.id, 1)
    events = await handle.history()
    assert [event.version for event in events] == list(range(1, len(events) + 1))
    assert events[-1].state is State.COMPLETED
