"""What durable functions come to: plainly, with forced replays, and with a crash around every record."""

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
from flowfabric.testing.sweeping import Program

# Every test is a sweep of its own; the programs and a few others are swept always.
pytestmark = pytest.mark.long

effects: list[str] = []


def do(what: str) -> str:
    effects.append(what)
    return what


async def do_async(what: str) -> str:
    effects.append(what)
    await asyncio.sleep(0)
    return what


async def check(app: App, program: Program[Any], expected: object, happened: list[str] | None = None) -> None:
    """Whatever happens on the way, it comes to that; and to these effects, if they matter."""
    swept = await sweep(app, program, effects=effects)
    assert swept.result == expected
    if happened is not None:
        assert sorted(swept.effects) == sorted(happened)


async def test_steps_side_by_side_are_recorded_each() -> None:
    app = App(":memory:")

    @app.task
    async def work() -> list[str]:
        found = await gather(step(do, "a"), step(do_async, "b"), step(do, "c"))
        return [*found, await step(do, "d")]

    await check(app, lambda kit: kit.run(work), ["a", "b", "c", "d"], ["a", "b", "c", "d"])


async def test_branches_have_scopes_of_their_own() -> None:
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


async def test_two_approvals_at_once_do_not_disturb_each_other() -> None:
    app = App(":memory:")

    @app.task
    async def work() -> list[str]:
        found = await gather(approval("a", by="ann"), approval("b", by="bob", timeout="1h"))
        return [type(item).__name__ for item in found]

    async def program(kit: Kit) -> object:
        handle = await kit.start(work)
        await kit.approve(handle, "b", by="bob")
        await kit.reject(handle, "a", by="ann")
        return await kit.finish(handle)

    await check(app, program, ["Rejected", "Approved"])


async def test_an_approval_and_a_time_out_at_once() -> None:
    app = App(":memory:")

    @app.task
    async def work() -> list[str]:
        found = await gather(approval("a", by="ann"), approval("b", by="bob", timeout="1h"))
        return [type(item).__name__ for item in found]

    async def program(kit: Kit) -> object:
        handle = await kit.start(work)
        await kit.advance("2h")
        await kit.approve(handle, "a", by="ann")
        return await kit.finish(handle)

    await check(app, program, ["Approved", "TimedOut"])


async def test_a_declared_signal_is_kept_in_order_until_it_is_awaited() -> None:
    app, number = App(":memory:"), Signal("number", int)

    @app.task(signals=[number])
    async def work() -> list[int]:
        await sleep("1h")
        found = []
        for _ in range(3):
            match await wait_signal(number):
                case Received(value=value):
                    found.append(value)
        return found

    async def program(kit: Kit) -> object:
        handle = await kit.start(work)
        for value in (1, 2):
            await kit.signal(handle, number, value)
        await kit.advance("2h")
        await kit.signal(handle, number, 3)
        return await kit.finish(handle)

    await check(app, program, [1, 2, 3])


async def test_two_waits_for_one_signal_take_one_each() -> None:
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


async def test_an_undeclared_signal_is_taken_while_it_is_awaited() -> None:
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


async def test_a_race_of_a_signal_and_a_time() -> None:
    app, stop = App(":memory:"), Signal("stop", str)

    async def later() -> str:
        await sleep("1h")
        return await step(do, "late")

    async def told() -> str:
        return (await wait_signal(stop)).value

    @app.task(signals=[stop])
    async def work() -> str:
        won = await race(told(), later())
        return f"{won.index} {won.value} {await step(do, 'after')}"

    async def stopped(kit: Kit) -> object:
        handle = await kit.start(work)
        await kit.signal(handle, stop, "now")
        return await kit.finish(handle)

    await check(app, stopped, "0 now after")
    await check(app, lambda kit: kit.run(work), "1 late after")


async def test_a_step_is_tried_again_after_its_backoff() -> None:
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
        began = kit.now()
        assert await kit.run(work) == 3
        assert kit.now() > began
    assert len(tries) == 3


async def test_a_step_that_fails_for_good_is_not_called_again() -> None:
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


async def test_a_declared_failure_is_caught_by_its_class() -> None:
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


async def test_the_first_failure_ends_a_gather_and_the_same_one_is_raised_again() -> None:
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


async def test_settle_tells_how_each_ended() -> None:
    app = App(":memory:")

    def fail() -> str:
        raise PermanentError("broken")

    @app.task
    async def work() -> list[str]:
        found = await settle(step(do, "a"), step(fail), step(do, "b"))
        return [item.value if isinstance(item, Completed) else item.error.message for item in found]

    await check(app, lambda kit: kit.run(work), ["a", "broken", "b"])


async def test_children_answer_and_fail_through_their_parent() -> None:
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


async def test_a_child_that_fails_ends_the_gather_and_cancels_its_siblings() -> None:
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
        began = kit.now()
        result = await kit.run(parent)
        page = await kit.engine.executions.list(kind="child")
        return result, sorted(item.state.value for item in page.items), (kit.now() - began).days

    await check(app, program, ("one", ["cancelled", "cancelled", "failed"], 0))


async def test_at_most_so_many_branches_run_at_once() -> None:
    app = App(":memory:")
    running, most = [0], [0]

    async def busy(n: int) -> int:
        running[0] += 1
        most[0] = max(most[0], running[0])
        try:
            await asyncio.sleep(0.001)
        finally:  # A run that crashes cancels its steps.
            running[0] -= 1
        return n

    @app.task
    async def work() -> list[int]:
        return list(await gather(*(step(busy, n) for n in range(7)), limit=2))

    await check(app, lambda kit: kit.run(work), list(range(7)))
    assert most[0] <= 2


async def test_groups_within_groups() -> None:
    app = App(":memory:")

    async def inner(name: str) -> str:
        won = await race(step(do_async, f"{name}x"), sleep("1d"))
        return "".join(await gather(step(do, f"{name}1"), step(do, f"{name}2"))) + str(won.index)

    @app.task
    async def work() -> list[str]:
        return list(await gather(inner("a"), inner("b")))

    await check(app, lambda kit: kit.run(work), ["a1a20", "b1b20"])


async def test_time_chance_and_ids_are_the_same_in_every_run() -> None:
    app = App(":memory:")
    seen: set[tuple[datetime, UUID, float]] = set()

    @app.task
    async def work() -> int:
        found = now(), uuid4(), rng().random()
        await step(do, "a")
        seen.add(found)
        await sleep("1h")
        await step(do, "b")
        return len(seen)

    async with Kit(app, replay="every record") as kit:
        assert await kit.run(work) == 1


async def test_a_cancel_with_grace_lets_the_saga_undo() -> None:
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


async def test_a_hard_cancel_runs_no_more_steps() -> None:
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


async def test_clean_up_in_a_step_happens_once_at_the_real_end() -> None:
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


async def test_swallowing_the_unwinding_does_no_harm(caplog: pytest.LogCaptureFixture) -> None:
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


async def test_a_poll_asks_again_after_a_crash_and_has_one_record() -> None:
    app = App(":memory:")

    def ready() -> str | None:
        effects.append("asked")
        return "yes" if len(effects) >= 4 else None

    @app.task
    async def work() -> str:
        return await poll("30s", ready)

    async with Kit(app, replay="every record") as kit:
        effects.clear()
        began = kit.now()
        handle = await kit.start(work)
        assert await kit.finish(handle) == "yes"
        assert (kit.now() - began).total_seconds() == 90
        assert await kit.steps(handle) == ["ready"]


async def test_a_step_that_may_happen_only_once_is_done_after_a_crash_before_it_began() -> None:
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
        assert await kit.run(work) == "up", "what it was about to do is recorded before it is done"
    assert effects == ["launch", "launch"]


async def test_a_call_that_is_never_awaited_is_told() -> None:
    app = App(":memory:")

    @app.task
    async def work() -> str:
        step(do, "forgotten")  # type: ignore[unused-coroutine]
        return "done"

    async with Kit(app) as kit:
        with pytest.raises(ExecutionFailed, match="made but never awaited: do"):
            await kit.run(work)


async def test_a_body_that_raises_is_run_again_with_what_is_recorded() -> None:
    app = App(":memory:")
    runs: list[int] = []

    @app.task
    async def work() -> str:
        found = await step(do, "a")
        runs.append(1)
        if len(runs) < 3:
            raise OSError("outside of a step")
        return found

    effects.clear()
    async with Kit(app) as kit:
        assert await kit.run(work) == "a"
    assert (len(runs), effects) == (3, ["a"])


async def test_raw_asyncio_tasks_may_await_steps() -> None:
    app = App(":memory:")

    @app.task
    async def work() -> list[str]:
        first = asyncio.create_task(step(do_async, "a"))
        async with asyncio.TaskGroup() as group:
            second = group.create_task(step(do, "b"))
        return [await first, second.result()]

    await check(app, lambda kit: kit.run(work), ["a", "b"])


async def test_a_wait_in_a_raw_task_is_refused() -> None:
    app = App(":memory:")

    @app.task
    async def work() -> None:
        await asyncio.create_task(sleep("1h"))

    async with Kit(app) as kit:
        with pytest.raises(ExecutionFailed, match="asyncio task of your own cannot"):
            await kit.run(work)


async def test_a_step_given_up_by_asyncio_timeout_is_given_up_again() -> None:
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


async def test_a_cancel_request_is_caught_and_the_task_completes() -> None:
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


async def test_votes_against_without_a_veto() -> None:
    app = App(":memory:")

    @app.task
    async def work() -> str:
        match await approval("plan", by=["a", "b", "c"], need=2, veto=False):
            case Approved(by=who):
                return f"yes {sorted(who)}"
            case Rejected(by=who, reason=why):
                return f"no {who} {why}"

    async def no(kit: Kit) -> object:
        handle = await kit.start(work)
        await kit.reject(handle, "plan", by="a", reason="x")
        await kit.approve(handle, "plan", by="b")
        await kit.reject(handle, "plan", by="c", reason="y")
        return await kit.finish(handle)

    async def yes(kit: Kit) -> object:
        handle = await kit.start(work)
        await kit.reject(handle, "plan", by="a")
        await kit.approve(handle, "plan", by="c")
        await kit.approve(handle, "plan", by="b")
        return await kit.finish(handle)

    await check(app, no, "no c y")
    await check(app, yes, "yes ['b', 'c']")


async def test_an_approval_by_anybody() -> None:
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


async def test_who_changes_their_mind_has_decided_already() -> None:
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


async def test_a_settled_failure_has_its_error() -> None:
    app = App(":memory:")

    @app.task
    async def child() -> int:
        raise PermanentError("no")

    @app.task
    async def work() -> str:
        [found] = await settle(child.run())
        assert isinstance(found, Failed)
        return found.error.message

    await check(app, lambda kit: kit.run(work), "no")


async def test_children_deep_within_a_branch_are_cancelled_with_it() -> None:
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
        return result, [item.state.value for item in page.items]

    await check(app, program, (0, ["cancelled", "cancelled"]))


async def test_a_child_that_was_just_being_submitted_is_cancelled_too() -> None:
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
        return result, {item.state.value for item in page.items} <= {"cancelled"}

    await check(app, program, (0, True))


async def test_an_approver_may_be_overruled_by_an_operator() -> None:
    app = App(":memory:")
    tokens: list[str] = []

    @app.task
    async def work() -> str:
        asked = approval("plan", by=["a", "b"])
        tokens[:] = (await asked.tokens()).values()
        return type(await asked).__name__

    async def program(kit: Kit) -> object:
        handle = await kit.start(work)
        await app.approve(tokens[0])
        await kit.work()
        await kit.reject(handle, "plan", by="a")
        return await kit.finish(handle)

    await check(app, program, "Rejected")
