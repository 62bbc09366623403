"""Edge cases of durable functions, such as large results, timeouts, abandoned steps and changed code."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from flowfabric import (
    AllFailed,
    AllOf,
    App,
    Approved,
    ConditionMet,
    Diverged,
    ExecutionFailed,
    PermanentError,
    Signal,
    Single,
    StepFailed,
    TimedOut,
    approval,
    changed,
    current,
    gather,
    race,
    saga,
    sleep,
    step,
    sync,
    wait_for,
    wait_signal,
)
from flowfabric.testing import Kit, sweep

# Every test in this file crashes at every record, which is slow, so only long runs include it.
# tests/end_to_end/programs has a few such sweeps in every run.
pytestmark = pytest.mark.long

effects: list[str] = []
go, stop = Signal("go", int), Signal("stop", int)


def do(effect: str) -> str:
    effects.append(effect)
    return effect


async def do_async(effect: str) -> str:
    effects.append(effect)
    return effect


@pytest.fixture(autouse=True)
def _clear_effects() -> None:
    effects.clear()


async def test_too_large_result_fails_only_its_step() -> None:
    app = App(":memory:")

    async def large() -> str:
        effects.append("large")
        return "x" * 2_000_000

    @app.task
    async def work() -> list[str]:
        calls = step(do_async, "a"), step(large), step(do_async, "b")
        return list(await gather(*(describe(call) for call in calls)))

    async def describe(call: Any) -> str:
        try:
            return str(await call)
        except StepFailed as failed:
            return "failed" if "1048576" in failed.error.message or "1 MiB" in failed.error.message else str(failed)

    async with Kit(app) as kit:
        assert await kit.run(work) == ["a", "failed", "b"]
    assert sorted(effects) == ["a", "b", "large"]


async def test_losers_of_a_race_are_not_started_again() -> None:
    app = App(":memory:")

    async def slow(name: str) -> str:
        effects.append(name)
        await asyncio.sleep(30)
        return name

    @app.task
    async def work() -> str:
        winner = await race(step(slow, "a"), step(do_async, "b"), step(slow, "c"))
        await sleep("1h")
        return winner.value + await step(do, "d")

    for replay in ("suspensions", "every record"):
        effects.clear()
        async with Kit(app, replay=replay) as kit:
            assert await kit.run(work) == "bd"
        assert sorted(effects) == ["a", "b", "c", "d"]


async def test_race_without_a_winner_raises_all_failures() -> None:
    app = App(":memory:")

    def fail(why: str) -> str:
        raise PermanentError(why)

    @app.task
    async def work() -> list[str]:
        try:
            await race(step(fail, "x"), step(fail, "y"))
        except AllFailed as failed:
            await sleep("1m")
            return [error.message for error in failed.failures]
        return []

    report = await sweep(app, lambda kit: kit.run(work))
    assert report.result == ["x", "y"]


async def test_step_past_its_timeout_fails() -> None:
    app = App(":memory:")

    @step.policy(timeout=0.02, retries=0)
    async def slow() -> None:
        await asyncio.sleep(30)

    @step.policy(timeout=0.02, retries=0)
    def blocking() -> None:
        time.sleep(0.2)

    @app.task
    async def work() -> list[str]:
        results = []
        for fn in (slow, blocking):
            try:
                await step.options(name=fn.__name__)(fn)
            except StepFailed as failed:
                results.append(f"{failed.path} {failed.caused_by(TimeoutError)}")
        return results

    async with Kit(app) as kit:
        assert await kit.run(work) == ["slow True", "blocking True"]


async def test_condition_over_two_signals_is_met_or_times_out() -> None:
    app = App(":memory:")

    @app.task(signals=[go, stop])
    async def work() -> list[str]:
        both = AllOf([Single("go"), Single("stop")])
        match await wait_for(both, timeout="1h"):
            case ConditionMet(signals=signals):
                return sorted(signal.name for signal in signals)
            case TimedOut():
                return []

    async def program(kit: Kit) -> object:
        handle = await kit.start(work)
        await kit.signal(handle, go, 1)
        await kit.advance("10m")
        await kit.signal(handle, stop, 2)
        return await kit.finish(handle), await kit.run(work)

    report = await sweep(app, program)
    assert report.result == (["go", "stop"], [])


async def test_continued_execution_keeps_unconsumed_signals() -> None:
    app = App(":memory:")

    @app.task(signals=[go])
    async def work(total: int = 0) -> int:
        for _ in range(2):
            total += (await wait_signal(go)).value
        if total < 10:
            await step(do, f"so far {total}")
            work.continue_with(total)
        return total

    async def program(kit: Kit) -> object:
        handle = await kit.start(work)
        for value in (1, 2, 3, 4):
            await kit.signal(handle, go, value)
        return await kit.finish(handle), await kit.steps(handle)

    report = await sweep(app, program, effects=effects)
    assert report.result == (10, ["@signals", "signal:go", "signal:go#2"])
    assert report.effects == ("so far 3",)


async def test_changed_code_is_held_and_continues_once_repaired() -> None:
    app, is_new = App(":memory:"), [False]

    @app.task
    async def work() -> str:
        if is_new[0]:
            await step(do, "audit")
        first = await step(do_async, "pay")
        await sleep("1h")
        return first

    async with Kit(app) as kit:
        handle = await kit.start(work)
        is_new[0] = True
        await kit.advance("2h")
        with pytest.raises(Diverged, match=r"> 0 do_async +do"):
            await kit.finish(handle)
        assert effects == ["pay"]
        is_new[0] = False
        await handle.unhold()
        assert await kit.finish(handle) == "pay"


async def test_new_code_runs_only_for_executions_that_have_not_reached_it() -> None:
    app, is_new = App(":memory:"), [False]

    @app.task
    async def work() -> list[str]:
        results = [await step(do, "a")]
        await sleep("1h")
        if is_new[0] and changed("audit"):
            results.append(await step(do, "audit"))
        results.append(await step(do, "b"))
        await sleep("1h")
        return results

    async with Kit(app) as kit:
        early = await kit.start(work)
        await kit.advance("90m")
        late = await kit.start(work)
        is_new[0] = True
        assert await kit.finish(early) == ["a", "b"]
        assert await kit.finish(late) == ["a", "audit", "b"]


async def test_finished_execution_can_be_replayed_from_a_step() -> None:
    app = App(":memory:")

    @app.task
    async def work() -> list[str]:
        return [await step(do, "a"), await step(do_async, "b"), await step(do, "c")]

    async with Kit(app) as kit:
        handle = await kit.start(work)
        effects.clear()
        await handle.replay(from_step="do_async")
        assert await kit.finish(handle) == ["a", "b", "c"]
    assert effects in (["b", "c"], ["c"])


async def test_idempotency_key_is_the_same_in_every_try_of_a_step() -> None:
    app = App(":memory:")

    def charge() -> str:
        effects.append(str(current().idempotency_key))
        return "charged"

    @app.task
    async def work() -> str:
        return await step(charge)

    async with Kit(app) as kit:
        kit.crash_before("charge")
        await kit.run(work)
    assert len(effects) == 2
    assert len(set(effects)) == 1


async def test_signal_sent_by_a_task_is_sent_once() -> None:
    app = App(":memory:")

    @app.task(signals=[go])
    async def receiver() -> list[int]:
        first = (await wait_signal(go)).value
        match await wait_signal(go, timeout="1h"):
            case TimedOut():
                return [first]
            case second:
                return [first, second.value]

    @app.task
    async def sender() -> list[int]:
        handle = await receiver.submit()
        await handle.signal(go, 7)
        return await handle

    report = await sweep(app, lambda kit: kit.run(sender))
    assert report.result == [7]


async def test_plain_functions_have_the_same_results() -> None:
    app = App(":memory:")

    @app.task
    def child(n: int) -> int:
        sync.sleep("1m")
        return n * n

    @app.task
    def work() -> list[Any]:
        first = sync.step(do, "a")
        both = sync.gather(lambda: sync.step(do, "b"), lambda: child.sync.run(3))
        outcome = sync.approval("plan", by="ann", timeout="1d").wait()
        winner = sync.race(lambda: sync.sleep("2h"), lambda: sync.step(do, "c"))
        return [first, *both, isinstance(outcome, Approved), winner.index]

    async def program(kit: Kit) -> object:
        handle = await kit.start(work)
        await kit.advance("1h")
        await kit.approve(handle, "plan", by="ann")
        return await kit.finish(handle)

    report = await sweep(app, program, effects=effects)
    assert report.result == ["a", "b", 9, True, 1]


async def test_call_of_the_wrong_kind_names_the_right_one() -> None:
    app = App(":memory:")

    @app.task
    def plain() -> None:
        step(do, "a")  # type: ignore[unused-coroutine]

    @app.task
    async def coroutine() -> None:
        sync.step(do, "a")

    async with Kit(app) as kit:
        with pytest.raises(ExecutionFailed, match=r"use flowfabric\.sync"):
            await kit.run(plain)
        with pytest.raises(ExecutionFailed, match="await the call from flowfabric"):
            await kit.run(coroutine)


async def test_too_many_concurrent_waits_are_rejected() -> None:
    app = App(":memory:")

    @app.task
    async def work() -> int:
        return len(await gather(*(wait_signal(Signal(f"s{n}", int)) for n in range(70))))

    async with Kit(app) as kit:
        with pytest.raises(ExecutionFailed, match="use children"):
            await kit.run(work)


async def test_cancel_is_raised_in_one_branch_and_ends_the_others() -> None:
    app = App(":memory:")

    async def branch(name: str) -> str:
        async with saga() as undo:
            undo.add(do, f"undo {name}")
            await sleep("1d")
        return name

    @app.task(cancel_grace="1m")
    async def work() -> list[str]:
        try:
            return list(await gather(branch("a"), branch("b")))
        finally:
            await step(do, "released")

    async def program(kit: Kit) -> object:
        handle = await kit.start(work)
        await handle.cancel("enough")
        await kit.work()
        return type(await handle.outcome()).__name__

    report = await sweep(app, program, effects=effects)
    assert report.result == "Cancelled"
    assert report.effects == ("undo a", "released")


async def test_execution_is_cancelled_when_the_grace_ends() -> None:
    app = App(":memory:")

    @app.task(cancel_grace="1m")
    async def work() -> str:
        try:
            await sleep("1d")
        finally:
            await sleep("1h")
            await step(do, "too late")
        return "?"

    async with Kit(app) as kit:
        handle = await kit.start(work)
        await handle.cancel("enough")
        await kit.advance("2h")
        assert type(await handle.outcome()).__name__ == "Cancelled"
    assert effects == []


async def test_approval_timeout_can_fail_the_execution() -> None:
    app = App(":memory:")

    @app.task
    async def work() -> str:
        return type(await approval("plan", by="ann", timeout="1h", on_timeout="fail")).__name__

    async with Kit(app) as kit:
        with pytest.raises(ExecutionFailed):
            await kit.run(work)
