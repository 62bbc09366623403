"""Test that `connect` refuses an unusable store, and that callers never see the errors of a database driver."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from flowfabric.engine import Engine, FlowFabricError, InvalidRequest, Unavailable, connect
from tests.children import ROOT
from tests.postgres_server import DSN_VARIABLE, postgres_server
from tests.scenarios import leased
from tests.stores import PostgresTestStore, TestStore, opened

# A program that runs without the PostgreSQL driver. SQLite works, and connecting to PostgreSQL raises an error.
WITHOUT_DRIVER = """
import asyncio, sys
sys.modules["asyncpg"] = None
import flowfabric

async def main():
    async with flowfabric.connect(":memory:") as engine:
        await engine.executions.submit("job")
    try:
        await flowfabric.connect("postgresql://localhost/x")
    except flowfabric.InvalidRequest as error:
        print(error)

asyncio.run(main())
"""

BAD_ADDRESSES = {
    "no such host": "postgresql://host.invalid/db",
    "no server on the port": "postgresql://127.0.0.1:1/db",
    "no such socket": "postgresql://user@/db?host=/nowhere",
    "port is no number": "postgresql://localhost:port/db",
    "port is too large": "postgresql://localhost:99999/db",
    "half an address": "postgresql://[::1/db",
    "unknown option": "postgresql://user@/db?host=/nowhere&sslmode=nonsense",
    "unknown store": "mysql://localhost/db",
    "sqlite with a host": "sqlite://host/db",
    "nothing": "",
}

CALLS: dict[str, Callable[[Engine, Any], Awaitable[Any]]] = {
    "submit": lambda engine, lease: engine.executions.submit("job"),
    "submit with a key": lambda engine, lease: engine.executions.submit("job", key="key"),
    "claim": lambda engine, lease: engine.leases.claim(["default"], "w"),
    "claim by id": lambda engine, lease: engine.leases.claim_execution(lease.execution_id, "w"),
    "renew": lambda engine, lease: engine.leases.renew(lease.fence),
    "progress": lambda engine, lease: engine.leases.progress(lease.fence, 1),
    "complete": lambda engine, lease: engine.leases.complete(lease.fence),
    "fail": lambda engine, lease: engine.leases.fail(lease.fence, "no"),
    "cancel": lambda engine, lease: engine.operator.cancel(lease.execution_id),
    "replay": lambda engine, lease: engine.operator.replay(lease.execution_id),
    "describe": lambda engine, lease: engine.executions.describe(lease.execution_id),
    "list": lambda engine, lease: engine.executions.list(),
    "count": lambda engine, lease: engine.executions.count(),
    "held": lambda engine, lease: engine.leases.held("w"),
    "tick": lambda engine, lease: engine.reconcilers.tick(),
}


async def test_server_with_unsafe_durability_is_refused_unless_accepted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv(DSN_VARIABLE, raising=False)
    with postgres_server(fsync="off", full_page_writes="on") as server:
        with pytest.raises(InvalidRequest) as refused:
            await connect(server.dsn)
        assert (refused.value.code, refused.value.fields["setting"]) == ("unsafe_durability", "fsync")
        async with connect(server.dsn, durable=False) as engine:
            await engine.ping()


async def test_server_with_safe_durability_is_accepted(spare: PostgresTestStore) -> None:
    async with opened(spare, durable=True) as engine:
        await engine.ping()


def test_missing_driver_error_names_the_package_and_sqlite_still_works() -> None:
    command = [sys.executable, "-c", WITHOUT_DRIVER]
    output = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert output.startswith("driver_missing: ")
    assert "pip install" in output


@pytest.mark.parametrize("what", BAD_ADDRESSES)
async def test_unreachable_address_raises_our_error(what: str) -> None:
    with pytest.raises(FlowFabricError):
        await connect(BAD_ADDRESSES[what], durable=False)


async def test_missing_database_or_user_raises_our_error(spare: PostgresTestStore) -> None:
    for address in (spare.url.replace("/postgres?", "/missing?"), spare.url.replace("postgres@", "nobody_we_know@")):
        with pytest.raises(Unavailable) as denied:
            await connect(address)
        assert denied.value.code == "access_denied"


async def test_user_without_rights_gets_a_clear_error(spare: PostgresTestStore) -> None:
    await spare.query("CREATE ROLE outsider LOGIN")
    stranger = PostgresTestStore(spare.url.replace("postgres@", "outsider@"))
    stranger.schema = spare.schema
    with pytest.raises(Unavailable) as denied:
        await stranger.connecting()
    assert denied.value.code == "access_denied"
    async with opened(spare):
        with pytest.raises(Unavailable) as denied:
            await stranger.connecting()
    assert denied.value.code == "access_denied"
    await spare.query("DROP ROLE outsider")


async def test_no_driver_error_leaks_when_tables_vanish(store: TestStore) -> None:
    async with opened(store) as engine:
        lease = await leased(engine)
        for table in ("execution", "submission_key"):
            await store.query(f"DROP TABLE ff.{table}")
        for name, call in CALLS.items():
            with pytest.raises(Unavailable) as failed:
                await call(engine, lease)
            assert failed.value.code == "storage_refused", name
            assert failed.value.__cause__ is not None, name


async def test_no_driver_error_leaks_when_a_row_breaks_a_constraint(store: TestStore) -> None:
    async with opened(store) as engine:
        lease = await leased(engine)
        # Insert an event with the execution's next version, so that no transition can be written.
        await store.query(
            "INSERT INTO ff.event (namespace, family, name, at, lane, execution_id, version, ends_lease)"
            " SELECT namespace, 'lease', 'acquired', changed_at, lane, id, version + 1, id <> id FROM ff.execution"
        )
        for name in ("complete", "fail", "cancel"):
            with pytest.raises(Unavailable) as failed:
                await CALLS[name](engine, lease)
            assert failed.value.code == "storage_error", name
        assert (await engine.executions.describe(lease.execution_id)).state == "active"
