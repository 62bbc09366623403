"""A PostgreSQL server is stopped, crashed and started, and its backends are terminated, under load."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import asyncpg

from tests.faults.checker import Findings, violations
from tests.faults.fork_server import ForkServer, fork_server
from tests.faults.kit.ledgers import Run
from tests.faults.rows.row import Row, Tally, Trial
from tests.faults.store_dump import camera_on
from tests.faults.storm import PATIENCE_S, Crew, Load, all_ended
from tests.postgres_server import PostgresServer, postgres_server
from tests.stores import PostgresTestStore, opened

WORKERS = 4
TERMINATIONS = 10
TERMINATE = """
SELECT COUNT(pg_terminate_backend(pid)) AS number
FROM pg_stat_activity
WHERE application_name = 'flowfabric' AND random() < 0.7
"""


@dataclass(frozen=True)
class OutageReport:
    """What happened while the server was stopped and started."""

    findings: Findings
    load: Load
    terminated: int
    back_s: list[float]
    settled_s: float

    @property
    def codes(self) -> Counter[str]:
        """The errors that the workers saw during outages, by code."""
        return Counter(line["code"] for line in self.findings.witness if line["what"] == "unavailable")


async def stop_server(
    server: PostgresServer, folder: Path, forks: ForkServer, *, rounds: int, chance: random.Random
) -> OutageReport:
    """Terminate backends, and stop and crash the server, in each round. Workers and a client continue to run."""
    run, store = Run(folder), PostgresTestStore(server.dsn)
    async with opened(store) as engine, engine.reconcilers.run_in_background():
        crew = Crew(forks, run, store, chance)
        load, stop = Load(engine, run, Reconnecting(store), chance), asyncio.Event()
        crew.hire(WORKERS)
        submitting = asyncio.create_task(load.submit_until(stop))
        async with load.answering():
            await load.reached(20)
            terminated, back_s = 0, list[float]()
            for _ in range(rounds):
                terminated += await terminate_backends(server.dsn, TERMINATIONS)
                back_s += [await restart(server, mode, load) for mode in ("fast", "immediate")]
            stop.set()
            await submitting
            camera = await camera_on(store)
            settled_s = await all_ended(camera)
        crew.dismiss()
        findings = await Findings.gather(run, camera)
        await camera.close()
    return OutageReport(findings, load, terminated, back_s, settled_s)


class Reconnecting:
    """A camera that reconnects for each picture and waits while there is no server."""

    def __init__(self, store: PostgresTestStore) -> None:
        self._store = store

    async def rows(self, sql: str) -> list[dict[str, object]]:
        while True:
            try:
                return await self._store.query(sql)
            except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError):
                await asyncio.sleep(0.05)

    async def script(self, sql: str) -> None:
        await self.rows(sql)

    async def close(self) -> None:
        return None


async def terminate_backends(dsn: str, times: int) -> int:
    """Repeatedly terminate most of the engines' connections, and return how many were terminated."""
    connection, number = await asyncpg.connect(dsn), 0
    for _ in range(times):
        number += await connection.fetchval(TERMINATE)
        await asyncio.sleep(0.15)
    await connection.close()
    return number


async def restart(server: PostgresServer, mode: Literal["fast", "immediate"], load: Load) -> float:
    """Stop and start the server; return the time until the client's next submit was acknowledged."""
    await asyncio.to_thread(server.stop, mode)
    await asyncio.sleep(0.3)
    await asyncio.to_thread(server.start)
    began = time.monotonic()
    await load.submit("plain")
    return time.monotonic() - began


async def _run(trial: Trial) -> Tally:
    rounds = -(-trial.faults // 2)
    with postgres_server() as server, fork_server() as forks:
        report = await stop_server(server, trial.folder / "run", forks, rounds=rounds, chance=trial.random())
    tally = Tally(
        injected=len(report.back_s),
        executions=report.load.acknowledged,
        signals=len(report.load.signals),
        recoveries_s=report.back_s,
    )
    tally.add_violations(violations(report.findings))
    if report.settled_s >= PATIENCE_S:
        tally.stuck.append(f"work had not ended {PATIENCE_S:g} s after the last outage")
    if "storage_error" in report.codes:
        tally.wrong.append("an outage was taken for a bad statement")
    if report.terminated < rounds * TERMINATIONS or not report.codes:
        tally.wrong.append(f"{report.terminated} sessions were terminated, and workers saw {dict(report.codes)}")
    return tally


ROWS = (
    Row(
        "server stopped or crashed",
        "The database server is stopped or crashed, and its sessions are terminated",
        _run,
        minimum=20,
        short_minimum=1,
        backends=("postgres",),
    ),
)
