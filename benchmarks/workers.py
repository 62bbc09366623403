"""Worker processes that run the benchmark tasks, or that claim and complete at the engine. They report on request."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.tasks import NAMESPACE, tasks_on
from flowfabric.worker.event_loop import event_loop_runner

# The memory of a task worker is measured, so it imports nothing that only an engine worker needs.
if TYPE_CHECKING:
    from flowfabric.engine import Engine, Fence

ROOT = Path(__file__).parent.parent
TASKS = "tasks"
AT_ENGINE = "engine"
_AGAIN_S = 0.05


@dataclass(frozen=True, slots=True)
class WorkerProcess:
    """A worker in a separate process."""

    process: asyncio.subprocess.Process

    @property
    def pid(self) -> int:
        return self.process.pid

    async def ask(self) -> tuple[int, float]:
        """Return how many executions the worker has run, and when it finished the last one."""
        assert self.process.stdin is not None and self.process.stdout is not None, "the process was started with pipes"
        self.process.stdin.write(b"\n")
        await self.process.stdin.drain()
        line = await asyncio.wait_for(self.process.stdout.readline(), 60)
        if not line:
            raise RuntimeError("a worker process died")
        done, last = json.loads(line)
        return int(done), float(last)


@asynccontextmanager
async def worker_process(store: str, slots: int, level: str = TASKS) -> AsyncIterator[WorkerProcess]:
    """Yield a ready worker process.

    The worker process exits when its standard input closes, so it cannot outlive this process.
    """
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "benchmarks.workers",
        store,
        str(slots),
        level,
        cwd=ROOT,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    worker = WorkerProcess(process)
    try:
        await worker.ask()
        yield worker
    finally:
        assert process.stdin is not None, "the process was started with a pipe"
        process.stdin.close()
        await process.wait()


async def _work(store: str, slots: int, level: str) -> None:
    done, last = 0, time.perf_counter()

    def note() -> None:
        nonlocal done, last
        done, last = done + 1, time.perf_counter()

    async with _LEVELS[level](store, slots, note):
        while await asyncio.to_thread(sys.stdin.readline):
            print(json.dumps([done, last]), flush=True)


@asynccontextmanager
async def _tasks(store: str, slots: int, note: Callable[[], None]) -> AsyncIterator[None]:
    async with tasks_on(store, note=note) as tasks, tasks.app.worker(concurrency=slots):
        yield


@asynccontextmanager
async def _engine(store: str, slots: int, note: Callable[[], None]) -> AsyncIterator[None]:
    from flowfabric.engine import connect

    async with connect(store, namespace=NAMESPACE) as engine, engine.reconcilers.run_in_background():
        working = asyncio.create_task(claim_and_complete(engine, slots, note))
        yield
        working.cancel()
        await asyncio.gather(working, return_exceptions=True)


async def claim_and_complete(engine: Engine, slots: int, note: Callable[[], None]) -> None:
    """Claim as many executions as there are slots. If the store is busy, try again, as a worker does."""
    from flowfabric.engine import Unavailable

    worker = f"bench-{os.getpid()}"
    with engine.leases.watch(["default"]) as work:
        while True:
            try:
                leases = await engine.leases.claim(["default"], worker, limit=slots)
            except Unavailable:
                await asyncio.sleep(_AGAIN_S)
                continue
            await _complete(engine, [lease.fence for lease in leases])
            for _ in leases:
                note()
            if not leases:
                await work.wait()


async def _complete(engine: Engine, fences: list[Fence]) -> None:
    from flowfabric.engine import Unavailable

    while fences:
        answers = await engine.leases.complete_many([(fence, b"1") for fence in fences])
        pairs = zip(fences, answers, strict=True)
        fences = [fence for fence, answer in pairs if isinstance(answer, Unavailable)]


_LEVELS = {TASKS: _tasks, AT_ENGINE: _engine}

if __name__ == "__main__":
    with event_loop_runner() as runner:
        runner.run(_work(sys.argv[1], int(sys.argv[2]), sys.argv[3]))
