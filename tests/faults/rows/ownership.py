"""Faults in which a worker can no longer tell whether it holds a lease.

In a one-way partition the store receives every request of a worker, and the worker receives no reply until its own
clock has ended its leases. The store still holds them, because it has executed the last renewals. On PostgreSQL a proxy
drops the replies. On SQLite a link between the engine and the store does.

If a release fails during an outage, the store holds the lease of a run that has ended.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager
from dataclasses import dataclass
from unittest import mock
from uuid import UUID

from flowfabric.engine import Engine
from flowfabric.runtime.run import TaskRunner
from flowfabric.runtime.threads import ThreadPools
from flowfabric.worker import Worker, active_runs
from tests.faults.kit.link import Link
from tests.faults.kit.ownership import (
    MODES,
    FragileRunner,
    OwnershipLedger,
    busy_claims,
    expected_results,
    make_program,
)
from tests.faults.kit.proxy import Proxy, proxies
from tests.faults.rows.row import Row, Tally, Trial
from tests.stores import PostgresTestStore, SqliteTestStore, opened

LEASE_S = 1.0
CLAIMS_S = 0.1
WORKERS = 8
PATIENCE_S = 30.0
JOBS_PER_OUTAGE = 20
OUTAGE_S = 1.5
OUTAGE_LEASE_S = 30.0
Store = SqliteTestStore | PostgresTestStore


@dataclass(frozen=True)
class Connection:
    """How one worker reaches the store, and the controls of the fault."""

    controls: Link | Proxy
    open_engine: Callable[[], AbstractAsyncContextManager[Engine]]
    open_renewal_engine: Callable[[], AbstractAsyncContextManager[Engine]]

    def heal(self) -> None:
        """Let replies pass again, and break the calls that wait for one."""
        self.controls.heal()
        if isinstance(self.controls, Proxy):
            self.controls.cut()


async def partition_workers(trial: Trial) -> Tally:
    """Partition each of several workers from the store, again and again."""
    tally, store = Tally(), trial.new_store()
    async with opened(store) as client, client.reconcilers.run_in_background():
        ledger = OwnershipLedger(client)
        with connections(store, trial) as reached:
            async with asyncio.TaskGroup() as group:
                for number, connection in enumerate(reached):
                    times = trial.faults // WORKERS + (number < trial.faults % WORKERS)
                    group.create_task(_partition(trial, client, ledger, connection, number, times, tally))
        tally.doubled, tally.wrong = tally.doubled + ledger.doubled, tally.wrong + ledger.wrong
    return tally


async def _partition(
    trial: Trial, client: Engine, ledger: OwnershipLedger, connection: Connection, number: int, times: int, tally: Tally
) -> None:
    lane, chance, threads = f"worker-{number}", trial.random(f"worker {number}"), ThreadPools(8)
    async with (
        connection.open_engine() as engine,
        Worker(
            engine,
            TaskRunner(make_program(ledger), threads),
            lanes=[lane],
            concurrency=8,
            lease_ttl=LEASE_S,
            reconcile=False,
            open_renewal_engine=connection.open_renewal_engine,
            threads=threads,
        ),
    ):
        # On a busy machine a lease can be lost before the partition begins. Such a try does not count.
        injected = 0
        for _ in range(3 * times):
            if injected < times and not tally.stuck:
                pause_s = chance.uniform(0.3, 0.7) * LEASE_S
                injected += await _partition_once(client, ledger, connection, lane, pause_s, tally)
    tally.injected += injected


async def _partition_once(
    client: Engine, ledger: OwnershipLedger, connection: Connection, lane: str, pause_s: float, tally: Tally
) -> bool:
    """Partition a worker that holds leases until it has lost them. Return False if it had lost them before."""
    jobs = {mode: await submit_job(client, mode, lane) for mode in MODES}
    held_up = {jobs["slow"], jobs["slow_once"]}
    if not await becomes(lambda: held_up <= ledger.waiting | ledger.lost_at.keys()):
        tally.stuck.append(f"the jobs of {lane} did not start")
        return False
    await asyncio.sleep(pause_s)  # A renewal succeeds.
    async with busy_claims(client, lane):
        await asyncio.sleep(CLAIMS_S)
        began, dropped, holds_leases = time.monotonic(), connection.controls.dropped, held_up <= ledger.waiting
        connection.controls.drops_replies = True
        is_lost = await becomes(lambda: held_up <= ledger.lost_at.keys())
        connection.heal()
    if not is_lost:
        tally.stuck.append(f"the runs of {lane} did not learn that their lease had ended")
    await check_results(client, jobs, tally)
    if not holds_leases or connection.controls.dropped == dropped:
        return False
    tally.recoveries_s += [ledger.resumed_at[id_] - began for id_ in held_up if id_ in ledger.resumed_at]
    return True


async def break_runs_in_outages(trial: Trial) -> Tally:
    """Let runs fail inside our own code during an outage, so that their leases cannot be released."""
    tally, store = Tally(), trial.new_store()
    async with opened(store) as client, client.reconcilers.run_in_background():
        ledger = OwnershipLedger(client)
        # The pause after a mistake in our own code is longer than a test can wait.
        with mock.patch.object(active_runs, "_ERROR_PAUSE_S", 0.2):
            while tally.injected < trial.faults and not tally.stuck:
                await _break_runs(store, client, ledger, tally)
        tally.doubled, tally.wrong = tally.doubled + ledger.doubled, tally.wrong + ledger.wrong
    return tally


async def _break_runs(store: Store, client: Engine, ledger: OwnershipLedger, tally: Tally) -> None:
    link, is_over, ready = Link(), asyncio.Event(), 0

    async def wait_for_outage() -> None:
        nonlocal ready
        ready += 1
        await is_over.wait()

    threads = ThreadPools(8)
    async with (
        # The engine repeats no call, as if the outage took longer than its repeats.
        link.opened(store.connecting(retry_for=0)) as engine,
        Worker(
            engine,
            FragileRunner(make_program(ledger), threads, wait_for_outage),
            concurrency=JOBS_PER_OUTAGE + 4,
            lease_ttl=OUTAGE_LEASE_S,
            reconcile=False,
            threads=threads,
        ),
        busy_claims(client),
    ):
        jobs = [await submit_job(client, "short") for _ in range(JOBS_PER_OUTAGE)]
        if not await becomes(lambda: ready == JOBS_PER_OUTAGE):
            tally.stuck.append("the jobs did not start")
            return
        link.is_down = True
        is_over.set()
        await asyncio.sleep(OUTAGE_S)
        link.heal()
        healed_at = time.monotonic()
        tally.injected += JOBS_PER_OUTAGE
        for id_ in jobs:
            await check_results(client, {"short": id_}, tally)
            tally.recoveries_s.append(time.monotonic() - healed_at)


@contextmanager
def connections(store: Store, trial: Trial) -> Iterator[list[Connection]]:
    """Yield one connection per worker."""
    if isinstance(store, SqliteTestStore):
        links = [Link() for _ in range(WORKERS)]
        yield [_over(link, store) for link in links]
        return
    with proxies(store.url, WORKERS, trial.seed) as pairs:
        yield [_behind(proxy, url, store.schema) for proxy, url in pairs]


def _over(link: Link, store: Store) -> Connection:
    def open_engine() -> AbstractAsyncContextManager[Engine]:
        return link.opened(store.connecting())

    return Connection(link, open_engine, open_engine)


def _behind(proxy: Proxy, url: str, schema: str) -> Connection:
    store = PostgresTestStore(url)
    store.schema = schema
    return Connection(proxy, lambda: opened(store, pool_size=4), lambda: opened(store, notify=False, pool_size=1))


async def submit_job(client: Engine, mode: str, lane: str = "default") -> UUID:
    """Submit a job of the program and return its id."""
    return (await client.executions.submit("job", json.dumps({"mode": mode}).encode(), lane=lane, priority=1)).id


async def check_results(client: Engine, jobs: dict[str, UUID], tally: Tally) -> None:
    """Wait for the results of jobs, and note the jobs that did not end and the wrong results."""
    for mode, id_ in jobs.items():
        tally.executions += 1
        outcome = await client.executions.wait(id_, timeout=PATIENCE_S)
        if outcome is None:
            tally.stuck.append(f"{mode} {id_} did not end within {PATIENCE_S:g} s")
        elif outcome.result is None or json.loads(outcome.result) not in expected_results(mode):
            tally.wrong.append(f"{mode} {id_} ended {outcome.state} with {outcome.result!r}")


async def becomes(condition: Callable[[], bool]) -> bool:
    """Wait until the condition is true. Return False if that takes too long."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        if time.monotonic() > deadline:
            return False
        await asyncio.sleep(0.005)
    return True


ROWS = (
    Row(
        name="one-way partition",
        fault="A worker's requests arrive, and the replies do not, until its own clock ends its leases",
        run=partition_workers,
        minimum=300,
        short_minimum=WORKERS,
        lease_s=LEASE_S,
        recovery_limit_s=2 * LEASE_S,
    ),
    Row(
        name="failed release",
        fault="A run fails inside our own code during an outage, so its lease cannot be released",
        run=break_runs_in_outages,
        minimum=200,
        short_minimum=JOBS_PER_OUTAGE,
        lease_s=OUTAGE_LEASE_S,
    ),
)
