"""Running the command: in this process, where it is quick, or as a process of its own."""

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
class Said:
    """What a command answered."""

    code: int
    lines: list[str]
    error: str


class Shell:
    """Runs commands on one store, and reads what they print."""

    def __init__(self, store: TestStore | None, capture: pytest.CaptureFixture[str]) -> None:
        self._store, self._capture = store, capture

    async def run(self, *words: str) -> Said:
        """A command on the store, in an event loop of its own."""
        place = [] if self._store is None else words_for(self._store)
        self._capture.readouterr()
        code = await asyncio.to_thread(main, [*place, *words])
        out, error = self._capture.readouterr()
        return Said(code, out.splitlines(), error)


def words_for(store: TestStore) -> list[str]:
    """The options that lead to a store. The test server does not wait for its disk, so that has to be accepted."""
    schema = ["--schema", store.schema] if isinstance(store, PostgresTestStore) else []
    return ["--store", store.url, "--not-durable", *schema]


def environment(**variables: str) -> dict[str, str]:
    """The environment of a process, without what the terminal of whoever runs the tests says."""
    hidden = ("COLUMNS", "NO_COLOR", "FLOWFABRIC_STORE", "FLOWFABRIC_TRACEBACK")
    inherited = {name: value for name, value in os.environ.items() if name not in hidden}
    return inherited | {"PYTHONUNBUFFERED": "1", "PYTHONPATH": str(ROOT / "src"), "TERM": "xterm"} | variables


def command(*words: str) -> list[str]:
    """The words of a process that is the command."""
    return [sys.executable, "-m", "flowfabric", *words]
