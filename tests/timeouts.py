"""A time limit for every test, so that no test can stop the run.

The limit applies to the setup, the call and the teardown of a test, each on its own.

    after the limit  SIGALRM raises `TestTimeout` in the main thread, and again until the phase ends. The test fails
                     with the stacks of all threads and tasks, and the run continues.
    long after it    The phase did not end, so the process prints its stacks and exits. pytest-xdist reports the test
                     as failed and continues in a new process.

The process also exits if it hangs after the last test, for example because of a thread that never ends.
"""

from __future__ import annotations

import asyncio
import faulthandler
import os
import signal
import sys
import tempfile
import traceback
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from functools import partial
from types import FrameType
from typing import Any

import pytest

# The slowest test of a plain run takes about 15 s on an idle machine.
TIMEOUT_S = 180.0
# The limit is longer for tests at full size, because they repeat their work many times.
FULL_TIMEOUT_S = 1200.0
# An exception that the test swallows is raised again after this time.
REPEAT_S = 10.0
STDERR = pytest.StashKey[int]()


class TestTimeout(SystemExit):
    """A test exceeded its limit.

    It is a SystemExit, because asyncio would store any other exception in the current task and let the loop continue.
    asyncio raises SystemExit from the loop, and pytest reports it.
    """

    __test__ = False


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--test-timeout", type=float, help="the seconds that a phase of a test may take")


def pytest_configure(config: pytest.Config) -> None:
    # Keep a copy of standard error, because tests may close or replace it and pytest captures it.
    config.stash[STDERR] = os.dup(sys.__stderr__.fileno() if sys.__stderr__ else 2)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol() -> Generator[None, object, object]:
    try:
        return (yield)
    finally:
        faulthandler.cancel_dump_traceback_later()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> Iterator[None]:
    with _limit(item):
        yield


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    with _limit(item):
        yield


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> Iterator[None]:
    with _limit(item):
        yield


def pytest_enter_pdb() -> None:
    signal.setitimer(signal.ITIMER_REAL, 0)
    faulthandler.cancel_dump_traceback_later()


@pytest.hookimpl(trylast=True)
def pytest_unconfigure(config: pytest.Config) -> None:
    # Worker processes of pytest-xdist need no limit here. They wait for each other, and the main process kills
    # every worker that does not exit.
    if not hasattr(config, "workerinput"):
        _exit_after(config.getoption("--test-timeout") or TIMEOUT_S, config)


@contextmanager
def _limit(item: pytest.Item) -> Iterator[None]:
    timeout_s = _timeout_of(item)
    signal.signal(signal.SIGALRM, partial(_raise_timeout, timeout_s))
    signal.setitimer(signal.ITIMER_REAL, timeout_s, REPEAT_S)
    # This limit also covers the report of the phase, which can hang while it deletes objects.
    _exit_after(timeout_s * 1.5 + REPEAT_S, item.config)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def _exit_after(timeout_s: float, config: pytest.Config) -> None:
    faulthandler.dump_traceback_later(timeout_s, exit=True, file=config.stash[STDERR])


def _timeout_of(item: pytest.Item) -> float:
    if marker := item.get_closest_marker("timeout"):
        return float(marker.args[0])
    if timeout_s := item.config.getoption("--test-timeout"):
        return float(timeout_s)
    is_full = any(item.config.getoption(name, False) for name in ("--full", "--sample", "--all"))
    return FULL_TIMEOUT_S if is_full else TIMEOUT_S


def _raise_timeout(timeout_s: float, _signal: int, _frame: FrameType | None) -> None:
    raise TestTimeout(f"not done after {timeout_s:g} s\n\n{_thread_stacks()}\n{_task_stacks()}")


def _thread_stacks() -> str:
    with tempfile.TemporaryFile() as file:
        faulthandler.dump_traceback(file)
        file.seek(0)
        return file.read().decode(errors="replace")


def _task_stacks() -> str:
    """Return the stack of each task of the running loop, with the innermost call last."""
    try:
        tasks = asyncio.all_tasks()
    except RuntimeError:
        return "No event loop is running.\n"
    return "\n".join(f"Task {task.get_name()}:\n{''.join(_awaited_lines(task.get_coro()))}" for task in tasks)


def _awaited_lines(awaited: Any) -> Iterator[str]:
    while frame := getattr(awaited, "cr_frame", None) or getattr(awaited, "gi_frame", None):
        yield from traceback.format_stack(frame, limit=1)
        awaited = getattr(awaited, "cr_await", None) or getattr(awaited, "gi_yieldfrom", None)
    yield f"  {awaited!r}\n"
