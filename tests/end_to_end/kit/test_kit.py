"""The behaviour of the testing kit."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from flowfabric import (
    App,
    Approved,
    Diverged,
    ExecutionFailed,
    Signal,
    approval,
    gather,
    race,
    sleep,
    step,
    sync,
    wait_signal,
)
from flowfabric.engine import NotFound
from flowfabric.testing import Kit, Stuck, direct, sweep

app = App("never-made.db")
calls: list[str] = []
stop = Signal("stop", str)


def do(effect: str) -> str:
    calls.append(effect)
    return effect


@app.task
async def nap(name: str) -> str:
    await sleep("1h")
    first = await step(do, name)
    await sleep("1h")
    return first + await step(do, name)


@app.task
async def wait_for_approval() -> str:
    return "yes" if isinstance(await approval("plan", by="ann"), Approved) else "no"


@app.task(signals=[stop])
async def wait_for_stop() -> str:
    return (await wait_signal(stop)).value


@app.task
def plain(name: str) -> str:
    first = sync.step(do, name)
    sync.sleep("1h")
    return first + "".join(sync.gather(lambda: sync.step(do, "x"), lambda: sync.step(do, "y")))


@pytest.fixture(autouse=True)
def _clear_calls() -> None:
    calls.clear()


async def test_advance_stops_at_every_due_time() -> None:
    async with Kit(app) as kit:
        start_time = kit.now()
        handle = await kit.start(nap, "a")
        await kit.advance("90m")
        assert calls == ["a"]
        await kit.advance("90m")
        assert calls == ["a", "a"]
        assert (kit.now() - start_time).total_seconds() == 3 * 3600
        assert await handle == "aa"


async def test_finish_advances_only_as_far_as_needed() -> None:
    async with Kit(app) as kit:
        start_time = kit.now()
        assert await kit.run(nap, "a") == "aa"
        assert (kit.now() - start_time).total_seconds() == 2 * 3600


async def test_finish_names_the_open_wait_when_stuck() -> None:
    async with Kit(app) as kit:
        handle = await kit.start(wait_for_approval)
        with pytest.raises(
            Stuck, match=r'cannot continue: Waiting for approval "plan": 0 of 1 \(ann has not decided\)'
        ):
            await kit.finish(handle)


async def test_decision_without_an_open_approval_raises() -> None:
    async with Kit(app) as kit:
        handle = await kit.start(wait_for_approval)
        with pytest.raises(NotFound, match=r"no approval 'plan' is open for bob; open approvals: approval:plan\[ann\]"):
            await kit.approve(handle, "plan", by="bob")


async def test_crash_after_a_record_repeats_nothing() -> None:
    async with Kit(app) as kit:
        kit.crash_after("do")
        assert await kit.run(nap, "a") == "aa"
        assert kit.hooks.runs == 4
    assert calls == ["a", "a"]


async def test_crash_before_a_record_repeats_the_step() -> None:
    async with Kit(app) as kit:
        kit.crash_before("do#2")
        assert await kit.run(nap, "a") == "aa"
    assert calls == ["a", "a", "a"]


async def test_crash_that_never_happens_raises() -> None:
    async def too_late() -> None:
        async with Kit(app) as kit:
            kit.crash_after("do#3")
            await kit.run(nap, "a")

    with pytest.raises(Stuck, match=r"never happened: crash_after\('do#3'\)"):
        await too_late()


async def test_duplicate_signal_is_received_once() -> None:
    async with Kit(app) as kit:
        kit.duplicate_delivery()
        handle = await kit.start(wait_for_stop)
        await kit.signal(handle, stop, "now")
        assert await kit.finish(handle) == "now"


async def test_steps_lists_the_records_in_order() -> None:
    async with Kit(app) as kit:
        handle = await kit.start(nap, "a")
        assert await kit.steps(handle) == ["sleep"]
        await kit.finish(handle)
        assert await kit.steps(handle) == ["sleep", "do", "sleep#2", "do#2"]


async def test_step_that_changes_its_arguments_fails() -> None:
    def add(items: list[int]) -> int:
        items.append(1)
        return len(items)

    own = App(":memory:")

    @own.task
    async def work() -> int:
        return await step(add, [])

    async with Kit(own) as kit:
        with pytest.raises(ExecutionFailed, match="add changed its arguments"):
            await kit.run(work)


async def test_result_that_changes_when_stored_is_an_error() -> None:
    @dataclass
    class Point:
        x: int

    @dataclass
    class Deep(Point):
        y: int = 0

    def make() -> Point:
        return Deep(1, 2)

    own = App(":memory:")

    @own.task
    async def work() -> Point:
        return await step(make)

    async with Kit(own) as kit:
        with pytest.raises(ExecutionFailed, match="make"):
            await kit.run(work)


async def test_forced_replay_detects_nondeterminism() -> None:
    own, turns = App(":memory:"), [0]

    @own.task
    async def work() -> str:
        turns[0] += 1
        return await step(do, str(turns[0])) + await step(do, "b")

    async with Kit(own, replay="every record") as kit:
        with pytest.raises(Diverged, match="its arguments differ from the recorded ones"):
            await kit.run(work)


async def test_sweep_detects_an_effect_outside_of_a_step() -> None:
    own, turns = App(":memory:"), [0]

    @own.task
    async def work() -> str:
        turns[0] += 1
        calls.append("outside of a step")
        return await step(do, "a")

    with pytest.raises(AssertionError, match=r"with replay at every record, these effects happened again"):
        await sweep(own, lambda kit: kit.run(work), effects=calls)


async def test_several_executions_can_run_concurrently() -> None:
    own = App(":memory:")

    @own.task
    async def square(n: int) -> int:
        return n * n

    @own.task
    async def total() -> int:
        return sum(await gather(*(square.run(n) for n in range(10))))

    async with Kit(own, concurrency=8) as kit:
        assert await kit.run(total) == 285


def test_sync_kit_has_the_same_methods() -> None:
    with Kit(app, replay="every record").sync as kit:
        kit.crash_after("do")
        handle = kit.start(plain, "a")
        kit.advance("30m")
        assert kit.steps(handle) == ["do", "sleep"]
        assert kit.finish(handle) == "axy"
        assert kit.run(nap, "b") == "bb"
        approval_handle = kit.start(wait_for_approval)
        kit.approve(approval_handle, "plan", by="ann")
        assert kit.finish(approval_handle) == "yes"
    assert sorted(calls) == ["a", "b", "b", "x", "y"]


async def test_task_function_can_be_called_directly() -> None:
    with direct():
        assert await nap.fn("a") == "aa"
    assert calls == ["a", "a"]


def test_plain_task_function_can_be_called_directly() -> None:
    with direct():
        assert plain.fn("a") == "axy"
    assert sorted(calls) == ["a", "x", "y"]


async def test_race_ends_its_losers_in_a_direct_call() -> None:
    with direct():
        assert (await race(step(str, 1), step(asyncio.Event().wait))).value == "1"


async def test_task_with_an_approval_cannot_be_called_directly() -> None:
    with direct(), pytest.raises(Exception, match=r"a direct call cannot use approval:plan"):
        await wait_for_approval.fn()


async def test_app_has_its_own_store_again_after_the_kit(tmp_path: Path) -> None:
    own = App(str(tmp_path / "own.db"))

    @own.task
    async def work() -> int:
        return 1

    async with Kit(own) as kit:
        handle = await kit.start(work)
    async with own:
        with pytest.raises(NotFound):
            await handle.status()


def test_fixtures_are_a_pytest_plugin_and_the_kit_needs_no_pytest(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text('pytest_plugins = ["flowfabric.testing.fixtures"]\n')
    (tmp_path / "test_it.py").write_text(
        "from flowfabric import App, step\n"
        "app = App()\n"
        "@app.task\n"
        "async def hello(name: str) -> str: return await step('Hello, {}!'.format, name)\n"
        "def test_hello(sync_kit) -> None:\n"
        "    kit = sync_kit(app)\n"
        "    assert kit.run(hello, 'you') == 'Hello, you!'\n"
        "    assert kit.hooks.runs == 2\n"
    )
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--replay=every record", str(tmp_path)]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=120, cwd=tmp_path)
    assert done.returncode == 0, done.stdout
    script = "import sys, flowfabric.testing; sys.exit('pytest' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], check=False, timeout=60).returncode == 0


async def test_kit_on_a_used_store_continues_at_its_time(tmp_path: Path) -> None:
    path = str(tmp_path / "used.db")
    async with Kit(app, path) as kit:
        await kit.run(nap, "a")
        end_time = kit.now()
    async with Kit(app, path) as kit:
        assert kit.now() == end_time


async def test_replay_at_every_record_does_not_interrupt_at_most_once_steps() -> None:
    app, launched = App(":memory:"), list[str]()

    @step.policy(at_most_once=True)
    def launch(name: str) -> str:
        launched.append(name)
        return name

    @app.task
    async def work() -> list[str]:
        first = await step(launch, "a")
        return [first, *await gather(step(launch, "b"), step(str, "c"), step(launch, "d"))]

    async with Kit(app, replay="every record") as kit:
        assert await kit.run(work) == ["a", "b", "c", "d"]
    assert sorted(launched) == ["a", "b", "d"]


async def test_sweep_counts_only_crashes_that_happened() -> None:
    app = App(":memory:")

    @app.task
    async def work() -> None:
        for turn in range(2):
            await step(int, turn)

    assert (await sweep(app, lambda kit: kit.run(work))).crashes == 4
