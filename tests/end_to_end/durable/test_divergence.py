"""An execution whose code no longer makes the recorded calls is held with a report before any step runs."""

from __future__ import annotations

import logging
import random
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from flowfabric import App, Diverged, ExecutionFailed, Handle, changed, gather, sleep, step
from flowfabric.engine import State
from flowfabric.testing import Kit
from tests.end_to_end.durable.kits import KitFactory

REPAIR = 'keep the old name with @step.policy(name="…"), guard new code with changed("…"), or register version=2'
UNCHANGED = (
    "if you changed nothing: a clock or random value in the task; run `flowfabric check`, and use now(), rng(), uuid4()"
)
done: list[str] = []
Body = Callable[[], Awaitable[Any]]


@pytest.fixture(autouse=True)
def clear_effects() -> None:
    done.clear()


class ChangingTask:
    """A task whose code a test can replace while the task sleeps, as a deployment would."""

    def __init__(self, app: App, body: Body) -> None:
        self.body = body

        @app.task
        async def task() -> Any:
            return await self.body()

        self.task = task


def act(what: str) -> str:
    done.append(what)
    return what


def other(what: str) -> str:
    done.append(f"other {what}")
    return what


async def wait_for_divergence(kit: Kit, handle: Handle[Any]) -> str:
    """Finish the execution, which must diverge, and return the report."""
    with pytest.raises(Diverged) as diverged:
        await kit.finish(handle)
    return diverged.value.report


async def act_then_sleep() -> None:
    await step(act, "a")
    await sleep("1h")
    await step(act, "z")


async def start_then_change(kit: Kit, app: App, before: Body, after: Body) -> Handle[Any]:
    changing = ChangingTask(app, before)
    handle = await kit.start(changing.task)
    changing.body = after
    return handle


async def test_replaced_call_is_detected_by_its_index(app: App, kit: Kit) -> None:
    async def after() -> None:
        await step(act, "a")
        await step(other, "b")
        await sleep("1h")

    handle = await start_then_change(kit, app, act_then_sleep, after)

    report = await wait_for_divergence(kit, handle)
    assert done == ["a"]
    assert report.splitlines() == [
        f"task {handle.id}: the code no longer matches the journal",
        "    recorded                    now",
        "  0 act                         act",
        "> 1 sleep                       other",
        f"repair: {REPAIR}; then `flowfabric unhold`",
        UNCHANGED,
    ]


async def test_a_random_value_that_diverges_is_named_as_a_possible_cause(app: App, kit: Kit) -> None:
    @app.task
    async def task() -> None:
        await step(act, str(random.random()))
        await sleep("1h")

    report = await wait_for_divergence(kit, await kit.start(task))
    assert "its arguments differ from the recorded ones" in report
    assert report.splitlines()[-1] == UNCHANGED


async def test_same_name_for_another_kind_of_call_is_detected(app: App, kit: Kit) -> None:
    async def after() -> None:
        await step(act, "a")
        await step.options(name="sleep")(act, "b")

    handle = await start_then_change(kit, app, act_then_sleep, after)

    await wait_for_divergence(kit, handle)
    assert done == ["a"]


async def test_swapped_calls_are_detected(app: App, kit: Kit) -> None:
    async def before() -> None:
        await step(act, "a")
        await step(other, "b")
        await sleep("1h")

    async def after() -> None:
        await step(other, "b")
        await step(act, "a")
        await sleep("1h")

    handle = await start_then_change(kit, app, before, after)

    await wait_for_divergence(kit, handle)
    assert done == ["a", "other b"]


async def test_recorded_call_does_not_rerun_when_an_unfinished_one_is_removed(app: App, kit: Kit) -> None:
    async def before() -> None:
        nap = sleep("1h")
        await step(act, "pay")
        await nap

    async def after() -> None:
        await step(act, "pay")

    handle = await start_then_change(kit, app, before, after)

    await wait_for_divergence(kit, handle)
    assert done == ["pay"]


async def test_removed_call_is_detected_when_the_function_returns(app: App, kit: Kit) -> None:
    async def after() -> str:
        await step(act, "a")
        return "done"

    handle = await start_then_change(kit, app, act_then_sleep, after)

    report = await wait_for_divergence(kit, handle)
    assert "it ended before calls that were recorded" in report
    assert "> 1 sleep" in report


async def test_call_removed_from_a_branch_is_detected_when_the_branch_returns(app: App, kit: Kit) -> None:
    async def before() -> None:
        async def branch() -> None:
            await step(act, "a")
            await step(act, "b")

        await gather(branch())
        await sleep("1h")

    async def after() -> None:
        async def branch() -> None:
            await step(act, "a")

        await gather(branch())
        await sleep("1h")

    handle = await start_then_change(kit, app, before, after)

    report = await wait_for_divergence(kit, handle)
    assert "> 1 gather[0]/act#2" in report


async def test_changed_arguments_are_detected(app: App, kit: Kit) -> None:
    async def after() -> None:
        await step(act, "b")
        await sleep("1h")

    handle = await start_then_change(kit, app, act_then_sleep, after)

    report = await wait_for_divergence(kit, handle)
    assert "its arguments differ from the recorded ones" in report
    assert "> 0 act                         act" in report
    assert done == ["a"]


async def test_changed_arguments_of_a_keyed_call_are_detected(app: App, kit: Kit) -> None:
    def keyed(what: str) -> Body:
        async def body() -> None:
            await step.options(key="k")(act, what)
            await sleep("1h")

        return body

    handle = await start_then_change(kit, app, keyed("a"), keyed("b"))

    report = await wait_for_divergence(kit, handle)
    assert "> - act[k]" in report


async def test_changed_arguments_of_a_child_are_detected(app: App, kit: Kit) -> None:
    @app.task
    async def child(number: int) -> int:
        return number

    def with_child(number: int) -> Body:
        async def body() -> None:
            _ = await child.submit(number)
            await sleep("1h")

        return body

    handle = await start_then_change(kit, app, with_child(1), with_child(2))

    assert "> 0 submit:child" in await wait_for_divergence(kit, handle)


async def test_set_order_and_object_identity_do_not_count_as_changed_arguments(app: App, kit: Kit) -> None:
    class Client: ...

    def take(tags: set[str], client: Client) -> None: ...

    async def body() -> str:
        await step(take, {"b", "a", "c"}, Client())
        await sleep("1h")
        return "done"

    changing = ChangingTask(app, body)

    assert await kit.run(changing.task) == "done"


async def test_arguments_off_ignores_changed_arguments(new_kit: KitFactory) -> None:
    app = App("durable.db", arguments="off")

    async def after() -> str:
        value = await step(act, "b")
        await sleep("1h")
        await step(act, "z")
        return value

    async with new_kit(app) as kit:
        handle = await start_then_change(kit, app, act_then_sleep, after)

        assert await kit.finish(handle) == "a"


async def test_arguments_warn_logs_changed_arguments(new_kit: KitFactory, caplog: pytest.LogCaptureFixture) -> None:
    app = App("durable.db", arguments="warn")

    async def after() -> str:
        value = await step(act, "b")
        await sleep("1h")
        await step(act, "z")
        return value

    async with new_kit(app) as kit:
        handle = await start_then_change(kit, app, act_then_sleep, after)
        with caplog.at_level(logging.WARNING, "flowfabric"):
            assert await kit.finish(handle) == "a"

    assert "act has other arguments than its record" in caplog.text


async def test_except_exception_cannot_hide_a_divergence(app: App, kit: Kit) -> None:
    async def after() -> str:
        try:
            await step(other, "b")
        except Exception:
            done.append("hidden")
        return "done"

    handle = await start_then_change(kit, app, act_then_sleep, after)

    await wait_for_divergence(kit, handle)
    assert done == ["a"]


async def test_except_base_exception_cannot_hide_a_divergence(app: App, kit: Kit) -> None:
    async def after() -> str:
        try:
            await step(other, "b")
        except BaseException:
            return "done"
        return "ran"

    handle = await start_then_change(kit, app, act_then_sleep, after)

    await wait_for_divergence(kit, handle)


async def test_divergence_holds_the_execution_without_using_an_attempt(app: App, kit: Kit) -> None:
    async def after() -> None:
        await step(other, "b")

    handle = await start_then_change(kit, app, act_then_sleep, after)
    before = await handle.status()
    report = await wait_for_divergence(kit, handle)

    status = await handle.status()
    assert (status.state, status.hold_reason, status.hold_report) == (State.BLOCKED, "diverged", report)
    assert status.attempt_index == before.attempt_index
    assert status.retry_count == status.reclaim_count == 0
    with pytest.raises(Diverged):
        await handle.result(5)


async def test_repaired_code_continues_after_unhold(app: App, kit: Kit) -> None:
    changing = ChangingTask(app, act_then_sleep)

    async def after() -> None:
        await step(other, "b")

    handle = await kit.start(changing.task)
    changing.body = after
    await wait_for_divergence(kit, handle)
    changing.body = act_then_sleep
    await handle.unhold()
    await kit.finish(handle)

    assert done == ["a", "z"]


async def test_renamed_function_keeps_its_record_under_its_old_name(app: App, kit: Kit) -> None:
    @step.policy(name="act")
    def renamed(what: str) -> str:
        raise AssertionError("a recorded step ran again")

    async def after() -> None:
        await step(renamed, "a")
        await sleep("1h")

    handle = await start_then_change(kit, app, act_then_sleep, after)

    await kit.finish(handle)


async def test_new_code_guarded_by_changed_does_not_diverge(app: App, kit: Kit) -> None:
    async def after() -> None:
        if changed("audit"):
            await step(other, "b")
        await act_then_sleep()

    handle = await start_then_change(kit, app, act_then_sleep, after)
    await kit.finish(handle)

    assert done == ["a", "z"]


async def test_call_that_is_never_awaited_fails_the_execution_with_its_path(app: App, kit: Kit) -> None:
    @app.task
    async def task() -> None:
        _ = step(act, "a")
        await step(other, "b")

    with pytest.raises(ExecutionFailed, match="made but never awaited: act"):
        await kit.run(task)
    assert done == ["other b"]
