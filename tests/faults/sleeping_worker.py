"""A worker process for clock tests: its tasks sleep, or hold their lease until the test releases them.

Each task writes what it does, with the monotonic time, to the ledger of its process.
"""

from __future__ import annotations

import asyncio
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flowfabric import App, Task, sleep
from flowfabric.engine import StoreOptions
from tests.faults.kit.clock import HostClock
from tests.faults.kit.ledgers import Ledger, Run
from tests.stores import SqliteTestStore

NAP_S = 1.0
POLL_S = 0.02


class Diary:
    """Where the tasks of one process write, and the flags that they read."""

    def __init__(self) -> None:
        self.folder = Path()
        self.ledger: Ledger | None = None

    def open(self, folder: Path) -> None:
        """Use the files of this run from now on."""
        self.folder = folder
        self.ledger = Run(folder).witness(f"sleeper-{os.getpid()}")

    def write(self, what: str, number: int) -> None:
        """Write one line with the time and the process."""
        assert self.ledger is not None, "the process has opened its diary"
        self.ledger.write(what, number=number, pid=os.getpid(), clock_s=time.monotonic())

    def is_released(self, number: int) -> bool:
        """Return True if the test has released this holder."""
        return (self.folder / f"release-{number}").exists()


diary = Diary()


async def nap(number: int) -> None:
    """Sleep for a second."""
    diary.write("began", number)
    await sleep(NAP_S)
    diary.write("woke", number)


async def hold(number: int) -> None:
    """Keep the lease until the test releases it."""
    diary.write("took", number)
    while not diary.is_released(number):  # noqa: ASYNC110 - the flag is a file
        await asyncio.sleep(POLL_S)


@dataclass(frozen=True)
class Tasks:
    """The tasks, as an app on one store."""

    app: App
    nap: Task[[int], None]
    hold: Task[[int], None]


def make_tasks(url: str, options: StoreOptions) -> Tasks:
    """Return the tasks on the store at `url`."""
    app = App(url, options=options)
    return Tasks(app, app.task(nap), app.task(hold))


def main(order: dict[str, Any]) -> None:
    """Run a worker until it is killed."""
    folder = Path(order["folder"])
    if order["clock"] is not None:
        HostClock(SqliteTestStore(folder), Path(order["clock"])).install()
    diary.open(folder)
    asyncio.run(_work(order))


async def _work(order: dict[str, Any]) -> None:
    tasks = make_tasks(order["url"], order["options"])
    async with tasks.app.worker(lease=order["lease_s"]) as worker:
        await worker.run()
