"""Tasks that are plain functions: their threads, and which threads may make durable calls."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable
from typing import TypeVar

import pytest

from flowfabric import App, ExecutionFailed, InvalidRequest, Received, Signal, current, sleep, step, sync
from flowfabric.engine import State
from flowfabric.testing import Kit
from tests.end_to_end.worker.scripted_runs import until

GO = Signal("go", int)
T = TypeVar("T")


def in_thread(fn: Callable[[], T]) -> T:
    """Run a function in a new thread and return or raise its outcome."""
    outcomes: list[T | Exception] = []

    def work() -> None:
        try:
            outcomes.append(fn())
        except Exception as error:
            outcomes.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join(20)
    [outcome] = outcomes
    if isinstance(outcome, Exception):
        raise outcome
    return outcome


async def test_each_thunk_of_a_group_has_its_own_scope(app: App, kit: Kit) -> None:
    def branch() -> int:
        sync.sleep("1h")
        return sync.step(abs, -1) + sync.step(abs, -1)

    @app.task
    def task() -> list[int]:
        return list(sync.gather(branch, branch))

    handle = await kit.start(task)

    assert await kit.finish(handle) == [2, 2]
    paths = [f"gather[{n}]/{name}" for n in (0, 1) for name in ("abs", "abs#2", "sleep")]
    assert sorted(await kit.steps(handle)) == sorted(["gather", *paths])


async def test_results_of_handles_in_a_group_are_waited_for_together(app: App, kit: Kit) -> None:
    bodies: list[str] = []

    @app.task
    async def child(number: int) -> int:
        await sleep(f"{number}h")
        return number

    @app.task
    def parent() -> list[int]:
        bodies.append("run")
        handles = app.sync.submit_many([child.call(number) for number in (1, 2, 3)])
        return list(sync.gather(*(handle.result for handle in handles)))

    assert await kit.run(parent) == [1, 2, 3]
    assert len(bodies) == 2


async def test_parked_branches_release_their_threads(app: App, kit: Kit) -> None:
    thread_names: list[str] = []

    def branch() -> None:
        try:
            sync.sleep("1h")
        finally:
            thread_names.append(threading.current_thread().name)

    @app.task
    def task() -> None:
        sync.gather(branch, branch)

    handle = await kit.start(task)

    assert (await handle.status()).state is State.DELAYED
    assert [name.rpartition("-")[0] for name in thread_names] == ["flowfabric-branch"] * 2


async def test_async_call_in_a_plain_task_and_the_reverse_raise_with_advice(app: App, memory_kit: Kit) -> None:
    messages: dict[str, str] = {}

    @app.task
    async def child() -> int:
        return 1

    @app.task
    def plain() -> None:
        for name, call in {"step": lambda: step(abs, -1), "sleep": lambda: sleep(1), "run": child.run}.items():
            try:
                _ = call()
            except InvalidRequest as error:
                messages[name] = str(error)

    @app.task
    async def asynchronous() -> None:
        for name, call in {"sync.step": lambda: sync.step(abs, -1), ".sync": child.sync.run}.items():
            try:
                call()
            except InvalidRequest as error:
                messages[name] = str(error)

    await memory_kit.run(plain)
    await memory_kit.run(asynchronous)

    assert all("flowfabric.sync.step" in messages[name] for name in ("step", "sleep", "run"))
    assert all("await" in messages[name] for name in ("sync.step", ".sync"))


async def test_thread_of_the_user_is_outside_of_the_task(app: App, memory_kit: Kit) -> None:
    @app.task(retries=0)
    def task() -> None:
        in_thread(lambda: sync.step(abs, -1))

    with pytest.raises(ExecutionFailed, match="only inside a task"):
        await memory_kit.run(task)


async def test_thread_with_a_copied_context_cannot_make_durable_calls(app: App, memory_kit: Kit) -> None:
    @app.task(retries=0)
    def task() -> None:
        context = contextvars.copy_context()
        in_thread(lambda: context.run(sync.step, abs, -1))

    with pytest.raises(ExecutionFailed, match="only the thread that runs the task makes durable calls"):
        await memory_kit.run(task)


async def test_thread_of_a_coroutine_function_cannot_make_durable_calls(app: App, memory_kit: Kit) -> None:
    @app.task(retries=0)
    async def task() -> None:
        _ = await asyncio.to_thread(lambda: step(abs, -1))

    with pytest.raises(ExecutionFailed, match="only the thread that runs the task makes durable calls"):
        await memory_kit.run(task)


async def test_sync_client_on_a_running_loop_raises(app: App, memory_kit: Kit) -> None:
    @app.task
    async def task() -> None: ...

    with pytest.raises(InvalidRequest, match="await the async method instead"):
        task.sync.submit()


async def test_durable_call_in_a_plain_step_is_rejected(app: App, memory_kit: Kit) -> None:
    def nested() -> int:
        return sync.step(abs, -1)

    @app.task(retries=0)
    def task() -> int:
        return sync.step(nested)

    with pytest.raises(ExecutionFailed, match="a step cannot contain durable calls"):
        await memory_kit.run(task)


async def test_suspended_body_holds_no_thread(real_app: App) -> None:
    running: list[int] = []
    threads: set[str] = set()

    @real_app.task(signals=[GO])
    def wait_for_signal() -> int:
        threads.add(threading.current_thread().name)
        running.append(1)
        match sync.wait_signal(GO):
            case Received(value=value):
                return value

    async with real_app.worker(concurrency=2):
        handles = [await wait_for_signal.submit() for _ in range(20)]

        async def all_suspended() -> bool:
            return all([(await handle.status()).state is State.SUSPENDED for handle in handles])

        await until(all_suspended)
        for number, handle in enumerate(handles):
            await handle.signal(GO, number)
        assert [await handle.result(timeout=20) for handle in handles] == list(range(20))
    assert len(threads) == 2
    assert len(running) == 40


@pytest.mark.parametrize("concurrency", [1, 2])
async def test_bodies_and_steps_in_threads_do_not_starve_each_other(real_app: App, concurrency: int) -> None:
    both = threading.Barrier(concurrency)
    names: set[str] = set()

    def work() -> str:
        names.add(threading.current_thread().name.rpartition("-")[0])
        # Now every thread for bodies is in use, because each body waits for its step.
        both.wait(20)
        return "done"

    @real_app.task
    def task() -> str:
        names.add(threading.current_thread().name.rpartition("-")[0])
        return sync.step(work)

    async with real_app.worker(concurrency=concurrency):
        handles = [await task.submit() for _ in range(concurrency)]
        assert [await handle.result(timeout=20) for handle in handles] == ["done"] * concurrency
    assert names == {"flowfabric-task", "flowfabric-step"}


async def test_plain_body_does_not_block_the_loop(real_app: App) -> None:
    may_end = threading.Event()

    @real_app.task
    def task() -> bool:
        return may_end.wait(20)

    async with real_app.worker():
        handle = await task.submit()
        await asyncio.to_thread(may_end.set)
        assert await handle.result(timeout=20) is True


async def test_current_works_in_a_plain_function(app: App, kit: Kit) -> None:
    def key() -> str:
        return current().idempotency_key

    @app.task
    def task() -> list[str]:
        return [str(current().execution_id), current().kind, sync.step(key)]

    handle = await kit.start(task)

    assert await handle.result() == [str(handle.id), "task", f"{handle.id}/key"]


async def test_cancel_request_is_raised_at_the_wait_of_a_plain_body(app: App, kit: Kit) -> None:
    done: list[str] = []

    @app.task
    def task() -> None:
        try:
            sync.sleep("1h")
        finally:
            sync.step(done.append, "released")

    handle = await kit.start(task)
    assert done == []
    await handle.cancel(grace="1m")
    await kit.work()

    assert (await handle.status()).state is State.CANCELLED
    assert done == ["released"]


async def test_plain_body_cannot_make_durable_calls_after_losing_its_lease(app: App, kit: Kit) -> None:
    done: list[int] = []

    def work() -> None: ...

    @app.task
    def task() -> int:
        try:
            sync.step(work)
        finally:
            sync.step(done.append, current().attempt)
        return current().attempt

    kit.crash_before("work")

    assert await kit.run(task) == 1
    assert done == [1]


def test_sync_kit_runs_a_plain_task(app: App) -> None:
    @app.task(signals=[GO])
    def task() -> int:
        sync.sleep("1h")
        match sync.wait_signal(GO):
            case Received(value=value):
                return value

    with Kit(app).sync as kit:
        handle = kit.start(task)
        kit.signal(handle, GO, 4)

        assert kit.finish(handle) == 4
        assert kit.steps(handle) == ["sleep", "signal:go"]
