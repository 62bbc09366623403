"""Test that a test that hangs fails with its stack, and that the run continues and ends."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

INTERRUPTED = """
import asyncio, subprocess, threading, pytest

@pytest.fixture
async def endless_teardown():
    yield
    await asyncio.Event().wait()

async def waits_for_an_event():
    await asyncio.Event().wait()

async def test_await():
    await waits_for_an_event()

def test_lock():
    threading.Semaphore(0).acquire()

def test_child():
    subprocess.run(["sleep", "60"])

def test_teardown(endless_teardown):
    pass

async def test_leaves_a_thread_that_never_ends():
    threading.Thread(target=threading.Event().wait).start()
"""
NOT_INTERRUPTED = """
import time

def test_ignores_every_exception():
    while True:
        try:
            time.sleep(60)
        except BaseException:
            pass

def test_next():
    pass
"""


def run_pytest(folder: Path, program: str, *options: str) -> str:
    """Run the tests of a program with a limit of two seconds per phase, and return the output."""
    (folder / "test_program.py").write_text(program)
    # Use the pytest configuration of this project, which has one event loop per process.
    words = f"-m pytest -c {ROOT}/pyproject.toml --rootdir . -p tests.timeouts -p no:cacheprovider -rA --test-timeout 2"
    done = subprocess.run(
        [sys.executable, *words.split(), *options, "test_program.py"],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(ROOT), "COLUMNS": "200"},
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_hanging_test_fails_with_its_stack_and_the_run_ends(tmp_path: Path) -> None:
    output = run_pytest(tmp_path, INTERRUPTED)
    for result, name in (("FAILED", "await"), ("FAILED", "lock"), ("FAILED", "child"), ("ERROR", "teardown")):
        line = f"{result} test_program.py::test_{name} - tests.timeouts.TestTimeout: not done after 2 s"
        assert line in output, output
    assert "in waits_for_an_event" in output, "the stack of the task"
    assert "PASSED test_program.py::test_leaves_a_thread_that_never_ends" in output, output
    assert "in _shutdown" in output, "the stack of the process that waited for the thread"


@pytest.mark.full
@pytest.mark.long
def test_process_that_cannot_be_interrupted_is_replaced(tmp_path: Path) -> None:
    output = run_pytest(tmp_path, NOT_INTERRUPTED, "-n", "1")
    assert "FAILED test_program.py::test_ignores_every_exception - worker 'gw0' crashed" in output, output
    assert "in test_ignores_every_exception" in output, "the stack of the process that exited"
    assert "PASSED test_program.py::test_next" in output, output
