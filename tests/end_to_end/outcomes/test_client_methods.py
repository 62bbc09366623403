"""Client methods in steps: a retry repeats nothing, and calls that could wait for their own slot are rejected."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest

from flowfabric import (
    App,
    Cancelled,
    ExecutionFailed,
    Handle,
    Received,
    Signal,
    current,
    sleep,
    step,
    sync,
    wait_signal,
)
from flowfabric.engine import State
from flowfabric.testing import Kit

GO = Signal("go", int)


def failing_once() -> Callable[[], None]:
    """Return a function whose first call raises, like a step that loses its connection after its work is done."""
    calls: list[int] = []

    def fail() -> None:
        calls.append(len(calls))
        if len(calls) == 1:
            raise ConnectionError

    return fail


async def test_retried_step_submits_once(app: App, kit: Kit) -> None:
    fail, ids = failing_once(), list[UUID]()

    @app.task
    async def other(number: int) -> int:
        return number

    async def order() -> None:
        ids.extend([(await other.submit(1)).id, (await other.submit(1)).id])
        fail()

    @app.task
    async def parent() -> None:
        await step(order)

    await kit.run(parent)

    assert ids[:2] == ids[2:]
    assert ids[0] != ids[1]


async def test_step_whose_record_was_lost_submits_once(app: App, kit: Kit) -> None:
    ids: list[UUID] = []

    @app.task
    async def other() -> None: ...

    async def order() -> None:
        ids.append((await other.submit()).id)

    @app.task
    async def parent() -> None:
        await step(order)

    kit.crash_before("order")
    await kit.run(parent)

    assert len(ids) == 2
    assert len(set(ids)) == 1


async def test_execution_submitted_by_a_step_is_not_a_child_and_survives_a_cancel(app: App, kit: Kit) -> None:
    @app.task
    async def other() -> str:
        await sleep("2h")
        return "independent"

    async def order() -> Handle[str]:
        return await other.submit()

    @app.task
    async def parent() -> None:
        _ = await step(order)
        await sleep("1h")

    handle = await kit.start(parent)
    [other_id] = [execution.id for execution in (await kit.engine.executions.list()).items if execution.kind == "other"]
    await handle.cancel()

    assert await kit.finish(other.handle(other_id)) == "independent"


async def test_explicit_key_replaces_the_automatic_key(app: App, kit: Kit) -> None:
    ids: list[UUID] = []

    @app.task
    async def other() -> None: ...

    async def order() -> None:
        ids.append((await other.options(key="o-17").submit()).id)

    @app.task
    async def parent() -> None:
        await step(order)

    await kit.run(parent)
    await kit.run(parent)

    assert ids[0] == ids[1]


async def test_each_continuation_sends_its_own_signals(app: App, kit: Kit) -> None:
    @app.task(signals=[GO])
    async def receiver() -> list[int]:
        return [(await wait_signal(GO)).value for _ in range(3)]

    @app.task
    async def sender(other: Handle[list[int]], beat: int = 0) -> None:
        await other.signal(GO, beat)
        if beat < 2:
            sender.continue_with(other, beat + 1)

    other = await kit.start(receiver)
    await kit.run(sender, other)

    assert await kit.finish(other) == [0, 1, 2]


async def test_each_continuation_submits_again_with_a_new_key(app: App, kit: Kit) -> None:
    fail, ids, keys = failing_once(), list[UUID](), list[str]()

    @app.task
    async def other() -> None: ...

    async def order() -> None:
        keys.append(current().idempotency_key)
        ids.append((await other.submit()).id)
        fail()

    @app.task
    async def parent(turn: int = 0) -> None:
        await step(order)
        if turn < 2:
            parent.continue_with(turn + 1)

    await kit.run(parent)

    assert len(ids) == 4
    assert ids[0] == ids[1]
    assert keys[0] == keys[1]
    assert len(set(ids)) == len(set(keys)) == 3


async def test_replayed_step_submits_again_and_a_kept_step_does_not(app: App, kit: Kit) -> None:
    ids: dict[str, list[UUID]] = {"kept": [], "again": []}

    @app.task
    async def other() -> None: ...

    async def order(name: str) -> None:
        ids[name].append((await other.submit()).id)

    @app.task
    async def parent() -> None:
        for name in ids:
            await step(order, name)

    handle = await kit.start(parent)
    await handle.replay(from_step="order#2")
    await kit.finish(handle)

    assert len(ids["kept"]) == 1
    assert len(set(ids["again"])) == 2


async def test_retried_step_sends_its_signal_once(app: App, kit: Kit) -> None:
    fail = failing_once()

    @app.task(signals=[GO])
    async def waiting() -> list[int]:
        values = []
        for _ in range(2):
            match await wait_signal(GO, timeout="1h"):
                case Received(value=value):
                    values.append(value)
        return values

    async def send(other: Handle[list[int]]) -> None:
        await other.signal(GO, 3)
        fail()

    @app.task
    async def sender(other: Handle[list[int]]) -> None:
        await step(send, other)

    other = await kit.start(waiting)
    await kit.run(sender, other)

    assert await kit.finish(other) == [3]


async def test_cancel_by_a_step_may_be_repeated(app: App, kit: Kit) -> None:
    fail = failing_once()

    @app.task
    async def waiting() -> None:
        await sleep("1d")

    async def stop(other: Handle[None]) -> None:
        await other.cancel("enough")
        fail()

    @app.task
    async def stopper(other: Handle[None]) -> None:
        await step(stop, other)

    other = await kit.start(waiting)
    await kit.run(stopper, other)

    assert await other.outcome() == Cancelled("enough")


async def test_idempotency_key_of_a_step_is_its_execution_and_path(app: App, kit: Kit) -> None:
    async def key() -> str:
        return current().idempotency_key

    @app.task
    async def task() -> list[str]:
        return [await step(key), await step(key), await step.options(key="eu")(key)]

    handle = await kit.start(task)

    assert await handle == [f"{handle.id}/{path}" for path in ("key", "key#2", "key[eu]")]


WAITING_CALLS: dict[str, Callable[[Any, Handle[int]], Any]] = {
    "run": lambda task, handle: task.run(),
    "await handle": lambda task, handle: handle,
    "result": lambda task, handle: handle.result(),
    "outcome": lambda task, handle: handle.outcome("1h"),
    "step": lambda task, handle: step(abs, -1),
    "sleep": lambda task, handle: sleep("1h"),
}


@pytest.mark.parametrize("call", WAITING_CALLS)
async def test_call_that_could_wait_for_its_own_slot_is_rejected_in_a_step(
    app: App, memory_kit: Kit, call: str
) -> None:
    @app.task
    async def other() -> int:
        return 1

    async def call_in_step(handle: Handle[int]) -> None:
        await WAITING_CALLS[call](other, handle)

    @app.task
    async def parent(handle: Handle[int]) -> None:
        await step(call_in_step, handle)

    handle = await memory_kit.start(other)
    with pytest.raises(ExecutionFailed, match="a step cannot contain durable calls; call the function directly"):
        await memory_kit.run(parent, handle)


async def test_step_with_a_rejected_call_is_not_retried(app: App, memory_kit: Kit) -> None:
    tries: list[int] = []

    async def nested() -> None:
        tries.append(len(tries))
        await sleep("1h")

    @app.task
    async def task() -> None:
        await step(nested)

    with pytest.raises(ExecutionFailed):
        await memory_kit.run(task)
    assert tries == [0]


async def test_plain_step_submits_signals_and_cancels_with_the_sync_client(app: App, kit: Kit) -> None:
    fail, ids = failing_once(), list[UUID]()

    @app.task(signals=[GO])
    async def other() -> None:
        await wait_signal(GO)
        await sleep("1d")

    def act() -> None:
        handle = other.sync.submit()
        handle.signal(GO, 1)
        handle.cancel("enough")
        ids.append(handle.id)
        fail()

    @app.task
    def parent() -> None:
        sync.step(act)

    await kit.run(parent)

    assert ids[0] == ids[1]
    assert (await app.handle(ids[0]).status()).state is State.CANCELLED


async def test_plain_step_cannot_wait_for_executions(app: App, memory_kit: Kit) -> None:
    @app.task
    async def other() -> int:
        return 1

    def wait() -> int:
        return other.sync.run()

    @app.task
    def parent() -> int:
        return sync.step(wait)

    with pytest.raises(ExecutionFailed, match="a step cannot contain durable calls"):
        await memory_kit.run(parent)


async def test_step_can_read_the_status_of_an_execution(app: App, kit: Kit) -> None:
    @app.task
    async def other() -> int:
        return 1

    async def read_state(handle: Handle[int]) -> str:
        return str((await handle.status()).state)

    @app.task
    async def parent(handle: Handle[int]) -> str:
        return await step(read_state, handle)

    handle = await kit.start(other)

    assert await kit.run(parent, handle) == str(State.COMPLETED)
