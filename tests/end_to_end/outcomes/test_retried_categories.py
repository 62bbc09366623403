"""`retry_on`: only failures of these categories and classes are tried again."""

from __future__ import annotations

import pytest

from flowfabric import App, ExecutionFailed, InvalidRequest, StepFailed, step
from flowfabric.testing import Kit


class Throttled(Exception):
    """An exception that names its category itself."""

    category = "throttled"


class Failing:
    """Counts how often it was called, and raises."""

    def __init__(self, error: Exception) -> None:
        self.error = error
        self.calls = 0

    def __call__(self) -> None:
        self.calls += 1
        raise self.error


CASES = pytest.mark.parametrize(
    ("error", "tries"),
    [
        (ConnectionResetError("of a class that inherits"), 3),
        (Throttled("by its own category"), 3),
        (KeyError("by the name of its class"), 3),
        (ValueError("of no category that is retried"), 1),
    ],
)
RETRY_ON = (OSError, "throttled", "KeyError")


@CASES
async def test_a_step_is_retried_for_what_its_policy_names_only(
    app: App, kit: Kit, error: Exception, tries: int
) -> None:
    failing = Failing(error)

    @step.policy(retries=2, retry_on=RETRY_ON)
    def act() -> None:
        failing()

    @app.task
    async def task() -> str:
        try:
            await step(act)
        except StepFailed as failed:
            return failed.error.type
        return "went well"

    assert await kit.run(task) == type(error).__name__
    assert failing.calls == tries


@CASES
async def test_a_body_is_retried_for_what_its_task_names_only(app: App, kit: Kit, error: Exception, tries: int) -> None:
    failing = Failing(error)

    @app.task(retries=2, retry_on=RETRY_ON)
    async def task() -> None:
        failing()

    handle = await kit.start(task)
    with pytest.raises(ExecutionFailed, match=type(error).__name__):
        await kit.finish(handle)
    assert failing.calls == tries


async def test_the_steps_of_a_task_follow_it_unless_they_are_told_otherwise(app: App, memory_kit: Kit) -> None:
    one, two, three = (Failing(ValueError("no")) for _ in range(3))

    @step.policy(retry_on=[])
    def second() -> None:
        two()

    @app.task(retries=1, retry_on=[OSError])
    async def task() -> None:
        for call in (step(one), step(second), step.options(retry_on=[ValueError])(three)):
            with pytest.raises(StepFailed):
                await call

    await memory_kit.run(task)

    assert [one.calls, two.calls, three.calls] == [1, 2, 2]


@pytest.mark.parametrize("wrong", ["OSError", [1], [BaseException], [""]])
def test_what_is_no_category_and_no_class_is_refused(app: App, wrong: object) -> None:
    with pytest.raises(InvalidRequest, match="retry_on"):
        app.task(retry_on=wrong)  # type: ignore[call-overload]
    with pytest.raises(InvalidRequest, match="retry_on"):
        step.policy(retry_on=wrong)  # type: ignore[arg-type]
