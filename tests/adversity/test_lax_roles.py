"""A role or database that turns `synchronous_commit` off: acknowledged work survives a crash of the server anyway."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import asyncpg
import pytest

from flowfabric.engine import Engine, Step
from tests.postgres_server import PostgresServer, postgres_server
from tests.scenarios import leased
from tests.stores import PostgresTestStore, opened

# The server writes the log of an asynchronous commit to disk only after this time. A later synchronous commit would
# write it too, so the engine sends no notifications.
SETTINGS = {"wal_writer_delay": "10s", "wal_writer_flush_after": "1GB", "checkpoint_timeout": "1h"}
BY = {
    "role": "ALTER ROLE lax SET synchronous_commit = off",
    "database": "ALTER DATABASE postgres SET synchronous_commit = off",
}


@pytest.fixture(params=BY)
def lax_server(request: pytest.FixtureRequest) -> Iterator[PostgresServer]:
    """Yield a server on which the role `lax` commits asynchronously."""
    with postgres_server(**SETTINGS) as server:
        import psycopg

        with psycopg.connect(server.dsn, autocommit=True) as connection:
            connection.execute("CREATE ROLE lax LOGIN")
            connection.execute("GRANT CREATE ON DATABASE postgres TO lax")
            connection.execute(BY[request.param].encode())
        server.dsn = server.dsn.replace("postgres@", "lax@")
        yield server


@pytest.mark.parametrize("pooler", [False, True], ids=["direct", "pooler"])
async def test_rows_and_step_of_a_transaction_survive_a_crash(lax_server: PostgresServer, pooler: bool) -> None:
    store = PostgresTestStore(lax_server.dsn)

    async def body(db: Any) -> None:
        await db.execute(f'INSERT INTO "{store.schema}".paid VALUES (1)')
        # Code that turns durability off for itself must not turn it off for the step.
        await db.execute("SET LOCAL synchronous_commit = off")

    async with opened(store, pooler=pooler, notify=False) as engine:
        await store.query("CREATE TABLE ff.paid (amount INTEGER)")
        lease = await leased(engine)
        await engine.leases.transact(lease.fence, body, lambda _: Step("pay", b"1"))
        lax_server.stop("immediate")
    lax_server.start()
    async with opened(store, pooler=pooler) as engine:
        assert [step.name for step in await engine.executions.steps(lease.execution_id)] == ["pay"]
    assert len(await store.query("SELECT amount FROM ff.paid")) == 1


async def test_store_info_names_the_role_or_database(lax_server: PostgresServer) -> None:
    async with opened(PostgresTestStore(lax_server.dsn)) as engine:
        [name] = (await engine.store_info()).lax
        assert name in ('role "lax"', 'database "postgres"')
        assert await _setting_of_a_caller(lax_server.dsn) == "off"
        assert (await engine.store_info()).settings["synchronous_commit"] == "on"


async def test_store_info_of_a_strict_server_names_nothing(engine: Engine) -> None:
    assert (await engine.store_info()).lax == ()


async def _setting_of_a_caller(dsn: str) -> object:
    """Return the setting of a caller's own connection, which `submit_in_transaction` would use."""
    connection = await asyncpg.connect(dsn)
    try:
        return await connection.fetchval("SHOW synchronous_commit")
    finally:
        await connection.close()
