"""Child processes of tests. They report when they are ready, start on command, and print JSON lines."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

ROOT = Path(__file__).parent.parent
MAX_LIFETIME_S = 100.0


class Child:
    """A process that runs a test script and communicates by lines."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        assert process.stdin is not None, "the process was started with a pipe"
        assert process.stdout is not None, "the process was started with a pipe"
        self.process = process
        self._input: IO[str] = process.stdin
        self._output: IO[str] = process.stdout

    def send_line(self, line: str) -> None:
        """Send a line to the child."""
        self._input.write(f"{line}\n")
        self._input.flush()

    def read_reply(self) -> Any:
        """Return the next line of the child parsed as JSON, or None if the child has ended."""
        line = self._output.readline()
        return json.loads(line) if line else None

    def kill(self) -> None:
        """Kill the child without any cleanup, like a power failure."""
        self.process.kill()
        self.process.wait()


@contextmanager
def children(module: str, *arguments: Sequence[str]) -> Iterator[list[Child]]:
    """Start one child per argument list and wait until all are ready. Kill the remaining children after the block.

    A child that hangs is killed after a while, which ends every read from it.
    """
    started = [_start(module, words) for words in arguments]
    killer = threading.Timer(MAX_LIFETIME_S, _kill, started)
    killer.daemon = True
    killer.start()
    try:
        for child in started:
            assert child.read_reply() == "ready"
        yield started
    finally:
        killer.cancel()
        for child in started:
            with child.process:
                child.process.kill()


def _kill(*started: Child) -> None:
    for child in started:
        child.process.kill()


def _start(module: str, words: Sequence[str]) -> Child:
    command = [sys.executable, "-m", module, *words]
    return Child(subprocess.Popen(command, cwd=ROOT, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE))
