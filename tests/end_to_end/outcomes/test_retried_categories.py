"""With `retry_on`, only failures of the listed categories and classes are retried."""

from __future__ import annotations

import pytest

from flowfabric import App, ExecutionFailed, InvalidRequest, StepFailed, step
from flowfabric.testing import Kit


class Throttled(Exception):
    """An exception with its own category."""

    category = "throttled"


class Failing:
    """A callable that counts its calls and raises."""

    def __init__(self, error: Exception) -> None:
        self.error = error
        self.calls = 0

    def __call__(self) -> None:
        self.calls += 1
        raise self.error


CASES = pytest.mark.parametrize(
    ("error", "tries"),
    [
        (ConnectionResetError("subclass of OSError"), 3),
        (Throttled("its own category"), 3),
        (KeyError("name of its class"), 3),
        (ValueError("not in retry_on"), 1),
    ],
)
RETRY_ON = (OSError, "throttled", "KeyError")


@CASES
async def test_step_is_retried_only_for_retry_on_of_its_policy(
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
        return "succeeded"

    assert await kit.run(task) == type(error).__name__
    assert failing.calls == tries


@CASES
async def test_body_is_retried_only_for_retry_on_of_its_task(app: App, kit: Kit, error: Exception, tries: int) -> None:
    failing = Failing(error)

    @app.task(retries=2, retry_on=RETRY_ON)
    async def task() -> None:
        failing()

    handle = await kit.start(task)
    with pytest.raises(ExecutionFailed, match=type(error).__name__):
        await kit.finish(handle)
    assert failing.calls == tries


async def test_steps_use_retry_on_of_the_task_by_default(app: App, memory_kit: Kit) -> None:
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


@pytest.mark.parametrize("retry_on", ["OSError", [1], [BaseException], [""]])
def test_invalid_retry_on_is_rejected(app: App, retry_on: object) -> None:
    with pytest.raises(InvalidRequest, match="retry_on"):
        app.task(retry_on=retry_on)  # type: ignore[call-overload]
    with pytest.raises(InvalidRequest, match="retry_on"):
        step.policy(retry_on=retry_on)  # type: ignore[arg-type]
