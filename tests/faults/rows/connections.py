"""A PostgreSQL server has no free connection, or closes idle sessions. Clients and workers do not notice."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import asyncpg

from tests.faults.kit.program import Program
from tests.faults.rows.row import Row, Tally, Trial
from tests.stores import PostgresTestStore

CLIENTS = 16
POOL_SIZE = 20
LEASE = "5s"
# The renewal of leases, the listener and `step.tx` need a connection each, besides the pool of the engine.
CONNECTION_LIMIT = 8
MIN_PAUSE_S, MAX_PAUSE_S = 0.05, 0.3
TERMINATE = """
SELECT COUNT(pg_terminate_backend(pid)) FROM (
    SELECT pid FROM pg_stat_activity WHERE usename = $1 AND state = 'idle' ORDER BY random() LIMIT $2
) AS session
"""


@asynccontextmanager
async def running(trial: Trial, limit: int) -> AsyncIterator[tuple[Program, str, str]]:
    """Run the program as a role with at most `limit` connections. Yield it with the name and the URL of the role."""
    store = PostgresTestStore(trial.dsn)
    role = f"role_{store.schema}"
    await store.query(f"CREATE ROLE {role} LOGIN CONNECTION LIMIT {limit}")
    await store.query(f"GRANT CREATE ON DATABASE postgres TO {role}")
    url = trial.dsn.replace("postgres@", f"{role}@")
    try:
        program = Program(store, url, pool_size=POOL_SIZE)
        async with program.app, program.app.worker(concurrency=2 * CLIENTS, lease=LEASE):
            await program.prepare()
            await store.query(f"GRANT ALL ON ff.paid TO {role}")
            yield program, role, url
    finally:
        await store.drop()
        await store.query(f"REVOKE CREATE ON DATABASE postgres FROM {role}")
        await store.query(f"DROP ROLE {role}")


async def _exhaust(trial: Trial) -> Tally:
    async with running(trial, CONNECTION_LIMIT) as (program, role, url):
        hog = Hog(program, role, url, trial.dsn, trial.random())
        hogging = asyncio.create_task(hog.run())
        await program.serve_until(lambda: hog.exhausted >= trial.faults, CLIENTS)
        hogging.cancel()
        await asyncio.gather(hogging, return_exceptions=True)
        tally = await program.check()
        tally.injected = hog.exhausted
    return tally


class Hog:
    """Takes every free connection of a role for a moment, and closes one of the program's idle sessions."""

    def __init__(self, program: Program, role: str, url: str, dsn: str, chance: random.Random) -> None:
        self._program = program
        self._role = role
        self._url = url
        self._dsn = dsn
        self._chance = chance
        self.exhausted = 0

    async def run(self) -> None:
        """Exhaust the connections again and again until cancelled."""
        control = await asyncpg.connect(self._dsn)
        taken: list[Any] = []
        try:
            while True:
                await self._take_all(taken)
                self.exhausted += 1
                self._program.note_fault()
                await control.fetchval(TERMINATE, self._role, 1)
                await self._take_all(taken)
                await asyncio.sleep(self._chance.uniform(MIN_PAUSE_S, MAX_PAUSE_S))
                await self._give_back(taken)
                await asyncio.sleep(self._chance.uniform(MIN_PAUSE_S, MAX_PAUSE_S))
        finally:
            await self._give_back(taken)
            await control.close()

    async def _take_all(self, taken: list[Any]) -> None:
        with suppress(asyncpg.TooManyConnectionsError):
            while True:
                taken.append(await asyncpg.connect(self._url))

    async def _give_back(self, taken: list[Any]) -> None:
        while taken:
            await taken.pop().close()


async def _close_idle(trial: Trial) -> Tally:
    closed, chance = 0, trial.random()
    async with running(trial, -1) as (program, role, _):
        control = await asyncpg.connect(trial.dsn)

        async def close_often() -> None:
            nonlocal closed
            while True:
                await asyncio.sleep(chance.uniform(MIN_PAUSE_S, MAX_PAUSE_S))
                closed += await control.fetchval(TERMINATE, role, POOL_SIZE)
                program.note_fault()

        closing = asyncio.create_task(close_often())
        await program.serve_until(lambda: closed >= trial.faults, CLIENTS)
        closing.cancel()
        await asyncio.gather(closing, return_exceptions=True)
        await control.close()
        tally = await program.check()
        tally.injected = closed
    return tally


ROWS = (
    Row(
        "connections exhausted",
        "The server has no free connection for the role, and also closes sessions of the program",
        _exhaust,
        minimum=150,
        short_minimum=5,
        backends=("postgres",),
    ),
    Row(
        "idle sessions closed",
        "The server closes the idle sessions of the program",
        _close_idle,
        minimum=1000,
        short_minimum=20,
        backends=("postgres",),
    ),
)
