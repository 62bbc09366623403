"""A failure shows the line of the user's code wherever it appears, and no frame of the library after it.

Covers the exceptions of `app.run`, handles and the sync client, the output of pytest, and the event history.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import flowfabric
from flowfabric import App, Backoff, ExecutionFailed, Handle, StepFailed, approval, gather, race, step, sync
from flowfabric.core.executions.attempts import MAX_EVENT_TRACEBACK
from flowfabric.engine import Engine
from flowfabric.testing import Kit
from tests.stores import PostgresTestStore, TestStore

PACKAGE = str(Path(flowfabric.__file__).parent)
SOURCE = 'return prices["missing"]'
Register = Callable[[App], Any]


def read_price(prices: dict[str, int]) -> int:
    return prices["missing"]


def add_tax(prices: dict[str, int]) -> int:
    return read_price(prices) * 2


def charge(prices: dict[str, int]) -> int:
    return add_tax(prices)


async def charge_later(prices: dict[str, int]) -> int:
    return charge(prices)


def async_task(app: App) -> Any:
    @app.task(retries=0)
    async def order() -> int:
        return charge({})

    return order


def plain_task(app: App) -> Any:
    @app.task(retries=0)
    def order() -> int:
        return charge({})

    return order


def async_step(app: App) -> Any:
    @app.task(retries=0)
    async def order() -> int:
        return await step(charge_later, {})

    return order


def plain_step(app: App) -> Any:
    @app.task(retries=0)
    async def order() -> int:
        return await step(charge, {})

    return order


def step_of_plain_task(app: App) -> Any:
    @app.task(retries=0)
    def order() -> int:
        return sync.step(charge, {})

    return order


def child(app: App) -> Any:
    inner = plain_step(app)

    @app.task
    async def cart() -> int:
        total: int = await inner.run()
        return total

    return cart


def child_of_plain_task(app: App) -> Any:
    inner = async_task(app)

    @app.task
    def cart() -> int:
        total: int = inner.sync.run()
        return total

    return cart


def raced_steps(app: App) -> Any:
    @app.task(retries=0)
    async def order() -> int:
        return (await race(step(charge, {}), step(charge_later, {}))).value

    return order


EVERY_FORM = [
    async_task, plain_task, async_step, plain_step, step_of_plain_task, child, child_of_plain_task, raced_steps,
]  # fmt: skip


def check_shows_line(text: str) -> None:
    """Check that a text shows file, line and source of the failure, and no frame of the library after it."""
    line = read_price.__code__.co_firstlineno + 1
    place = f'File "{__file__}", line {line}, in read_price\n'
    assert place in text
    source, _, rest = text.rpartition(place)[2].partition("\n")
    assert source.strip(" E|") == SOURCE
    assert PACKAGE not in rest


async def fail(app: App, register: Register) -> tuple[Handle[Any], ExecutionFailed]:
    """Run a task until it fails. Return its handle and the exception that the caller gets."""
    task = register(app)
    async with app.worker():
        handle: Handle[Any] = await task.submit()
        with pytest.raises(ExecutionFailed) as failed:
            await handle.result("30s")
    return handle, failed.value


@pytest.mark.parametrize("register", EVERY_FORM)
async def test_exception_of_a_handle_shows_the_line_that_failed(real_app: App, register: Register) -> None:
    _, error = await fail(real_app, register)
    text = "".join(traceback.format_exception(error))
    check_shows_line(text)
    check_shows_line(error.error.traceback)
    assert PACKAGE not in error.error.traceback
    assert "During handling" not in text and "no running event loop" not in text


@pytest.mark.parametrize("register", EVERY_FORM)
async def test_history_shows_the_line_that_failed(real_app: App, register: Register) -> None:
    handle, _ = await fail(real_app, register)
    *_, failed = await handle.history()
    assert failed.name == "failed" and failed.details is not None
    check_shows_line(failed.details["traceback"])
    assert PACKAGE not in failed.details["traceback"]


async def test_history_shows_the_line_of_a_failure_that_is_retried(real_app: App) -> None:
    @real_app.task(retries=1, backoff=flowfabric.Backoff(initial="10ms"))
    async def order() -> int:
        return charge({})

    async with real_app.worker():
        handle = await order.submit()
        with pytest.raises(ExecutionFailed):
            await handle.result("30s")
    shown = [
        event.details["traceback"] for event in await handle.history() if event.details and "traceback" in event.details
    ]
    assert len(shown) == 2
    for text in shown:
        check_shows_line(text)


async def test_traceback_in_an_event_is_bounded(real_app: App) -> None:
    def recurse(depth: int) -> int:
        return recurse_again(depth - 1) if depth else charge({})

    def recurse_again(depth: int) -> int:
        return recurse(depth)

    @real_app.task(retries=0)
    async def order() -> int:
        return recurse(200)

    handle, error = await fail(real_app, lambda _: order)
    *_, failed = await handle.history()
    assert failed.details is not None
    assert MAX_EVENT_TRACEBACK <= len(failed.details["traceback"]) < MAX_EVENT_TRACEBACK + 10
    check_shows_line(failed.details["traceback"])
    check_shows_line("".join(traceback.format_exception(error)))


async def test_declared_class_shows_the_line_that_failed(real_app: App) -> None:
    @real_app.task(raises=[KeyError])
    async def order() -> int:
        return charge({})

    async with real_app.worker():
        with pytest.raises(KeyError) as failed:
            await order.run()
    check_shows_line("".join(traceback.format_exception(failed.value)))


async def test_step_failure_shows_the_line_in_every_run(app: App, kit: Kit) -> None:
    texts: list[str] = []

    @app.task(retries=0)
    async def order() -> None:
        try:
            await step(charge, {})
        except StepFailed as error:
            texts.append("".join(traceback.format_exception(error)))
        await flowfabric.sleep("1h")

    await kit.run(order)

    assert len(texts) == 2
    for text in texts:
        assert f"in read_price\n    {SOURCE}" in text
    check_shows_line(texts[1])


PROGRAM = """
import asyncio, os
import pytest
from flowfabric import App, step
from flowfabric.engine import StoreOptions
from flowfabric.testing import Kit

schema = os.environ.get("TEST_SCHEMA")
options = StoreOptions(durable=False, **({"schema": schema} if schema else {}))
app = App(os.environ["TEST_STORE"], options=options)

def read_price(prices):
    return prices["missing"]

def add_tax(prices):
    return read_price(prices) * 2

def charge(prices):
    return add_tax(prices)

@app.task(retries=0)
async def order():
    return await step(charge, {})

def test_run():
    app.run(order)

def test_result():
    async def program():
        async with app, app.worker():
            await (await order.submit()).result()
    asyncio.run(program())

def test_kit():
    with Kit(app).sync as kit:
        kit.run(order)

def test_thread():
    async def program():
        async with app.worker():
            await asyncio.to_thread(order.sync.run)
    asyncio.run(program())

def test_thread_with_a_handle():
    async def program():
        async with app.worker():
            await asyncio.to_thread(lambda: order.sync.submit().result())
    asyncio.run(program())

if __name__ == "__main__":
    app.run(order)
"""


@pytest.fixture
def program(tmp_path: Path) -> Path:
    """Return a file with tasks that fail, and tests that run them."""
    file = tmp_path / "test_orders.py"
    file.write_text(PROGRAM)
    return file


def run_program(store: TestStore, *words: str) -> str:
    """Run a command on the store, and return its output."""
    schema = {"TEST_SCHEMA": store.schema} if isinstance(store, PostgresTestStore) else {}
    variables = {**os.environ, "TEST_STORE": store.url, "PYTHONPATH": str(Path(PACKAGE).parent), **schema}
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True, check=False, env=variables)
    assert done.returncode == 1
    return done.stdout + done.stderr


async def test_output_of_pytest_ends_in_the_line_that_failed(
    store: TestStore, program: Path, real_engine: Engine
) -> None:
    words = [
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-o",
        "addopts=",
        "--color=no",
        "--rootdir",
        str(program.parent),
    ]
    output = await asyncio.to_thread(run_program, store, *words, str(program))
    assert "5 failed" in output
    reports = output.partition("= FAILURES =")[2].partition("= short test summary")[0].split("____ test_")
    for report in reports[1:]:
        assert "in read_price\nE       " in report and f"  {SOURCE}\n" in report
        assert PACKAGE not in report and "src/flowfabric" not in report
        assert "During handling" not in report and "no running event loop" not in report


async def test_exception_of_app_run_ends_in_the_line_that_failed(
    store: TestStore, program: Path, real_engine: Engine
) -> None:
    output = await asyncio.to_thread(run_program, store, str(program))
    assert f'File "{program}", line 13, in read_price\n    {SOURCE}\n' in output
    assert PACKAGE not in output.rpartition("in read_price")[2]
    assert "During handling" not in output and "no running event loop" not in output
    assert output.count(PACKAGE) == 3


ODD_NAMES = ["404 Not Found ", "two\nlines", ""]


@pytest.mark.parametrize("name", ODD_NAMES)
async def test_exception_of_any_class_name_is_retried_beside_other_steps(real_app: App, name: str) -> None:
    errors = [type(name, (Exception,), {})("boom")]

    def look_up() -> int:
        if errors:
            raise errors.pop()
        return 1

    def pay() -> int:
        return 2

    @real_app.task(retries=0, backoff=Backoff(initial="10ms", jitter=False))
    async def order() -> list[int]:
        return list(await gather(step.options(retries=1)(look_up), step(pay)))

    async with real_app.worker():
        assert await order.run() == [1, 2]


@pytest.mark.parametrize("name", ODD_NAMES)
async def test_failure_of_any_class_name_shows_its_line(real_app: App, name: str) -> None:
    @real_app.task(retries=0)
    async def order() -> None:
        raise type(name, (Exception,), {})("boom")

    _, failed = await fail(real_app, lambda _: order)
    assert (failed.error.type, failed.error.message) == (name, "boom")
    assert "in order" in failed.error.traceback


async def test_refused_options_of_a_call_show_the_line_of_the_call(real_app: App) -> None:
    @real_app.task(retries=0)
    async def order() -> None:
        await approval("go", by=["ann"], title=" x")

    _, failed = await fail(real_app, lambda _: order)
    for text in (failed.error.traceback, "".join(traceback.format_exception(failed))):
        assert "in order" in text and PACKAGE not in text.rpartition("in order")[2]
        assert "__init__" not in text
