"""PostgreSQL is stopped, crashed and started, and its backends are terminated, under load. Engines recover."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import asyncpg
import pytest

from flowfabric.backends.postgres.errors import translate
from flowfabric.engine import Unavailable
from tests.faults.checker import violations
from tests.faults.fork_server import ForkServer
from tests.faults.rows.server_outages import TERMINATIONS, stop_server
from tests.faults.storm import PATIENCE_S
from tests.postgres_server import PostgresServer, postgres_server
from tests.sizes import Size
from tests.stores import PostgresTestStore, opened


@pytest.fixture(scope="module")
def own_postgres() -> Iterator[PostgresServer]:
    """Yield a server that these tests may stop."""
    with postgres_server() as server:
        yield server


@pytest.mark.alone
@pytest.mark.long  # The row `server stopped or crashed` is the short form.
async def test_engines_recover_after_outages(
    own_postgres: PostgresServer, tmp_path: Path, forks: ForkServer, scoreboard: Callable[[str], None], size: Size
) -> None:
    rounds = size.of(1, 10, 50)
    report = await stop_server(own_postgres, tmp_path / "run", forks, rounds=rounds, chance=random.Random(size.seed))
    codes = report.codes
    scoreboard(
        f"{2 * rounds} restarts, serving again after at most {max(report.back_s):.1f} s, {report.terminated} backends "
        f"terminated (at least {rounds * TERMINATIONS}), {report.load.acknowledged} executions, workers saw "
        f"{dict(codes)}; all ended {report.settled_s:.1f} s after the last fault"
    )
    assert violations(report.findings) == []
    assert report.settled_s < PATIENCE_S
    assert report.terminated >= rounds * TERMINATIONS and codes.total() > 0
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
