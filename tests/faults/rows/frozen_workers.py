"""Workers are frozen until their leases are lost, and then try every write. No write changes anything."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sqlite3
import time
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from uuid import UUID

from flowfabric.engine import Engine, Policy, Refused
from tests.faults.checker import Findings, violations
from tests.faults.fork_server import ForkServer, fork_server
from tests.faults.kit.ledgers import OUTSIDE, Ledger, Run, read_ledger
from tests.faults.rows.row import Row, Tally, Trial
from tests.faults.store_dump import camera_on
from tests.faults.storm import Crew, Kill, all_ended, recoveries
from tests.stores import SqliteTestStore, TestStore, moved, opened, snapshot

LEASE_S = 1.0
FINISHERS = 2
WIDTH = 20
# The number of writes that each woken worker must have tried.
MIN_WRITES = 5
PATIENCE_S = 30.0
FIRST_SLOT = 8
REASONS = {"lease_expired", "stale_lease", "execution_not_active"}


@dataclass
class FreezeReport:
    """The writes that frozen workers tried after they lost their leases."""

    zombies: int
    findings: Findings
    changes: list[str] = field(default_factory=list)
    # The frozen workers whose work other workers took over while nothing else happened.
    taken_over: list[Kill] = field(default_factory=list)

    @property
    def stale_writes(self) -> list[dict[str, object]]:
        """The writes that the woken workers tried."""
        return [line for line in self.findings.witness if line["what"] in ("stale", "accepted")]


class Graveyard:
    """The zombies of one store, which are workers whose leases are lost while they are frozen."""

    def __init__(self, engine: Engine, crew: Crew, client: Ledger) -> None:
        self.engine = engine
        self.crew = crew
        self.client = client
        self.pids: dict[UUID, int] = {}
        self.instances: dict[UUID, str] = {}
        self.frozen: dict[UUID, Kill] = {}

    async def freeze_new(self, number: int) -> list[UUID]:
        """Create executions, each leased by a process that is then frozen."""
        ids = await self.lease(number)
        await self.freeze(ids)
        return ids

    async def lease(self, number: int) -> list[UUID]:
        """Create executions, each leased by a process that keeps its lease."""
        ids = []
        for place in range(number):
            result = await self.engine.executions.submit("job", b'{"plan": "plain"}', policy=Policy(lease_ttl=LEASE_S))
            self.client.write("asked", asked=result.id)
            self.client.write("acknowledged", asked=result.id, execution=result.id)
            order = {"zombie": True, "execution": str(result.id)}
            self.pids[result.id] = self.crew.spawn(FIRST_SLOT + place, **order)
            self.instances[result.id] = f"{FIRST_SLOT + place}-{self.pids[result.id]}"
            ids.append(result.id)
        for place, id_ in enumerate(ids):
            await asyncio.to_thread(self._await_lease, FIRST_SLOT + place, self.pids[id_])
        return ids

    async def freeze(self, ids: list[UUID]) -> None:
        """Freeze the processes that lease these executions."""
        for place, id_ in enumerate(ids):
            flag = await asyncio.to_thread(self._freeze, FIRST_SLOT + place, self.pids[id_])
            self.frozen[id_] = Kill(self.instances[id_], time.time(), flag)

    async def wake(self, ids: list[UUID]) -> None:
        """Wake zombies and wait until they have tried every write."""
        for id_ in ids:
            self.crew.run.woken_path(self.instances[id_]).touch()
            os.kill(self.pids[id_], signal.SIGCONT)
        for id_ in ids:
            await asyncio.to_thread(self.crew.forks.wait, self.pids.pop(id_))

    def _await_lease(self, slot: int, pid: int) -> None:
        path, ends = self.crew.run.folder / "witness" / f"{slot}-{pid}.jsonl", time.monotonic() + PATIENCE_S
        while not any(line["what"] == "holding" for line in read_ledger(path)):
            assert time.monotonic() < ends, f"a worker got no lease: {read_ledger(path)}"
            time.sleep(0.005)

    def _freeze(self, slot: int, pid: int) -> int:
        # Freeze the worker outside a transaction. A process frozen inside a transaction keeps its locks, so that no
        # other worker could take over.
        flags, ends = self.crew.run.flags(), time.monotonic() + PATIENCE_S
        while time.monotonic() < ends:
            os.kill(pid, signal.SIGSTOP)
            await_stop(pid, ends)
            if flags[slot] == OUTSIDE and can_write(self.crew.store):
                return flags[slot]
            os.kill(pid, signal.SIGCONT)
            # This is long enough for the worker to continue, even if many processes share a processor.
            time.sleep(random.uniform(0.002, 0.05))
        raise AssertionError("a worker is never outside a transaction")


def await_stop(pid: int, ends: float) -> None:
    """Wait until all threads of the process are stopped.

    `kill` sends the signal but does not wait for its effect. A thread that has not stopped yet may begin a transaction,
    and commit it legally after it is woken.
    """
    while not all(state in "TZ" for state in thread_states(pid)):
        assert time.monotonic() < ends, "a worker does not stop"
        time.sleep(0.001)


def thread_states(pid: int) -> list[str]:
    """Return the states of the threads of a process: `T` is stopped, `Z` has ended."""
    files = [path / "stat" for path in Path(f"/proc/{pid}/task").iterdir()]
    return [file.read_text().rpartition(")")[2].split()[0] for file in files if file.exists()]


def can_write(store: TestStore) -> bool:
    """Return False if a process holds the write lock of a SQLite file.

    Return True on PostgreSQL, which has no such lock.
    """
    if not isinstance(store, SqliteTestStore):
        return True
    with closing(sqlite3.connect(store.path, isolation_level=None, timeout=0.5)) as connection:
        try:
            connection.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError:
            return False
        connection.execute("ROLLBACK")
        return True


async def freeze_workers(store: TestStore, folder: Path, forks: ForkServer, *, waves: int, width: int) -> FreezeReport:
    """Freeze `width` workers per wave, let them lose their leases, wake them, and report what they changed."""
    run, changes, taken_over = Run(folder), list[str](), list[Kill]()
    async with opened(store) as engine:
        camera, crew, client = await camera_on(store), Crew(forks, run, store), run.client()
        for _ in range(waves):
            zombies = Graveyard(engine, crew, client)
            # A third of the zombies wakes after another worker has taken over and ended the execution.
            ids = await zombies.lease(width // 3)
            crew.hire(FINISHERS)
            await asyncio.sleep(LEASE_S)  # The other workers start.
            await zombies.freeze(ids)
            await all_ended(camera)
            crew.dismiss()
            taken_over += zombies.frozen.values()
            changes += await _wake(store, zombies, ids)
            # A third wakes before a duty ends the expired lease, and a third while another worker holds the lease.
            late = await zombies.freeze_new(width - width // 3)
            await asyncio.sleep(1.1 * LEASE_S)
            changes += await _wake(store, zombies, late[::2])
            await engine.reconcilers.tick()
            holders = [await engine.leases.claim_execution(id_, "holder", lease_ttl="1m") for id_ in late[1::2]]
            changes += await _wake(store, zombies, late[1::2])
            for holder in holders:
                await engine.leases.release(holder.fence)
            crew.hire(FINISHERS)
            await all_ended(camera)
            crew.dismiss()
            changes += await _cancel_ended(engine, ids + late)
        findings = await Findings.gather(run, camera)
        await camera.close()
    return FreezeReport(waves * width, findings, changes, taken_over)


async def _wake(store: TestStore, zombies: Graveyard, ids: list[UUID]) -> list[str]:
    """Wake zombies, and return their changes to the store."""
    before = await snapshot(store)
    await zombies.wake(ids)
    return [f"a zombie changed {change}" for change in moved(before, await snapshot(store))]


async def _cancel_ended(engine: Engine, ids: list[UUID]) -> list[str]:
    """Cancel executions that have ended, and return the ids that were not refused."""
    changes = []
    for id_ in ids:
        try:
            await engine.operator.cancel(id_, "too late")
        except Refused:
            continue
        changes.append(f"{id_} had ended, and was cancelled")
    return changes


async def _run(trial: Trial) -> Tally:
    width = min(WIDTH, trial.faults)
    with fork_server() as forks:
        report = await freeze_workers(
            trial.new_store(), trial.folder / "run", forks, waves=-(-trial.faults // width), width=width
        )
    tally = Tally(
        injected=report.zombies,
        executions=len(report.findings.executions),
        doubled=report.changes,
        recoveries_s=recoveries(report.findings, report.taken_over),
    )
    tally.add_violations(violations(report.findings))
    for line in report.stale_writes:
        if line.get("code", "stale_lease") not in REASONS:
            tally.wrong.append(f"a stale write was refused with {line['code']}")
    if len(report.stale_writes) < MIN_WRITES * report.zombies:
        tally.wrong.append(f"{report.zombies} woken workers tried only {len(report.stale_writes)} writes")
    return tally


ROWS = (
    Row(
        "workers frozen",
        "Worker processes are frozen past their lease, then wake up and try every write",
        _run,
        minimum=200,
        short_minimum=6,
        lease_s=LEASE_S,
        recovery_limit_s=2 * LEASE_S,
    ),
)
