"""`app.run` runs a worker in the foreground, or one task with all work that it needs."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from flowfabric import App, Diverged, InvalidRequest, Signal, Task, step

PROGRAM = """
from flowfabric import App, Signal, step, wait_signal

app = App("program.db")
go = Signal("go", int)

@app.task(lane="slow", requires=["gpu"])
async def part(number: int) -> int:
    return await step(abs, number)

@app.task(signals=[go])
async def job(number: int) -> int:
    print("begun", flush=True)
    received = await wait_signal(go)
    return await part.run(number) + received.value

if __name__ == "__main__":
    print("result", app.run(job.options(key="one"), -7), flush=True)
"""
WORKER = "from program import app; app.run(concurrency=2)"


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    return path


def start_program(program: Path, *command: str) -> subprocess.Popen[str]:
    """Start the program, or another command in its folder, and wait until the job has begun."""
    process = subprocess.Popen(
        [sys.executable, *(command or (str(program),))],
        cwd=program.parent,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "begun\n"
    return process


def open_program_app(program: Path) -> tuple[App, Task[[int], int]]:
    """Return an app with the same store and task as the program, for use in this process."""
    app = App(str(program.parent / "program.db"))

    @app.task(signals=[Signal("go", int)])
    async def job(number: int) -> int:
        return number

    return app, job


def test_run_works_until_the_result_is_available(tmp_path: Path) -> None:
    app = App(str(tmp_path / "run.db"))

    @app.task(lane="slow", requires=["gpu"])
    async def part(number: int) -> int:
        return await step(abs, number)

    @app.task
    def job(number: int) -> int:
        return part.sync.run(number) + 1

    assert app.run(job, -7) == 8
    assert app.run(part.options(lane="other"), -2) == 2


def test_run_works_with_a_store_in_memory() -> None:
    app = App(":memory:")

    @app.task
    async def job(number: int) -> int:
        return await step(abs, number)

    assert app.run(job, -7) == 7


def test_interrupted_run_keeps_the_execution_and_a_second_run_continues_it(program: Path) -> None:
    with start_program(program) as first:
        first.send_signal(signal.SIGINT)
        _, error_output = first.communicate(timeout=60)
        assert "KeyboardInterrupt" in error_output
    app, job = open_program_app(program)
    handle = job.options(key="one").sync.submit(-7)
    handle.signal(Signal("go", int), 100)
    app.sync.close()
    with start_program(program) as second:
        assert second.communicate(timeout=60)[0].endswith("result 107\n")


def test_sigterm_stops_a_foreground_worker_without_using_an_attempt(program: Path) -> None:
    app, job = open_program_app(program)
    handle = job.sync.submit(1)
    with start_program(program, "-c", WORKER) as worker:
        worker.send_signal(signal.SIGTERM)
        worker.communicate(timeout=60)
        assert worker.returncode == 0
    status = handle.status()
    assert (status.state.is_terminal, status.retry_count, status.reclaim_count) == (False, 0, 0)
    app.sync.close()


def test_foreground_worker_logs_what_it_serves_and_that_it_stops(program: Path) -> None:
    app, job = open_program_app(program)
    job.sync.submit(1)
    with start_program(program, "-c", WORKER) as worker:
        worker.send_signal(signal.SIGTERM)
        lines = worker.communicate(timeout=60)[1].splitlines()
    app.sync.close()
    started, stopped = (next(line for line in lines if f"Worker {word}" in line) for word in ("started", "stopped"))
    assert " INFO flowfabric.worker: Worker started as " in started
    store = f"store {program.parent / 'program.db'}, namespace default"
    assert f": {store}; lanes default, slow; tasks part, job; 2 slots; version " in started
    assert " INFO flowfabric.worker: Worker stopped: " in stopped


@pytest.mark.parametrize("command", [(), ("-c", WORKER)], ids=["app.run(task)", "app.run()"])
def test_first_interrupt_names_the_waiting_executions_and_the_second_stops_at_once(
    program: Path, command: tuple[str, ...]
) -> None:
    program.write_text(PROGRAM.replace("received = await wait_signal(go)", "received = await step(time.sleep, 60)"))
    program.write_text("import time\n" + program.read_text())
    app, job = open_program_app(program)
    job.options(key="one").sync.submit(-7)
    app.sync.close()
    with start_program(program, *command) as process:
        assert process.stderr is not None
        process.send_signal(signal.SIGINT)
        while "Waiting for" not in (line := process.stderr.readline()):
            assert line, "the process ended without the message"
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
        assert process.returncode == -signal.SIGINT
    assert line.endswith("WARNING flowfabric.worker: Waiting for 1 execution; press Ctrl-C again to stop now\n")


def test_run_with_a_task_logs_only_warnings(program: Path) -> None:
    app, job = open_program_app(program)
    job.options(key="one").sync.submit(-7).signal(Signal("go", int), 1)
    app.sync.close()
    with start_program(program) as process:
        assert process.communicate(timeout=60) == ("begun\nresult 8\n", "")


def test_run_rejects_a_task_of_another_app(tmp_path: Path) -> None:
    app, other = App(str(tmp_path / "a.db")), App(str(tmp_path / "b.db"))

    @other.task
    async def job() -> None: ...

    with pytest.raises(InvalidRequest, match="another app"):
        app.run(job)


def test_run_raises_diverged(tmp_path: Path) -> None:
    app = App(str(tmp_path / "diverged.db"))
    calls: list[str] = []

    def first() -> None: ...

    def second() -> None: ...

    @app.task
    async def job() -> None:
        calls.append("run")
        await step(first if len(calls) == 1 else second)
        if len(calls) == 1:
            raise ConnectionError("run again")

    with pytest.raises(Diverged, match="second"):
        app.run(job)
