"""Children: a call submits one child, however often the parent runs, and the parent sees how the child ends."""

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


async def count_executions(kit: Kit, kind: str) -> int:
    return len((await kit.engine.executions.list(kind=kind)).items)


async def test_child_calls_have_the_name_of_the_task(app: App, kit: Kit) -> None:
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
@pytest.mark.parametrize("call", ["submit", "run"])
async def test_crash_around_a_submit_leaves_one_child(app: App, kit: Kit, call: str, moment: str) -> None:
    @app.task
    async def double(number: int) -> int:
        return 2 * number

    @app.task
    async def parent() -> int:
        if call == "run":
            return await double.run(2)
        return await (await double.submit(2))

    (kit.crash_before if moment == "before" else kit.crash_after)(f"{call}:double")

    assert await kit.run(parent) == 4
    assert await count_executions(kit, "double") == 1


async def test_every_run_gets_the_same_child(app: App, kit: Kit) -> None:
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
    assert await count_executions(kit, "double") == 1


async def test_outcome_of_a_child_is_the_same_in_every_run(app: App, kit: Kit) -> None:
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


async def test_failure_of_a_child_fails_its_parent_permanently(app: App, kit: Kit) -> None:
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


async def test_declared_exception_class_of_a_child_is_raised_in_the_parent(app: App, kit: Kit) -> None:
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
        return "succeeded"

    assert await kit.run(parent) == "('card', 7)"


async def test_handle_returns_the_outcome_of_an_execution(app: App, kit: Kit) -> None:
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
        outcomes = [await (await task.submit()).outcome("1h") for task in (good, bad, long)]
        assert outcomes[0] == Completed(1)
        assert isinstance(outcomes[1], Failed)
        assert outcomes[1].error.type == "PermanentError"
        return [type(outcome).__name__ for outcome in outcomes]

    assert await kit.run(parent) == ["Completed", "Failed", "TimedOut"]


async def test_late_result_raises_timeout_error(app: App, kit: Kit) -> None:
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


async def test_cancelled_child_has_a_cancelled_outcome(app: App, kit: Kit) -> None:
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


async def test_child_that_is_not_awaited_continues_after_its_parent_ends(app: App, kit: Kit) -> None:
    @app.task
    async def child() -> int:
        await sleep("1h")
        return 1

    @app.task
    async def parent() -> Handle[int]:
        return await child.submit()

    other = await kit.run(parent)

    assert await kit.finish(child.handle(other.id)) == 1


async def test_cancelling_a_parent_cancels_its_children_unless_detached(app: App, kit: Kit) -> None:
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

    states = [execution.state for execution in (await kit.engine.executions.list(kind="child")).items]
    assert sorted(state.value for state in states) == sorted([State.CANCELLED.value, State.DELAYED.value])


async def test_children_with_keys_may_be_reordered(app: App, kit: Kit) -> None:
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


async def test_wait_for_a_child_times_out_in_every_run(app: App, kit: Kit) -> None:
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


async def test_history_of_a_parent_lists_its_children_and_their_ends(app: App, kit: Kit) -> None:
    @app.task
    async def child(behaviour: str) -> None:
        if behaviour == "fails":
            raise PermanentError("no")
        await sleep("1h" if behaviour == "sleeps" else "10d")

    @app.task
    async def task() -> None:
        await settle(child.run("sleeps"), child.run("fails"))
        _ = await child.submit("continues")

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
async def test_replay_from_a_step_waits_for_the_child_that_it_keeps(app: App, kit: Kit, pause: str) -> None:
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


async def test_replay_from_a_step_resubmits_a_child_that_the_failure_cancelled(app: App, kit: Kit) -> None:
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
