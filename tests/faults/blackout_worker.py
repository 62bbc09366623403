"""A worker process that is asked to stop while the store does not respond.

Its tasks make steps, wait in the event loop, or block a thread, until the test releases them. Each writes what it does
to the ledger of its process. `python -m tests.faults.blackout_worker ENTRY FOLDER URL OPTIONS` runs a worker with
`app.run` or with the command `flowfabric worker`. The fork server runs it with `app.run`.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flowfabric import App, Task, step
from flowfabric.cli.main import main as run_command
from flowfabric.engine import StoreOptions
from flowfabric.worker import Worker
from tests.faults.sleeping_worker import Diary

GRACE_S = 1.0
LEASE_S = 2.0
POLL_S = 0.02
diary = Diary()


async def note(number: int, place: int) -> int:
    """Write that the body of a step began."""
    diary.write(f"step {place} began", number)
    await asyncio.sleep(POLL_S)
    return place


async def make_steps(number: int) -> int:
    """Make one step after the other until the test releases the task."""
    diary.write("began", number)
    place = 0
    while not diary.is_released(number):
        await step.options(name="note", key=str(place))(note, number, place)
        diary.write(f"step {place} was recorded", number)
        place += 1
    return number


async def wait_in_loop(number: int) -> int:
    """Wait in the event loop until the test releases the task."""
    diary.write("began", number)
    while not diary.is_released(number):  # noqa: ASYNC110 - the flag is a file
        await asyncio.sleep(POLL_S)
    return number


def block_thread(number: int) -> int:
    """Block a thread until the test releases the task."""
    diary.write("began", number)
    while not diary.is_released(number):
        time.sleep(POLL_S)
    return number


@dataclass(frozen=True)
class Tasks:
    """The tasks, as an app on one store."""

    app: App
    all: tuple[Task[[int], int], ...]


def make_tasks(url: str, options: StoreOptions) -> Tasks:
    """Return the tasks on the store at `url`."""
    app = App(url, options=options, arguments="off")
    return Tasks(app, (app.task(make_steps), app.task(wait_in_loop), app.task(block_thread)))


def main(order: dict[str, Any]) -> None:
    """Run a worker until SIGTERM."""
    tasks = _prepare(order["folder"], order["url"], order["options"])
    tasks.app.run(concurrency=len(tasks.all), lease=LEASE_S)


def _prepare(folder: str, url: str, options: StoreOptions) -> Tasks:
    defaults: Any = Worker.__init__.__kwdefaults__
    defaults["grace"] = GRACE_S
    diary.open(Path(folder))
    return make_tasks(url, options)


def __getattr__(name: str) -> App:
    """Return the app that the command loads by its name."""
    if name != "app":
        raise AttributeError(name)
    return _prepare(*_words(sys.argv[2:])).app


def _words(words: list[str]) -> tuple[str, str, StoreOptions]:
    folder, url, options = words
    return folder, url, json.loads(options)


if __name__ == "__main__":
    if sys.argv[1] == "command":
        sys.exit(
            run_command(
                ["worker", "tests.faults.blackout_worker:app", "--concurrency", "3", "--lease", f"{LEASE_S:g}s"]
            )
        )
    folder_, url_, options_ = _words(sys.argv[2:])
    main({"folder": folder_, "url": url_, "options": options_})
