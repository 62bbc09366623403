"""PostgreSQL is stopped, crashed and started, and its backends are terminated, under load: engines come back alone."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal

import asyncpg
import pytest

from flowfabric.backends.postgres.errors import translated
from flowfabric.engine import Unavailable
from tests.faults.checker import Findings, violations
from tests.faults.fork_server import ForkServer
from tests.faults.ledgers import Run
from tests.faults.pictures import camera_on
from tests.faults.storm import PATIENCE_S, Crew, Load, all_ended
from tests.postgres_server import PostgresServer, postgres_server
from tests.sizes import Size
from tests.stores import PostgresTestStore, opened

WORKERS = 4
TERMINATE = """
SELECT COUNT(pg_terminate_backend(pid)) AS number
FROM pg_stat_activity
WHERE application_name = 'flowfabric' AND random() < 0.7
"""


@pytest.fixture(scope="module")
def own_postgres() -> Iterator[PostgresServer]:
    """A server that these tests may stop."""
    with postgres_server() as server:
        yield server


async def test_engines_come_back_by_themselves(
    own_postgres: PostgresServer, tmp_path: Path, forks: ForkServer, scoreboard: Callable[[str], None], size: Size
) -> None:
    rounds = size.of(1, 10, 50)
    run, store = Run(tmp_path / "run"), PostgresTestStore(own_postgres.dsn)
    async with opened(store) as engine, engine.reconcilers.running():
        crew = Crew(forks, run, store)
        load, stop = Load(engine, run, Reconnecting(store)), asyncio.Event()
        crew.hire(WORKERS)
        submitting = asyncio.create_task(load.submit_until(stop))
        async with load.answering():
            await load.reached(20)
            terminated, back_s = 0, []
            for _ in range(rounds):
                terminated += await terminate_backends(own_postgres.dsn, 10)
                back_s += [await restart(own_postgres, mode, load) for mode in ("fast", "immediate")]
            stop.set()
            await submitting
            camera = await camera_on(store)
            settled_s = await all_ended(camera)
        crew.dismiss()
        found = await Findings.gather(run, camera)
        await camera.close()

    codes = Counter(line["code"] for line in found.witness if line["what"] == "unavailable")
    scoreboard(
        f"{2 * rounds} restarts, serving again after at most {max(back_s):.1f} s, {terminated} backends terminated "
        f"(at least {rounds * 10}), {load.acknowledged} executions, workers saw {dict(codes)}; "
        f"all ended {settled_s:.1f} s after the last fault"
    )
    assert violations(found) == []
    assert settled_s < PATIENCE_S
    assert terminated >= rounds * 10 and codes.total() > 0
    assert "storage_error" not in codes, "an outage was taken for a bad statement"


async def test_duties_that_met_an_outage_go_on_after_it(own_postgres: PostgresServer) -> None:
    async with opened(PostgresTestStore(own_postgres.dsn)) as engine, engine.reconcilers.running():
        answer = await engine.executions.submit("job", delay="500ms")
        await asyncio.to_thread(own_postgres.stop, "immediate")
        engine.reconcilers.hint()
        await asyncio.sleep(0.2)
        await asyncio.to_thread(own_postgres.start)
        async with asyncio.timeout(10):
            while (await engine.executions.describe(answer.id)).state == "delayed":  # noqa: ASYNC110 - only rows tell
                await asyncio.sleep(0.02)


def test_a_driver_that_lost_its_place_means_a_lost_connection() -> None:
    error = translated(asyncpg.InternalClientError("cannot switch to state 15; another operation (2) is in progress"))
    assert isinstance(error, Unavailable)
    assert error.code == "connection_lost"


class Reconnecting:
    """A camera that connects anew for each shot, and waits while there is no server."""

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
    """Terminates most of the engines' connections, again and again; answers how many."""
    connection, number = await asyncpg.connect(dsn), 0
    for _ in range(times):
        number += await connection.fetchval(TERMINATE)
        await asyncio.sleep(0.15)
    await connection.close()
    return number


async def restart(server: PostgresServer, mode: Literal["fast", "immediate"], load: Load) -> float:
    """Stops and starts the server; answers how long after that the client's next submit was acknowledged."""
    await asyncio.to_thread(server.stop, mode)
    await asyncio.sleep(0.3)
    await asyncio.to_thread(server.start)
    began, before = time.monotonic(), load.acknowledged
    await load.submit("plain")
    assert load.acknowledged > before
    return time.monotonic() - began
