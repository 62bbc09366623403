"""A plain branch that waits while others work releases its thread and runs again when it can continue."""

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
from flowfabric.runtime.branch import BRANCH
from flowfabric.testing import Kit
from flowfabric.testing.hooks import Crash, Moment, Replay
from tests.end_to_end.durable.kits import begin
from tests.sizes import Size

GO = Signal("go", int)
BRANCHES = 100
TIMEOUT_S = 60


def branch_threads() -> int:
    """Return the number of threads that branches hold."""
    return sum(thread.name.startswith("flowfabric-branch") for thread in threading.enumerate())


def until_true(condition: Callable[[], bool]) -> None:
    """Poll the condition in the thread of a branch until it is true."""
    pause = threading.Event()
    for _ in range(2_000):
        if condition():
            return
        pause.wait(0.01)
    raise AssertionError("the condition did not become true in time")


def until_parked(number: int) -> None:
    """Wait in the thread of a branch until at least `number` durable waits of the run are open."""
    unit = BRANCH.get()
    assert unit is not None
    until_true(lambda: len(unit.run.suspender.waiting) >= number)


async def test_parked_branches_beside_an_active_one_hold_no_threads(app: App, kit: Kit) -> None:
    held: list[int] = []

    def sleep_then_step(number: int) -> int:
        sync.sleep("1h")
        return sync.step(abs, -number)

    def work() -> int:
        if not held:
            until_parked(BRANCHES)
            until_true(lambda: branch_threads() == 1)
            held.append(branch_threads())
        return sync.step(int, "-1")

    @app.task
    def task() -> list[int]:
        return list(sync.gather(work, *(partial(sleep_then_step, number) for number in range(BRANCHES))))

    handle = await kit.start(task)

    assert (await handle.status()).state is State.DELAYED
    assert await kit.finish(handle) == [-1, *range(BRANCHES)]


async def test_threads_for_branches_are_limited_by_the_pool(app: App, memory_kit: Kit) -> None:
    thread_counts: list[int] = []
    lock = threading.Lock()

    def count_threads() -> int:
        with lock:
            thread_counts.append(branch_threads())
        return sync.step(int, "1")

    @app.task
    def task() -> int:
        return sum(sync.gather(*[count_threads] * 200))

    assert await memory_kit.run(task) == 200
    assert max(thread_counts) <= 32


def make_sleeping_task(app: App, effects: list[str]) -> Task[[], list[str]]:
    """Return a task with nested branches. Branch number n sleeps for n hours while other branches work."""

    def record_effect(entry: str) -> str:
        effects.append(entry)
        return entry

    def branch(number: int) -> str:
        sync.step(record_effect, f"{number} begins")
        drawn, began = sync.uuid4(), sync.now()
        sync.sleep(f"{number}h")
        hours = (sync.now() - began).total_seconds() // 3600
        return sync.step(record_effect, f"{number} ends after {hours:.0f}h as {str(drawn)[:4]}")

    def both(number: int) -> tuple[str, str]:
        return sync.gather(partial(branch, number), partial(branch, number + 1))

    def works() -> None:
        for _ in range(10):
            sync.step(str)

    @app.task
    def task() -> list[str]:
        first, second, last, _ = sync.gather(partial(both, 1), partial(both, 3), partial(branch, 5), works)
        winner = sync.race(partial(branch, 6), partial(branch, 7))
        return [*first, *second, last, winner.value]

    return task


def count_effects(effects: Iterable[str]) -> Counter[str]:
    """Count the effects without their random part, which differs between executions."""
    return Counter(effect.partition(" as ")[0] for effect in effects)


EXPECTED_EFFECTS = count_effects(
    [*(f"{n} begins" for n in range(1, 8)), *(f"{n} ends after {n}h" for n in range(1, 7))]
)


@pytest.mark.parametrize("replay", [None, "suspensions", "every record"])
async def test_released_branches_have_the_same_result_under_forced_replay(app: App, replay: Replay | None) -> None:
    effects: list[str] = []
    task = make_sleeping_task(app, effects)

    async with Kit(app, replay=replay) as kit:
        results = await kit.run(task)
    assert list(count_effects(results)) == [f"{n} ends after {n}h" for n in range(1, 7)]
    assert count_effects(effects) == EXPECTED_EFFECTS
    assert set(results) <= set(effects)


@pytest.mark.parametrize("moment", ["after", "before"])
async def test_released_branches_have_the_same_result_after_a_crash_at_any_record(
    app: App, moment: Moment, size: Size
) -> None:
    effects: list[str] = []
    task = make_sleeping_task(app, effects)

    for number in range(0, 40, size.of(13, 5, 1)):
        effects.clear()
        async with Kit(app) as kit:
            kit.hooks.crashes.append(Crash(moment, number=number))
            results = await kit.run(task)
            interrupted = sum(kit.hooks.interrupted.values())
            kit.hooks.crashes.clear()
        assert list(count_effects(results)) == [f"{n} ends after {n}h" for n in range(1, 7)]
        assert not EXPECTED_EFFECTS - count_effects(effects)
        assert (count_effects(effects) - EXPECTED_EFFECTS).total() <= interrupted


async def test_lost_lease_leaves_no_branch_thread_behind(app: App, memory_kit: Kit) -> None:
    begun, may_continue = threading.Event(), threading.Event()

    def works() -> None:
        until_true(lambda: branch_threads() == 1)
        begun.set()
        may_continue.wait(TIMEOUT_S)
        sync.step(str)

    @app.task
    def task() -> None:
        sync.gather(lambda: sync.sleep("1h"), works)

    _ = await task.submit()
    run = await begin(memory_kit)
    running = asyncio.create_task(run.run())
    assert await asyncio.to_thread(begun.wait, TIMEOUT_S)
    run.lease_lost(Refused("stale_lease", "another worker has the lease"))
    may_continue.set()
    await asyncio.wait_for(running, TIMEOUT_S)
    await asyncio.to_thread(until_true, lambda: branch_threads() == 0)


async def test_parked_branch_continues_while_another_works(real_app: App) -> None:
    starts: list[str] = []
    begun, received = threading.Event(), threading.Event()

    def waits() -> int:
        starts.append("begins")
        match sync.wait_signal(GO):
            case Received(value=value):
                sync.step(received.set)
                return value

    def works() -> bool:
        until_true(lambda: branch_threads() == 1)
        begun.set()
        return received.wait(TIMEOUT_S)

    @real_app.task(signals=[GO])
    def task() -> list[int]:
        return list(sync.gather(waits, works))

    async with real_app.worker(concurrency=1):
        handle = await task.submit()
        assert await asyncio.to_thread(begun.wait, TIMEOUT_S)
        await handle.signal(GO, 7)
        assert await handle.result(timeout=TIMEOUT_S) == [7, True]
    assert len(starts) == 2


async def test_branch_with_a_waiting_group_releases_its_thread(app: App, memory_kit: Kit) -> None:
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


async def test_more_nested_groups_than_threads_do_not_deadlock(app: App, memory_kit: Kit) -> None:
    def pair() -> int:
        return sum(sync.gather(lambda: sync.step(int, "1"), lambda: sync.step(int, "2")))

    @app.task
    def task() -> int:
        return sum(sync.gather(*[pair] * 100))

    assert await memory_kit.run(task) == 300


async def test_failure_in_a_released_group_reaches_its_branch(real_app: App) -> None:
    raised: list[str] = []
    caught = threading.Event()

    def fails() -> None:
        for _ in range(len(raised) + 1):
            sync.sleep("500ms")
        raised.append("a failure")
        raise ValueError(f"failure {len(raised)}")

    def tries() -> str:
        sync.step(str)
        try:
            sync.gather(fails, lambda: sync.sleep("1h"))
        except ValueError as error:
            caught.set()
            return sync.step(str, error)
        return "no failure"

    @real_app.task
    def task() -> str:
        return sync.gather(tries, lambda: caught.wait(TIMEOUT_S))[0]

    async with real_app.worker(concurrency=1):
        assert await (await task.submit()).result(timeout=TIMEOUT_S) == "failure 2"


async def test_failure_that_a_released_branch_did_not_see_is_ignored(real_app: App) -> None:
    raised: list[str] = []
    done = threading.Event()

    def fails_once() -> str:
        sync.sleep("500ms")
        if not raised:
            raised.append("a failure")
            raise ValueError("a failure")
        return "succeeded"

    def tries() -> str:
        sync.step(str)
        results = sync.gather(fails_once, lambda: sync.sleep("1s"))[0]
        sync.step(done.set)
        return results

    @real_app.task(retries=0)
    def task() -> str:
        return sync.gather(tries, lambda: done.wait(TIMEOUT_S))[0]

    async with real_app.worker(concurrency=1):
        assert await (await task.submit()).result(timeout=TIMEOUT_S) == "succeeded"
    assert raised == ["a failure"]


async def test_call_created_before_a_branch_was_released_is_awaited_once(real_app: App) -> None:
    done = threading.Event()

    def wait_for_callback() -> str:
        reply = sync.callback("reply", str, timeout="500ms")
        sync.sleep("1s")
        results = type(reply.wait()).__name__
        sync.step(done.set)
        return results

    @real_app.task(retries=0)
    def task() -> str:
        return sync.gather(wait_for_callback, lambda: done.wait(TIMEOUT_S))[0]

    async with real_app.worker(concurrency=1):
        assert await (await task.submit()).result(timeout=TIMEOUT_S) == "TimedOut"


async def test_branch_that_runs_again_does_not_repeat_progress_and_logs(
    real_app: App, caplog: pytest.LogCaptureFixture
) -> None:
    seen: list[bool] = []

    def sleep_then_step() -> None:
        seen.append(current().replaying)
        logger.info("going to sleep")
        sync.sleep("1s")
        seen.append(current().replaying)
        logger.info("awake")
        seen_twice.set()

    seen_twice = threading.Event()

    @real_app.task
    def task() -> None:
        sync.gather(sleep_then_step, lambda: seen_twice.wait(TIMEOUT_S))

    with caplog.at_level(logging.INFO, logger="flowfabric.task"):
        async with real_app.worker(concurrency=1):
            await (await task.submit()).result(timeout=TIMEOUT_S)
    assert seen == [False, True, False]
    messages = [record.message for record in caplog.records if record.name == logger.name]
    assert messages == ["going to sleep", "awake"]


async def test_branch_that_swallows_unwind_forever_is_dropped(
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
        unit = BRANCH.get()
        assert unit is not None
        if unit.run.lease.epoch == 1:
            until_true(lambda: "keeps swallowing Unwind" in caplog.text)

    @app.task
    def task() -> str:
        return sync.gather(swallows, works)[0]

    assert await memory_kit.run(task) == "slept"


async def test_cancel_request_reaches_a_released_branch(real_app: App) -> None:
    requests: list[str] = []
    begun, request_seen = threading.Event(), threading.Event()

    def sleep_then_step() -> None:
        try:
            sync.sleep("1h")
        except CancelRequested:
            requests.append(sync.step(str, "requested"))
            request_seen.set()
            raise

    def works() -> bool:
        until_true(lambda: branch_threads() == 1)
        begun.set()
        return request_seen.wait(TIMEOUT_S)

    @real_app.task
    def task() -> None:
        sync.gather(sleep_then_step, works)

    async with real_app.worker(concurrency=1, lease="3s"):
        handle = await task.submit()
        assert await asyncio.to_thread(begun.wait, TIMEOUT_S)
        await handle.cancel(grace="1m")
        with pytest.raises(ExecutionCancelled):
            await handle.result(timeout=TIMEOUT_S)
    assert requests == ["requested"]
