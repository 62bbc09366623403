"""Hard and graceful cancels: the exceptions that the body gets, the calls that it may still make, and its outcome."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from flowfabric import (
    App,
    Backoff,
    Cancelled,
    CancelRequested,
    Completed,
    ExecutionCancelled,
    Handle,
    Unwind,
    current,
    gather,
    sleep,
    step,
)
from flowfabric.engine import State
from flowfabric.testing import Kit


async def test_hard_cancel_ends_a_waiting_execution_without_running_its_code(app: App, kit: Kit) -> None:
    cleanups: list[str] = []

    @app.task
    async def task() -> None:
        try:
            await sleep("1h")
        finally:
            cleanups.append("finally")

    handle = await kit.start(task)
    await handle.cancel("no longer needed")

    assert await handle.outcome() == Cancelled("no longer needed")
    await kit.advance("2h")
    # The cleanup ran once, when the execution was suspended.
    assert cleanups == ["finally"]


async def test_result_of_a_cancelled_execution_raises(app: App, kit: Kit) -> None:
    @app.task
    async def task() -> None:
        await sleep("1h")

    handle = await kit.start(task)
    await handle.cancel("no longer needed")

    with pytest.raises(ExecutionCancelled) as cancelled:
        await handle.result()
    assert cancelled.value.reason == "no longer needed"


async def test_hard_cancel_cancels_children_unless_detached(app: App, kit: Kit) -> None:
    ids: list[Handle[None]] = []

    @app.task
    async def child() -> None:
        await sleep("1h")

    @app.task
    async def parent() -> None:
        ids.append(await child.submit())
        ids.append(await child.options(detached=True).submit())
        await sleep("1h")

    handle = await kit.start(parent)
    await handle.cancel()
    await kit.advance("2h")
    bound, detached = ids[:2]

    assert isinstance(await bound.outcome(), Cancelled)
    assert isinstance(await detached.outcome(), Completed)


async def test_hard_cancel_raises_cancelled_error_in_a_step_and_unwinds_the_body(app: App) -> None:
    in_step = asyncio.Event()
    seen: list[str] = []

    async def long() -> None:
        in_step.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            seen.append("CancelledError in the step")
            raise

    @app.task
    async def task() -> None:
        try:
            await step(long)
        except BaseException as error:
            seen.append(f"{type(error).__mro__[-3].__name__} in the body")
            raise

    @app.task
    async def canceller(other: Handle[None]) -> None:
        await in_step.wait()
        await other.cancel()

    async with Kit(app, concurrency=2) as kit:
        handle = await task.submit()
        _ = await kit.start(canceller, handle)

        assert seen == ["CancelledError in the step", "Unwind in the body"]
        assert (await handle.status()).state is State.CANCELLED


async def test_durable_calls_are_rejected_after_a_hard_cancel(app: App, kit: Kit) -> None:
    done: list[str] = []

    async def cancel_myself() -> None:
        await app.handle(current().execution_id).cancel()

    @app.task
    async def task() -> None:
        try:
            await step(cancel_myself)
        finally:
            try:
                await step(done.append, "released")
            except Unwind:
                done.append("rejected")
                raise

    handle = await kit.start(task)

    assert (await handle.status()).state is State.CANCELLED
    assert done == ["rejected"]


async def test_graceful_cancel_is_raised_once_at_the_open_wait(app: App, kit: Kit) -> None:
    requests: list[BaseException] = []

    @app.task
    async def task() -> None:
        for _ in range(2):
            try:
                await sleep("1h")
            except asyncio.CancelledError as error:
                requests.append(error)
        raise ValueError("ends after the request")

    handle = await kit.start(task)
    begun = kit.now()
    await handle.cancel("enough", grace="1d")
    await kit.work()
    assert [type(error) for error in requests] == [CancelRequested]

    with pytest.raises(ExecutionCancelled, match="enough"):
        await kit.finish(handle)
    assert kit.now() - begun == timedelta(hours=1)


async def test_grace_of_the_task_is_the_default(app: App, kit: Kit) -> None:
    requests: list[str] = []

    @app.task(cancel_grace="1h")
    async def task() -> None:
        try:
            await sleep("1h")
        except CancelRequested:
            requests.append("requested")
            raise

    for handle in (await kit.start(task), app.handle((await kit.start(task)).id)):
        await handle.cancel()
        await kit.work()
        assert isinstance(await handle.outcome(), Cancelled)
    assert requests == ["requested"] * 2


async def test_durable_calls_work_until_the_grace_ends(app: App, kit: Kit) -> None:
    done: list[str] = []

    @app.task
    async def task() -> None:
        try:
            await sleep("1h")
        finally:
            await step(done.append, "first")
            await sleep("10m")
            await step(done.append, "second")

    handle = await kit.start(task)
    await handle.cancel(grace="20m")

    with pytest.raises(ExecutionCancelled):
        await kit.finish(handle)
    assert done == ["first", "second"]


async def test_graceful_cancel_between_two_attempts_runs_the_cleanup(app: App, kit: Kit) -> None:
    done: list[str] = []

    @app.task(backoff=Backoff(initial="1h"))
    async def task() -> None:
        try:
            await step(done.append, "reserved")
            if not done[1:]:
                done.append("failed")
                raise ValueError("not yet")
            await sleep("1h")
        except CancelRequested:
            await step(done.append, "released")
            raise

    handle = await kit.start(task)
    assert (await handle.status()).state is State.DELAYED
    await handle.cancel(grace="1m")
    await kit.work()

    assert isinstance(await handle.outcome(), Cancelled)
    assert done == ["reserved", "failed", "released"]


async def test_cancel_is_hard_after_the_grace(app: App, kit: Kit) -> None:
    done: list[str] = []

    @app.task
    async def task() -> None:
        try:
            await sleep("1h")
        finally:
            await step(done.append, "first")
            await sleep("10m")
            await step(done.append, "second")

    handle = await kit.start(task)
    await handle.cancel("too slow", grace="5m")
    begun = kit.now()

    with pytest.raises(ExecutionCancelled, match="too slow"):
        await kit.finish(handle)
    assert done == ["first"]
    assert kit.now() - begun == timedelta(minutes=5)


async def test_crash_in_the_cleanup_raises_the_request_again_at_the_same_call(app: App, kit: Kit) -> None:
    requests: list[str] = []
    done: list[str] = []

    @app.task
    async def task() -> None:
        try:
            await sleep("1h")
        except CancelRequested:
            requests.append("requested")
            await step(done.append, "clean")
            await step.options(name="after")(done.append, "up")
            raise

    handle = await kit.start(task)
    kit.crash_after("list.append")
    await handle.cancel(grace="1d")

    with pytest.raises(ExecutionCancelled):
        await kit.finish(handle)
    assert requests == ["requested"] * 2
    assert done == ["clean", "up"]


async def test_returning_a_value_after_a_cancel_request_completes(app: App, kit: Kit) -> None:
    @app.task
    async def task() -> str:
        try:
            await sleep("1h")
        except CancelRequested:
            return "half of it"
        return "all of it"

    handle = await kit.start(task)
    await handle.cancel(grace="1m")

    assert await kit.finish(handle) == "half of it"


async def test_children_are_cancelled_with_a_parent_that_ended_on_request(app: App, kit: Kit) -> None:
    @app.task
    async def child() -> None:
        await sleep("1h")

    @app.task
    async def parent() -> None:
        _ = await child.submit()
        await child.run()

    handle = await kit.start(parent)
    await handle.cancel(grace="1m")
    await kit.work()

    executions = (await kit.engine.executions.list()).items
    assert [execution.state for execution in executions] == [State.CANCELLED] * 3


async def test_cancel_request_reaches_one_branch_of_a_group_and_ends_the_others(app: App, kit: Kit) -> None:
    requests: list[str] = []

    async def branch(name: str) -> None:
        try:
            await sleep("1h")
        except CancelRequested:
            requests.append(name)
            raise

    @app.task
    async def task() -> None:
        await gather(branch("a"), branch("b"))

    handle = await kit.start(task)
    await handle.cancel(grace="1m")

    with pytest.raises(ExecutionCancelled):
        await kit.finish(handle)
    assert requests == ["a"]


@pytest.mark.parametrize("end", ["success", "failure", "graceful cancel"])
async def test_step_in_finally_runs_exactly_once_and_never_at_a_suspension(app: App, kit: Kit, end: str) -> None:
    released: list[str] = []

    @app.task
    async def task() -> None:
        try:
            await sleep("1h")
            await sleep("1h")
            if end == "failure":
                await step.options(retries=0)(int, "no number")
        finally:
            await step(released.append, "released")

    handle = await kit.start(task)
    await kit.advance("1h")
    assert released == []
    if end == "graceful cancel":
        await handle.cancel(grace="1m")
    await kit.advance("1d")

    assert released == ["released"]
    expected = {"success": State.COMPLETED, "failure": State.FAILED, "graceful cancel": State.CANCELLED}
    assert (await handle.status()).state is expected[end]


async def test_flow_member_can_clean_up_after_a_hard_cancel(app: App, kit: Kit) -> None:
    freed: list[str] = []

    @app.task
    async def work() -> None:
        await sleep("1h")

    @app.task
    async def free() -> None:
        await step(freed.append, "freed")

    flow = app.flow("work")
    worked, after = flow.add(work), flow.add(free)
    flow.after(after, worked, on="completion")
    handle = await flow.submit()
    await kit.work()
    await handle[worked].cancel()
    await kit.work()

    assert freed == ["freed"]
