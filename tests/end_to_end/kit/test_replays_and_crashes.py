"""The results of durable functions are the same with forced replays and a crash around every record."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from datetime import datetime
from typing import Any
from uuid import UUID

import pytest

from flowfabric import (
    App,
    Approved,
    CancelRequested,
    Completed,
    ExecutionFailed,
    Failed,
    PermanentError,
    Received,
    Rejected,
    Signal,
    StepFailed,
    TimedOut,
    approval,
    gather,
    now,
    poll,
    race,
    rng,
    saga,
    settle,
    sleep,
    step,
    uuid4,
    wait_signal,
)
from flowfabric.testing import Kit, sweep
from flowfabric.testing.sweep import Program

# Every test in this file crashes at every record, which is slow, so only long runs include it.
# tests/end_to_end/programs has a few such sweeps in every run.
pytestmark = pytest.mark.long

effects: list[str] = []


def do(effect: str) -> str:
    effects.append(effect)
    return effect


async def do_async(effect: str) -> str:
    effects.append(effect)
    await asyncio.sleep(0)
    return effect


async def check(app: App, program: Program[Any], expected: object, expected_effects: list[str] | None = None) -> None:
    """Assert that forced replays and crashes do not change the result of the program or, if given, its effects."""
    report = await sweep(app, program, effects=effects)
    assert report.result == expected
    if expected_effects is not None:
        assert sorted(report.effects) == sorted(expected_effects)


async def test_concurrent_steps_are_each_recorded() -> None:
    app = App(":memory:")

    @app.task
    async def work() -> list[str]:
        results = await gather(step(do, "a"), step(do_async, "b"), step(do, "c"))
        return [*results, await step(do, "d")]

    await check(app, lambda kit: kit.run(work), ["a", "b", "c", "d"], ["a", "b", "c", "d"])


async def test_branches_have_their_own_scopes() -> None:
    app = App(":memory:")

    async def branch(name: str) -> str:
        first = await step(do, f"{name}1")
        await sleep("1m")
        return first + await step(do, f"{name}2")

    @app.task
    async def work() -> list[str]:
        return list(await gather(branch("a"), branch("b")))

    async def program(kit: Kit) -> object:
        handle = await kit.start(work)
        return await kit.finish(handle), sorted(await kit.steps(handle))

    paths = [f"gather[{n}]/{name}" for n in (0, 1) for name in ("do", "do#2", "sleep")]
    await check(app, program, (["a1a2", "b1b2"], sorted(["gather", *paths])))


async def test_concurrent_approvals_do_not_affect_each_other() -> None:
    app = App(":memory:")

    @app.task
    async def work() -> list[str]:
        outcomes = await gather(approval("a", by="ann"), approval("b", by="bob", timeout="1h"))
        return [type(outcome).__name__ for outcome in outcomes]

    async def program(kit: Kit) -> object:
        handle = await kit.start(work)
        await kit.approve(handle, "b", by="bob")
        await kit.reject(handle, "a", by="ann")
        return await kit.finish(handle)

    await check(app, program, ["Rejected", "Approved"])


async def test_approval_and_timeout_are_independent_in_a_gather() -> None:
    app = App(":memory:")

    @app.task
    async def work() -> list[str]:
        outcomes = await gather(approval("a", by="ann"), approval("b", by="bob", timeout="1h"))
        return [type(outcome).__name__ for outcome in outcomes]

    async def program(kit: Kit) -> object:
        handle = await kit.start(work)
        await kit.advance("2h")
        await kit.approve(handle, "a", by="ann")
        return await kit.finish(handle)

    await check(app, program, ["Approved", "TimedOut"])


async def test_declared_signals_are_kept_in_order_until_awaited() -> None:
    app, number = App(":memory:"), Signal("number", int)

    @app.task(signals=[number])
    async def work() -> list[int]:
        await sleep("1h")
        results = []
        for _ in range(3):
            match await wait_signal(number):
                case Received(value=value):
                    results.append(value)
        return results

    async def program(kit: Kit) -> object:
        handle = await kit.start(work)
        for value in (1, 2):
            await kit.signal(handle, number, value)
        await kit.advance("2h")
        await kit.signal(handle, number, 3)
        return await kit.finish(handle)

    await check(app, program, [1, 2, 3])


async def test_two_waits_for_a_signal_receive_one_each() -> None:
    app, number = App(":memory:"), Signal("number", int)

    @app.task(signals=[number])
    async def work() -> list[int]:
        first, second = await gather(wait_signal(number), wait_signal(number))
        return sorted([first.value, second.value])

    async def program(kit: Kit) -> object:
        handle = await kit.start(work)
        await kit.signal(handle, number, 1)
        await kit.signal(handle, number, 2)
        return await kit.finish(handle)

    await check(app, program, [1, 2])


async def test_undeclared_signal_is_received_while_awaited() -> None:
    app, number = App(":memory:"), Signal("number", int)

    @app.task
    async def work() -> int:
        match await wait_signal(number, timeout="1h"):
            case Received(value=value):
                return value
            case TimedOut():
                return -1

    async def program(kit: Kit) -> object:
        handle = await kit.start(work)
        await kit.signal(handle, number, 5)
        return await kit.finish(handle), await kit.run(work)

    await check(app, program, (5, -1))


async def test_signal_or_sleep_can_win_a_race() -> None:
    app, stop = App(":memory:"), Signal("stop", str)

    async def later() -> str:
        await sleep("1h")
        return await step(do, "late")

    async def wait_for_stop() -> str:
        return (await wait_signal(stop)).value

    @app.task(signals=[stop])
    async def work() -> str:
        winner = await race(wait_for_stop(), later())
        return f"{winner.index} {winner.value} {await step(do, 'after')}"

    async def stop_program(kit: Kit) -> object:
        handle = await kit.start(work)
        await kit.signal(handle, stop, "now")
        return await kit.finish(handle)

    await check(app, stop_program, "0 now after")
    await check(app, lambda kit: kit.run(work), "1 late after")


async def test_step_is_retried_after_its_backoff() -> None:
    app = App(":memory:")
    tries: list[int] = []

    def flaky() -> int:
        tries.append(1)
        if len(tries) < 3:
            raise OSError("not yet")
        return len(tries)

    @app.task
    async def work() -> int:
        return await step(flaky)

    async with Kit(app) as kit:
        start_time = kit.now()
        assert await kit.run(work) == 3
        assert kit.now() > start_time
    assert len(tries) == 3


async def test_step_that_fails_permanently_is_not_retried() -> None:
    app = App(":memory:")

    def fail() -> None:
        effects.append("fail")
        raise PermanentError("never")

    @app.task
    async def work() -> str:
        try:
            await step(fail)
        except StepFailed as failed:
            await sleep("1h")
            return f"{failed.path}: {failed.error.message}"
        return "?"

    await check(app, lambda kit: kit.run(work), "fail: never", ["fail"])


async def test_declared_failure_is_caught_by_its_class() -> None:
    class Declined(Exception):
        pass

    @step.policy(raises=[Declined])
    def charge() -> None:
        effects.append("charge")
        raise Declined("no money", 3)

    app = App(":memory:")

    @app.task
    async def work() -> list[Any]:
        try:
            await step(charge)
        except Declined as declined:
            await sleep("1m")
            return list(declined.args)
        return []

    await check(app, lambda kit: kit.run(work), ["no money", 3])


async def test_first_failure_of_a_gather_is_raised_in_every_run() -> None:
    app = App(":memory:")

    async def slow(name: str) -> str:
        await sleep("1h")
        return await step(do, name)

    def fail() -> None:
        raise PermanentError("broken")

    @app.task
    async def work() -> str:
        try:
            await gather(slow("a"), step(fail), slow("b"))
        except StepFailed as failed:
            return failed.error.message + await step(do, "c")
        return "?"

    await check(app, lambda kit: kit.run(work), "brokenc", ["c"])


async def test_settle_returns_the_outcome_of_each_call() -> None:
    app = App(":memory:")

    def fail() -> str:
        raise PermanentError("broken")

    @app.task
    async def work() -> list[str]:
        outcomes = await settle(step(do, "a"), step(fail), step(do, "b"))
        return [outcome.value if isinstance(outcome, Completed) else outcome.error.message for outcome in outcomes]

    await check(app, lambda kit: kit.run(work), ["a", "broken", "b"])


async def test_parent_gets_results_and_failures_of_its_children() -> None:
    app = App(":memory:")

    @app.task
    async def child(n: int) -> int:
        if n == 3:
            raise PermanentError("three")
        await sleep("1m")
        return n * int(await step(do, "2"))

    @app.task
    async def parent() -> list[int]:
        first = await child.submit(1)
        rest = await gather(child.run(2), child.run(4))
        try:
            await child.run(3)
        except ExecutionFailed as failed:
            return [await first, *rest, len(failed.error.message)]
        return []

    await check(app, lambda kit: kit.run(parent), [2, 4, 8, 5])


async def test_failed_child_ends_the_gather_and_cancels_its_siblings() -> None:
    app = App(":memory:")

    @app.task
    async def child(n: int) -> int:
        if n == 1:
            raise PermanentError("one")
        await sleep("1d")
        return n

    @app.task
    async def parent() -> str:
        try:
            await gather(child.run(0), child.run(1), child.run(2))
        except ExecutionFailed as failed:
            return failed.error.message
        return "?"

    async def program(kit: Kit) -> object:
        start_time = kit.now()
        result = await kit.run(parent)
        page = await kit.engine.executions.list(kind="child")
        return result, sorted(execution.state.value for execution in page.items), (kit.now() - start_time).days

    await check(app, program, ("one", ["cancelled", "cancelled", "failed"], 0))


async def test_limit_bounds_the_concurrent_branches() -> None:
    app = App(":memory:")
    running, max_running = [0], [0]

    async def busy(n: int) -> int:
        running[0] += 1
        max_running[0] = max(max_running[0], running[0])
        try:
            await asyncio.sleep(0.001)
        finally:  # A run that crashes cancels its steps.
            running[0] -= 1
        return n

    @app.task
    async def work() -> list[int]:
        return list(await gather(*(step(busy, n) for n in range(7)), limit=2))

    await check(app, lambda kit: kit.run(work), list(range(7)))
    assert max_running[0] <= 2


async def test_nested_groups_have_the_same_result_in_every_run() -> None:
    app = App(":memory:")

    async def inner(name: str) -> str:
        winner = await race(step(do_async, f"{name}x"), sleep("1d"))
        return "".join(await gather(step(do, f"{name}1"), step(do, f"{name}2"))) + str(winner.index)

    @app.task
    async def work() -> list[str]:
        return list(await gather(inner("a"), inner("b")))

    await check(app, lambda kit: kit.run(work), ["a1a20", "b1b20"])


async def test_now_uuid4_and_rng_are_the_same_in_every_replay() -> None:
    app = App(":memory:")
    seen: set[tuple[datetime, UUID, float]] = set()

    @app.task
    async def work() -> int:
        values = now(), uuid4(), rng().random()
        await step(do, "a")
        seen.add(values)
        await sleep("1h")
        await step(do, "b")
        return len(seen)

    async with Kit(app, replay="every record") as kit:
        assert await kit.run(work) == 1


async def test_graceful_cancel_lets_the_saga_compensate() -> None:
    app = App(":memory:")

    @app.task(cancel_grace="1m")
    async def work() -> str:
        async with saga() as undo:
            await step(do, "book")
            undo.add(do, "cancel")
            await sleep("1d")
            return "done"

    async def program(kit: Kit) -> object:
        handle = await kit.start(work)
        await handle.cancel("enough")
        await kit.work()
        return type(await handle.outcome()).__name__

    await check(app, program, "Cancelled", ["book", "cancel"])


async def test_hard_cancel_runs_no_further_steps() -> None:
    app = App(":memory:")

    @app.task
    async def work() -> str:
        try:
            await sleep("1d")
        finally:
            await step(do, "released")
        return "done"

    async def program(kit: Kit) -> object:
        handle = await kit.start(work)
        await handle.cancel("enough")
        await kit.work()
        return type(await handle.outcome()).__name__

    await check(app, program, "Cancelled", [])


async def test_cleanup_in_a_step_runs_once_at_the_final_end() -> None:
    app = App(":memory:")

    @app.task
    async def work() -> str:
        try:
            await sleep("1h")
            await sleep("1h")
            return "done"
        finally:
            await step(do, "released")

    await check(app, lambda kit: kit.run(work), "done", ["released"])


async def test_swallowing_unwind_is_harmless(caplog: pytest.LogCaptureFixture) -> None:
    app = App(":memory:")

    @app.task
    async def work() -> str:
        with suppress(BaseException):
            await sleep("1h")
        for _ in range(3):
            with suppress(BaseException):
                await step(do, "a")
        return "done"

    await check(app, lambda kit: kit.run(work), "done", ["a"] * 3)


async def test_replayed_poll_keeps_its_interval_and_has_one_record() -> None:
    app = App(":memory:")

    def ready() -> str | None:
        effects.append("asked")
        return "yes" if len(effects) >= 4 else None

    @app.task
    async def work() -> str:
        return await poll("30s", ready)

    async with Kit(app, replay="every record") as kit:
        effects.clear()
        start_time = kit.now()
        handle = await kit.start(work)
        assert await kit.finish(handle) == "yes"
        assert (kit.now() - start_time).total_seconds() == 90
        assert await kit.steps(handle) == ["ready"]


async def test_at_most_once_step_runs_after_a_crash_before_it_began() -> None:
    app = App(":memory:")

    @step.policy(at_most_once=True)
    def launch() -> str:
        effects.append("launch")
        return "up"

    @app.task
    async def work() -> str:
        try:
            return await step(launch)
        except StepFailed as failed:
            return failed.error.type

    effects.clear()
    async with Kit(app) as kit:
        assert await kit.run(work) == "up"
        kit.crash_before("launch")
        assert await kit.run(work) == "up", "the intent is recorded before the step runs"
    assert effects == ["launch", "launch"]


async def test_call_that_is_never_awaited_fails_the_execution() -> None:
    app = App(":memory:")

    @app.task
    async def work() -> str:
        step(do, "forgotten")  # type: ignore[unused-coroutine]
        return "done"

    async with Kit(app) as kit:
        with pytest.raises(ExecutionFailed, match="made but never awaited: do"):
            await kit.run(work)


async def test_failed_body_runs_again_with_its_records() -> None:
    app = App(":memory:")
    runs: list[int] = []

    @app.task
    async def work() -> str:
        result = await step(do, "a")
        runs.append(1)
        if len(runs) < 3:
            raise OSError("outside of a step")
        return result

    effects.clear()
    async with Kit(app) as kit:
        assert await kit.run(work) == "a"
    assert (len(runs), effects) == (3, ["a"])


async def test_asyncio_tasks_may_await_steps() -> None:
    app = App(":memory:")

    @app.task
    async def work() -> list[str]:
        first = asyncio.create_task(step(do_async, "a"))
        async with asyncio.TaskGroup() as group:
            second = group.create_task(step(do, "b"))
        return [await first, second.result()]

    await check(app, lambda kit: kit.run(work), ["a", "b"])


async def test_wait_in_an_asyncio_task_is_rejected() -> None:
    app = App(":memory:")

    @app.task
    async def work() -> None:
        await asyncio.create_task(sleep("1h"))

    async with Kit(app) as kit:
        with pytest.raises(ExecutionFailed, match="your own asyncio task cannot do"):
            await kit.run(work)


async def test_step_that_asyncio_times_out_is_not_run_again() -> None:
    app = App(":memory:")

    async def slow() -> None:
        effects.append("slow")
        await asyncio.sleep(30)

    @app.task
    async def work() -> str:
        try:
            async with asyncio.timeout(0.02):
                await step(slow)
        except TimeoutError:
            pass
        await sleep("1h")
        return await step(do, "after")

    effects.clear()
    async with Kit(app, replay="suspensions") as kit:
        assert await kit.run(work) == "after"
    assert effects == ["slow", "after"]


async def test_task_that_catches_a_cancel_request_can_complete() -> None:
    app = App(":memory:")

    @app.task(cancel_grace="1m")
    async def work() -> str:
        try:
            await sleep("1d")
        except CancelRequested:
            return await step(do, "instead")
        return "?"

    async def program(kit: Kit) -> object:
        handle = await kit.start(work)
        await handle.cancel("enough")
        return await kit.finish(handle)

    await check(app, program, "instead")


async def test_approval_without_veto_counts_rejections() -> None:
    app = App(":memory:")

    @app.task
    async def work() -> str:
        match await approval("plan", by=["a", "b", "c"], need=2, veto=False):
            case Approved(by=who):
                return f"yes {sorted(who)}"
            case Rejected(by=who, reason=why):
                return f"no {who} {why}"

    async def reject_twice(kit: Kit) -> object:
        handle = await kit.start(work)
        await kit.reject(handle, "plan", by="a", reason="x")
        await kit.approve(handle, "plan", by="b")
        await kit.reject(handle, "plan", by="c", reason="y")
        return await kit.finish(handle)

    async def approve_twice(kit: Kit) -> object:
        handle = await kit.start(work)
        await kit.reject(handle, "plan", by="a")
        await kit.approve(handle, "plan", by="c")
        await kit.approve(handle, "plan", by="b")
        return await kit.finish(handle)

    await check(app, reject_twice, "no c y")
    await check(app, approve_twice, "yes ['b', 'c']")


async def test_approval_without_approvers_accepts_any_principal() -> None:
    app = App(":memory:")

    @app.task
    async def work() -> list[str]:
        match await approval("plan"):
            case Approved(by=who):
                return list(who)
            case Rejected():
                return []

    async def program(kit: Kit) -> object:
        handle = await kit.start(work)
        await kit.approve(handle, "plan", by="zoe")
        return await kit.finish(handle)

    await check(app, program, ["zoe"])


async def test_second_decision_of_an_approver_is_ignored() -> None:
    app = App(":memory:")

    @app.task
    async def work() -> str:
        return type(await approval("plan", by=["a", "b"])).__name__

    async def program(kit: Kit) -> object:
        handle = await kit.start(work)
        await kit.approve(handle, "plan", by="a")
        await kit.reject(handle, "plan", by="a")
        await kit.approve(handle, "plan", by="b")
        return await kit.finish(handle)

    await check(app, program, "Approved")


async def test_settled_failure_has_its_error() -> None:
    app = App(":memory:")

    @app.task
    async def child() -> int:
        raise PermanentError("no")

    @app.task
    async def work() -> str:
        [outcome] = await settle(child.run())
        assert isinstance(outcome, Failed)
        return outcome.error.message

    await check(app, lambda kit: kit.run(work), "no")


async def test_nested_children_of_a_losing_branch_are_cancelled() -> None:
    app = App(":memory:")

    @app.task
    async def child(n: int) -> int:
        await sleep("1d")
        return n

    async def deep() -> int:
        return sum(await gather(child.run(1), child.run(2)))

    async def soon() -> int:
        await sleep("1m")
        return 0

    @app.task
    async def work() -> int:
        return (await race(deep(), soon())).value

    async def program(kit: Kit) -> object:
        result = await kit.run(work)
        page = await kit.engine.executions.list(kind="child")
        return result, [execution.state.value for execution in page.items]

    await check(app, program, (0, ["cancelled", "cancelled"]))


async def test_child_that_is_being_submitted_is_cancelled() -> None:
    app = App(":memory:")

    @app.task
    async def child() -> int:
        await sleep("1d")
        return 1

    async def nothing() -> int:
        return 0

    @app.task
    async def work() -> int:
        return (await race(nothing(), child.run())).value

    async def program(kit: Kit) -> object:
        result = await kit.run(work)
        page = await kit.engine.executions.list(kind="child")
        return result, {execution.state.value for execution in page.items} <= {"cancelled"}

    await check(app, program, (0, True))


async def test_first_decision_of_an_approver_counts() -> None:
    app = App(":memory:")
    tokens: list[str] = []

    @app.task
    async def work() -> str:
        pending = approval("plan", by=["a", "b"])
        tokens[:] = (await pending.tokens()).values()
        return type(await pending).__name__

    async def program(kit: Kit) -> object:
        handle = await kit.start(work)
        await app.approve(tokens[0])
        await kit.work()
        await kit.reject(handle, "plan", by="a")
        await kit.approve(handle, "plan", by="b")
        return await kit.finish(handle)

    await check(app, program, "Approved")
