"""Test workers that are frozen until their leases are lost, and then try every write.

No write is accepted, and the store does not change.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from uuid import UUID

import pytest

from flowfabric.engine import Engine, Policy, Refused
from tests.faults.checker import Findings, violations
from tests.faults.fork_server import ForkServer
from tests.faults.kit.ledgers import OUTSIDE, Ledger, Run, read_ledger
from tests.faults.store_dump import camera_on
from tests.faults.storm import Crew, all_ended
from tests.sizes import Size
from tests.stores import SqliteTestStore, TestStore, moved, opened, snapshot

pytestmark = pytest.mark.alone

LEASE_S = 1.0
FINISHERS = 2
PATIENCE_S = 30.0
FIRST_SLOT = 8
REASONS = {"lease_expired", "stale_lease", "execution_not_active"}


class Graveyard:
    """The zombies of one store, which are workers whose leases are lost while they are frozen."""

    def __init__(self, engine: Engine, crew: Crew, client: Ledger) -> None:
        self.engine = engine
        self.crew = crew
        self.client = client
        self.pids: dict[UUID, int] = {}
        self.instances: dict[UUID, str] = {}

    async def freeze(self, number: int) -> list[UUID]:
        """Create executions, each leased by a process that is frozen while it works."""
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
        for place, id_ in enumerate(ids):
            await asyncio.to_thread(self._freeze, FIRST_SLOT + place, self.pids[id_])
        return ids

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

    def _freeze(self, slot: int, pid: int) -> None:
        # Freeze the worker outside a transaction. A process frozen inside a transaction keeps its locks, so that no
        # other worker could take over.
        flags, ends = self.crew.run.flags(), time.monotonic() + PATIENCE_S
        while time.monotonic() < ends:
            os.kill(pid, signal.SIGSTOP)
            await_stop(pid, ends)
            if flags[slot] == OUTSIDE and can_write(self.crew.store):
                return
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


async def test_zombies_change_nothing(
    store: TestStore, tmp_path: Path, forks: ForkServer, scoreboard: Callable[[str], None], size: Size
) -> None:
    waves, width, least = size.of((1, 12, 80), (10, 20, 1000), (50, 20, 5000))
    run = Run(tmp_path / "run")
    async with opened(store) as engine:
        camera, crew, client = await camera_on(store), Crew(forks, run, store), run.client()
        for _ in range(waves):
            zombies = Graveyard(engine, crew, client)
            ids = await zombies.freeze(width)
            await asyncio.sleep(1.1 * LEASE_S)
            # A third of the zombies wakes before a duty ends the expired lease, a third while another worker holds the
            # lease, and a third after the execution has ended.
            await wakes_without_effect(store, zombies, ids[::3])
            await engine.reconcilers.tick()
            holders = [await engine.leases.claim_execution(id_, "holder", lease_ttl="1m") for id_ in ids[1::3]]
            await wakes_without_effect(store, zombies, ids[1::3])
            for holder in holders:
                await engine.leases.release(holder.fence)
            crew.hire(FINISHERS)
            await all_ended(camera)
            crew.dismiss()
            await wakes_without_effect(store, zombies, ids[2::3])
            await terminal_is_final(engine, ids)
        findings = await Findings.gather(run, camera)
        await camera.close()

    tried = [line for line in findings.witness if line["what"] in ("stale", "accepted")]
    accepted = [line for line in tried if line["what"] == "accepted"]
    scoreboard(f"{waves * width} zombies, {len(tried)} stale writes (at least {least}), {len(accepted)} accepted")
    assert accepted == []
    assert violations(findings) == []
    assert len(tried) >= least
    assert {line["code"] for line in tried if "code" in line} <= REASONS


async def wakes_without_effect(store: TestStore, zombies: Graveyard, ids: list[UUID]) -> None:
    before = await snapshot(store)
    await zombies.wake(ids)
    assert moved(before, await snapshot(store)) == []


async def terminal_is_final(engine: Engine, ids: list[UUID]) -> None:
    for id_ in ids:
        with pytest.raises(Refused):
            await engine.operator.cancel(id_, "too late")
