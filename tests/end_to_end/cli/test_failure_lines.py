"""`show` and `history` print the line of the user's code that failed."""

from __future__ import annotations

import pytest

from flowfabric import App, Backoff, ExecutionFailed, step
from flowfabric.engine import Engine, State
from tests.end_to_end.cli.shell import Shell
from tests.end_to_end.worker.scripted_runs import wait_for_state
from tests.stores import TestStore, opened


def read_price(prices: dict[str, int]) -> int:
    return prices["missing"]


def charge(prices: dict[str, int]) -> int:
    return read_price(prices)


def make_app(engine: Engine) -> App:
    app = App("never-opened.db")
    app.engines.adopt(engine)

    @app.task(retries=0)
    async def order() -> int:
        return await step(charge, {})

    @app.task
    async def cart() -> int:
        return await order.run()

    @app.task(backoff=Backoff(initial="1h"))
    def patient() -> int:
        return charge({})

    return app


def check_shows_line(lines: list[str]) -> None:
    """Check that the lines have file, line and source of the failure, and no frame of the library."""
    number = read_price.__code__.co_firstlineno + 1
    stripped = [line.strip() for line in lines]
    index = stripped.index(f'File "{__file__}", line {number}, in read_price')
    assert stripped[index + 1] == 'return prices["missing"]'
    assert not any("src/flowfabric" in line for line in lines)


@pytest.mark.parametrize("kind", ["order", "cart"])
async def test_show_and_history_print_the_line_that_failed(store: TestStore, shell: Shell, kind: str) -> None:
    async with opened(store) as engine:
        app = make_app(engine)
        async with app.worker():
            handle = await app.tasks[kind].submit()
            with pytest.raises(ExecutionFailed):
                await handle.result("30s")
        for command in ("show", "history"):
            output = await shell.run(command, str(handle.id))
            assert output.code == 0
            check_shows_line(output.lines)


async def test_show_prints_the_line_of_a_failure_that_will_be_retried(store: TestStore, shell: Shell) -> None:
    async with opened(store) as engine:
        app = make_app(engine)
        async with app.worker():
            handle = await app.tasks["patient"].submit()
            await wait_for_state(engine, handle.id, State.DELAYED)
        output = await shell.run("show", str(handle.id))
    check_shows_line(output.lines)


async def test_output_of_show_and_history_escapes_the_traceback(store: TestStore, shell: Shell) -> None:
    async with opened(store) as engine:
        app = make_app(engine)

        @app.task(retries=0)
        async def rude() -> None:
            raise ValueError("red \x1b[31m")

        async with app.worker():
            handle = await rude.submit()
            with pytest.raises(ExecutionFailed):
                await handle.result("30s")
        for command in ("show", "history"):
            output = await shell.run(command, str(handle.id))
            assert not any("\x1b" in line for line in output.lines)
            assert any(r"ValueError: red \x1b[31m" in line for line in output.lines)
