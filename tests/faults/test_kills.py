"""Kill eight workers on one store at random. Nothing is lost or committed twice, and every execution ends in time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.concurrency.wait_soundness import assert_waits_sound
from tests.faults.checker import Findings, violations
from tests.faults.fork_server import ForkServer
from tests.faults.kit.ledgers import Run
from tests.faults.store_dump import camera_on
from tests.faults.storm import LEASE_S, PATIENCE_S, Crew, Load, all_ended, killed_inside, recoveries, spread
from tests.sizes import Size
from tests.stores import TestStore, opened

pytestmark = pytest.mark.alone

WORKERS = 8
PAUSE_S = 0.08


async def test_workers_killed_at_random_lose_nothing_and_double_nothing(
    store: TestStore, tmp_path: Path, forks: ForkServer, scoreboard: Callable[[str], None], size: Size
) -> None:
    seconds, least_kills, least_executions = size.of((3.0, 5, 10), (30.0, 60, 100), (180.0, 400, 600))
    # With few kills, it can happen by chance that no worker is killed inside a transaction.
    least_inside = size.of(0.0, 0.3, 0.3)
    run = Run(tmp_path / "run")
    async with opened(store) as engine:
        camera, crew = await camera_on(store), Crew(forks, run, store)
        load, stop = Load(engine, run, camera), asyncio.Event()
        crew.hire(WORKERS)
        submitting = asyncio.create_task(load.submit_until(stop))
        async with load.answering():
            await asyncio.to_thread(crew.kill_for, seconds, PAUSE_S, least_kills)
            await load.reached(least_executions)
            stop.set()
            await submitting
            settled_s = await all_ended(camera)
        crew.dismiss()
        findings = await Findings.gather(run, camera)
        await camera.close()

    inside, single = killed_inside(crew.kills)
    kills, times = len(crew.kills), recoveries(findings, crew.kills)
    scoreboard(
        f"{kills} kills (at least {least_kills}), {inside / kills:.0%} inside a transaction (at least "
        f"{least_inside:.0%}) and {single / kills:.0%} in a single statement, {load.acknowledged} executions "
        f"(at least {least_executions}), "
        f"{len(load.signals)} signals accepted, {len(times)} leases recovered: {spread(times)}; "
        f"all ended {settled_s:.1f} s after the last kill"
    )
    assert violations(findings) == []
    await assert_waits_sound(store, load.signals)
    assert settled_s < PATIENCE_S
    assert kills >= least_kills and inside >= least_inside * kills and load.acknowledged >= least_executions
    assert times and times[-1] <= 2 * LEASE_S + 5
