"""Failures of steps and bodies: how they are retried, raised and end an execution."""

from __future__ import annotations

from datetime import timedelta

import pytest

from flowfabric import (
    App,
    Backoff,
    ExecutionFailed,
    InvalidRequest,
    PermanentError,
    StepFailed,
    gather,
    sleep,
    step,
)
from flowfabric.engine import State
from flowfabric.testing import Kit

STEADY = Backoff(initial="10s", multiplier=1.0, jitter=False)


class CardDeclined(Exception):
    """An exception that tasks catch by its class."""


class Broken(Exception):
    """An exception whose args cannot be stored as JSON."""


class FlakyStep:
    """A step that fails `failures` times, then returns the number of its calls."""

    def __init__(self, failures: int, error: type[Exception] = ConnectionError) -> None:
        self.calls = 0
        self._failures, self._error = failures, error

    def __call__(self) -> int:
        self.calls += 1
        if self.calls <= self._failures:
            raise self._error("not now")
        return self.calls


async def test_retries_of_the_call_override_the_policy_and_the_task(app: App, memory_kit: Kit) -> None:
    tried: list[str] = []

    def bare(name: str) -> None:
        tried.append(name)
        raise ConnectionError

    @step.policy(retries=1)
    def with_policy(name: str) -> None:
        bare(name)

    @app.task(retries=2)
    async def task() -> None:
        for call in (step(bare, "task"), step(with_policy, "policy"), step.options(retries=0)(with_policy, "call")):
            with pytest.raises(StepFailed):
                await call

    await memory_kit.run(task)

    assert [tried.count(name) for name in ("task", "policy", "call")] == [3, 2, 1]


async def test_task_retries_three_times_by_default(app: App, memory_kit: Kit) -> None:
    never = FlakyStep(99)

    @app.task
    async def task() -> int:
        return await step.options(name="never")(never)

    with pytest.raises(ExecutionFailed):
        await memory_kit.run(task)
    assert never.calls == 4


async def test_tries_are_counted_per_step(app: App, kit: Kit) -> None:
    first, second = FlakyStep(2), FlakyStep(2)

    @app.task(retries=2)
    async def task() -> list[int]:
        return [await step.options(name="a")(first), await step.options(name="b")(second)]

    assert await kit.run(task) == [3, 3]


async def test_tries_are_counted_across_crashes(app: App, kit: Kit) -> None:
    never = FlakyStep(99)

    @app.task(retries=2)
    async def task() -> int:
        return await step.options(name="never")(never)

    handle = await kit.start(task)
    kit.crash_after("never")

    with pytest.raises(ExecutionFailed):
        await kit.finish(handle)
    assert never.calls == 3


async def test_backoff_is_a_durable_timer_that_frees_the_slot(app: App, kit: Kit) -> None:
    flaky = FlakyStep(1)

    @app.task(backoff=STEADY)
    async def task() -> int:
        return await step.options(name="flaky")(flaky)

    @app.task
    async def other() -> str:
        return "other"

    handle = await kit.start(task)

    assert (await handle.status()).state is State.DELAYED
    assert await kit.run(other) == "other"
    assert flaky.calls == 1
    begun = kit.now()
    assert await kit.finish(handle) == 2
    assert kit.now() - begun == timedelta(seconds=10)


async def test_retry_of_a_step_uses_no_attempt_of_the_execution(app: App, kit: Kit) -> None:
    flaky = FlakyStep(3)

    @app.task
    async def task() -> int:
        return await step.options(name="flaky")(flaky)

    handle = await kit.start(task)
    await kit.finish(handle)

    assert (await handle.status()).attempt_index == 0


async def test_permanent_error_is_not_retried(app: App, kit: Kit) -> None:
    class Hopeless(PermanentError):
        pass

    hopeless = FlakyStep(99, Hopeless)

    @app.task
    async def task() -> int:
        return await step.options(name="hopeless")(hopeless)

    with pytest.raises(ExecutionFailed, match="not now"):
        await kit.run(task)
    assert hopeless.calls == 1


async def test_declared_class_is_not_retried_and_is_raised_in_every_run(app: App, kit: Kit) -> None:
    charged: list[int] = []
    seen: list[CardDeclined] = []

    @step.policy(raises=[CardDeclined])
    async def charge(amount: int) -> None:
        charged.append(amount)
        raise CardDeclined("no funds", amount)

    @app.task
    async def task() -> None:
        try:
            await step(charge, 30)
        except CardDeclined as declined:
            seen.append(declined)
        await sleep("1h")

    await kit.run(task)

    assert charged == [30]
    assert [declined.args for declined in seen] == [("no funds", 30)] * 2


async def test_declared_class_with_args_that_are_not_json_is_raised_as_step_failed(app: App, memory_kit: Kit) -> None:
    @step.policy(raises=[Broken])
    async def breaks() -> None:
        raise Broken(object())

    @app.task
    async def task() -> str:
        try:
            await step(breaks)
        except StepFailed as failed:
            return f"{failed.caused_by(Broken)}: {failed}"
        return "nothing"

    message = await memory_kit.run(task)

    assert message.startswith("True")
    assert "give it plain JSON args" in message


async def test_step_failed_has_the_path_and_the_error_in_every_run(app: App, kit: Kit) -> None:
    seen: list[tuple[str, str, str]] = []
    traces: list[str] = []

    async def look_up() -> None:
        raise KeyError("o-17")

    @app.task(retries=0)
    async def task() -> None:
        try:
            await step(look_up)
        except StepFailed as failed:
            seen.append((failed.path, failed.error.type, failed.error.message))
            traces.append(failed.error.traceback)
        await sleep("1h")

    await kit.run(task)

    assert seen == [("look_up", "KeyError", "'o-17'")] * 2
    assert 'raise KeyError("o-17")' in traces[0] == traces[1]


async def test_caused_by_includes_base_classes_of_the_cause(app: App, memory_kit: Kit) -> None:
    async def connect() -> None:
        raise ConnectionResetError

    @app.task(retries=0)
    async def task() -> list[bool]:
        try:
            await step(connect)
        except StepFailed as failed:
            return [failed.caused_by(kind) for kind in (ConnectionResetError, OSError, Exception, ValueError)]
        return []

    assert await memory_kit.run(task) == [True, True, True, False]


async def test_recorded_class_that_is_no_longer_declared_is_raised_as_step_failed(app: App, kit: Kit) -> None:
    declares = [CardDeclined]

    @app.task(retries=0)
    async def task() -> str:
        seen = ""

        @step.policy(raises=declares)
        async def charge() -> None:
            raise CardDeclined("no funds")

        await sleep("1m")
        try:
            await step(charge)
        except Exception as error:
            seen = type(error).__name__
        await sleep("1h")
        return seen

    handle = await kit.start(task)
    await kit.advance("1m")
    declares.clear()

    assert await kit.finish(handle) == "StepFailed"


async def test_declared_class_of_a_task_is_raised_in_its_parent_and_in_the_client(app: App, kit: Kit) -> None:
    @app.task(raises=[CardDeclined])
    async def charge(amount: int) -> None:
        raise CardDeclined("no funds", amount)

    @app.task
    async def parent() -> list[int]:
        seen = []
        handle = await charge.submit(1)
        for call in (charge.run(2), handle.result()):
            try:
                await call
            except CardDeclined as declined:
                seen.append(declined.args[1])
        return seen

    handle = await kit.start(charge, 3)
    with pytest.raises(CardDeclined) as raised:
        await handle.result()
    assert raised.value.args == ("no funds", 3)
    assert (await handle.status()).attempt_index == 0
    assert await kit.run(parent) == [2, 1]


async def test_result_that_cannot_be_stored_is_a_recorded_final_failure(app: App, kit: Kit) -> None:
    ordered: list[str] = []
    seen: list[str] = []

    def order() -> list[int]:
        ordered.append("once")
        return [object()]  # type: ignore[list-item]

    @app.task
    async def task() -> None:
        try:
            await step(order)
        except StepFailed as failed:
            seen.append(failed.error.type)
        await sleep("1h")

    handle = await kit.start(task)
    await kit.finish(handle)

    assert ordered == ["once"]
    assert seen == ["ValueRefused"] * 2
    assert await kit.steps(handle) == ["order", "sleep"]


async def test_first_failure_of_a_group_is_raised_again(app: App, kit: Kit) -> None:
    seen: list[str] = []

    async def fail(why: str) -> None:
        raise ValueError(why)

    @app.task(retries=0)
    async def task() -> None:
        try:
            await gather(sleep("1h"), step(fail, "second"), step(fail, "third"))
        except StepFailed as failed:
            seen.append(failed.error.message)
        await sleep("1h")

    await kit.run(task)

    assert seen == ["second"] * 2


async def test_stop_iteration_in_a_plain_step_is_a_failure(app: App, kit: Kit) -> None:
    def first() -> int:
        return next(iter(list[int]()))

    @app.task(retries=0)
    async def task() -> int:
        return await step(first)

    with pytest.raises(ExecutionFailed, match="first failed: RuntimeError: the function raised StopIteration"):
        await kit.run(task)


async def test_invalid_policy_is_rejected_at_its_definition() -> None:
    with pytest.raises(InvalidRequest):
        step.policy(retries=-1)
    with pytest.raises(InvalidRequest):
        step.policy(raises=[int])  # type: ignore[list-item]
    with pytest.raises(InvalidRequest):
        step.options(timeout="soon")
