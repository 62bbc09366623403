"""Child processes of tests: scripts that say when they are ready, begin when told, and answer in JSON lines."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

ROOT = Path(__file__).parent.parent


class Child:
    """A process that runs a script of the tests, spoken to by lines."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        assert process.stdin is not None, "asked for as a pipe"
        assert process.stdout is not None, "asked for as a pipe"
        self.process = process
        self._input: IO[str] = process.stdin
        self._output: IO[str] = process.stdout

    def tell(self, line: str) -> None:
        """Sends a line."""
        self._input.write(f"{line}\n")
        self._input.flush()

    def answer(self) -> Any:
        """The next line that the child prints, read as JSON; None when it has ended."""
        line = self._output.readline()
        return json.loads(line) if line else None

    def kill(self) -> None:
        """Ends the child as a power cut would: nothing of it runs any more."""
        self.process.kill()
        self.process.wait()


@contextmanager
def children(module: str, *arguments: Sequence[str]) -> Iterator[list[Child]]:
    """One child per list of arguments, each of them ready; those that still run are killed at the end of the block."""
    started = [_start(module, words) for words in arguments]
    try:
        for child in started:
            assert child.answer() == "ready"
        yield started
    finally:
        for child in started:
            with child.process:
                child.process.kill()


def _start(module: str, words: Sequence[str]) -> Child:
    command = [sys.executable, "-m", module, *words]
    return Child(subprocess.Popen(command, cwd=ROOT, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE))
