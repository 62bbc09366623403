"""Run a worker process for one program; the worker kills itself before or after a given record.

Before it kills itself, the worker writes the number of steps in flight to a file.

python -m tests.end_to_end.programs.killed_worker '{"url": …, "program": …, "moment": "after", "number": 3, …}'
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections import Counter
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any
from uuid import UUID

from flowfabric import poll, sleep
from flowfabric.engine import connect
from flowfabric.runtime.journal import Record
from flowfabric.runtime.run import RunHooks, TaskRun, TaskRunner
from flowfabric.runtime.threads import ThreadPools
from flowfabric.worker import Worker, new_event_loop, run_until_signal
from tests.end_to_end.programs import poller, polling
from tests.end_to_end.programs.effects import FILE_VARIABLE, recorded_effects
from tests.end_to_end.programs.program_cases import PROGRAMS

SLOTS = 8
IN_FLIGHT = ".in_flight"


class Killer(RunHooks):
    """Hooks that kill the process before or after the record with this number."""

    def __init__(self, moment: str, number: int | None) -> None:
        self._moment, self._number = moment, number
        self._counts: Counter[str] = Counter()
        self._in_flight: set[tuple[UUID, str]] = set()

    def step_starting(self, run: TaskRun, path: str) -> None:
        self._in_flight.add((run.lease.execution_id, path))

    def record_starting(self, run: TaskRun, record: Record) -> None:
        self._count("before")

    def record_stored(self, run: TaskRun, record: Record) -> None:
        self._in_flight.discard((run.lease.execution_id, record.path))
        self._count("after")

    def _count(self, moment: str) -> None:
        if moment == self._moment and self._counts[moment] == self._number:
            Path(f"{os.environ[FILE_VARIABLE]}{IN_FLIGHT}").write_text(str(len(self._in_flight)))
            os.kill(os.getpid(), signal.SIGKILL)
        self._counts[moment] += 1


def prepare_program() -> None:
    """Load the recorded effects of earlier processes and shorten the polling intervals.

    The polled job becomes ready after a number of polls, not after a time, because the time until a takeover varies.
    """
    effects_file = Path(os.environ[FILE_VARIABLE])
    recorded_effects.extend(effects_file.read_text().splitlines() if effects_file.exists() else ())
    polling.poll = lambda _, *call: poll("100ms", *call)  # type: ignore[assignment, attr-defined]
    poller.sleep = lambda _: sleep("100ms")  # type: ignore[attr-defined]
    poller.timedelta = _timedelta_until_ready  # type: ignore[assignment, attr-defined]


def _timedelta_until_ready(**_: float) -> timedelta:
    return timedelta.min if len(recorded_effects) >= 4 else timedelta.max


async def work(config: dict[str, Any]) -> None:
    """Run a worker until this process or the test kills it."""
    open_engine = partial(connect, config["url"], **config["options"])
    app = PROGRAMS[config["program"]].app
    async with open_engine() as engine:
        app.engines.adopt(engine)
        threads = ThreadPools(SLOTS)
        runner = TaskRunner(app, threads, Killer(config["moment"], config["number"]))
        worker = Worker(
            engine,
            runner,
            concurrency=SLOTS,
            lease_ttl=config["lease_ttl"],
            threads=threads,
            open_renewal_engine=partial(open_engine, notify=False),
        )
        await run_until_signal(worker)


if __name__ == "__main__":
    prepare_program()
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(work(json.loads(sys.argv[1])))
