"""Eight worker processes are killed at random, mostly inside a transaction, and replaced."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass
from pathlib import Path

from tests.concurrency.wait_soundness import assert_waits_sound
from tests.faults.checker import Findings, violations
from tests.faults.fork_server import ForkServer, fork_server
from tests.faults.kit.ledgers import Run
from tests.faults.rows.row import Row, Tally, Trial
from tests.faults.store_dump import camera_on
from tests.faults.storm import LEASE_S, PATIENCE_S, Crew, Kill, Load, all_ended, recoveries
from tests.stores import TestStore, opened

WORKERS = 8
PAUSE_S = 0.08


@dataclass(frozen=True)
class KillReport:
    """What happened while workers were killed."""

    findings: Findings
    kills: list[Kill]
    load: Load
    settled_s: float

    def recoveries(self) -> list[float]:
        """Return the sorted times until another worker leased the work of a killed one."""
        return recoveries(self.findings, self.kills)


async def kill_workers(
    store: TestStore,
    folder: Path,
    forks: ForkServer,
    *,
    seconds: float,
    kills: int,
    executions: int,
    chance: random.Random,
) -> KillReport:
    """Kill workers under load for some time, and until there were enough kills and executions."""
    run = Run(folder)
    async with opened(store) as engine:
        camera, crew = await camera_on(store), Crew(forks, run, store, chance)
        load, stop = Load(engine, run, camera, chance), asyncio.Event()
        crew.hire(WORKERS)
        submitting = asyncio.create_task(load.submit_until(stop))
        async with load.answering():
            await asyncio.to_thread(crew.kill_for, seconds, PAUSE_S, kills)
            await load.reached(executions)
            stop.set()
            await submitting
            settled_s = await all_ended(camera)
        crew.dismiss()
        findings = await Findings.gather(run, camera)
        await camera.close()
    return KillReport(findings, crew.kills, load, settled_s)


async def _run(trial: Trial) -> Tally:
    store = trial.new_store()
    with fork_server() as forks:
        report = await kill_workers(
            store,
            trial.folder / "run",
            forks,
            seconds=trial.faults * PAUSE_S,
            kills=trial.faults,
            executions=trial.faults,
            chance=trial.random(),
        )
    tally = Tally(
        injected=len(report.kills),
        executions=report.load.acknowledged,
        signals=len(report.load.signals),
        recoveries_s=report.recoveries(),
    )
    tally.add_violations(violations(report.findings))
    if report.settled_s >= PATIENCE_S:
        tally.stuck.append(f"work had not ended {PATIENCE_S:g} s after the last kill")
    try:
        await assert_waits_sound(store, report.load.signals)
    except AssertionError as error:
        tally.wrong.append(f"the store is not sound: {error}")
    return tally


ROWS = (
    Row(
        "workers killed",
        "Worker processes are killed with SIGKILL at random, mostly inside a transaction",
        _run,
        minimum=600,
        short_minimum=12,
        lease_s=LEASE_S,
        recovery_limit_s=2 * LEASE_S,
    ),
)
