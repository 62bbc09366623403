"""Workers get SIGTERM while the store does not respond. They exit in time, and their work continues afterwards."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import time
from collections.abc import Sequence
from typing import Any

from tests.faults.blackout_worker import GRACE_S, LEASE_S, Tasks, diary, make_tasks
from tests.faults.fork_server import ForkServer, fork_server
from tests.faults.kit.blackout import Blackout, blackout
from tests.faults.kit.ledgers import Run
from tests.faults.rows.row import Row, Tally, Trial
from tests.stores import PostgresTestStore

TOGETHER = 6
EXIT_S = 5.0
PATIENCE_S = 60.0
POLL_S = 0.02
STEP = re.compile(r"step (\d+) (began|was recorded)")


async def _run(trial: Trial) -> Tally:
    tally, store = Tally(), trial.new_store()
    tasks = make_tasks(store.url, _options(store))
    with fork_server() as forks:
        async with tasks.app:
            await tasks.app.engine()
            for start in range(0, trial.faults, TOGETHER):
                run = Run(trial.folder / f"run-{start}")
                with blackout(store) as dark:
                    await _stop_workers(tally, tasks, forks, dark, run, min(TOGETHER, trial.faults - start))
                _check_steps(tally, run)
    if isinstance(store, PostgresTestStore):
        await store.drop()
    return tally


def _options(store: object) -> Any:
    return {"durable": False, **({"schema": store.schema} if isinstance(store, PostgresTestStore) else {})}


async def _stop_workers(tally: Tally, tasks: Tasks, forks: ForkServer, dark: Blackout, run: Run, workers: int) -> None:
    """Stop workers in a blackout. Afterwards, complete their work with a worker of this process."""
    order: dict[str, Any] = {"program": "tests.faults.blackout_worker", "folder": run.folder}
    pids = [forks.spawn(**order, url=dark.url, options=dark.options) for _ in range(workers)]
    handles = [await task.submit(number) for number in range(workers) for task in tasks.all]
    await _wait_begun(run, len(handles))
    dark.begin()
    await asyncio.to_thread(_terminate, tally, forks, pids)
    dark.end()
    diary.open(run.folder)
    for number in range(workers):
        (run.folder / f"release-{number}").touch()
    async with tasks.app.worker(lease=LEASE_S):
        for handle in handles:
            tally.executions += 1
            try:
                async with asyncio.timeout(PATIENCE_S):
                    await handle
            except TimeoutError:
                tally.stuck.append(f"{handle.id} did not end within {PATIENCE_S:g} s after the blackout")
            except Exception as error:
                tally.wrong.append(f"{handle.id} failed with {error!r}")


async def _wait_begun(run: Run, number: int) -> None:
    ends = time.monotonic() + PATIENCE_S
    while sum(line["what"] == "began" for line in run.witnessed()) < number:
        assert time.monotonic() < ends, "the workers did not start all tasks"
        await asyncio.sleep(POLL_S)


def _terminate(tally: Tally, forks: ForkServer, pids: Sequence[int]) -> None:
    for pid in pids:
        os.kill(pid, signal.SIGTERM)
    began, limit_s = time.monotonic(), GRACE_S + EXIT_S
    for pid in pids:
        status = forks.wait(pid)
        took_s = time.monotonic() - began
        tally.injected += 1
        tally.recoveries_s.append(took_s)
        if took_s > limit_s:
            tally.stuck.append(f"a worker exited {took_s:.1f} s after SIGTERM, and its limit is {limit_s:g} s")
        if status:
            tally.wrong.append(f"a worker ended with the wait status {status}")


def _check_steps(tally: Tally, run: Run) -> None:
    """Add the step bodies that started after their result was recorded."""
    recorded: dict[tuple[int, str], float] = {}
    begun: list[tuple[int, str, float]] = []
    for line in run.witnessed():
        if match := STEP.fullmatch(line["what"]):
            place, what = match.groups()
            if what == "began":
                begun.append((line["number"], place, line["clock_s"]))
            else:
                key = line["number"], place
                recorded[key] = min(line["clock_s"], recorded.get(key, line["clock_s"]))
    for number, place, began_s in begun:
        if began_s > recorded.get((number, place), began_s):
            tally.doubled.append(f"step {place} of task {number} started after its result was recorded")


ROWS = (
    Row(
        "SIGTERM during a blackout",
        "Workers get SIGTERM while the store does not respond; they exit within their grace period plus 5 s",
        _run,
        minimum=60,
        short_minimum=2,
    ),
)
