"""A cancel with grace interrupts a running async step, so that the cleanup runs inside the grace."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from typing import Any

import pytest

from flowfabric import (
    App,
    Cancelled,
    CancelRequested,
    ExecutionCancelled,
    Handle,
    InvalidRequest,
    Task,
    current,
    gather,
    race,
    saga,
    settle,
    sleep,
    step,
    sync,
)
from flowfabric.testing.hooks import Replay
from tests.end_to_end.durable.kits import KitFactory, statuses

REPLAYS: tuple[Replay | None, ...] = (None, "every record")


class Program:
    """A task that is cancelled while its step runs, and what happened in it."""

    def __init__(self, app: App, new_kit: KitFactory) -> None:
        self.app, self._new_kit = app, new_kit
        self.in_step = asyncio.Event()
        self.seen: list[str] = []
        self.records: dict[str, str] = {}

    async def never_end(self, name: str = "step") -> None:
        """Run until interrupted, as the function of a step."""
        self.seen.append(f"{name} began")
        self.in_step.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.seen.append(f"{name} ended")

    async def release(self, name: str = "all") -> None:
        """Clean up, as the function of a step."""
        self.seen.append(f"released {name}")

    async def cancel(self, task: Task[[], Any], *, crash_after: str | None = None, **settings: Any) -> object:
        """Start the task, cancel it with a grace of an hour once its step runs, and return its outcome."""

        @self.app.task
        async def canceller(other: Handle[None]) -> None:
            await step.options(on_cancel="finish")(self.in_step.wait)
            await other.cancel("enough", grace="1h")

        async with self._new_kit(self.app, concurrency=2, **settings) as kit, asyncio.timeout(20):
            if crash_after is not None:
                kit.crash_after(crash_after)
            handle = await task.submit()
            begun = kit.now()
            _ = await kit.start(canceller, handle)
            with suppress(ExecutionCancelled):
                await kit.finish(handle)
            outcome = await handle.outcome()
            assert (kit.now() - begun).total_seconds() < 60, "the grace has not passed"
            self.records = await statuses(kit, handle)
        return outcome


@pytest.fixture
def program(app: App, new_kit: KitFactory) -> Program:
    """Return a program on each backend."""
    return Program(app, new_kit)


@pytest.mark.parametrize("replay", REPLAYS)
async def test_async_step_is_interrupted_and_the_cleanup_runs_inside_the_grace(
    app: App, program: Program, replay: Replay | None
) -> None:
    @app.task
    async def task() -> None:
        try:
            await step(program.never_end)
        finally:
            await step(program.release)

    assert await program.cancel(task, replay=replay) == Cancelled("enough")
    assert program.seen == ["step began", "step ended", "released all"]
    assert program.records == {"Program.never_end": "abandoned", "Program.release": "ok"}


async def test_later_run_raises_the_request_again_and_does_not_run_the_interrupted_step(
    app: App, program: Program
) -> None:
    @app.task
    async def task() -> None:
        try:
            await step(program.never_end)
        except CancelRequested:
            program.seen.append("requested")
            await step(program.release, "first")
            await step(program.release, "second")
            raise

    assert await program.cancel(task, crash_after="Program.release") == Cancelled("enough")
    assert program.seen[:2] == ["step began", "step ended"]
    assert program.seen[2:] == ["requested", "released first", "requested", "released second"]


async def test_saga_is_undone_when_its_step_is_interrupted(app: App, program: Program) -> None:
    @app.task
    async def task() -> None:
        async with saga() as undo:
            undo.add(program.release, "flight")
            undo.add(program.release, "hotel")
            await step(program.never_end)

    assert await program.cancel(task) == Cancelled("enough")
    assert program.seen == ["step began", "step ended", "released hotel", "released flight"]


def _finish_by_policy(fn: Callable[[], Coroutine[Any, Any, str]]) -> Awaitable[str]:
    return step(step.policy(on_cancel="finish")(fn))


def _finish_by_option(fn: Callable[[], Coroutine[Any, Any, str]]) -> Awaitable[str]:
    return step.options(on_cancel="finish")(fn)


@pytest.mark.parametrize("call", [_finish_by_policy, _finish_by_option])
async def test_step_that_may_finish_is_recorded_before_the_request_is_raised(
    app: App, program: Program, call: Callable[[Any], Awaitable[str]]
) -> None:
    async def hurry() -> str:
        program.in_step.set()
        while not current().cancelled:  # noqa: ASYNC110 - a step polls this flag
            await asyncio.sleep(0)
        return "hurried"

    @app.task
    async def task() -> None:
        program.seen.append(await call(hurry))
        await step(program.release, "never")

    assert await program.cancel(task) == Cancelled("enough")
    assert program.seen == ["hurried"]
    assert program.records == {"hurry": "ok", "Program.release": "cancelled"}


async def test_plain_step_finishes_and_is_recorded_before_the_request_is_raised(app: App, program: Program) -> None:
    loop = asyncio.get_running_loop()

    def work() -> str:
        loop.call_soon_threadsafe(program.in_step.set)
        while not current().cancelled:
            threading.Event().wait(0.005)
        return "hurried"

    @app.task
    async def task() -> None:
        program.seen.append(await step(work))
        await step(program.release, "never")

    assert await program.cancel(task) == Cancelled("enough")
    assert program.seen == ["hurried"]
    assert program.records == {"work": "ok", "Program.release": "cancelled"}


async def test_result_of_a_step_that_ignores_its_interruption_is_recorded(app: App, program: Program) -> None:
    async def stubborn() -> str:
        try:
            await program.never_end()
        except asyncio.CancelledError:
            return "done all the same"
        return "not interrupted"

    @app.task
    async def task() -> None:
        program.seen.append(await step(stubborn))
        await step(program.release, "never")

    assert await program.cancel(task) == Cancelled("enough")
    assert program.seen == ["step began", "step ended", "done all the same"]
    assert program.records == {"stubborn": "ok", "Program.release": "cancelled"}


async def test_failure_of_an_interrupted_step_is_not_retried(app: App, program: Program) -> None:
    async def broken() -> None:
        try:
            await program.never_end()
        except asyncio.CancelledError:
            raise ValueError("the cleanup of the step failed") from None

    @app.task
    async def task() -> None:
        try:
            await step(broken)
        finally:
            await step(program.release)

    assert await program.cancel(task) == Cancelled("enough")
    assert program.seen == ["step began", "step ended", "released all"]
    assert program.records["broken"] == "abandoned"


async def test_interrupted_step_that_runs_at_most_once_is_not_started_again(app: App, program: Program) -> None:
    once = step.policy(at_most_once=True)(program.never_end.__func__)  # type: ignore[attr-defined]

    @app.task
    async def task() -> None:
        try:
            await step(once, program)
        finally:
            await step(program.release)

    assert await program.cancel(task, crash_after="Program.release") == Cancelled("enough")
    assert program.seen.count("step began") == 1


@pytest.mark.parametrize("group", [gather, race, settle])
@pytest.mark.parametrize("replay", REPLAYS)
async def test_group_interrupts_all_its_async_steps_and_the_code_around_it_cleans_up(
    app: App, program: Program, group: Any, replay: Replay | None
) -> None:
    async def branch(name: str) -> None:
        await step(program.never_end, name)

    @app.task
    async def task() -> None:
        try:
            await group(branch("a"), branch("b"), step(program.never_end, "c"), sleep("2h"))
        finally:
            await step(program.release)

    assert await program.cancel(task, replay=replay) == Cancelled("enough")
    assert sorted(program.seen[:6]) == sorted(f"{name} {verb}" for name in "abc" for verb in ("began", "ended"))
    assert program.seen[6:] == ["released all"]


@pytest.mark.parametrize("group", [gather, race, settle])
async def test_crash_in_the_cleanup_around_a_group_runs_no_step_of_the_group_again(
    app: App, program: Program, group: Any
) -> None:
    async def branch(name: str) -> None:
        await step(program.never_end, name)

    async def late() -> None:
        await asyncio.sleep(0)
        await step(program.release, "late")
        await asyncio.Event().wait()

    @app.task
    async def task() -> None:
        try:
            await group(branch("a"), late(), branch("b"))
        finally:
            await step(program.release, "first")
            await step.options(name="second")(program.release, "second")

    assert await program.cancel(task, crash_after="Program.release") == Cancelled("enough")
    assert [word for word in program.seen if word.endswith("began")] == ["a began", "b began"]
    assert program.seen.count("released late") <= 1
    assert program.seen[-2:] == ["released first", "released second"]


async def test_step_in_an_asyncio_task_of_the_user_finishes(app: App, program: Program) -> None:
    async def hurry() -> str:
        program.in_step.set()
        while not current().cancelled:  # noqa: ASYNC110 - a step polls this flag
            await asyncio.sleep(0)
        return "hurried"

    @app.task
    async def task() -> None:
        program.seen.append(await asyncio.create_task(step(hurry)))
        await step(program.release, "never")

    assert await program.cancel(task) == Cancelled("enough")
    assert program.seen == ["hurried"]


async def test_async_step_of_a_plain_task_is_interrupted_and_the_cleanup_runs(app: App, program: Program) -> None:
    @app.task
    def task() -> None:
        try:
            sync.step(program.never_end)
        finally:
            sync.step(program.release)

    assert await program.cancel(task) == Cancelled("enough")
    assert program.seen == ["step began", "step ended", "released all"]
    assert program.records == {"Program.never_end": "abandoned", "Program.release": "ok"}


async def test_branches_of_a_plain_task_are_interrupted_and_the_cleanup_runs(app: App, program: Program) -> None:
    @app.task
    def task() -> None:
        try:
            sync.gather(
                lambda: sync.step(program.never_end, "a"),
                lambda: sync.sleep("2h"),
                lambda: sync.step(program.never_end, "b"),
            )
        finally:
            sync.step(program.release)

    assert await program.cancel(task) == Cancelled("enough")
    assert sorted(program.seen[:-1]) == ["a began", "a ended", "b began", "b ended"]
    assert program.seen[-1] == "released all"


def test_unknown_reaction_to_a_cancel_is_rejected() -> None:
    with pytest.raises(InvalidRequest, match="on_cancel"):
        step.options(on_cancel="ignore")  # type: ignore[arg-type]
