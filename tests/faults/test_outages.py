"""PostgreSQL is stopped, crashed and started, and its backends are terminated, under load. Engines recover."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal

import asyncpg
import pytest

from flowfabric.backends.postgres.errors import translate
from flowfabric.engine import Unavailable
from tests.faults.checker import Findings, violations
from tests.faults.fork_server import ForkServer
from tests.faults.kit.ledgers import Run
from tests.faults.store_dump import camera_on
from tests.faults.storm import PATIENCE_S, Crew, Load, all_ended
from tests.postgres_server import PostgresServer, postgres_server
from tests.sizes import Size
from tests.stores import PostgresTestStore, opened

pytestmark = pytest.mark.alone

WORKERS = 4
TERMINATE = """
SELECT COUNT(pg_terminate_backend(pid)) AS number
FROM pg_stat_activity
WHERE application_name = 'flowfabric' AND random() < 0.7
"""


@pytest.fixture(scope="module")
def own_postgres() -> Iterator[PostgresServer]:
    """Yield a server that these tests may stop."""
    with postgres_server() as server:
        yield server


async def test_engines_recover_after_outages(
    own_postgres: PostgresServer, tmp_path: Path, forks: ForkServer, scoreboard: Callable[[str], None], size: Size
) -> None:
    rounds = size.of(1, 10, 50)
    run, store = Run(tmp_path / "run"), PostgresTestStore(own_postgres.dsn)
    async with opened(store) as engine, engine.reconcilers.run_in_background():
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
        findings = await Findings.gather(run, camera)
        await camera.close()

    codes = Counter(line["code"] for line in findings.witness if line["what"] == "unavailable")
    scoreboard(
        f"{2 * rounds} restarts, serving again after at most {max(back_s):.1f} s, {terminated} backends terminated "
        f"(at least {rounds * 10}), {load.acknowledged} executions, workers saw {dict(codes)}; "
        f"all ended {settled_s:.1f} s after the last fault"
    )
    assert violations(findings) == []
    assert settled_s < PATIENCE_S
    assert terminated >= rounds * 10 and codes.total() > 0
    assert "storage_error" not in codes, "an outage was taken for a bad statement"


async def test_duties_continue_after_an_outage(own_postgres: PostgresServer) -> None:
    async with opened(PostgresTestStore(own_postgres.dsn)) as engine, engine.reconcilers.run_in_background():
        submitted = await engine.executions.submit("job", delay="500ms")
        await asyncio.to_thread(own_postgres.stop, "immediate")
        engine.reconcilers.wake_for()
        await asyncio.sleep(0.2)
        await asyncio.to_thread(own_postgres.start)
        async with asyncio.timeout(10):
            while (await engine.executions.describe(submitted.id)).state == "delayed":  # noqa: ASYNC110 - no event to await
                await asyncio.sleep(0.02)


def test_driver_protocol_error_counts_as_a_lost_connection() -> None:
    error = translate(asyncpg.InternalClientError("cannot switch to state 15; another operation (2) is in progress"))
    assert isinstance(error, Unavailable)
    assert error.code == "connection_lost"


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
    began, before = time.monotonic(), load.acknowledged
    await load.submit("plain")
    assert load.acknowledged > before
    return time.monotonic() - began
