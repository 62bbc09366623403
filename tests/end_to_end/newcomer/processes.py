"""Processes of a new user's programs: each runs in the folder of its program, and may be killed with -9."""

from __future__ import annotations

import asyncio
import signal
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from tests.end_to_end.cli.shell import command_line, process_environment
from tests.stores import PostgresTestStore, TestStore

LEASE = "1s"
TIMEOUT_S = 30
HERE = Path(__file__).parent


class ProgramProcesses:
    """The processes of one program in one folder, which share a store."""

    def __init__(self, stack: AsyncExitStack, folder: Path, program: str, **variables: str) -> None:
        self._stack, self._folder, self._program = stack, folder, program
        self._environment = process_environment(**variables)
        (folder / f"{program}.py").write_text((HERE / f"{program}.py").read_text())

    async def start_worker(self) -> Process:
        """Start `flowfabric worker` for the program."""
        return await self._start(*command_line("worker", f"{self._program}:app", "--lease", LEASE, "--quiet"))

    async def start_program(self) -> Process:
        """Start the program itself. Its output is a pipe."""
        return await self._start(sys.executable, f"{self._program}.py", output=PIPE)

    async def _start(self, *command: str, output: int = DEVNULL) -> Process:
        process = await asyncio.create_subprocess_exec(
            *command, cwd=self._folder, env=self._environment, stdout=output, stderr=DEVNULL if output == PIPE else None
        )
        self._stack.push_async_callback(_end, process)
        return process

    def effects(self) -> list[str]:
        """Return the outside effects that the program has noted."""
        file = self._folder / "effects.txt"
        return file.read_text().splitlines() if file.exists() else []

    async def wait_for_effect(self, effect: str) -> None:
        """Wait until the program has noted an effect that starts with this text."""

        async def is_noted() -> bool:
            return any(line.startswith(effect) for line in self.effects())

        await until(is_noted)


@asynccontextmanager
async def processes_of(program: str, folder: Path, **variables: str) -> AsyncIterator[ProgramProcesses]:
    """Yield the processes of a program, and kill running processes at the end of the block."""
    async with AsyncExitStack() as stack:
        yield ProgramProcesses(stack, folder, program, **variables)


async def kill(process: Process) -> None:
    """Kill the process with SIGKILL, as `kill -9` does."""
    process.kill()
    assert await process.wait() == -signal.SIGKILL


async def until(condition: Callable[[], Coroutine[Any, Any, bool]]) -> None:
    """Wait until the condition holds."""
    async with asyncio.timeout(TIMEOUT_S):
        while not await condition():  # noqa: ASYNC110 - other processes cannot set an event
            await asyncio.sleep(0.02)


def store_options_of(store: TestStore) -> dict[str, Any]:
    """Return the options of an app for the store. The test server does not flush to disk."""
    schema = {"schema": store.schema} if isinstance(store, PostgresTestStore) else {}
    return {"durable": False, **schema}


async def _end(process: Process) -> None:
    if process.returncode is None:
        process.kill()
    await process.communicate()
