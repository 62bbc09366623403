"""A worker process for one of the programs, which kills itself around a record, and writes down how many steps are in
flight when it does.

python -m tests.end_to_end.programs.killed '{"url": …, "options": {…}, "program": …, "moment": "after", "number": 3}'
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
from flowfabric.sdk.journal import Record
from flowfabric.sdk.probes import Silent
from flowfabric.sdk.run import Run, Runner
from flowfabric.sdk.threads import ThreadPools
from flowfabric.worker import Worker, new_event_loop, run_until_signalled
from tests.end_to_end.programs import poller, polling
from tests.end_to_end.programs.drives import PROGRAMS
from tests.end_to_end.programs.world import FILE_VARIABLE, happened

SLOTS = 8
IN_FLIGHT = ".in_flight"


class Killer(Silent):
    """Ends the process without a word before or after the record of this number."""

    def __init__(self, moment: str, number: int | None) -> None:
        self._moment, self._number = moment, number
        self._told: Counter[str] = Counter()
        self._in_flight: set[tuple[UUID, str]] = set()

    def performing(self, run: Run, path: str) -> None:
        self._in_flight.add((run.lease.execution_id, path))

    def recording(self, run: Run, record: Record) -> None:
        self._note("before")

    def recorded(self, run: Run, record: Record) -> None:
        self._in_flight.discard((run.lease.execution_id, record.path))
        self._note("after")

    def _note(self, moment: str) -> None:
        if moment == self._moment and self._told[moment] == self._number:
            Path(f"{os.environ[FILE_VARIABLE]}{IN_FLIGHT}").write_text(str(len(self._in_flight)))
            os.kill(os.getpid(), signal.SIGKILL)
        self._told[moment] += 1


def live_on() -> None:
    """Remembers what happened before this process began, and asks more often than every half minute. What is asked for
    is ready after so many questions, not after so much time: nobody knows how long it takes to follow the dead."""
    known = Path(os.environ[FILE_VARIABLE])
    happened.extend(known.read_text().splitlines() if known.exists() else ())
    polling.poll = lambda _, *call: poll("100ms", *call)  # type: ignore[assignment, attr-defined]
    poller.sleep = lambda _: sleep("100ms")  # type: ignore[attr-defined]
    poller.timedelta = _patience  # type: ignore[assignment, attr-defined]


def _patience(**_: float) -> timedelta:
    return timedelta.min if len(happened) >= 4 else timedelta.max


async def work(order: dict[str, Any]) -> None:
    """Works until it is killed, by itself or by the test."""
    opening = partial(connect, order["url"], **order["options"])
    app = PROGRAMS[order["program"]].app
    async with opening() as engine:
        app.engines.adopt(engine)
        threads = ThreadPools(SLOTS)
        runner = Runner(app, threads, Killer(order["moment"], order["number"]))
        worker = Worker(
            engine, runner, concurrency=SLOTS, lease_ttl=order["lease_ttl"], threads=threads,
            renewal=partial(opening, notify=False),
        )  # fmt: skip
        await run_until_signalled(worker)


if __name__ == "__main__":
    live_on()
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(work(json.loads(sys.argv[1])))
