"""Worker processes of a test, which are killed when the test ends."""

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
    """A worker process, with its output lines and the means to signal it."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self.lines: list[str] = []

    async def wait_for_line(self, prefix: str) -> str:
        """Wait for the next line with this prefix and return it."""
        assert self._process.stdout is not None, "stdout is a pipe"
        async with asyncio.timeout(30):
            while line := (await self._process.stdout.readline()).decode().rstrip():
                self.lines.append(line)
                if line.startswith(prefix):
                    return line
        raise AssertionError(f"the process never wrote {prefix!r}, only {self.lines}")

    def signal(self, number: int) -> None:
        self._process.send_signal(number)

    async def interrupt_until_exit(self) -> None:
        """Send SIGINT until the process exits, since two signals in quick succession merge into one."""
        async with asyncio.timeout(30):
            while self._process.returncode is None:
                self._process.send_signal(signal.SIGINT)
                await asyncio.wait([asyncio.ensure_future(self._process.wait())], timeout=0.2)

    async def exit_code(self) -> int:
        """Wait at most 30 seconds for the process to exit and return its exit code."""
        async with asyncio.timeout(30):
            return await self._process.wait()


@asynccontextmanager
async def worker_process(
    store: TestStore, *, body: str, lease_ttl: float = 30, grace: float = 30
) -> AsyncIterator[WorkerProcess]:
    """Run a worker in its own process; kill the process at the end of the block if it still runs."""
    options: dict[str, Any] = {"durable": False}
    if isinstance(store, PostgresTestStore):
        options["schema"] = store.schema
    config = {"url": store.url, "options": options, "body": body, "lease_ttl": lease_ttl, "grace": grace}
    command = [sys.executable, "-m", "tests.end_to_end.worker.program", json.dumps(config)]
    process = await asyncio.create_subprocess_exec(*command, cwd=ROOT, stdout=PIPE)
    try:
        yield WorkerProcess(process)
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()
