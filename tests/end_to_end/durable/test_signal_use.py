"""A signal is consumed only by the record of the wait that returned it. Every other signal stays available."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any
from uuid import UUID, uuid4

from flowfabric import (
    App,
    Count,
    Handle,
    Signal,
    Single,
    TimedOut,
    WaitOverridden,
    race,
    sleep,
    wait_for,
    wait_signal,
)
from flowfabric.core.waits.records import Effect, StoredSignal
from flowfabric.engine import Engine
from flowfabric.runtime.waits import ConsumedSignals
from flowfabric.testing import Kit
from tests.end_to_end.durable.kits import KitFactory
from tests.faults.kit.replies import losing_engine
from tests.sizes import Size

a, b, c = (Signal(name, int) for name in "abc")
BY_NAME = {"a": a, "b": b, "c": c}


async def send_at_random(kit: Kit, handle: Handle[Any], values: range, chance: random.Random) -> dict[str, list[int]]:
    """Send these values as signals with random names, and return them by name."""
    sent: dict[str, list[int]] = {name: [] for name in BY_NAME}
    for value in values:
        name = chance.choice(sorted(BY_NAME))
        await kit.engine.signals.send(handle.id, name, b"%d" % value)
        sent[name].append(value)
    return sent


async def test_loser_of_a_race_does_not_use_its_signal(app: App, kit: Kit) -> None:
    @app.task(signals=[a, b])
    async def task() -> list[int]:
        return [(await race(wait_signal(a), wait_signal(b))).value.value for _ in range(2)]

    handle = await task.submit()
    await kit.engine.signals.send(handle.id, "a", b"1")
    await kit.engine.signals.send(handle.id, "b", b"2")
    assert await kit.finish(handle) == [1, 2]


async def test_signal_of_a_loser_is_used_by_a_single_wait(app: App, kit: Kit) -> None:
    @app.task(signals=[a, b])
    async def task() -> list[int]:
        first = await race(wait_signal(a), wait_signal(b))
        return [first.value.value, (await wait_signal(b)).value]

    handle = await task.submit()
    await kit.engine.signals.send(handle.id, "b", b"2")
    await kit.engine.signals.send(handle.id, "a", b"1")
    assert await kit.finish(handle) == [1, 2]


async def test_loop_over_a_race_receives_every_signal_in_order_per_name(app: App, kit: Kit, size: Size) -> None:
    number = size.of(200, 1_000, 1_000)

    @app.task(signals=[a, b, c])
    async def task(got: list[tuple[str, int]]) -> list[tuple[str, int]]:
        for _ in range(50):
            won = await race(wait_signal(a), wait_signal(b), wait_signal(c))
            got.append(("abc"[won.index], won.value.value))
        return got if len(got) == number else task.continue_with(got)

    chance, handle = random.Random(24), await task.submit([])
    sent: dict[str, list[int]] = {name: [] for name in BY_NAME}
    for start in range(0, number, 40):
        for name, values in (await send_at_random(kit, handle, range(start, start + 40), chance)).items():
            sent[name] += values
        await kit.work()
    got = await kit.finish(handle)
    assert {name: [value for other, value in got if other == name] for name in BY_NAME} == sent


async def test_race_in_every_replay_receives_every_signal(app: App, new_kit: KitFactory) -> None:
    @app.task(signals=[a, b, c])
    async def task() -> list[tuple[str, int]]:
        got: list[tuple[str, int]] = []
        for _ in range(10):
            won = await race(wait_signal(a), wait_signal(b), wait_signal(c))
            got.append(("abc"[won.index], won.value.value))
        return got

    async with new_kit(app, replay="every record") as kit:
        handle = await task.submit()
        sent = await send_at_random(kit, handle, range(10), random.Random(3))
        got = await kit.finish(handle)
    assert {name: [value for other, value in got if other == name] for name in BY_NAME} == sent


async def test_late_signal_that_ended_the_suspension_stays_for_the_next_wait(app: App, kit: Kit) -> None:
    @app.task(signals=[a])
    async def task() -> tuple[bool, int]:
        first = await wait_signal(a, timeout="10s")
        return isinstance(first, TimedOut), (await wait_signal(a)).value

    handle = await kit.start(task)
    kit.clock.advance("11s")
    await kit.engine.signals.send(handle.id, "a", b"7")
    assert await kit.finish(handle) == (True, 7)


async def test_signals_that_a_condition_does_not_count_stay_in_order(app: App, kit: Kit) -> None:
    @app.task(signals=[a])
    async def task() -> list[int]:
        met = await wait_for(Count(2, "sources", ["a"]))
        rest = [(await wait_signal(a)).value for _ in range(2)]
        return [*(int(signal.payload) for signal in met.signals), *rest]

    handle = await task.submit()
    for value, source in enumerate(("ada", "ada", "ada", "bob")):
        await kit.engine.signals.send(handle.id, "a", b"%d" % value, source_identity=source)
    assert await kit.finish(handle) == [0, 3, 1, 2]


async def test_signals_that_a_condition_does_not_count_survive_a_continuation_and_replays(
    app: App, new_kit: KitFactory
) -> None:
    @app.task(signals=[a])
    async def task(got: list[int]) -> list[int]:
        if not got:
            met = await wait_for(Count(2, "sources", ["a"]))
            await sleep("1h")
            task.continue_with([int(signal.payload) for signal in met.signals])
        return [*got, *[(await wait_signal(a)).value for _ in range(2)]]

    async with new_kit(app, replay="every record") as kit:
        handle = await task.submit([])
        for value, source in enumerate(("ada", "ada", "ada", "bob")):
            await kit.engine.signals.send(handle.id, "a", b"%d" % value, source_identity=source)
        assert await kit.finish(handle) == [0, 3, 1, 2]


async def test_override_uses_no_signal_and_does_not_end_the_next_wait(app: App, kit: Kit) -> None:
    @app.task(signals=[a])
    async def task() -> list[str]:
        names = []
        for name in ("a", "x"):
            try:
                await wait_for(Count(2, "signals", [name]))
            except WaitOverridden:
                names += [signal.waitpoint for signal in (await wait_for(Single(name))).signals]
        return names

    handle = await kit.start(task)
    await kit.signal(handle, a, 1)
    await kit.engine.operator.resume(handle.id, "enough")
    await kit.work()
    await kit.engine.operator.resume(handle.id, "enough")
    await kit.work()
    await kit.engine.signals.approve(handle.id, "x", "go", b"1")
    assert await kit.finish(handle) == ["a", "x"]


async def test_undeclared_signal_of_a_loser_is_used_by_the_next_wait_for_it(app: App, kit: Kit) -> None:
    @app.task
    async def task() -> list[int]:
        first = await race(wait_for(Single("x")), wait_for(Single("y")))
        second = await wait_for(Single("y"))
        return [int(met.signals[0].payload) for met in (first.value, second)]

    handle = await kit.start(task)
    await kit.engine.signals.approve(handle.id, "x", "go", b"1")
    await kit.engine.signals.approve(handle.id, "y", "go", b"2")
    assert await kit.finish(handle) == [1, 2]


async def test_satisfied_suspend_whose_reply_is_lost_keeps_its_signal(app: App, kit: Kit) -> None:
    @app.task(signals=[a])
    async def task() -> list[int]:
        return [(await wait_signal(a)).value for _ in range(3)]

    handle = await task.submit()
    for value in range(3):
        await kit.engine.signals.send(handle.id, "a", b"%d" % value)
    ids, is_suspending = list[UUID](), [False]
    lossy, losing = losing_engine(kit.engine, lambda: "reply" if is_suspending.pop() else is_suspending.append(False))

    @contextmanager
    def observe(operation: Any, namespace: str, request: Any) -> Iterator[None]:
        """Lose the reply to every other suspend."""
        if operation.name == "suspend":
            ids.append(request.suspension_id)
        is_suspending[:] = [operation.name == "suspend" and len(ids) % 2 == 1]
        yield

    kit._driver._engine = Engine(replace(lossy._context, retry_for_s=0.0, observer=observe))
    assert await kit.finish(handle) == [0, 1, 2]
    assert (losing.lost, len(ids), len(set(ids))) == (3, 6, 3)


# The signals that waits have found and not yet recorded.


def stored_signal(seq: int) -> StoredSignal:
    return StoredSignal(
        id=uuid4(),
        execution_id=UUID(int=1),
        seq=seq,
        waitpoint_id=UUID(int=2),
        waitpoint="a",
        name="a",
        category="external",
        source="engine:7:program:x",
        source_type="program",
        source_identity="x",
        created_at=None,
        accepted_at=datetime.now(UTC),
        effect=Effect.BUFFERED,
    )


def test_released_signal_is_available_and_older_than_the_position() -> None:
    signals, first, second = ConsumedSignals(), stored_signal(1), stored_signal(2)
    signals.reserve([first], [first, second])
    assert not signals.is_available(first)
    signals.reserve([second], [second])
    facts = signals.facts([second])
    signals.consume([second])
    # The record of the second wait names the first signal, since its wait may never be recorded.
    assert facts == {"used": {"a": 2}, "skipped": {"a": [1]}}
    signals.release([first])
    assert signals.is_available(first)
    assert (signals.position("a"), signals.skipped("a")) == (2, (1,))
    assert signals.facts() == {"used": {"a": 2}, "skipped": {"a": [1]}}


def test_records_of_concurrent_waits_are_restored_in_any_order() -> None:
    records: list[dict[str, Any]] = [
        {"used": {"a": 2}, "skipped": {"a": [1]}, "signals": [{"waitpoint": "a", "seq": 2}]},
        {"used": {"a": 1}, "signals": [{"waitpoint": "a", "seq": 1}]},
    ]
    for order in (records, records[::-1]):
        signals = ConsumedSignals()
        for facts in order:
            signals.restore(facts)
        assert (signals.position("a"), signals.skipped("a")) == (2, ())
