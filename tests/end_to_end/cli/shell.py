"""Run commands in this process, which is fast, or in a separate process."""

from __future__ import annotations

import asyncio
import os
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from flowfabric.cli.main import main
from tests.stores import PostgresTestStore, TestStore

ROOT = Path(__file__).parent.parent.parent.parent


@dataclass(frozen=True, slots=True)
class CommandOutput:
    """The exit code and the output of a command."""

    code: int
    lines: list[str]
    error: str


class Shell:
    """Runs commands on one store and captures their output."""

    def __init__(self, store: TestStore | None, capture: pytest.CaptureFixture[str]) -> None:
        self._store, self._capture = store, capture

    async def run(self, *words: str) -> CommandOutput:
        """Run a command on the store in its own event loop."""
        options = [] if self._store is None else store_options(self._store)
        self._capture.readouterr()
        code = await asyncio.to_thread(main, [*options, *words])
        out, error = self._capture.readouterr()
        return CommandOutput(code, out.splitlines(), error)


def store_options(store: TestStore) -> list[str]:
    """Return the options that select a store.

    The PostgreSQL test server does not flush to disk, so the options include `--not-durable`.
    """
    schema = ["--schema", store.schema] if isinstance(store, PostgresTestStore) else []
    return ["--store", store.url, "--not-durable", *schema]


def process_environment(**variables: str) -> dict[str, str]:
    """Return the environment for a process, without the settings of the terminal that runs the tests."""
    hidden = ("COLUMNS", "NO_COLOR", "FLOWFABRIC_STORE", "FLOWFABRIC_TRACEBACK")
    inherited = {name: value for name, value in os.environ.items() if name not in hidden}
    return inherited | {"PYTHONUNBUFFERED": "1", "PYTHONPATH": str(ROOT / "src"), "TERM": "xterm"} | variables


def command_line(*words: str) -> list[str]:
    """Return the command line of a `flowfabric` process."""
    return [sys.executable, "-m", "flowfabric", *words]
