"""Keys and groups in changed code: a recorded call never runs again, and a recorded winner stays the winner."""

from __future__ import annotations

import logging
from collections.abc import Awaitable
from typing import Any

import pytest

from flowfabric import App, ApprovalRequest, Diverged, approval, gather, race, sleep, step
from flowfabric.testing import Kit
from tests.end_to_end.durable.test_divergence import ChangingTask, start_then_change

done: list[str] = []


@pytest.fixture(autouse=True)
def clear_effects() -> None:
    done.clear()


def act(what: str) -> str:
    done.append(what)
    return what


def other(what: str) -> str:
    done.append(f"other {what}")
    return what


async def test_key_added_to_a_recorded_step_diverges_before_the_step_runs(app: App, kit: Kit) -> None:
    async def before() -> None:
        await step(act, "pay")
        await sleep("1h")

    async def after() -> None:
        await step.options(key="o-17")(act, "pay")
        await sleep("1h")

    handle = await start_then_change(kit, app, before, after)

    with pytest.raises(Diverged) as diverged:
        await kit.finish(handle)
    assert done == ["pay"]
    assert "the next call was recorded without a key" in diverged.value.report
    assert "> - act                         act[o-17]" in diverged.value.report


async def test_key_added_to_the_second_call_of_a_name_diverges(app: App, kit: Kit) -> None:
    async def before() -> None:
        await step(act, "a")
        await step(act, "b")
        await sleep("1h")

    async def after() -> None:
        await step(act, "a")
        await step.options(key="b")(act, "b")
        await sleep("1h")

    handle = await start_then_change(kit, app, before, after)

    with pytest.raises(Diverged):
        await kit.finish(handle)
    assert done == ["a", "b"]


async def test_keys_added_inside_a_group_diverge(app: App, kit: Kit) -> None:
    async def before() -> None:
        await gather(step(act, "a"), step(act, "b"))
        await sleep("1h")

    async def after() -> None:
        await gather(step.options(key="a")(act, "a"), step.options(key="b")(act, "b"))
        await sleep("1h")

    handle = await start_then_change(kit, app, before, after)

    with pytest.raises(Diverged):
        await kit.finish(handle)
    assert sorted(done) == ["a", "b"]


async def test_new_keyed_call_of_another_name_may_run(app: App, kit: Kit) -> None:
    async def before() -> None:
        await step(act, "a")
        await sleep("1h")

    async def after() -> None:
        await step.options(key="new")(other, "b")
        await step(act, "a")
        await sleep("1h")

    handle = await start_then_change(kit, app, before, after)

    await kit.finish(handle)
    assert done == ["a", "other b"]


async def test_recorded_keyed_calls_that_the_code_did_not_make_are_warned_about(
    app: App, kit: Kit, caplog: pytest.LogCaptureFixture
) -> None:
    async def before() -> None:
        for item in ("a", "b", "c"):
            await step.options(key=item)(act, item)
        await sleep("1h")

    async def after() -> None:
        await step.options(key="b")(act, "b")
        await sleep("1h")

    handle = await start_then_change(kit, app, before, after)
    with caplog.at_level(logging.WARNING, "flowfabric"):
        await kit.finish(handle)

    expected = f"task {handle.id} ended without calls that were recorded with a key: act[a], act[c]"
    assert [record.getMessage() for record in caplog.records] == [expected]
    assert done == ["a", "b", "c"]


async def test_code_that_makes_all_keyed_calls_is_not_warned_about(
    app: App, kit: Kit, caplog: pytest.LogCaptureFixture
) -> None:
    async def branch(item: str) -> str:
        return await step.options(key=item)(act, item)

    async def body() -> None:
        await race(branch("a"), branch("b"))
        await sleep("1h")

    changing = ChangingTask(app, body)
    with caplog.at_level(logging.WARNING, "flowfabric"):
        await kit.run(changing.task)
    assert caplog.records == []


async def test_notified_approvers_are_not_warned_about(app: App, kit: Kit, caplog: pytest.LogCaptureFixture) -> None:
    def mail(request: ApprovalRequest) -> None:
        done.append(request.approver)

    async def body() -> None:
        await approval("refund", by="ops", notify=mail)
        await sleep("1h")

    changing = ChangingTask(app, body)
    with caplog.at_level(logging.WARNING, "flowfabric"):
        handle = await kit.start(changing.task)
        await kit.approve(handle, "refund", by="ops")
        await kit.finish(handle)
    assert caplog.records == []


async def swap_members(app: App, kit: Kit, first: Any, second: Any) -> Any:
    """Decide a race, and let the changed code swap its members."""

    async def before() -> list[Any]:
        won = await race(*first())
        await sleep("1h")
        return [won.index, won.value]

    async def after() -> list[Any]:
        won = await race(*second())
        await sleep("1h")
        return [won.index, won.value]

    return await start_then_change(kit, app, before, after)


async def never(what: str) -> str:
    await sleep("9h")
    return await step(act, what)


async def soon(what: str) -> str:
    return what


@pytest.mark.parametrize("kind", ["keyed calls", "calls made before", "coroutines", "fewer members"])
async def test_members_of_a_decided_race_that_changed_places_diverge(app: App, kit: Kit, kind: str) -> None:
    def keyed() -> list[Awaitable[str]]:
        return [step.options(key="a")(act, "a"), step.options(key="b")(act, "b")]

    def made_before() -> list[Awaitable[str]]:
        return [step(act, "a"), step(other, "b")]  # The calls keep their order, and only the members change places.

    members: dict[str, tuple[Any, Any]] = {
        "keyed calls": (keyed, lambda: keyed()[::-1]),
        "calls made before": (made_before, lambda: made_before()[::-1]),
        "coroutines": (lambda: [soon("a"), never("b")], lambda: [never("b"), soon("a")]),
        "fewer members": (lambda: [never("b"), soon("a")], lambda: [soon("a")]),
    }
    handle = await swap_members(app, kit, *members[kind])
    effects = list(done)

    with pytest.raises(Diverged) as diverged:
        await kit.finish(handle)
    assert "the members of race are not the recorded ones in the same order" in diverged.value.report
    assert done == effects


async def test_branch_of_a_decided_race_may_get_a_new_function_name(app: App, kit: Kit) -> None:
    async def renamed(what: str) -> str:
        return what

    handle = await swap_members(app, kit, lambda: [soon("a"), never("b")], lambda: [renamed("a"), never("b")])

    assert await kit.finish(handle) == [0, "a"]


async def test_report_of_a_long_journal_shows_the_calls_near_the_difference(app: App, kit: Kit) -> None:
    async def before() -> None:
        for number in range(300):
            await step(act, str(number))
        await sleep("1h")

    async def after() -> None:
        for number in range(300):
            await step(act if number != 250 else other, str(number))
        await sleep("1h")

    handle = await start_then_change(kit, app, before, after)

    with pytest.raises(Diverged) as diverged:
        await kit.finish(handle)
    rows = diverged.value.report.splitlines()
    assert "> 250 act#251                     other" in rows
    assert len(rows) < 210
