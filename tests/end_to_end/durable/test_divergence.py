"""Code that no longer makes the calls that were recorded is held, with a report, before anything runs."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from flowfabric import App, Diverged, ExecutionFailed, Handle, changed, gather, sleep, step
from flowfabric.engine import State
from flowfabric.testing import Kit
from tests.end_to_end.durable.kits import NewKit

REPAIR = 'keep the old name with @step.policy(name="…"), guard new code with changed("…"), or register version=2'
done: list[str] = []
Body = Callable[[], Awaitable[Any]]


@pytest.fixture(autouse=True)
def nothing_done() -> None:
    done.clear()


class Changing:
    """A task whose code can be replaced while it sleeps, as by a deployment."""

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


async def held(kit: Kit, handle: Handle[Any]) -> str:
    """The report of an execution that was found to have diverged when its wait was over."""
    with pytest.raises(Diverged) as diverged:
        await kit.finish(handle)
    return diverged.value.report


async def look_then_sleep() -> None:
    await step(act, "a")
    await sleep("1h")
    await step(act, "z")


async def start(kit: Kit, app: App, before: Body, after: Body) -> Handle[Any]:
    changing = Changing(app, before)
    handle = await kit.start(changing.task)
    changing.body = after
    return handle


async def test_another_call_in_its_place_is_found_by_the_index(app: App, kit: Kit) -> None:
    async def after() -> None:
        await step(act, "a")
        await step(other, "b")
        await sleep("1h")

    handle = await start(kit, app, look_then_sleep, after)

    report = await held(kit, handle)
    assert done == ["a"]
    assert report.splitlines() == [
        f"task {handle.id}: the code no longer matches what was recorded",
        "    recorded                    now",
        "  0 act                         act",
        "> 1 sleep                       other",
        f"repair: {REPAIR}; then `flowfabric unhold`",
    ]


async def test_the_same_name_for_another_kind_of_call_is_found(app: App, kit: Kit) -> None:
    async def after() -> None:
        await step(act, "a")
        await step.options(name="sleep")(act, "b")

    handle = await start(kit, app, look_then_sleep, after)

    await held(kit, handle)
    assert done == ["a"]


async def test_two_calls_in_another_order_are_found(app: App, kit: Kit) -> None:
    async def before() -> None:
        await step(act, "a")
        await step(other, "b")
        await sleep("1h")

    async def after() -> None:
        await step(other, "b")
        await step(act, "a")
        await sleep("1h")

    handle = await start(kit, app, before, after)

    await held(kit, handle)
    assert done == ["a", "other b"]


async def test_a_recorded_call_is_not_run_again_when_an_unfinished_one_before_it_is_removed(app: App, kit: Kit) -> None:
    async def before() -> None:
        nap = sleep("1h")
        await step(act, "pay")
        await nap

    async def after() -> None:
        await step(act, "pay")

    handle = await start(kit, app, before, after)

    await held(kit, handle)
    assert done == ["pay"]


async def test_a_removed_call_is_found_when_the_function_returns(app: App, kit: Kit) -> None:
    async def after() -> str:
        await step(act, "a")
        return "done"

    handle = await start(kit, app, look_then_sleep, after)

    report = await held(kit, handle)
    assert "it ended before calls that were recorded" in report
    assert "> 1 sleep" in report


async def test_a_call_that_was_removed_from_a_branch_is_found_when_the_branch_returns(app: App, kit: Kit) -> None:
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

    handle = await start(kit, app, before, after)

    report = await held(kit, handle)
    assert "> 1 gather[0]/act#2" in report


async def test_other_arguments_are_found(app: App, kit: Kit) -> None:
    async def after() -> None:
        await step(act, "b")
        await sleep("1h")

    handle = await start(kit, app, look_then_sleep, after)

    report = await held(kit, handle)
    assert "its arguments are not those that were recorded" in report
    assert "> 0 act                         act" in report
    assert done == ["a"]


async def test_other_arguments_of_a_keyed_call_are_found(app: App, kit: Kit) -> None:
    def keyed(what: str) -> Body:
        async def body() -> None:
            await step.options(key="k")(act, what)
            await sleep("1h")

        return body

    handle = await start(kit, app, keyed("a"), keyed("b"))

    report = await held(kit, handle)
    assert "> - act[k]" in report


async def test_other_arguments_of_a_child_are_found(app: App, kit: Kit) -> None:
    @app.task
    async def child(number: int) -> int:
        return number

    def with_child(number: int) -> Body:
        async def body() -> None:
            _ = await child.submit(number)
            await sleep("1h")

        return body

    handle = await start(kit, app, with_child(1), with_child(2))

    assert "> 0 submit:child" in await held(kit, handle)


async def test_sets_in_another_order_and_other_objects_of_a_type_are_the_same_arguments(app: App, kit: Kit) -> None:
    class Client: ...

    def take(tags: set[str], client: Client) -> None: ...

    async def body() -> str:
        await step(take, {"b", "a", "c"}, Client())
        await sleep("1h")
        return "done"

    changing = Changing(app, body)

    assert await kit.run(changing.task) == "done"


async def test_with_arguments_off_others_are_not_looked_at(new_kit: NewKit) -> None:
    app = App("durable.db", arguments="off")

    async def after() -> str:
        value = await step(act, "b")
        await sleep("1h")
        await step(act, "z")
        return value

    async with new_kit(app) as kit:
        handle = await start(kit, app, look_then_sleep, after)

        assert await kit.finish(handle) == "a"


async def test_with_arguments_warn_others_are_logged(new_kit: NewKit, caplog: pytest.LogCaptureFixture) -> None:
    app = App("durable.db", arguments="warn")

    async def after() -> str:
        value = await step(act, "b")
        await sleep("1h")
        await step(act, "z")
        return value

    async with new_kit(app) as kit:
        handle = await start(kit, app, look_then_sleep, after)
        with caplog.at_level(logging.WARNING, "flowfabric"):
            assert await kit.finish(handle) == "a"

    assert "act has other arguments than were recorded" in caplog.text


async def test_except_exception_cannot_hide_a_divergence(app: App, kit: Kit) -> None:
    async def after() -> str:
        try:
            await step(other, "b")
        except Exception:
            done.append("hidden")
        return "done"

    handle = await start(kit, app, look_then_sleep, after)

    await held(kit, handle)
    assert done == ["a"]


async def test_whoever_swallows_everything_does_not_hide_a_divergence_either(app: App, kit: Kit) -> None:
    async def after() -> str:
        try:
            await step(other, "b")
        except BaseException:
            return "done"
        return "performed"

    handle = await start(kit, app, look_then_sleep, after)

    await held(kit, handle)


async def test_a_divergence_holds_the_execution_and_uses_no_attempt(app: App, kit: Kit) -> None:
    async def after() -> None:
        await step(other, "b")

    handle = await start(kit, app, look_then_sleep, after)
    before = await handle.status()
    report = await held(kit, handle)

    status = await handle.status()
    assert (status.state, status.hold_reason, status.hold_report) == (State.BLOCKED, "diverged", report)
    assert status.attempt_index == before.attempt_index
    assert status.retry_count == status.reclaim_count == 0
    with pytest.raises(Diverged):
        await handle.result(5)


async def test_repaired_code_goes_on_after_unhold(app: App, kit: Kit) -> None:
    changing = Changing(app, look_then_sleep)

    async def after() -> None:
        await step(other, "b")

    handle = await kit.start(changing.task)
    changing.body = after
    await held(kit, handle)
    changing.body = look_then_sleep
    await handle.unhold()
    await kit.finish(handle)

    assert done == ["a", "z"]


async def test_a_renamed_function_keeps_its_record_by_its_old_name(app: App, kit: Kit) -> None:
    @step.policy(name="act")
    def renamed(what: str) -> str:
        raise AssertionError("it is recorded")

    async def after() -> None:
        await step(renamed, "a")
        await sleep("1h")

    handle = await start(kit, app, look_then_sleep, after)

    await kit.finish(handle)


async def test_new_code_guarded_by_changed_does_not_diverge(app: App, kit: Kit) -> None:
    async def after() -> None:
        if changed("audit"):
            await step(other, "b")
        await look_then_sleep()

    handle = await start(kit, app, look_then_sleep, after)
    await kit.finish(handle)

    assert done == ["a", "z"]


async def test_what_was_made_and_never_awaited_fails_the_execution_with_its_path(app: App, kit: Kit) -> None:
    @app.task
    async def task() -> None:
        _ = step(act, "a")
        await step(other, "b")

    with pytest.raises(ExecutionFailed, match="made but never awaited: act"):
        await kit.run(task)
    assert done == ["other b"]
