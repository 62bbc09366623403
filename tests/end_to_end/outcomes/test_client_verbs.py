"""Verbs of the client in steps: a repeated try repeats nothing; what could wait for its own slot is refused."""

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
    """Raises at its first call, as a step does that has lost its connection after it did everything."""
    calls: list[int] = []

    def fail() -> None:
        calls.append(len(calls))
        if len(calls) == 1:
            raise ConnectionError

    return fail


async def test_a_submit_in_a_step_happens_once_however_often_the_step_is_tried(app: App, kit: Kit) -> None:
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


async def test_a_submit_in_a_step_happens_once_though_its_record_was_lost(app: App, kit: Kit) -> None:
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


async def test_what_a_step_submits_is_no_child_and_outlives_a_cancel(app: App, kit: Kit) -> None:
    @app.task
    async def other() -> str:
        await sleep("2h")
        return "on its own"

    async def order() -> Handle[str]:
        return await other.submit()

    @app.task
    async def parent() -> None:
        _ = await step(order)
        await sleep("1h")

    handle = await kit.start(parent)
    [free] = [item.id for item in (await kit.engine.executions.list()).items if item.kind == "other"]
    await handle.cancel()

    assert await kit.finish(other.handle(free)) == "on its own"


async def test_a_key_of_the_callers_own_goes_before_the_automatic_one(app: App, kit: Kit) -> None:
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


async def test_every_turn_of_an_execution_that_continues_sends_its_own_signals(app: App, kit: Kit) -> None:
    @app.task(signals=[GO])
    async def hears() -> list[int]:
        return [(await wait_signal(GO)).value for _ in range(3)]

    @app.task
    async def beats(other: Handle[list[int]], beat: int = 0) -> None:
        await other.signal(GO, beat)
        if beat < 2:
            beats.continue_with(other, beat + 1)

    other = await kit.start(hears)
    await kit.run(beats, other)

    assert await kit.finish(other) == [0, 1, 2]


async def test_every_turn_of_an_execution_that_continues_submits_anew_under_a_key_of_its_own(
    app: App, kit: Kit
) -> None:
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


async def test_a_step_that_is_replayed_submits_anew_and_one_that_is_kept_does_not(app: App, kit: Kit) -> None:
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


async def test_a_signal_sent_by_a_step_is_delivered_once_however_often_the_step_is_tried(app: App, kit: Kit) -> None:
    fail = failing_once()

    @app.task(signals=[GO])
    async def waiting() -> list[int]:
        found = []
        for _ in range(2):
            match await wait_signal(GO, timeout="1h"):
                case Received(value=value):
                    found.append(value)
        return found

    async def send(other: Handle[list[int]]) -> None:
        await other.signal(GO, 3)
        fail()

    @app.task
    async def sender(other: Handle[list[int]]) -> None:
        await step(send, other)

    other = await kit.start(waiting)
    await kit.run(sender, other)

    assert await kit.finish(other) == [3]


async def test_a_cancel_by_a_step_may_be_repeated(app: App, kit: Kit) -> None:
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


async def test_the_key_of_a_step_is_its_execution_and_path(app: App, kit: Kit) -> None:
    async def key() -> str:
        return current().idempotency_key

    @app.task
    async def task() -> list[str]:
        return [await step(key), await step(key), await step.options(key="eu")(key)]

    handle = await kit.start(task)

    assert await handle == [f"{handle.id}/{path}" for path in ("key", "key#2", "key[eu]")]


VERBS: dict[str, Callable[[Any, Handle[int]], Any]] = {
    "run": lambda task, handle: task.run(),
    "await handle": lambda task, handle: handle,
    "result": lambda task, handle: handle.result(),
    "outcome": lambda task, handle: handle.outcome("1h"),
    "step": lambda task, handle: step(abs, -1),
    "sleep": lambda task, handle: sleep("1h"),
}


@pytest.mark.parametrize("verb", VERBS)
async def test_what_could_wait_for_its_own_slot_is_refused_in_a_step(app: App, memory_kit: Kit, verb: str) -> None:
    @app.task
    async def other() -> int:
        return 1

    async def waits(handle: Handle[int]) -> None:
        await VERBS[verb](other, handle)

    @app.task
    async def parent(handle: Handle[int]) -> None:
        await step(waits, handle)

    handle = await memory_kit.start(other)
    with pytest.raises(ExecutionFailed, match="a step cannot contain durable calls; call the function directly"):
        await memory_kit.run(parent, handle)


async def test_a_refused_call_in_a_step_is_not_tried_again(app: App, memory_kit: Kit) -> None:
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


async def test_a_plain_step_submits_signals_and_cancels_by_the_sync_face(app: App, kit: Kit) -> None:
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


async def test_a_plain_step_does_not_wait_for_executions(app: App, memory_kit: Kit) -> None:
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


async def test_reading_verbs_work_in_a_step(app: App, kit: Kit) -> None:
    @app.task
    async def other() -> int:
        return 1

    async def look(handle: Handle[int]) -> str:
        return str((await handle.status()).state)

    @app.task
    async def parent(handle: Handle[int]) -> str:
        return await step(look, handle)

    handle = await kit.start(other)

    assert await kit.run(parent, handle) == str(State.COMPLETED)
