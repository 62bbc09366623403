"""Worker processes of a test, which end with it."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from tests.stores import PostgresTestStore, TestStore

ROOT = Path(__file__).parents[3]


class WorkerProcess:
    """A process, by the lines that it writes and the signals that it gets."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self.lines: list[str] = []

    async def says(self, beginning: str) -> str:
        """The next line that begins so."""
        assert self._process.stdout is not None, "asked for as a pipe"
        async with asyncio.timeout(30):
            while line := (await self._process.stdout.readline()).decode().rstrip():
                self.lines.append(line)
                if line.startswith(beginning):
                    return line
        raise AssertionError(f"it never said {beginning!r}, only {self.lines}")

    def signal(self, number: int) -> None:
        self._process.send_signal(number)

    async def is_interrupted(self) -> None:
        """Interrupts it until it ends: two signals that come too close together are one."""
        async with asyncio.timeout(30):
            while self._process.returncode is None:
                self._process.send_signal(signal.SIGINT)
                await asyncio.wait([asyncio.ensure_future(self._process.wait())], timeout=0.2)

    async def code(self) -> int:
        """How it ended, which must be soon."""
        async with asyncio.timeout(30):
            return await self._process.wait()


@asynccontextmanager
async def worker_process(
    store: TestStore, *, body: str, lease_ttl: float = 30, grace: float = 30
) -> AsyncIterator[WorkerProcess]:
    """A worker in a process of its own; killed at the end of the block if it still lives."""
    options: dict[str, Any] = {"durable": False}
    if isinstance(store, PostgresTestStore):
        options["schema"] = store.schema
    order = {"url": store.url, "options": options, "body": body, "lease_ttl": lease_ttl, "grace": grace}
    command = [sys.executable, "-m", "tests.end_to_end.worker.program", json.dumps(order)]
    process = await asyncio.create_subprocess_exec(*command, cwd=ROOT, stdout=PIPE)
    try:
        yield WorkerProcess(process)
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()
