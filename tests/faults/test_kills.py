"""Kill eight workers on one store at random. Nothing is lost or committed twice, and every execution ends in time."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.concurrency.wait_soundness import assert_waits_sound
from tests.faults.checker import violations
from tests.faults.fork_server import ForkServer
from tests.faults.rows.killed_workers import kill_workers
from tests.faults.storm import LEASE_S, PATIENCE_S, killed_inside, spread
from tests.sizes import Size
from tests.stores import TestStore

# The row `workers killed` is the short form.
pytestmark = [pytest.mark.alone, pytest.mark.long]


async def test_workers_killed_at_random_lose_nothing_and_double_nothing(
    store: TestStore, tmp_path: Path, forks: ForkServer, scoreboard: Callable[[str], None], size: Size
) -> None:
    seconds, least_kills, least_executions = size.of((3.0, 5, 10), (30.0, 60, 100), (180.0, 400, 600))
    # With few kills, it can happen by chance that no worker is killed inside a transaction.
    least_inside = size.of(0.0, 0.3, 0.3)
    report = await kill_workers(
        store,
        tmp_path / "run",
        forks,
        seconds=seconds,
        kills=least_kills,
        executions=least_executions,
        chance=random.Random(size.seed),
    )
    load, settled_s = report.load, report.settled_s
    inside, single = killed_inside(report.kills)
    kills, times = len(report.kills), report.recoveries()
    scoreboard(
        f"{kills} kills (at least {least_kills}), {inside / kills:.0%} inside a transaction (at least "
        f"{least_inside:.0%}) and {single / kills:.0%} in a single statement, {load.acknowledged} executions "
        f"(at least {least_executions}), "
        f"{len(load.signals)} signals accepted, {len(times)} leases recovered: {spread(times)}; "
        f"all ended {settled_s:.1f} s after the last kill"
    )
    assert violations(report.findings) == []
    await assert_waits_sound(store, load.signals)
    assert settled_s < PATIENCE_S
    assert kills >= least_kills and inside >= least_inside * kills and load.acknowledged >= least_executions
    assert times and times[-1] <= 2 * LEASE_S + 5
