"""The code of tasks forks, event loops end under engines, workers are interrupted, and migrations are killed."""

from __future__ import annotations

import asyncio
import random
import signal
import time

from tests.children import children
from tests.faults.kit.processes import run_program, start_program
from tests.faults.process_programs import Ledger, interruptible_app
from tests.faults.rows.row import Row, Tally, Trial
from tests.migration.next_release import load_next_migrations
from tests.stores import PostgresTestStore, TestStore, opened

JOBS_PER_INTERRUPT = 4
MAX_RUN_S = 1.2
EXIT_S = 20.0
MIGRATION_S = 0.3
MAX_MORE_FILES = 2
OLD_EXECUTIONS = 2
READ_VERSIONS = "SELECT version FROM ff.migration ORDER BY version"


async def _fork(trial: Trial) -> Tally:
    number = trial.faults
    report, log = await run_program(trial.new_store(), "forks", number)
    tally = Tally(injected=len(report["exit_codes"]), executions=number)
    if report["results"] != list(range(number)):
        tally.wrong.append(f"tasks that fork returned {report['results']}")
    if len(report["begun"]) != number:
        tally.doubled.append(f"{len(report['begun'])} instead of {number} forks began")
    if set(report["exit_codes"]) != {1}:
        tally.wrong.append(f"forked processes exited with {report['exit_codes']}")
    if (lines := sum("was forked inside" in line for line in log)) != number:
        tally.wrong.append(f"{number} forked processes logged {lines} lines")
    return tally


async def _close_loops(trial: Trial) -> Tally:
    report, _ = await run_program(trial.new_store(), "loops", trial.faults)
    tally = Tally(injected=trial.faults, executions=trial.faults)
    if report["results"] != [2 * n for n in range(trial.faults + 1)]:
        tally.wrong.append(f"tasks on many loops returned {report['results']}")
    if report["threads"]:
        tally.stuck.append(f"threads of closed loops still run: {report['threads']}")
    before, after = report["files"]
    if after > before + MAX_MORE_FILES:
        tally.wrong.append(f"{after - before} more files are open: {report['open']}")
    return tally


async def _interrupt(trial: Trial) -> Tally:
    """Interrupt workers at random moments, sometimes twice. Then another worker completes all executions."""
    store, folder, chance = trial.new_store(), trial.folder, trial.random()
    app = interruptible_app(store.url, _schema(store), folder)
    tally = Tally(executions=2 * JOBS_PER_INTERRUPT * trial.faults)
    async with app:
        job = app.tasks["job"]
        handles = await app.submit_many([job.call(n) for n in range(JOBS_PER_INTERRUPT * trial.faults)])
        while tally.injected < trial.faults:
            await _run_and_interrupt(store, trial, chance, tally)
        async with app.worker(concurrency=8):
            for n, handle in enumerate(handles):
                try:
                    if (result := await handle.result(timeout=60)) != "child":
                        tally.wrong.append(f"execution {n} returned {result}")
                except TimeoutError:
                    tally.stuck.append(f"execution {n} did not end")
    tally.doubled += Ledger(folder).doubled()
    return tally


async def _run_and_interrupt(store: TestStore, trial: Trial, chance: random.Random, tally: Tally) -> None:
    process = await start_program(store, "work", trial.folder)
    try:
        await asyncio.sleep(chance.uniform(0, MAX_RUN_S))
        process.send_signal(signal.SIGINT)
        if chance.random() < 0.3:
            await asyncio.sleep(chance.uniform(0, 0.1))
            if process.returncode is None:
                process.send_signal(signal.SIGINT)
        async with asyncio.timeout(EXIT_S):
            await process.communicate()
        tally.injected += 1
    except TimeoutError:
        tally.stuck.append(f"a worker had not exited {EXIT_S:g} s after it was interrupted")
        process.kill()
        await process.communicate()
        tally.injected += 1


async def _kill_migrations(trial: Trial) -> Tally:
    """Kill a process at random while it migrates an older store. Then the next process completes the migration."""
    tally, chance = Tally(executions=trial.faults), trial.random()
    versions = [migration.version for migration in load_next_migrations(f"flowfabric.backends.{trial.backend}")]
    for number in range(trial.faults):
        store = trial.new_store()
        async with opened(store) as engine:
            await asyncio.gather(*(engine.executions.submit("job", lane="old") for _ in range(OLD_EXECUTIONS)))
        await asyncio.to_thread(_kill_while_migrating, store, chance.uniform(0, MIGRATION_S))
        tally.injected += 1
        if (reply := await asyncio.to_thread(_migrate, store)) != "opened":
            tally.stuck.append(f"store {number} could not be opened after a killed migration: {reply}")
        elif [row["version"] for row in await store.query(READ_VERSIONS)] != versions:
            tally.wrong.append(f"store {number} lacks a migration")
        if len(await store.query("SELECT id FROM ff.execution WHERE lane = 'old'")) != OLD_EXECUTIONS:
            tally.lost.append(f"store {number} lost rows")
        if isinstance(store, PostgresTestStore):
            await store.drop()
    return tally


def _kill_while_migrating(store: TestStore, after_s: float) -> None:
    with children("tests.migration.migrator", (store.url, _schema(store))) as [process]:
        process.send_line("go")
        time.sleep(after_s)
        process.kill()


def _migrate(store: TestStore) -> object:
    with children("tests.migration.migrator", (store.url, _schema(store))) as [process]:
        process.send_line("go")
        return process.read_reply()


def _schema(store: TestStore) -> str:
    return store.schema if isinstance(store, PostgresTestStore) else "flowfabric"


ROWS = (
    Row(
        "forks in tasks",
        "The code of tasks calls `os.fork()`, and the child returns, raises or awaits",
        _fork,
        minimum=120,
        short_minimum=6,
    ),
    Row(
        "event loops closed",
        "One event loop after another uses the store, and every second one is closed under its engine",
        _close_loops,
        minimum=60,
        short_minimum=2,
    ),
    Row(
        "workers interrupted",
        "Workers get SIGINT at random moments, from their start on, and sometimes a second one",
        _interrupt,
        minimum=30,
        short_minimum=1,
    ),
    Row(
        "migrations killed",
        "A process is killed while it migrates a store of the previous release",
        _kill_migrations,
        minimum=25,
        short_minimum=1,
    ),
)
