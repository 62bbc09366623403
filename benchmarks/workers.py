"""Worker processes: each runs the tasks of the benchmarks on a store, and tells what it has done when it is asked."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent


@dataclass(frozen=True, slots=True)
class WorkerProcess:
    """A worker in a process of its own."""

    process: asyncio.subprocess.Process

    @property
    def pid(self) -> int:
        return self.process.pid

    async def ask(self) -> tuple[int, float]:
        """How many trivial tasks it has performed, and when it began the last one."""
        assert self.process.stdin is not None and self.process.stdout is not None, "asked for as pipes"
        self.process.stdin.write(b"\n")
        await self.process.stdin.drain()
        line = await asyncio.wait_for(self.process.stdout.readline(), 60)
        if not line:
            raise RuntimeError("a worker process died")
        done, last = json.loads(line)
        return int(done), float(last)


@asynccontextmanager
async def worker_process(store: str, slots: int) -> AsyncIterator[WorkerProcess]:
    """A worker process that is ready; it ends when its input is closed, so it does not outlive this one."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "benchmarks.workers", store, str(slots),
        cwd=ROOT, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    worker = WorkerProcess(process)
    try:
        await worker.ask()
        yield worker
    finally:
        assert process.stdin is not None, "asked for as a pipe"
        process.stdin.close()
        await process.wait()


async def _work(store: str, slots: int) -> None:
    # Imported here: whoever only starts workers needs nothing of this.
    from benchmarks.tasks import tasks_on

    done, last = 0, time.perf_counter()

    def note() -> None:
        nonlocal done, last
        done, last = done + 1, time.perf_counter()

    async with tasks_on(store, note=note) as tasks, tasks.app.worker(concurrency=slots):
        while await asyncio.to_thread(sys.stdin.readline):
            print(json.dumps([done, last]), flush=True)


if __name__ == "__main__":
    from flowfabric.worker.event_loop import own_runner

    with own_runner() as runner:
        runner.run(_work(sys.argv[1], int(sys.argv[2])))
