"""Children: one for each call however often the parent runs, and how their ends are seen."""

from __future__ import annotations

import pytest

from flowfabric import (
    App,
    Cancelled,
    Completed,
    ExecutionCancelled,
    ExecutionFailed,
    Failed,
    Handle,
    PermanentError,
    Signal,
    TimedOut,
    gather,
    settle,
    sleep,
    step,
    wait_signal,
)
from flowfabric.engine import State
from flowfabric.testing import Kit
from tests.end_to_end.durable.kits import children_of

go = Signal("go", int)


async def number_of(kit: Kit, kind: str) -> int:
    return len((await kit.engine.executions.list(kind=kind)).items)


async def test_children_are_named_after_what_they_run(app: App, kit: Kit) -> None:
    @app.task
    async def double(number: int) -> int:
        return 2 * number

    @app.task
    async def parent() -> int:
        child = await double.submit(1)
        return await double.run(2) + await child

    handle = await kit.start(parent)

    assert await kit.finish(handle) == 6
    assert await kit.steps(handle) == ["submit:double", "run:double", "result:double"]


@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("verb", ["submit", "run"])
async def test_a_crash_around_a_submit_leaves_one_child(app: App, kit: Kit, verb: str, moment: str) -> None:
    @app.task
    async def double(number: int) -> int:
        return 2 * number

    @app.task
    async def parent() -> int:
        if verb == "run":
            return await double.run(2)
        return await (await double.submit(2))

    (kit.crash_before if moment == "before" else kit.crash_after)(f"{verb}:double")

    assert await kit.run(parent) == 4
    assert await number_of(kit, "double") == 1


async def test_every_run_finds_the_same_child(app: App, kit: Kit) -> None:
    seen: set[str] = set()

    @app.task
    async def double(number: int) -> int:
        return 2 * number

    @app.task
    async def parent() -> int:
        child = await double.submit(4)
        seen.add(str(child.id))
        await sleep("1h")
        return await child

    assert await kit.run(parent) == 8
    assert len(seen) == 1
    assert await number_of(kit, "double") == 1


async def test_the_outcome_of_a_child_is_the_same_in_every_run(app: App, kit: Kit) -> None:
    seen: list[int] = []

    @app.task
    async def double(number: int) -> int:
        return 2 * number

    @app.task
    async def parent() -> None:
        seen.append(await double.run(4))
        await sleep("1h")

    await kit.run(parent)

    assert seen[-2:] == [8, 8]


async def test_the_failure_of_a_child_is_seen_by_its_parent_and_ends_it_for_good(app: App, kit: Kit) -> None:
    ran: list[str] = []

    @app.task
    async def child() -> None:
        raise PermanentError("no car left")

    @app.task
    async def parent() -> None:
        ran.append("parent")
        await child.run()

    handle = await kit.start(parent)

    with pytest.raises(ExecutionFailed, match="no car left"):
        await kit.finish(handle)
    assert (await handle.status()).attempt_index == 0


async def test_a_class_that_a_child_declares_is_caught_as_such(app: App, kit: Kit) -> None:
    class Declined(Exception): ...

    @app.task(raises=[Declined])
    async def child() -> None:
        raise Declined("card", 7)

    @app.task
    async def parent() -> str:
        try:
            await child.run()
        except Declined as declined:
            return str(declined.args)
        return "went well"

    assert await kit.run(parent) == "('card', 7)"


async def test_a_handle_answers_how_an_execution_ended(app: App, kit: Kit) -> None:
    @app.task
    async def good() -> int:
        return 1

    @app.task
    async def bad() -> int:
        raise PermanentError("never")

    @app.task
    async def long() -> int:
        await sleep("1d")
        return 2

    @app.task
    async def parent() -> list[str]:
        ends = [await (await task.submit()).outcome("1h") for task in (good, bad, long)]
        assert ends[0] == Completed(1)
        assert isinstance(ends[1], Failed)
        assert ends[1].error.type == "PermanentError"
        return [type(end).__name__ for end in ends]

    assert await kit.run(parent) == ["Completed", "Failed", "TimedOut"]


async def test_a_result_that_takes_too_long_is_an_error_of_time(app: App, kit: Kit) -> None:
    @app.task
    async def long() -> int:
        await sleep("1d")
        return 2

    @app.task
    async def parent() -> str:
        child = await long.submit()
        try:
            await child.result("1h")
        except TimeoutError:
            return f"late, then {await child}"
        return "in time"

    assert await kit.run(parent) == "late, then 2"


async def test_a_cancelled_child_is_an_outcome(app: App, kit: Kit) -> None:
    @app.task(signals=[go])
    async def child() -> int:
        return (await wait_signal(go)).value

    @app.task
    async def parent(other: Handle[int]) -> str:
        outcome = await other.outcome()
        assert isinstance(outcome, Cancelled)
        try:
            await other
        except ExecutionCancelled as cancelled:
            return cancelled.reason
        return outcome.reason

    other = await kit.start(child)
    handle = await kit.start(parent, other)
    await other.cancel("not needed")

    assert await kit.finish(handle) == "not needed"


async def test_a_child_that_nobody_awaits_goes_on_when_its_parent_has_ended(app: App, kit: Kit) -> None:
    @app.task
    async def child() -> int:
        await sleep("1h")
        return 1

    @app.task
    async def parent() -> Handle[int]:
        return await child.submit()

    other = await kit.run(parent)

    assert await kit.finish(child.handle(other.id)) == 1


async def test_children_are_cancelled_with_their_parent_unless_they_are_detached(app: App, kit: Kit) -> None:
    @app.task
    async def child(name: str) -> str:
        await sleep("1d")
        return name

    @app.task
    async def parent() -> None:
        _ = await child.submit("own")
        _ = await child.options(detached=True).submit("detached")
        await sleep("1h")

    handle = await kit.start(parent)
    await handle.cancel("enough")
    await kit.work()

    states = [item.state for item in (await kit.engine.executions.list(kind="child")).items]
    assert sorted(state.value for state in states) == sorted([State.CANCELLED.value, State.DELAYED.value])


async def test_a_keyed_child_may_move_in_the_order(app: App, kit: Kit) -> None:
    names = ["a", "b"]

    @app.task
    async def child(name: str) -> str:
        return name.upper()

    @app.task
    async def parent() -> list[str]:
        handles = {name: await child.options(key=name).submit(name) for name in names}
        await sleep("1h")
        return [await handles[name] for name in sorted(handles)]

    handle = await kit.start(parent)
    names.reverse()

    assert await kit.finish(handle) == ["A", "B"]
    assert (await kit.steps(handle))[:2] == ["submit:child[a]", "submit:child[b]"]


async def test_a_timed_out_wait_for_a_child_times_out_in_every_run(app: App, kit: Kit) -> None:
    seen: list[bool] = []

    @app.task
    async def long() -> int:
        await sleep("2h")
        return 2

    @app.task
    async def parent() -> None:
        seen.append(isinstance(await (await long.submit()).outcome("1h"), TimedOut))
        await sleep("1d")

    await kit.run(parent)

    assert seen == [True, True]


async def test_the_history_of_a_parent_lists_its_children_and_how_they_ended(app: App, kit: Kit) -> None:
    @app.task
    async def child(how: str) -> None:
        if how == "fails":
            raise PermanentError("no")
        await sleep("1h" if how == "sleeps" else "10d")

    @app.task
    async def task() -> None:
        await settle(child.run("sleeps"), child.run("fails"))
        _ = await child.submit("goes on by itself")

    handle = await kit.start(task)
    await kit.finish(handle)
    events = [event for event in await handle.history() if event.family == "child"]

    names = [event.name for event in events]
    assert names[:3] == ["submitted", "submitted", "failed"]
    assert sorted(names[3:]) == ["completed", "submitted"]
    assert {event.kind for event in events} == {"child"}
    assert len({event.execution_id for event in events}) == 3
    assert [event.at for event in events] == sorted(event.at for event in events)
    assert "completion.completed" in {f"{event.family}.{event.name}" for event in await handle.history()}


@pytest.mark.parametrize("pause", ["1m", "2h"])
async def test_a_replay_from_a_step_waits_for_the_child_that_it_keeps(app: App, kit: Kit, pause: str) -> None:
    @app.task
    async def child() -> str:
        await sleep("1h")
        return "child"

    async def later() -> str:
        await sleep("1m")
        return await step(str, "later")

    @app.task
    async def parent() -> tuple[str, str]:
        return await gather(child.run(), later())

    handle = await kit.start(parent)
    await kit.advance("2m")
    await kit.engine.operator.cancel(handle.id, "by the test")
    await kit.advance(pause)
    await handle.replay(from_step="gather[1]/str")

    assert await kit.finish(handle) == ("child", "later")
    assert await children_of(kit, "child") == [State.COMPLETED]


async def test_a_replay_from_a_step_submits_a_child_anew_that_the_failure_had_cancelled(app: App, kit: Kit) -> None:
    is_broken = True

    @app.task
    async def child() -> str:
        await sleep("1h")
        return "child"

    def work() -> str:
        if is_broken:
            raise PermanentError("not yet")
        return "work"

    async def later() -> str:
        await sleep("1m")
        return await step(work)

    @app.task
    async def parent() -> tuple[str, str]:
        return await gather(child.run(), later())

    handle = await kit.start(parent)
    with pytest.raises(ExecutionFailed):
        await kit.finish(handle)
    is_broken = False
    await handle.replay(from_step="gather[1]/work")

    assert await kit.finish(handle) == ("child", "work")
    assert await children_of(kit, "child") == [State.CANCELLED, State.COMPLETED]
