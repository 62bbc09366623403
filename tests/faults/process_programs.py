"""Programs for the suites about processes. Each runs in its own process and prints a report as JSON.

python -m tests.faults.process_programs forks URL SCHEMA NUMBER     the code of tasks forks, and the children return
python -m tests.faults.process_programs loops URL SCHEMA NUMBER     event loops end, some of them under an open engine
python -m tests.faults.process_programs work URL SCHEMA FOLDER      a worker, until it is interrupted
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from flowfabric import App, step
from flowfabric.engine import StoreOptions, connect

PATIENCE_S = 30.0
ENDING_S = 10.0
CHILD_LIFETIME_S = 3


def open_app(url: str, schema: str) -> App:
    """Return an app on the store of a test."""
    return App(url, arguments="off", options={"schema": schema, "durable": False})


# Forks.


class ForkingTasks:
    """Tasks whose code calls `os.fork()`. The parent waits for the child, and notes how the child ended."""

    def __init__(self, app: App, *, is_postgres: bool) -> None:
        self.exit_codes: list[int] = []
        self.begun: list[str] = []
        self._waiting = asyncio.Event()
        transaction: Any = self._fork_in_async_transaction if is_postgres else self._fork_in_transaction

        @app.task
        async def in_async_step(n: int) -> int:
            return await step(self._fork_in_async_step, n)

        @app.task
        async def in_plain_step(n: int) -> int:
            return await step(self._fork, n)

        @app.task
        async def in_failing_step(n: int) -> int:
            return await step(self._fork_and_fail, n)

        @app.task
        async def in_awaiting_step(n: int) -> int:
            return await step(self._fork_and_await, n)

        @app.task
        async def in_transaction(n: int) -> int:
            return await step.tx(transaction, n)

        @app.task
        async def in_body(n: int) -> int:
            self._fork(n)
            return await step(self._note, n)

        self.tasks = (in_async_step, in_plain_step, in_failing_step, in_awaiting_step, in_transaction, in_body)

    def _fork(self, n: int) -> int:
        if child := os.fork():
            self.begun.append(str(n))
            self.exit_codes.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        else:
            signal.alarm(CHILD_LIFETIME_S)  # A child that does not exit must not block its parent.
        return n

    async def _fork_in_async_step(self, n: int) -> int:
        return self._fork(n)

    def _fork_and_fail(self, n: int) -> int:
        parent = os.getpid()
        self._fork(n)
        if os.getpid() != parent:
            sys.exit(0)
        return n

    async def _fork_and_await(self, n: int) -> int:
        parent = os.getpid()
        self._fork(n)
        if os.getpid() != parent:
            await self._waiting.wait()
        return n

    async def _fork_in_async_transaction(self, _connection: Any, n: int) -> int:
        return self._fork(n)

    def _fork_in_transaction(self, _connection: Any, n: int) -> int:
        return self._fork(n)

    async def _note(self, n: int) -> int:
        return n


async def run_forks(url: str, schema: str, number: int) -> dict[str, Any]:
    """Run tasks that fork. Report their results, what began, and the exit codes of the children."""
    app = open_app(url, schema)
    forking = ForkingTasks(app, is_postgres=url.startswith("postgres"))
    calls = [forking.tasks[n % len(forking.tasks)].call(n) for n in range(number)]
    async with app, app.worker(concurrency=4):
        async with asyncio.timeout(PATIENCE_S + number):
            results = await asyncio.gather(*await app.submit_many(calls))
    return {"results": results, "begun": forking.begun, "exit_codes": forking.exit_codes}


# Event loops.


def run_loops(url: str, schema: str, number: int) -> dict[str, Any]:
    """Use the store on one event loop after another. Every second loop is closed under an open engine."""
    app, results, engines = open_app(url, schema), list[int](), list[Any]()

    @app.task
    async def double(n: int) -> int:
        return await step(_double, n)

    async def use(n: int) -> None:
        async with app, app.worker(concurrency=2):
            results.append(await double.run(n))

    options: StoreOptions = {"schema": schema, "durable": False}
    asyncio.run(use(0))
    before = len(open_files())
    for n in range(1, number + 1):
        if n % 2:
            asyncio.run(use(n))
        else:
            loop = asyncio.new_event_loop()
            engines.append(loop.run_until_complete(_open(url, options)))
            results.append(2 * n)
            loop.close()
    wait_until(lambda: not engine_threads())
    threads = engine_threads()
    engines.clear()
    gc.collect()
    files = open_files()
    of_worker = _close_loop_under_worker(app)
    wait_until(lambda: not engine_threads())
    threads += engine_threads()
    return {
        "results": results,
        "threads": threads,
        "of_worker": of_worker,
        "files": [before, len(files)],
        "open": files,
    }


def _close_loop_under_worker(app: App) -> int:
    loop = asyncio.new_event_loop()
    worker = app.worker(concurrency=2)
    loop.run_until_complete(worker.__aenter__())
    number = len(engine_threads())
    loop.close()
    return number


async def _double(n: int) -> int:
    return 2 * n


async def _open(url: str, options: StoreOptions) -> Any:
    engine = await connect(url, **options)
    await engine.executions.count()
    return engine


def engine_threads() -> list[str]:
    """Return the names of the threads of engines and workers."""
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("flowfabric")]


def open_files() -> list[str]:
    """Return what each open file descriptor of this process refers to."""
    links = list(Path("/proc/self/fd").iterdir())
    return [str(link.readlink()) for link in links if link.is_symlink()]


def wait_until(condition: Callable[[], bool]) -> None:
    """Wait until the condition holds, or for at most `ENDING_S`."""
    ends = time.monotonic() + ENDING_S
    while not condition() and time.monotonic() < ends:
        time.sleep(0.05)


# Interrupted workers.

STEPS = ("first", "second", "third")


class Ledger:
    """A file to which several processes append lines: which step began, and which one the task has passed."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "ledger"

    def note(self, n: int, name: str, what: str) -> None:
        with self.path.open("a") as file:
            file.write(f"{n} {name} {what}\n")

    def doubled(self) -> list[str]:
        """Return a sentence for each step that began after the task had passed it."""
        passed, sentences = set[tuple[str, str]](), list[str]()
        for line in self.path.read_text().splitlines():
            n, name, what = line.split(" ")
            if what == "passed":
                passed.add((n, name))
            elif (n, name) in passed:
                sentences.append(f"step {name} of execution {n} began again after its result was recorded")
        return sentences


def interruptible_app(url: str, schema: str, folder: Path) -> App:
    """Return an app with the task `job`, which notes its steps in the ledger."""
    app, ledger = open_app(url, schema), Ledger(folder)

    async def work(n: int, name: str) -> str:
        ledger.note(n, name, "begun")
        await asyncio.sleep(0.005)
        return name

    @app.task
    async def child(n: int) -> str:
        return await step(work, n, "child")

    @app.task
    async def job(n: int) -> str:
        for name in STEPS:
            await step.options(key=name)(work, n, name)
            ledger.note(n, name, "passed")
        return await child.run(n)

    return app


def write_line(line: str) -> None:
    """Write a line for the suite that runs this program."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main(program: str, url: str, schema: str, argument: str) -> None:
    if program == "work":
        app = interruptible_app(url, schema, Path(argument))
        write_line("ready")
        app.run(concurrency=8, lease="2s")
        return
    from flowfabric.worker.event_loop import event_loop_runner

    if program == "loops":
        report = run_loops(url, schema, int(argument))
    else:
        with event_loop_runner() as runner:
            report = runner.run(run_forks(url, schema, int(argument)))
    write_line(json.dumps(report))


if __name__ == "__main__":
    main(*sys.argv[1:])
