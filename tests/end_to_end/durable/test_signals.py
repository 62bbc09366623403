"""Waiting for signals: which signals are kept and what ends a wait."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from flowfabric import (
    AllOf,
    App,
    ConditionMet,
    Count,
    ExecutionFailed,
    Failed,
    FlowFabricError,
    Handle,
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


async def test_wait_for_a_signal_has_the_name_of_the_signal(app: App, kit: Kit) -> None:
    @app.task(signals=[paid])
    async def task() -> int:
        return (await wait_signal(paid)).value + (await wait_signal(paid)).value

    handle = await kit.start(task)
    await kit.signal(handle, paid, 3)
    await kit.signal(handle, paid, 4)

    assert await kit.finish(handle) == 7
    assert await kit.steps(handle) == ["signal:paid", "signal:paid#2"]


async def test_declared_signals_are_kept_in_order_from_the_submit(app: App, kit: Kit) -> None:
    @app.task(signals=[paid])
    async def task() -> list[int]:
        await sleep("1h")
        return [(await wait_signal(paid)).value for _ in range(3)]

    handle = await task.submit()
    for amount in (5, 6, 7):
        await kit.signal(handle, paid, amount)

    assert await kit.finish(handle) == [5, 6, 7]


async def test_undeclared_signal_is_rejected_unless_awaited(app: App, kit: Kit) -> None:
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


async def test_received_signal_has_value_source_and_time(app: App, kit: Kit) -> None:
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
async def test_source_of_a_signal_names_the_sending_execution(app: App, kit: Kit, declared: bool) -> None:
    @app.task(signals=[paid] if declared else [])
    async def receiver() -> str:
        return (await wait_signal(paid)).source

    @app.task
    async def sender(id_: str) -> None:
        await receiver.handle(id_).signal(paid, 1)

    receiver_handle = await kit.start(receiver)
    sender_handle = await kit.start(sender, str(receiver_handle.id))

    assert await kit.finish(receiver_handle) == f"execution:{sender_handle.id}"


async def test_claimed_source_of_a_token_is_distinct_from_a_known_source(app: App, kit: Kit) -> None:
    tokens_and_sources: list[str] = []

    @app.task
    async def task() -> None:
        for number in range(3):
            reply = callback(f"reply-{number}", int)
            tokens_and_sources.append(await reply.token())
            tokens_and_sources.append((await reply).source)

    handle = await kit.start(task)
    await app.signal(tokens_and_sources[-1], "callback", 1)
    await kit.work()
    deliver = kit.engine.signals.deliver
    await deliver(tokens_and_sources[-1], "callback", b"2", source_type="operator", source_identity="ada")
    await kit.work()
    await kit.engine.signals.approve(handle.id, "callback:reply-2", "callback", b"3", principal="ada")
    await kit.finish(handle)

    assert [text for text in tokens_and_sources if not text.startswith("ffw1.")][-3:] == [
        "token",
        "claimed:operator:ada",
        "operator:ada",
    ]


async def test_wait_returns_the_same_signal_in_every_run(app: App, kit: Kit) -> None:
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


async def test_wait_for_a_signal_times_out(app: App, kit: Kit) -> None:
    seen: list[Received[int] | TimedOut] = []

    @app.task(signals=[paid])
    async def task() -> None:
        seen.append(await wait_signal(paid, timeout="1h"))
        await sleep("1h")

    handle = await kit.start(task)
    due = kit.now() + timedelta(hours=1)
    await kit.finish(handle)

    assert seen == [TimedOut(due)] * 2


async def test_signal_after_the_timeout_is_kept_for_the_next_wait(app: App, kit: Kit) -> None:
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


async def test_wait_for_accepts_a_condition_of_the_engine(app: App, kit: Kit) -> None:
    seen: list[str] = []

    @app.task(signals=[paid, stopped])
    async def task() -> int:
        met = await wait_for(AllOf([Count(2, "signals", ["paid"]), Single("stopped")]))
        assert isinstance(met, ConditionMet)
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


async def test_wait_for_a_condition_times_out(app: App, kit: Kit) -> None:
    @app.task(signals=[paid])
    async def task() -> str:
        return type(await wait_for(Single("paid"), timeout="1h")).__name__

    assert await kit.run(task) == "TimedOut"


async def resume_and_finish(kit: Kit, handle: Handle[str]) -> str:
    await kit.engine.operator.resume(handle.id, "no payment expected", principal="ann")
    return await kit.finish(handle)


async def test_resume_by_an_operator_overrides_the_wait(app: App, kit: Kit) -> None:
    seen: list[str] = []

    @app.task(signals=[paid])
    async def task() -> str:
        try:
            await wait_signal(paid)
        except WaitOverridden as overridden:
            seen.append(f"{overridden.by}: {overridden.reason}")
        await sleep("1h")
        return "overridden"

    handle = await kit.start(task)

    assert await resume_and_finish(kit, handle) == "overridden"
    assert seen == ["ann: no payment expected"] * 2


async def test_uncaught_wait_overridden_fails_the_execution_permanently(app: App, kit: Kit) -> None:
    done: list[str] = []

    @app.task
    async def task() -> str:
        await step(done.append, "ordered")
        await wait_signal(paid)
        return "paid"

    handle = await kit.start(task)

    with pytest.raises(ExecutionFailed, match="ann ended the wait: no payment expected"):
        await resume_and_finish(kit, handle)
    assert (await handle.status()).attempt_index == 0


async def test_resume_by_an_operator_overrides_every_wait_of_the_suspension(app: App, kit: Kit) -> None:
    @app.task(signals=[paid])
    async def task() -> list[str]:
        outcomes = await settle(wait_signal(paid), wait_signal(paid_back))
        return [outcome.error.type for outcome in outcomes if isinstance(outcome, Failed)]

    handle = await kit.start(task)
    await kit.engine.operator.resume(handle.id, "enough", principal="ann")

    assert await kit.finish(handle) == ["WaitOverridden", "WaitOverridden"]


async def test_timeout_closes_the_wait_for_an_undeclared_signal_despite_other_waits(app: App, kit: Kit) -> None:
    @app.task
    async def task() -> str:
        received, _ = await gather(wait_signal(paid, timeout="1h"), sleep("1d"))
        return type(received).__name__

    handle = await kit.start(task)
    await kit.advance("2h")
    with pytest.raises(FlowFabricError):
        await kit.signal(handle, paid, 3)

    assert await kit.finish(handle) == "TimedOut"


async def test_signal_and_timeout_at_the_same_time_do_not_affect_other_branches(app: App, kit: Kit) -> None:
    async def branch(signal: Signal[Any], hours: int) -> str:
        outcome: object = await wait_signal(signal, timeout=timedelta(hours=hours))
        return type(outcome).__name__

    @app.task(signals=[paid])
    async def task() -> list[str]:
        return list(await gather(branch(paid, 3), branch(stopped, 1), branch(paid, 2)))

    handle = await kit.start(task)
    await kit.advance("90m")
    await kit.signal(handle, paid, 1)

    assert await kit.finish(handle) == ["Received", "TimedOut", "TimedOut"]


async def test_signal_with_a_slash_in_its_name_reaches_the_awaiting_branch(app: App, kit: Kit) -> None:
    with_slash, without_slash = Signal("shop/paid", int), Signal("paid", int)

    async def branch() -> int:
        return (await wait_signal(with_slash)).value

    @app.task
    async def task() -> tuple[int, int, int]:
        return await gather(wait_signal_value(with_slash), branch(), wait_signal_value(without_slash))

    async def wait_signal_value(signal: Signal[int]) -> int:
        return (await wait_signal(signal)).value

    handle = await kit.start(task)
    await kit.signal(handle, without_slash, 3)
    for value in (1, 2):
        await kit.signal(handle, with_slash, value)
        await kit.work()

    assert await kit.finish(handle) == (1, 2, 3)


async def test_a_program_takes_every_path_of_suspend_and_of_signals(app: App, kit: Kit) -> None:
    @app.task(signals=[paid])
    async def task() -> int:
        first, second = await gather(wait_signal(paid), wait_signal(paid_back))
        return first.value + second.value

    waits = kit.engine._context.waits
    handles = [await kit.start(task) for _ in range(2)]
    for handle in handles:
        await kit.signal(handle, paid, 1)
        # A signal that is sent by name and with a key needs a lock. The engine must find the waitpoint
        # before it can look for an earlier signal with the key.
        await kit.signal(handle, paid_back, 2, key="once")

    assert [await kit.finish(handle) for handle in handles] == [3, 3]
    # The first token of a store is not created in a batch, because its transaction also creates the signing key.
    assert waits.suspend.paths["locked_single"] == 1
    assert waits.suspend.paths["locked_batch"] > 0
    assert waits.deliver.paths["optimistic"] >= 2
    assert waits.deliver.paths["locked_batch"] >= 2
