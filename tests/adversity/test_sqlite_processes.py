"""Test that several processes can share one SQLite file. Nothing is lost or done twice, even if a process is killed."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from flowfabric.backends.sqlite.log_check import has_log
from flowfabric.engine import State
from flowfabric.testing import VirtualClock
from tests.children import Child, children
from tests.concurrency.soundness import assert_sound
from tests.scenarios import leased, submitted
from tests.stores import SqliteTestStore, opened

EACH = 250


@pytest.fixture
def store(tmp_path: Path) -> SqliteTestStore:
    return SqliteTestStore(tmp_path)


class Ledger:
    """The work that a process has reported."""

    def __init__(self, child: Child) -> None:
        self.child = child
        self.submitted: list[str] = []
        self.completed: list[str] = []

    def listen(self) -> bool:
        """Read the report of one more batch. Return False if the process has no more reports."""
        report = self.child.read_reply()
        if report is None:
            return False
        self.submitted += report["submitted"]
        self.completed += report["completed"]
        return True


async def test_two_processes_lose_and_double_nothing(store: SqliteTestStore) -> None:
    async with opened(store):
        pass
    workers = [(store.url, name, str(EACH), "1h") for name in ("one", "two")]
    with children("tests.adversity.worker_child", *workers) as processes, ThreadPoolExecutor(2) as threads:
        ledgers = [Ledger(child) for child in processes]
        for child in processes:
            child.send_line("go")
        done = list(threads.map(lambda ledger: listen_until(ledgers, ledger, 2 * EACH), ledgers))
    assert done == [True, True]
    submitted_ids = [id_ for ledger in ledgers for id_ in ledger.submitted]
    completed_ids = [id_ for ledger in ledgers for id_ in ledger.completed]
    assert len(set(submitted_ids)) == 2 * EACH
    assert Counter(completed_ids) == Counter(submitted_ids)
    assert all(ledger.completed for ledger in ledgers)
    rows = await store.query("SELECT id, state, epoch, attempt_index FROM ff.execution")
    assert {row["id"] for row in rows} == set(submitted_ids)
    assert {(row["state"], row["epoch"], row["attempt_index"]) for row in rows} == {("completed", 1, 0)}
    await assert_sound(store)


async def test_remaining_process_does_the_work_of_a_killed_one(store: SqliteTestStore) -> None:
    async with opened(store):
        pass
    workers = [(store.url, name, str(EACH), "1s") for name in ("victim", "heir")]
    with children("tests.adversity.worker_child", *workers) as processes, ThreadPoolExecutor(2) as threads:
        victim, heir = [Ledger(child) for child in processes]
        for child in processes:
            child.send_line("go")
        while len(victim.completed) < 50:
            assert await asyncio.get_running_loop().run_in_executor(threads, victim.listen)
        victim.child.kill()
        while victim.listen():
            continue
        while len(heir.submitted) < EACH or await unfinished(store):
            assert await asyncio.get_running_loop().run_in_executor(threads, heir.listen)
    rows = {row["id"]: row for row in await store.query("SELECT id, state, reclaim_count FROM ff.execution")}
    assert set(victim.submitted) | set(heir.submitted) <= set(rows)
    assert {row["state"] for row in rows.values()} == {"completed"}
    # Each completion was reported once, and acknowledged work was not done again.
    assert max(Counter(victim.completed + heir.completed).values()) == 1
    assert await store.query("PRAGMA integrity_check") == [{"integrity_check": "ok"}]
    await assert_sound(store)


async def test_second_engine_of_a_process_keeps_the_locks_of_the_first_one(store: SqliteTestStore) -> None:
    """POSIX locks of a process end if it closes the file once, and then another process would delete the log."""
    async with opened(store):
        pass
    async with opened(store) as first:
        assert not has_log(str(store.path))
        async with opened(store):
            command = [sys.executable, "-m", "flowfabric", *("--store", store.url, "--not-durable", "migrate")]
            await asyncio.to_thread(subprocess.run, command, check=True, stdout=subprocess.DEVNULL)
            await submitted(first)


async def test_store_time_never_goes_back_with_the_clock_of_a_process(store: SqliteTestStore) -> None:
    ahead, behind = VirtualClock(), VirtualClock()
    ahead.advance("1h")
    async with opened(store, ahead) as early:
        lease = await leased(early, lease_ttl="30s")
        newest = (await early.executions.describe(lease.execution_id)).changed_at
    async with opened(store, behind) as late:
        id_ = await submitted(late, delay="10s")
        execution = await late.executions.describe(id_)
        assert (execution.created_at, execution.ready_at) == (newest, newest + timedelta(seconds=10))
        # The slow clock neither extends nor shortens the lease.
        renewed = await late.leases.renew(lease.fence)
        assert renewed.expires_at == lease.expires_at
        assert [item.fence for item in await late.leases.held("worker-1")] == [lease.fence]
        behind.advance("1h")
        behind.advance("31s")
        await late.reconcilers.tick()
        assert (await late.executions.describe(lease.execution_id)).state == State.WAITING
        assert (await late.executions.describe(id_)).state == State.WAITING
    events = await store.query("SELECT at FROM ff.event ORDER BY id")
    assert [row["at"] for row in events] == sorted(row["at"] for row in events)


def listen_until(ledgers: list[Ledger], mine: Ledger, number: int) -> bool:
    """Read the reports of one process until all processes together have completed the given number of executions."""
    while sum(len(ledger.completed) for ledger in ledgers) < number:
        if not mine.listen():
            return False
    return True


async def unfinished(store: SqliteTestStore) -> list[dict[str, Any]]:
    return await store.query("SELECT id FROM ff.execution WHERE state <> 'completed' LIMIT 1")
