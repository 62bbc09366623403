"""Signals that a task cannot read: the sender gets an error, or the wait skips the signal and the task continues."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import pytest
from pydantic import AfterValidator

from flowfabric import (
    App,
    Handle,
    InvalidRequest,
    Received,
    Signal,
    Single,
    TimedOut,
    callback,
    gather,
    sleep,
    step,
    wait_for,
    wait_signal,
)
from flowfabric.engine import State
from flowfabric.testing import Kit
from tests.end_to_end.durable.kits import KitFactory
from tests.end_to_end.web.browser import Browser


@dataclass
class Payment:
    cents: int


def check_even(value: int) -> int:
    """Refuse odd numbers, which no schema can express."""
    if value % 2:
        raise ValueError("odd")
    return value


Even = Annotated[int, AfterValidator(check_even)]
paid = Signal("paid", Payment)
even = Signal("even", Even)


async def unreadable(kit: Kit, handle: Handle[Any]) -> list[str]:
    """Return the reasons of the events about unreadable signals."""
    history = await kit.engine.executions.history(handle.id)
    events = [event for event in history if (event.family, event.name) == ("signal", "unreadable")]
    return [(event.details or {})["reason"] for event in events]


async def test_sender_of_a_malformed_declared_signal_gets_an_error_and_the_task_continues(app: App, kit: Kit) -> None:
    @app.task(signals=[paid])
    async def task() -> int:
        return (await wait_signal(paid)).value.cents

    handle = await kit.start(task)
    for payload in (b'{"cents": "much"}', b"{}", b"no JSON", b""):
        with pytest.raises(InvalidRequest, match="payload_mismatch"):
            await kit.engine.signals.send(handle.id, "paid", payload)
    with pytest.raises(InvalidRequest, match="payload_mismatch"):
        await handle.signal(Signal("paid", str), "much")
    await kit.signal(handle, paid, Payment(3))

    assert await kit.finish(handle) == 3


async def test_sender_of_a_malformed_undeclared_signal_gets_an_error_and_the_task_continues(app: App, kit: Kit) -> None:
    @app.task
    async def task() -> int:
        return (await wait_signal(paid)).value.cents

    handle = await kit.start(task)
    with pytest.raises(InvalidRequest, match="payload_mismatch"):
        await kit.engine.signals.send(handle.id, "paid", b"[]", or_wait=True)
    await kit.signal(handle, paid, Payment(3))

    assert await kit.finish(handle) == 3


@pytest.mark.parametrize("declared", [[even], []], ids=["declared", "undeclared"])
async def test_wait_skips_a_signal_that_no_schema_refuses(
    app: App, kit: Kit, caplog: pytest.LogCaptureFixture, declared: list[Signal[int]]
) -> None:
    @app.task(signals=declared)
    async def task() -> list[int]:
        return [(await wait_signal(even)).value for _ in range(2)]

    handle = await kit.start(task)
    for payload in (b"1", b"2", b"3", b"4"):
        await kit.engine.signals.send(handle.id, "even", payload, or_wait=True)
        await kit.work()

    assert await kit.finish(handle) == [2, 4]
    assert len(await unreadable(kit, handle)) == 2
    assert [record.levelname for record in caplog.records if "skipped signal" in record.message] == ["WARNING"] * 2
    assert "odd" not in caplog.text


async def test_queued_signals_that_cannot_be_read_are_skipped_together(app: App, kit: Kit) -> None:
    @app.task(signals=[even])
    async def task() -> list[int]:
        await sleep("1h")
        return [(await wait_signal(even)).value for _ in range(2)]

    handle = await kit.start(task)
    for payload in (b"2", *(b"1" for _ in range(120)), b"4"):
        await kit.engine.signals.send(handle.id, "even", payload)

    assert await kit.finish(handle) == [2, 4]
    assert len(await unreadable(kit, handle)) == 120


async def test_wait_that_skipped_a_signal_still_times_out(app: App, kit: Kit) -> None:
    @app.task(signals=[even])
    async def task() -> str:
        return type(await wait_signal(even, timeout="1h")).__name__

    handle = await kit.start(task)
    await kit.engine.signals.send(handle.id, "even", b"1")
    await kit.work()
    assert (await handle.status()).state is State.SUSPENDED
    assert "1 signal was skipped" in str(await handle.explain())

    assert await kit.finish(handle) == TimedOut.__name__


async def test_skipped_signal_stays_skipped_in_every_replay(app: App, new_kit: KitFactory) -> None:
    @app.task(signals=[even])
    async def task() -> list[int]:
        first, _ = await gather(wait_signal(even), step(int, "1"))
        second = await wait_signal(even)
        await sleep("1h")
        return [first.value, second.value]

    async with new_kit(app, replay="every record") as kit:
        handle = await kit.start(task)
        for payload in (b"1", b"2", b"3", b"4"):
            await kit.engine.signals.send(handle.id, "even", payload)
            await kit.work()
        assert await kit.finish(handle) == [2, 4]
        assert len(await unreadable(kit, handle)) == 2


async def test_run_that_dies_after_a_skip_does_not_read_the_signal_again(app: App, kit: Kit) -> None:
    @app.task(signals=[even])
    async def task() -> int:
        value = (await wait_signal(even)).value
        return await step(int, str(value))

    handle = await task.submit()
    for payload in (b"1", b"2"):
        await kit.engine.signals.send(handle.id, "even", payload)
    kit.crash_before("signal:even")

    assert await kit.finish(handle) == 2
    assert len(await unreadable(kit, handle)) == 1


async def test_wrong_callback_gets_422_from_a_process_that_never_ran_the_task(app: App, kit: Kit) -> None:
    urls: list[str] = []

    @app.task
    async def task() -> int:
        reply = callback("export", Payment)
        await step(urls.append, await reply.url())
        received = await reply
        assert isinstance(received, Received)
        return received.value.cents

    handle = await kit.start(task)
    other = App("other.db", url="https://shop.example/ff")
    other.engines.adopt(kit.engine)
    browser, path = Browser(other.asgi()), urls[0].removeprefix("https://shop.example/ff")
    reply = await browser.post_json(path, {"cents": "much"})
    assert reply.status == 422
    assert "cents: expected integer, not string" in reply.value["error"]
    assert (await handle.status()).state is State.SUSPENDED
    assert (await browser.post_json(path, {"cents": 7})).status == 200

    assert await kit.finish(handle) == 7


async def test_condition_that_only_a_late_signal_meets_is_understood(app: App, kit: Kit) -> None:
    @app.task(signals=[even])
    async def task() -> int:
        await sleep("1h")
        return (await wait_for(Single("even", "urgent"))).signals[0].seq

    handle = await kit.start(task)
    for _ in range(150):
        await kit.engine.signals.send(handle.id, "even", b"2")
    await kit.engine.signals.approve(handle.id, "even", "urgent", b"2")

    assert await kit.finish(handle) == 151
