"""If a worker is killed after its wait has ended, the next worker gets the same signals and does not wait again."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path
from uuid import UUID

import pytest

from flowfabric.engine import Engine, Policy
from tests.concurrency.wait_soundness import assert_waits_sound
from tests.faults.checker import Findings, violations
from tests.faults.fork_server import ForkServer
from tests.faults.kit.ledgers import Run, read_ledger
from tests.faults.store_dump import camera_on
from tests.faults.storm import Crew, all_ended
from tests.faults.worker import WAITPOINT
from tests.stores import TestStore, opened

# Longer than a live worker can be delayed by other tests. A lease that expires early adds a takeover.
LEASE_S = 2.5
PATIENCE_S = 20.0


@pytest.mark.parametrize("killed_at", ["claimed", "answered", "recorded"])
async def test_ended_wait_stays_ended_after_its_worker_is_killed(
    store: TestStore, tmp_path: Path, forks: ForkServer, killed_at: str
) -> None:
    run = Run(tmp_path / "run")
    crew = Crew(forks, run, store)
    async with opened(store) as engine:
        camera = await camera_on(store)
        id_ = await submitted(engine, run)
        first = crew.spawn(0, lease_s=LEASE_S)
        await seen(run, 0, first, "suspended")
        forks.kill(first)
        # The first worker has suspended the execution and is gone. The second worker is killed right after the wait
        # ends.
        doomed = crew.spawn(1, lease_s=LEASE_S, stops_at=killed_at)
        accepted = await engine.signals.approve(id_, WAITPOINT, suffix="once")
        run.client().write("signalled", signal=accepted.signal_id, execution=id_)
        await seen(run, 1, doomed, "stopped")
        forks.kill(doomed)
        crew.pids[2] = crew.spawn(2, lease_s=LEASE_S)
        await all_ended(camera, PATIENCE_S)
        crew.dismiss()
        findings = await Findings.gather(run, camera)
        await camera.close()
        assert violations(findings) == []
        assert (await engine.executions.describe(id_)).state == "completed"
        replies = [(line["suspension"], line["signals"]) for line in findings.witness if line["what"] == "answered"]
        assert replies[-1][1] == [str(accepted.signal_id)]
        assert len(replies) == (1 if killed_at == "claimed" else 2)
        assert all(line == replies[0] for line in replies)
        names = [event.name for event in await engine.executions.history(id_)]
        assert names.count("suspended") == names.count("resumed") == names.count("expired") == 1
        await assert_waits_sound(store, [accepted.signal_id])


async def submitted(engine: Engine, run: Run) -> UUID:
    ledger = run.client()
    result = await engine.executions.submit(
        "job", json.dumps({"plan": "wait"}).encode(), policy=Policy(lease_ttl=LEASE_S)
    )
    ledger.write("asked", asked=result.id)
    ledger.write("acknowledged", asked=result.id, execution=result.id)
    return result.id


async def seen(run: Run, slot: int, pid: int, what: str) -> None:
    """Wait until this worker has reported in its ledger that it reached the given point."""
    path, ends = run.folder / "witness" / f"{slot}-{pid}.jsonl", time.monotonic() + PATIENCE_S
    while not any(line["what"] == what for line in read_ledger(path)):
        assert time.monotonic() < ends, f"no worker was ever {what}"
        await asyncio.sleep(0.02)
