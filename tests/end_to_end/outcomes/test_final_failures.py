"""Which failures of a body end its execution immediately, and which are retried."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from flowfabric import AllFailed, App, Backoff, ExecutionFailed, PermanentError, Task, gather, race, sleep, step
from flowfabric.testing import Kit

STEADY = Backoff(initial="10s", multiplier=1.0, jitter=False)


class CardDeclined(Exception):
    """An exception that tasks catch by its class."""


@step.policy(raises=[CardDeclined])
async def decline() -> None:
    raise CardDeclined


@step.policy(retries=0)
async def fail(why: str = "no") -> None:
    raise ValueError(why)


Child = Task[[], None]
Body = Callable[[Child], Awaitable[object]]


async def raise_final_failures(child: Child) -> None:
    """Raise a group of failures that are all final."""
    errors = []
    for call in (step(fail), child.run(), step(decline)):
        try:
            await call
        except Exception as error:
            errors.append(error)
    raise ExceptionGroup("all of them", errors)


async def fail_in_branch(child: Child) -> None:
    async def branch() -> None:
        await step(fail)

    await gather(branch(), sleep("1h"))


async def raise_permanent_error(child: Child) -> None:
    raise PermanentError("never")


FINAL: dict[str, Body] = {
    "step failed": lambda _: step(fail),
    "declared class": lambda _: step(decline),
    "child failed": lambda child: child.run(),
    "all failed": lambda child: race(step(fail), child.run()),
    "group of final failures": raise_final_failures,
    "failure in a branch": fail_in_branch,
    "permanent error": raise_permanent_error,
}


@pytest.mark.parametrize("cause", FINAL)
async def test_uncaught_final_failure_ends_the_execution_without_further_attempts(
    app: App, kit: Kit, cause: str
) -> None:
    @app.task(retries=0)
    async def child() -> None:
        raise ValueError("no")

    @app.task(backoff=STEADY)
    async def task() -> None:
        await FINAL[cause](child)

    handle = await kit.start(task)
    with pytest.raises(ExecutionFailed):
        await kit.finish(handle)

    assert (await handle.status()).attempt_index == 0


async def test_caught_final_failure_does_not_end_the_execution(app: App, kit: Kit) -> None:
    @app.task(retries=0)
    async def child() -> None:
        raise ValueError("no")

    @app.task
    async def task() -> list[str]:
        seen = []
        for call in (step(fail), step(decline), child.run()):
            try:
                await call
            except Exception as error:
                seen.append(type(error).__name__)
        return seen

    assert await kit.run(task) == ["StepFailed", "CardDeclined", "ExecutionFailed"]


async def test_all_failed_contains_each_failure_of_a_race(app: App, memory_kit: Kit) -> None:
    @app.task(retries=0)
    async def task() -> list[str]:
        try:
            await race(step(fail, "a"), step(fail, "b"))
        except AllFailed as failed:
            return [failure.message for failure in failed.failures]
        return []

    assert await memory_kit.run(task) == ["a", "b"]


async def test_other_exceptions_of_the_body_use_the_retries_of_the_task(app: App, kit: Kit) -> None:
    bodies: list[int] = []

    @app.task(retries=2, backoff=STEADY)
    async def task() -> int:
        bodies.append(len(bodies))
        if len(bodies) < 3:
            raise ExceptionGroup("one of them may pass", [ValueError("no"), PermanentError("never")])
        return len(bodies)

    handle = await kit.start(task)

    assert await kit.finish(handle) == 3
    assert (await handle.status()).attempt_index == 2


async def test_body_without_attempts_left_fails_with_its_last_error(app: App, kit: Kit) -> None:
    bodies: list[int] = []

    @app.task(retries=1)
    async def task() -> None:
        bodies.append(len(bodies))
        raise ConnectionError(f"number {len(bodies)}")

    with pytest.raises(ExecutionFailed, match="number 2") as failed:
        await kit.run(task)
    assert failed.value.caused_by(OSError)


async def test_recorded_steps_do_not_run_again_in_the_next_attempt(app: App, kit: Kit) -> None:
    ordered: list[str] = []
    bodies: list[str] = []

    def order() -> str:
        ordered.append("once")
        return "ordered"

    @app.task(retries=1)
    async def task() -> str:
        bodies.append(await step(order))
        if len(bodies) == 1:
            raise ConnectionError
        return bodies[-1]

    assert await kit.run(task) == "ordered"
    assert (ordered, bodies) == (["once"], ["ordered"] * 2)


@pytest.mark.parametrize("where", ["body", "step", "branch"])
async def test_failure_of_thousands_of_nested_exceptions_is_stored(app: App, kit: Kit, where: str) -> None:
    def fail() -> None:
        error: Exception = PermanentError("at the bottom")
        for level in range(3_000):
            error = ExceptionGroup(f"level {level}", [error])
        raise error

    async def branch() -> None:
        fail()

    @app.task
    async def task() -> None:
        if where == "body":
            fail()
        await (step(fail) if where == "step" else gather(branch()))

    with pytest.raises(ExecutionFailed, match="level 2999") as failed:
        await kit.run(task)
    assert "PermanentError: at the bottom" in failed.value.error.traceback
