"""A plain branch that waits while others work leaves its thread at once, and is run again when it can go on."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial

import pytest

from flowfabric import App, CancelRequested, ExecutionCancelled, Received, Signal, Task, current, logger, sync
from flowfabric.engine import Refused, State
from flowfabric.sdk.units import UNIT
from flowfabric.testing import Kit
from flowfabric.testing.watching import Crash, Moment, Replay
from tests.end_to_end.durable.kits import begin
from tests.sizes import Size

GO = Signal("go", int)
BRANCHES = 100
PATIENCE_S = 60


def branch_threads() -> int:
    """How many threads branches hold just now."""
    return sum(thread.name.startswith("flowfabric-branch") for thread in threading.enumerate())


def until_true(condition: Callable[[], bool]) -> None:
    """Returns, in a thread of a branch, once something is true that nobody tells."""
    pause = threading.Event()
    for _ in range(2_000):
        if condition():
            return
        pause.wait(0.01)
    raise AssertionError("it takes too long")


def until_parked(number: int) -> None:
    """Returns, in a thread of a branch, once so many waits are parked."""
    unit = UNIT.get()
    assert unit is not None
    until_true(lambda: len(unit.run.resting.parked) >= number)


async def test_a_hundred_parked_branches_beside_an_active_one_hold_no_threads(app: App, kit: Kit) -> None:
    held: list[int] = []

    def sleeps(number: int) -> int:
        sync.sleep("1h")
        return sync.step(abs, -number)

    def works() -> int:
        if not held:
            until_parked(BRANCHES)
            until_true(lambda: branch_threads() == 1)
            held.append(branch_threads())
        return sync.step(int, "-1")

    @app.task
    def task() -> list[int]:
        return list(sync.gather(works, *(partial(sleeps, number) for number in range(BRANCHES))))

    handle = await kit.start(task)

    assert (await handle.status()).state is State.DELAYED
    assert await kit.finish(handle) == [-1, *range(BRANCHES)]


async def test_no_more_threads_than_the_pool_has_are_started_for_branches(app: App, memory_kit: Kit) -> None:
    most: list[int] = []
    lock = threading.Lock()

    def counts() -> int:
        with lock:
            most.append(branch_threads())
        return sync.step(int, "1")

    @app.task
    def task() -> int:
        return sum(sync.gather(*[counts] * 200))

    assert await memory_kit.run(task) == 200
    assert max(most) <= 32


def napping_task(app: App, effects: list[str]) -> Task[[], list[str]]:
    """Branches, and branches within them, that sleep for as many hours as their number while another one works."""

    def tell(entry: str) -> str:
        effects.append(entry)
        return entry

    def branch(number: int) -> str:
        sync.step(tell, f"{number} begins")
        drawn, began = sync.uuid4(), sync.now()
        sync.sleep(f"{number}h")
        hours = (sync.now() - began).total_seconds() // 3600
        return sync.step(tell, f"{number} ends after {hours:.0f}h as {str(drawn)[:4]}")

    def both(number: int) -> tuple[str, str]:
        return sync.gather(partial(branch, number), partial(branch, number + 1))

    def works() -> None:
        for _ in range(10):
            sync.step(str)

    @app.task
    def task() -> list[str]:
        first, second, last, _ = sync.gather(partial(both, 1), partial(both, 3), partial(branch, 5), works)
        won = sync.race(partial(branch, 6), partial(branch, 7))
        return [*first, *second, last, won.value]

    return task


def kinds(effects: Iterable[str]) -> Counter[str]:
    """Effects without what is drawn, which differs between executions."""
    return Counter(effect.partition(" as ")[0] for effect in effects)


NAPS = kinds([*(f"{n} begins" for n in range(1, 8)), *(f"{n} ends after {n}h" for n in range(1, 7))])


@pytest.mark.parametrize("replay", [None, "suspensions", "every record"])
async def test_branches_that_leave_come_to_the_same_under_forced_replay(app: App, replay: Replay | None) -> None:
    effects: list[str] = []
    task = napping_task(app, effects)

    async with Kit(app, replay=replay) as kit:
        found = await kit.run(task)
    assert list(kinds(found)) == [f"{n} ends after {n}h" for n in range(1, 7)]
    assert kinds(effects) == NAPS
    assert set(found) <= set(effects)


@pytest.mark.parametrize("moment", ["after", "before"])
async def test_branches_that_leave_come_to_the_same_after_a_crash_at_any_record(
    app: App, moment: Moment, size: Size
) -> None:
    effects: list[str] = []
    task = napping_task(app, effects)

    for number in range(0, 40, size.of(13, 5, 1)):
        effects.clear()
        async with Kit(app) as kit:
            kit.watch.crashes.append(Crash(moment, number=number))
            found = await kit.run(task)
            interrupted = sum(kit.watch.interrupted.values())
            kit.watch.crashes.clear()
        assert list(kinds(found)) == [f"{n} ends after {n}h" for n in range(1, 7)]
        assert not NAPS - kinds(effects)
        assert (kinds(effects) - NAPS).total() <= interrupted


async def test_a_lost_lease_leaves_no_branch_behind_that_had_left(app: App, memory_kit: Kit) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def works() -> None:
        until_true(lambda: branch_threads() == 1)
        begun.set()
        go_on.wait(PATIENCE_S)
        sync.step(str)

    @app.task
    def task() -> None:
        sync.gather(lambda: sync.sleep("1h"), works)

    _ = await task.submit()
    run = await begin(memory_kit)
    performing = asyncio.create_task(run.perform())
    assert await asyncio.to_thread(begun.wait, PATIENCE_S)
    run.lease_lost(Refused("stale_lease", "somebody else has it"))
    go_on.set()
    await asyncio.wait_for(performing, PATIENCE_S)
    await asyncio.to_thread(until_true, lambda: branch_threads() == 0)


async def test_a_parked_branch_goes_on_while_another_one_works(real_app: App) -> None:
    stays: list[str] = []
    begun, heard = threading.Event(), threading.Event()

    def waits() -> int:
        stays.append("begins")
        match sync.wait_signal(GO):
            case Received(value=value):
                sync.step(heard.set)
                return value

    def works() -> bool:
        until_true(lambda: branch_threads() == 1)
        begun.set()
        return heard.wait(PATIENCE_S)

    @real_app.task(signals=[GO])
    def task() -> list[int]:
        return list(sync.gather(waits, works))

    async with real_app.worker(concurrency=1):
        handle = await task.submit()
        assert await asyncio.to_thread(begun.wait, PATIENCE_S)
        await handle.signal(GO, 7)
        assert await handle.result(timeout=PATIENCE_S) == [7, True]
    assert len(stays) == 2


async def test_a_branch_of_a_group_that_only_waits_leaves_its_thread_too(app: App, memory_kit: Kit) -> None:
    held: list[int] = []

    def pair() -> int:
        return sum(sync.gather(*[partial(nap, number) for number in (1, 2)]))

    def nap(number: int) -> int:
        sync.sleep("1h")
        return number

    def works() -> None:
        if not held:
            until_parked(20)
            until_true(lambda: branch_threads() == 1)
            held.append(branch_threads())

    @app.task
    def task() -> list[int | None]:
        return list(sync.gather(*[pair] * 10, works))

    assert await memory_kit.run(task) == [*[3] * 10, None]


async def test_more_groups_within_branches_than_threads_do_not_wait_for_each_other(app: App, memory_kit: Kit) -> None:
    def pair() -> int:
        return sum(sync.gather(lambda: sync.step(int, "1"), lambda: sync.step(int, "2")))

    @app.task
    def task() -> int:
        return sum(sync.gather(*[pair] * 100))

    assert await memory_kit.run(task) == 300


async def test_an_accident_in_a_group_that_was_left_reaches_the_branch(real_app: App) -> None:
    raised: list[str] = []
    caught = threading.Event()

    def fails() -> None:
        for _ in range(len(raised) + 1):
            sync.sleep("500ms")
        raised.append("an accident")
        raise ValueError(f"accident {len(raised)}")

    def tries() -> str:
        sync.step(str)
        try:
            sync.gather(fails, lambda: sync.sleep("1h"))
        except ValueError as error:
            caught.set()
            return sync.step(str, error)
        return "no accident"

    @real_app.task
    def task() -> str:
        return sync.gather(tries, lambda: caught.wait(PATIENCE_S))[0]

    async with real_app.worker(concurrency=1):
        assert await (await task.submit()).result(timeout=PATIENCE_S) == "accident 2"


async def test_an_accident_that_a_branch_did_not_see_decides_nothing(real_app: App) -> None:
    raised: list[str] = []
    done = threading.Event()

    def fails_once() -> str:
        sync.sleep("500ms")
        if not raised:
            raised.append("an accident")
            raise ValueError("an accident")
        return "well"

    def tries() -> str:
        sync.step(str)
        found = sync.gather(fails_once, lambda: sync.sleep("1s"))[0]
        sync.step(done.set)
        return found

    @real_app.task(retries=0)
    def task() -> str:
        return sync.gather(tries, lambda: done.wait(PATIENCE_S))[0]

    async with real_app.worker(concurrency=1):
        assert await (await task.submit()).result(timeout=PATIENCE_S) == "well"
    assert raised == ["an accident"]


async def test_what_a_branch_made_before_it_left_need_not_be_awaited_twice(real_app: App) -> None:
    done = threading.Event()

    def asks() -> str:
        reply = sync.callback("reply", str, timeout="500ms")
        sync.sleep("1s")
        found = type(reply.wait()).__name__
        sync.step(done.set)
        return found

    @real_app.task(retries=0)
    def task() -> str:
        return sync.gather(asks, lambda: done.wait(PATIENCE_S))[0]

    async with real_app.worker(concurrency=1):
        assert await (await task.submit()).result(timeout=PATIENCE_S) == "TimedOut"


async def test_progress_and_logs_are_not_repeated_by_a_branch_that_runs_again(
    real_app: App, caplog: pytest.LogCaptureFixture
) -> None:
    seen: list[bool] = []

    def sleeps() -> None:
        seen.append(current().replaying)
        logger.info("going to sleep")
        sync.sleep("1s")
        seen.append(current().replaying)
        logger.info("awake")
        seen_twice.set()

    seen_twice = threading.Event()

    @real_app.task
    def task() -> None:
        sync.gather(sleeps, lambda: seen_twice.wait(PATIENCE_S))

    with caplog.at_level(logging.INFO, logger="flowfabric.task"):
        async with real_app.worker(concurrency=1):
            await (await task.submit()).result(timeout=PATIENCE_S)
    assert seen == [False, True, False]
    assert [record.message for record in caplog.records] == ["going to sleep", "awake"]


async def test_a_branch_that_swallows_its_leaving_is_told_again_and_dropped(
    app: App, memory_kit: Kit, caplog: pytest.LogCaptureFixture
) -> None:
    def swallows() -> str:
        while True:
            try:
                sync.sleep("1h")
                return "slept"
            except BaseException:
                continue

    def works() -> None:
        unit = UNIT.get()
        assert unit is not None
        if unit.run.lease.epoch == 1:
            until_true(lambda: "swallows Unwind for ever" in caplog.text)

    @app.task
    def task() -> str:
        return sync.gather(swallows, works)[0]

    assert await memory_kit.run(task) == "slept"


async def test_a_request_to_cancel_reaches_a_branch_that_has_left(real_app: App) -> None:
    told: list[str] = []
    begun, asked = threading.Event(), threading.Event()

    def sleeps() -> None:
        try:
            sync.sleep("1h")
        except CancelRequested:
            told.append(sync.step(str, "told"))
            asked.set()
            raise

    def works() -> bool:
        until_true(lambda: branch_threads() == 1)
        begun.set()
        return asked.wait(PATIENCE_S)

    @real_app.task
    def task() -> None:
        sync.gather(sleeps, works)

    async with real_app.worker(concurrency=1, lease="3s"):
        handle = await task.submit()
        assert await asyncio.to_thread(begun.wait, PATIENCE_S)
        await handle.cancel(grace="1m")
        with pytest.raises(ExecutionCancelled):
            await handle.result(timeout=PATIENCE_S)
    assert told == ["told"]
