"""A body unwinds if it loses its lease, its time is over or its worker stops. Its execution continues or expires."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

import pytest

from flowfabric import (
    App,
    ExecutionExpired,
    ExecutionFailed,
    Expired,
    Handle,
    Unwind,
    current,
    gather,
    sleep,
    step,
    sync,
)
from flowfabric.engine import Refused, State
from flowfabric.testing import Kit
from tests.end_to_end.durable.kits import begin


async def test_lost_lease_unwinds_the_body_and_cancels_the_step_which_runs_again(app: App) -> None:
    in_step = asyncio.Event()
    seen: list[str] = []
    keys: list[str] = []

    async def work() -> int:
        keys.append(current().idempotency_key)
        if len(keys) == 1:
            in_step.set()
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                seen.append("CancelledError")
                raise
        return len(keys)

    @app.task
    async def task() -> int:
        try:
            return await step(work)
        except Unwind:
            seen.append("Unwind")
            raise

    @app.task
    async def revoker(other: Handle[int]) -> None:
        await in_step.wait()
        await kit.engine.operator.revoke_lease(other.id)

    async with Kit(app, concurrency=2) as kit:
        handle = await task.submit()
        _ = await kit.start(revoker, handle)

        assert await kit.finish(handle) == 2
        assert seen == ["CancelledError", "Unwind"]
        assert keys[0] == keys[1]


async def test_lost_lease_cancels_a_body_in_a_plain_await(app: App, kit: Kit) -> None:
    seen: list[str] = []
    begun = asyncio.Event()

    @app.task
    async def task() -> str:
        if seen:
            return "again"
        try:
            begun.set()
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            seen.append("CancelledError")
            raise
        return "never"

    handle = await task.submit()
    await lose_lease(kit, begun)

    assert seen == ["CancelledError"]
    assert await kit.finish(handle) == "again"


async def test_lost_lease_ends_every_kind_of_branch(app: App, kit: Kit) -> None:
    seen: list[str] = []
    begun = asyncio.Event()

    async def branch(name: str, awaits: Callable[[], Awaitable[object]]) -> None:
        try:
            await awaits()
        except BaseException as error:
            seen.append(f"{name}: {type(error).__name__}")
            raise

    async def long() -> None:
        begun.set()
        await asyncio.Event().wait()

    @app.task
    async def task() -> str:
        if seen:
            return "again"
        await gather(
            branch("waits", lambda: sleep("1h")),
            branch("plain", asyncio.Event().wait),
            gather(branch("within", asyncio.Event().wait), step(str)),
            branch("step", lambda: step(long)),
        )
        return "never"

    handle = await task.submit()
    await lose_lease(kit, begun)

    assert sorted(seen) == [
        "plain: CancelledError",
        "step: LeaseLost",
        "waits: LeaseLost",
        "within: CancelledError",
    ]
    assert await kit.finish(handle) == "again"


async def test_body_that_returns_while_losing_its_lease_logs_no_warning(
    app: App, kit: Kit, caplog: pytest.LogCaptureFixture
) -> None:
    @app.task
    async def task() -> str:
        if current().epoch == 1:
            run.lease_lost(Refused("lease_revoked", "by the test"))
        return "done"

    handle = await task.submit()
    run = await begin(kit)
    with caplog.at_level(logging.WARNING, "flowfabric"):
        await run.run()

    assert "swallowed" not in caplog.text
    await kit.engine.operator.revoke_lease(handle.id)
    assert await kit.finish(handle) == "done"


async def test_body_is_cancelled_with_its_run(app: App, kit: Kit) -> None:
    seen: list[str] = []
    begun, body_ended = asyncio.Event(), asyncio.Event()

    @app.task
    async def task() -> None:
        try:
            begun.set()
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            seen.append("CancelledError")
            raise
        finally:
            body_ended.set()

    _ = await task.submit()
    run = await begin(kit)
    running = asyncio.create_task(run.run())
    await begun.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    await body_ended.wait()

    assert seen == ["CancelledError"]


async def test_worker_that_stops_without_grace_cancels_a_body_in_a_plain_await(real_app: App) -> None:
    seen: list[str] = []
    begun = asyncio.Event()

    @real_app.task
    async def task() -> str:
        if seen:
            return "again"
        try:
            begun.set()
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            seen.append("CancelledError")
            raise
        return "never"

    async with real_app.worker() as worker:
        handle = await task.submit()
        await begun.wait()
        await worker.stop(grace=0)
    assert seen == ["CancelledError"]
    async with real_app.worker():
        assert await handle.result(timeout=20) == "again"


async def lose_lease(kit: Kit, begun: asyncio.Event) -> None:
    """Run the next execution and revoke its lease once the event is set."""
    run = await begin(kit)
    running = asyncio.create_task(run.run())
    await begun.wait()
    await kit.engine.operator.revoke_lease(run.lease.execution_id)
    run.lease_lost(Refused("lease_revoked", "by the test"))
    await running


async def test_durable_calls_are_rejected_after_a_lost_lease(app: App, kit: Kit) -> None:
    done: list[int] = []

    def work() -> None: ...

    @app.task
    async def task() -> int:
        try:
            await step(work)
        finally:
            await step(done.append, current().attempt)
        return current().attempt

    kit.crash_before("work")

    assert await kit.run(task) == 1
    assert done == [1]


async def test_deadline_expires_a_waiting_execution(app: App, kit: Kit) -> None:
    @app.task(deadline="1h")
    async def task() -> None:
        await sleep("2h")

    handle = await kit.start(task)
    await kit.advance("1h")

    assert isinstance(await handle.outcome(), Expired)
    with pytest.raises(ExecutionExpired):
        await handle.result()


async def test_durable_calls_are_rejected_after_a_deadline_passes_in_a_step(app: App, kit: Kit) -> None:
    done: list[str] = []

    async def two_hours() -> None:
        kit.clock.advance("2h")
        await kit.engine.reconcilers.tick_due()

    @app.task(deadline="1h")
    async def task() -> None:
        try:
            await step(two_hours)
        finally:
            await step(done.append, "released")

    handle = await kit.start(task)

    assert isinstance(await handle.outcome(), Expired)
    assert done == []


async def test_attempt_timeout_starts_the_next_attempt_which_keeps_the_records(app: App, kit: Kit) -> None:
    done: list[str] = []
    attempts: list[int] = []

    async def slow_at_first() -> int:
        attempts.append(current().attempt)
        if len(attempts) == 1:
            kit.clock.advance("2m")
            await kit.engine.reconcilers.tick_due()
        return len(attempts)

    @app.task(timeout="1m")
    async def task() -> int:
        await step(done.append, "once")
        return await step(slow_at_first)

    assert await kit.run(task) == 2
    assert done == ["once"]
    assert attempts == [0, 1]


async def test_stopping_worker_unwinds_at_the_next_call_and_another_worker_continues(real_app: App) -> None:
    begun, keeps_counting = asyncio.Event(), True
    done: list[int] = []

    async def count() -> int:
        begun.set()
        done.append(len(done))
        await asyncio.sleep(0)
        return len(done)

    @real_app.task
    async def task() -> int:
        while True:
            counted = await step(count)
            if not keeps_counting and counted == len(done):
                return counted

    async with real_app.worker() as worker:
        handle = await task.submit()
        await begun.wait()
        await worker.stop()
    status = await handle.status()
    assert (status.state, status.attempt_index) == (State.WAITING, 0)
    keeps_counting, before = False, len(done)
    async with real_app.worker():
        assert await handle.result(timeout=20) == before
    # Every step that began was recorded before the body unwound, so no step ran again.
    assert len(done) == before


async def test_waiting_branch_unwinds_when_the_worker_stops(real_app: App) -> None:
    endings: list[str] = []
    begun = asyncio.Event()

    async def long() -> str:
        begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            endings.append("step cancelled")
            raise
        return "never"

    async def waits() -> None:
        try:
            await sleep("1h")
        except Unwind:
            endings.append("wait unwound")
            raise

    @real_app.task
    async def task() -> str:
        return "again" if endings else (await gather(step(long), waits()))[0]

    async with real_app.worker() as worker:
        handle = await task.submit()
        await begun.wait()
        await worker.stop(grace=0)
    assert sorted(endings) == ["step cancelled", "wait unwound"]
    async with real_app.worker():
        assert await handle.result(timeout=20) == "again"


async def test_cancelled_error_without_a_cancel_is_an_ordinary_failure(app: App, kit: Kit) -> None:
    bodies: list[int] = []

    @app.task(retries=1)
    async def task() -> int:
        bodies.append(len(bodies))
        if len(bodies) == 1:
            raise asyncio.CancelledError
        return len(bodies)

    assert await kit.run(task) == 2


async def test_cancelled_error_from_an_asyncio_task_is_an_ordinary_failure(app: App, kit: Kit) -> None:
    @app.task(retries=0)
    async def task() -> None:
        inner = asyncio.create_task(asyncio.Event().wait())
        inner.cancel()
        await inner

    with pytest.raises(ExecutionFailed, match="cancelled by its own code"):
        await kit.run(task)


async def test_cancelled_error_raised_by_a_step_is_retried(app: App, kit: Kit) -> None:
    tries: list[int] = []

    async def await_cancelled_future() -> int:
        tries.append(len(tries))
        if len(tries) == 1:
            future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
            future.cancel()
            await future
        return len(tries)

    @app.task
    async def task() -> int:
        return await step(await_cancelled_future)

    handle = await kit.start(task)

    assert await kit.finish(handle) == 2
    assert (await handle.status()).attempt_index == 0


@pytest.mark.parametrize("colour", ["async", "plain"])
@pytest.mark.parametrize("place", ["body", "step"])
async def test_system_exit_is_a_permanent_failure_and_does_not_stop_the_worker(
    real_app: App, colour: str, place: str
) -> None:
    def exit_process() -> None:
        raise SystemExit("out")

    async def exit_process_async() -> None:
        raise SystemExit("out")

    @real_app.task(name="task")
    async def asynchronous() -> None:
        if place == "body":
            exit_process()
        await step(exit_process_async)

    @real_app.task
    def plain() -> None:
        if place == "body":
            exit_process()
        sync.step(exit_process)

    @real_app.task
    async def other() -> str:
        return "works"

    async with real_app.worker():
        handle = await (asynchronous if colour == "async" else plain).submit()
        with pytest.raises(ExecutionFailed, match="out"):
            await handle.result(timeout=20)
        assert (await handle.status()).attempt_index == 0
        assert await (await other.submit()).result(timeout=20) == "works"


async def test_execution_continues_after_its_process_was_killed(app: App, kit: Kit) -> None:
    effects: list[str] = []

    @app.task
    async def task() -> int:
        for name in ("a", "b"):
            await step.options(name=name)(effects.append, name)
        return current().attempt

    kit.crash_before("b")

    assert await kit.run(task) == 1
    # The step that was in flight ran again. The recorded step did not.
    assert effects == ["a", "b", "b"]
