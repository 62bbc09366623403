"""Waiting for signals: which are kept and which are not, and what ends a wait."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from flowfabric import (
    AllOf,
    App,
    Count,
    ExecutionFailed,
    Failed,
    FlowFabricError,
    Handle,
    Met,
    NotFound,
    Received,
    Signal,
    Single,
    TimedOut,
    WaitOverridden,
    callback,
    gather,
    settle,
    sleep,
    step,
    wait_for,
    wait_signal,
)
from flowfabric.testing import Kit

paid = Signal("paid", int)
paid_back = Signal("paid_back", int)
stopped = Signal("stopped", str)


async def test_a_wait_for_a_signal_is_named_after_it(app: App, kit: Kit) -> None:
    @app.task(signals=[paid])
    async def task() -> int:
        return (await wait_signal(paid)).value + (await wait_signal(paid)).value

    handle = await kit.start(task)
    await kit.signal(handle, paid, 3)
    await kit.signal(handle, paid, 4)

    assert await kit.finish(handle) == 7
    assert await kit.steps(handle) == ["signal:paid", "signal:paid#2"]


async def test_a_declared_signal_is_kept_from_the_submit_on_in_order(app: App, kit: Kit) -> None:
    @app.task(signals=[paid])
    async def task() -> list[int]:
        await sleep("1h")
        return [(await wait_signal(paid)).value for _ in range(3)]

    handle = await task.submit()
    for amount in (5, 6, 7):
        await kit.signal(handle, paid, amount)

    assert await kit.finish(handle) == [5, 6, 7]


async def test_an_undeclared_signal_is_refused_while_nobody_awaits_it(app: App, kit: Kit) -> None:
    @app.task
    async def task() -> int:
        await sleep("1h")
        return (await wait_signal(paid)).value

    handle = await kit.start(task)
    with pytest.raises(NotFound, match="neither declares signal 'paid' nor waits for it now"):
        await kit.signal(handle, paid, 1)
    await kit.advance("2h")
    await kit.signal(handle, paid, 2)

    assert await kit.finish(handle) == 2


async def test_a_signal_says_what_who_and_when(app: App, kit: Kit) -> None:
    seen: list[Received[int]] = []

    @app.task(signals=[paid])
    async def task() -> None:
        seen.append(await wait_signal(paid))

    handle = await kit.start(task)
    sent = kit.now()
    await kit.signal(handle, paid, 3)

    [received] = seen
    assert (received.value, received.at) == (3, sent)
    assert received.source == "program"


@pytest.mark.parametrize("declared", [True, False])
async def test_a_task_is_told_which_execution_sent_a_signal(app: App, kit: Kit, declared: bool) -> None:
    @app.task(signals=[paid] if declared else [])
    async def receiver() -> str:
        return (await wait_signal(paid)).source

    @app.task
    async def sender(id_: str) -> None:
        await receiver.handle(id_).signal(paid, 1)

    receiving = await kit.start(receiver)
    sending = await kit.start(sender, str(receiving.id))

    assert await kit.finish(receiving) == f"execution:{sending.id}"


async def test_what_a_sender_with_a_token_claims_is_told_apart_from_what_is_known(app: App, kit: Kit) -> None:
    seen: list[str] = []

    @app.task
    async def task() -> None:
        for number in range(3):
            reply = callback(f"reply-{number}", int)
            seen.append(await reply.token())
            seen.append((await reply).source)

    handle = await kit.start(task)
    await app.signal(seen[-1], "callback", 1)
    await kit.work()
    deliver = kit.engine.signals.deliver
    await deliver(seen[-1], "callback", b"2", source_type="operator", source_identity="ada")
    await kit.work()
    await kit.engine.signals.approve(handle.id, "callback:reply-2", "callback", b"3", principal="ada")
    await kit.finish(handle)

    assert [found for found in seen if not found.startswith("ffw1.")][-3:] == [
        "token", "claimed:operator:ada", "operator:ada",
    ]  # fmt: skip


async def test_the_same_signal_answers_in_every_run(app: App, kit: Kit) -> None:
    seen: list[int] = []

    @app.task(signals=[paid])
    async def task() -> None:
        seen.append((await wait_signal(paid)).value)
        await sleep("1h")

    handle = await kit.start(task)
    await kit.signal(handle, paid, 3)
    await kit.signal(handle, paid, 4)
    await kit.finish(handle)

    assert seen == [3, 3]


async def test_a_wait_times_out(app: App, kit: Kit) -> None:
    seen: list[Received[int] | TimedOut] = []

    @app.task(signals=[paid])
    async def task() -> None:
        seen.append(await wait_signal(paid, timeout="1h"))
        await sleep("1h")

    handle = await kit.start(task)
    due = kit.now() + timedelta(hours=1)
    await kit.finish(handle)

    assert seen == [TimedOut(due)] * 2


async def test_a_signal_after_the_timeout_is_for_the_next_wait(app: App, kit: Kit) -> None:
    @app.task(signals=[paid])
    async def task() -> list[str]:
        first = await wait_signal(paid, timeout="1h")
        await sleep("1h")
        second = await wait_signal(paid, timeout="1h")
        return [type(first).__name__, type(second).__name__]

    handle = await kit.start(task)
    await kit.advance("90m")
    await kit.signal(handle, paid, 3)

    assert await kit.finish(handle) == ["TimedOut", "Received"]


async def test_a_payload_that_does_not_fit_fails_the_execution_for_good(app: App, kit: Kit) -> None:
    @app.task(signals=[paid])
    async def task() -> int:
        return (await wait_signal(paid)).value

    handle = await kit.start(task)
    await kit.engine.signals.send(handle.id, "paid", b'"a lot"')
    await kit.work()

    with pytest.raises(ExecutionFailed, match=r"signal:paid got a payload that does not fit") as failed:
        await handle
    assert failed.value.error.type == "PermanentError"
    assert (await handle.status()).attempt_index == 0


async def test_a_condition_of_the_engine_is_waited_for_as_it_is(app: App, kit: Kit) -> None:
    seen: list[str] = []

    @app.task(signals=[paid, stopped])
    async def task() -> int:
        met = await wait_for(AllOf([Count(2, "signals", ["paid"]), Single("stopped")]))
        assert isinstance(met, Met)
        seen.extend(signal.name for signal in met.signals)
        return len(met.signals)

    handle = await kit.start(task)
    await kit.signal(handle, paid, 1)
    await kit.signal(handle, stopped, "now")
    assert seen == []
    await kit.signal(handle, paid, 2)

    assert await kit.finish(handle) == 3
    assert seen == ["paid", "stopped", "paid"]
    assert await kit.steps(handle) == ["wait_for"]


async def test_a_condition_times_out(app: App, kit: Kit) -> None:
    @app.task(signals=[paid])
    async def task() -> str:
        return type(await wait_for(Single("paid"), timeout="1h")).__name__

    assert await kit.run(task) == "TimedOut"


async def resumed(kit: Kit, handle: Handle[str]) -> str:
    await kit.engine.operator.resume(handle.id, "nobody will pay", principal="ann")
    return await kit.finish(handle)


async def test_an_operator_who_resumes_overrides_the_wait(app: App, kit: Kit) -> None:
    seen: list[str] = []

    @app.task(signals=[paid])
    async def task() -> str:
        try:
            await wait_signal(paid)
        except WaitOverridden as overridden:
            seen.append(f"{overridden.by}: {overridden.reason}")
        await sleep("1h")
        return "gave up"

    handle = await kit.start(task)

    assert await resumed(kit, handle) == "gave up"
    assert seen == ["ann: nobody will pay"] * 2


async def test_an_overridden_wait_that_nobody_catches_fails_the_execution_for_good(app: App, kit: Kit) -> None:
    done: list[str] = []

    @app.task
    async def task() -> str:
        await step(done.append, "ordered")
        await wait_signal(paid)
        return "paid"

    handle = await kit.start(task)

    with pytest.raises(ExecutionFailed, match="ann ended the wait: nobody will pay"):
        await resumed(kit, handle)
    assert (await handle.status()).attempt_index == 0


async def test_an_operator_who_resumes_overrides_every_wait_of_that_suspension(app: App, kit: Kit) -> None:
    @app.task(signals=[paid])
    async def task() -> list[str]:
        ends = await settle(wait_signal(paid), wait_signal(paid_back))
        return [end.error.type for end in ends if isinstance(end, Failed)]

    handle = await kit.start(task)
    await kit.engine.operator.resume(handle.id, "enough", principal="ann")

    assert await kit.finish(handle) == ["WaitOverridden", "WaitOverridden"]


async def test_a_wait_for_an_undeclared_signal_is_closed_by_its_timeout_beside_other_waits(app: App, kit: Kit) -> None:
    @app.task
    async def task() -> str:
        received, _ = await gather(wait_signal(paid, timeout="1h"), sleep("1d"))
        return type(received).__name__

    handle = await kit.start(task)
    await kit.advance("2h")
    with pytest.raises(FlowFabricError):
        await kit.signal(handle, paid, 3)

    assert await kit.finish(handle) == "TimedOut"


async def test_a_signal_and_a_timeout_at_once_do_not_disturb_other_branches(app: App, kit: Kit) -> None:
    async def branch(signal: Signal[Any], hours: int) -> str:
        found: object = await wait_signal(signal, timeout=timedelta(hours=hours))
        return type(found).__name__

    @app.task(signals=[paid])
    async def task() -> list[str]:
        return list(await gather(branch(paid, 3), branch(stopped, 1), branch(paid, 2)))

    handle = await kit.start(task)
    await kit.advance("90m")
    await kit.signal(handle, paid, 1)

    assert await kit.finish(handle) == ["Received", "TimedOut", "TimedOut"]


async def test_a_signal_with_a_slash_in_its_name_reaches_the_branch_that_awaits_it(app: App, kit: Kit) -> None:
    odd, short = Signal("shop/paid", int), Signal("paid", int)

    async def branch() -> int:
        return (await wait_signal(odd)).value

    @app.task
    async def task() -> tuple[int, int, int]:
        return await gather(wait_signal_value(odd), branch(), wait_signal_value(short))

    async def wait_signal_value(signal: Signal[int]) -> int:
        return (await wait_signal(signal)).value

    handle = await kit.start(task)
    await kit.signal(handle, short, 3)
    for value in (1, 2):
        await kit.signal(handle, odd, value)
        await kit.work()

    assert await kit.finish(handle) == (1, 2, 3)
