"""The log of a worker: what fails, with the fields that name the execution, and nothing twice when a task replays."""

from __future__ import annotations

import asyncio
import io
import logging
from typing import Any

import pytest

import flowfabric
from flowfabric import App, Backoff, ExecutionFailed, StepFailed, approval, gather, sleep, step, sync
from flowfabric.engine import Engine
from tests.end_to_end.outcomes.test_visible_failures import (
    EVERY_FORM,
    PACKAGE,
    Register,
    charge,
    check_shows_line,
    fail,
)
from tests.faults.kit.hostile_errors import HOSTILE_ERRORS, make_error

SOON = Backoff(initial="10ms", jitter=False)


@pytest.fixture
def stream() -> Any:
    """Return the text that a program with the usual configuration of logging writes."""
    text = io.StringIO()
    handler = logging.StreamHandler(text)
    handler.setFormatter(logging.Formatter("%(levelname)s %(name)s: %(message)s"))
    logger = logging.getLogger("flowfabric")
    before = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    yield text
    logger.removeHandler(handler)
    logger.setLevel(before)


def fields_of(record: logging.LogRecord) -> tuple[Any, ...]:
    names = ("execution_id", "task", "step", "attempt", "namespace")
    return tuple(record.__dict__[name] for name in names)


def records_of(caplog: pytest.LogCaptureFixture, level: int) -> list[logging.LogRecord]:
    return [record for record in caplog.records if record.levelno == level and record.name == "flowfabric"]


@pytest.mark.parametrize("register", EVERY_FORM)
async def test_log_of_the_worker_shows_the_line_that_failed(
    real_app: App, stream: io.StringIO, register: Register
) -> None:
    handle, _ = await fail(real_app, register)
    _, _, final = stream.getvalue().rpartition("ERROR flowfabric: ")
    assert final.startswith(f"{handle.task.name if handle.task else ''} {handle.id} failed: ")
    check_shows_line(final)
    assert PACKAGE not in final
    assert "During handling" not in final


async def test_failure_is_one_error_with_the_exception_and_its_fields(
    real_app: App, caplog: pytest.LogCaptureFixture
) -> None:
    @real_app.task(retries=0)
    async def order() -> int:
        return charge({})

    handle, _ = await fail(real_app, lambda _: order)
    [record] = records_of(caplog, logging.ERROR)
    assert record.exc_info is not None and record.exc_info[0] is KeyError
    assert fields_of(record) == (str(handle.id), "order", None, 0, "default")
    assert records_of(caplog, logging.WARNING) == []


async def test_failed_attempt_is_a_warning_with_its_number_and_the_next_try(
    real_app: App, caplog: pytest.LogCaptureFixture
) -> None:
    @real_app.task(retries=2, backoff=SOON)
    async def order() -> int:
        return charge({})

    handle, _ = await fail(real_app, lambda _: order)
    first, second = records_of(caplog, logging.WARNING)
    for number, record in enumerate((first, second), start=1):
        message = record.getMessage()
        assert message.startswith(f"order {handle.id} failed, try {number} of 3, next try at 2")
        assert message.endswith(" in read_price)") and "UTC: KeyError: 'missing' (" in message
        assert fields_of(record) == (str(handle.id), "order", None, number - 1, "default")
    [failed] = records_of(caplog, logging.ERROR)
    assert fields_of(failed)[3] == 2


@pytest.mark.parametrize("is_plain", [False, True], ids=["async", "plain"])
async def test_failed_try_of_a_step_is_a_warning_with_the_path(
    real_app: App, caplog: pytest.LogCaptureFixture, is_plain: bool
) -> None:
    @real_app.task(retries=1, backoff=SOON, name="order")
    async def awaiting() -> None:
        await gather(step(charge, {}))

    @real_app.task(retries=1, backoff=SOON, name="plain_order")
    def plain() -> None:
        sync.gather(lambda: sync.step(charge, {}))

    task: Any = plain if is_plain else awaiting
    handle, _ = await fail(real_app, lambda _: task)
    path = "gather[0]/charge" if is_plain else "charge"
    first, last = records_of(caplog, logging.WARNING)
    assert first.getMessage().startswith(f"{task.name} {handle.id} failed in step {path}, try 1 of 2, next try at 2")
    assert f"failed in step {path}, try 2 of 2, no further try: KeyError: 'missing' (" in last.getMessage()
    for record in (first, last):
        assert fields_of(record) == (str(handle.id), task.name, path, 0, "default")


async def test_expected_failure_of_a_step_is_no_warning(real_app: App, caplog: pytest.LogCaptureFixture) -> None:
    @step.policy(raises=[KeyError])
    def refuse() -> None:
        charge({})

    @real_app.task
    async def order() -> str:
        try:
            await step(refuse)
        except KeyError:
            return "refused"
        return "accepted"

    async with real_app.worker():
        assert await order.run() == "refused"
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


async def test_failure_that_the_task_handles_is_no_error(real_app: App, caplog: pytest.LogCaptureFixture) -> None:
    @real_app.task(retries=0)
    async def order() -> str:
        try:
            await step(charge, {})
        except StepFailed:
            return "handled"
        return "paid"

    async with real_app.worker():
        assert await order.run() == "handled"
    assert records_of(caplog, logging.ERROR) == []
    [warning] = records_of(caplog, logging.WARNING)
    assert "failed in step charge, try 1 of 1, no further try: KeyError: 'missing'" in warning.getMessage()


async def test_worker_logs_its_start_and_stop(
    real_app: App, real_engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "flowfabric.worker")
    async with real_app.worker() as worker:
        pass
    shown = [record for record in caplog.records if record.name == "flowfabric.worker"]
    assert [record.getMessage().split(" ")[1].strip(":") for record in shown] == ["started", "stopped"]
    for record in shown:
        assert (record.levelno, record.__dict__["namespace"]) == (logging.INFO, real_engine.namespace)
        assert record.__dict__["worker"] == worker.id.instance


async def test_logger_of_a_task_is_silent_on_replay_and_has_the_fields(
    real_app: App, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "flowfabric.task")

    def pack(order: str) -> None:
        flowfabric.logger.info("packing %s", order)

    @real_app.task
    async def ship(order: str) -> None:
        flowfabric.logger.info("shipping %s", order)
        await step(pack, order)
        await sleep("50ms")
        flowfabric.logger.info("shipped %s", order)

    async with real_app.worker():
        handle = await ship.submit("o-17")
        await handle
    shown = [record for record in caplog.records if record.name == "flowfabric.task"]
    assert [record.getMessage() for record in shown] == ["shipping o-17", "packing o-17", "shipped o-17"]
    for record, path in zip(shown, (None, "pack", None), strict=True):
        assert fields_of(record) == (str(handle.id), "ship", path, 0, "default")


@pytest.mark.parametrize("name", HOSTILE_ERRORS)
async def test_hostile_error_is_logged_and_ends_the_execution(memory_app: App, stream: io.StringIO, name: str) -> None:
    @memory_app.task(retries=0)
    async def order() -> None:
        raise make_error(name)

    async with memory_app.worker():
        with pytest.raises(ExecutionFailed):
            await order.run()
    assert f"failed: {name}" in stream.getvalue()
    assert "Logging error" not in stream.getvalue()


async def test_lone_surrogate_in_an_error_is_escaped_in_the_log(memory_app: App, stream: io.StringIO) -> None:
    @memory_app.task(retries=0)
    async def order() -> None:
        raise ValueError("\ud800")

    async with memory_app.worker():
        with pytest.raises(ExecutionFailed):
            await order.run()
    assert r"ValueError: \ud800" in stream.getvalue().encode().decode()


async def test_handler_that_raises_does_not_change_the_outcome(memory_app: App) -> None:
    class Raising(logging.Filter):
        def filter(self, record: logging.LogRecord) -> bool:
            raise ValueError("the filter of the user")

    @memory_app.task(retries=1, backoff=SOON)
    async def order() -> int:
        return await step.options(retries=1)(charge, {})

    raising, logger = Raising(), logging.getLogger("flowfabric")
    logger.addFilter(raising)
    try:
        async with memory_app.worker():
            with pytest.raises(ExecutionFailed) as failed:
                await order.run()
    finally:
        logger.removeFilter(raising)
    assert failed.value.error.type == "StepFailed"


async def test_attempt_that_exceeds_its_timeout_is_logged_like_other_failures(
    real_app: App, caplog: pytest.LogCaptureFixture
) -> None:
    @real_app.task(retries=1, backoff=SOON, timeout="100ms")
    async def slow() -> None:
        await asyncio.sleep(30)

    handle, _ = await fail(real_app, lambda _: slow)
    [warning], [error] = records_of(caplog, logging.WARNING), records_of(caplog, logging.ERROR)
    assert warning.getMessage().startswith(f"slow {handle.id} failed, try 1 of 2, next try at 2")
    assert warning.getMessage().endswith("UTC: the attempt exceeded its timeout of 0.1 s")
    assert error.getMessage() == f"slow {handle.id} failed: the attempt exceeded its timeout of 0.1 s"
    assert fields_of(warning) == (str(handle.id), "slow", None, 0, "default")
    assert fields_of(error) == (str(handle.id), "slow", None, 1, "default")


async def test_wait_that_fails_by_its_timeout_is_logged_like_other_failures(
    real_app: App, caplog: pytest.LogCaptureFixture
) -> None:
    @real_app.task(retries=0)
    async def order() -> None:
        await approval("go", by=["ann"], timeout="200ms", on_timeout="fail")

    handle, _ = await fail(real_app, lambda _: order)
    [error] = records_of(caplog, logging.ERROR)
    assert error.getMessage().startswith(f"order {handle.id} failed: the wait timed out at 2")
    assert fields_of(error) == (str(handle.id), "order", None, 0, "default")


async def test_control_characters_of_an_error_are_escaped_in_the_log(memory_app: App, stream: io.StringIO) -> None:
    @memory_app.task(retries=0)
    async def order() -> None:
        await step.options(retries=0)(refuse)

    def refuse() -> None:
        raise ValueError("\x1b[2Jgone\nnext\x07")

    async with memory_app.worker():
        with pytest.raises(ExecutionFailed):
            await order.run()
    [warning] = [line for line in stream.getvalue().splitlines() if line.startswith("WARNING")]
    assert r"ValueError: \x1b[2Jgone next\x07 (" in warning
    assert warning.isprintable()
