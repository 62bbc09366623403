"""`connect` refuses a server on which the engine cannot work, with the next action, and `doctor` reports it."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from flowfabric.engine import FlowFabricError, InvalidRequest, Unavailable, connect
from tests.adversity.transaction_pooler import pooler_before
from tests.end_to_end.cli.shell import CommandOutput, Shell
from tests.faults.kit.replication import SETTINGS
from tests.postgres_server import PostgresServer, postgres_server, standby_server
from tests.scenarios import submitted
from tests.stores import PostgresTestStore, opened

HIDING = {
    "no policy": "",
    "policy for some rows": "CREATE POLICY mine ON ff.execution USING (lane = 'mine')",
    "policy that forbids writes": "CREATE POLICY read_only ON ff.execution FOR SELECT USING (TRUE)",
    "policy for another role": "CREATE POLICY other ON ff.execution TO postgres USING (TRUE)",
    "restrictive policy": "CREATE POLICY everything ON ff.execution USING (TRUE);"
    " CREATE POLICY fewer ON ff.execution AS RESTRICTIVE USING (lane = 'mine')",
}


@pytest.fixture
def shell(capsys: pytest.CaptureFixture[str]) -> Iterator[Shell]:
    """Yield a shell without a store, and restore the log handlers afterwards."""
    logger = logging.getLogger("flowfabric")
    handlers, level = logger.handlers, logger.level
    yield Shell(None, capsys)
    logger.handlers = handlers
    logger.setLevel(level)


@pytest.fixture(scope="module")
def replica() -> Iterator[PostgresServer]:
    """Yield a replica of a server that has a store."""
    with postgres_server(**SETTINGS) as primary, standby_server(primary, **SETTINGS) as standby:
        yield standby


@pytest.fixture
async def owner(postgres: PostgresServer) -> AsyncIterator[PostgresTestStore]:
    """Yield a store with one execution."""
    store = PostgresTestStore(postgres.dsn)
    async with opened(store) as engine:
        await submitted(engine)
    yield store
    await store.drop()


@pytest.fixture
async def tenant(owner: PostgresTestStore) -> AsyncIterator[PostgresTestStore]:
    """Yield the same store for another role, which may read and write all tables."""
    role = f"tenant_{owner.schema}"
    store = PostgresTestStore(owner.url.replace("postgres@", f"{role}@"))
    store.schema = owner.schema
    grants = ("USAGE ON SCHEMA", "ALL ON ALL TABLES IN SCHEMA", "ALL ON ALL SEQUENCES IN SCHEMA")
    await owner.queries([f"CREATE ROLE {role} LOGIN", *(f'GRANT {on} "{owner.schema}" TO {role}' for on in grants)])
    yield store
    await owner.queries([f"DROP OWNED BY {role}", f"DROP ROLE {role}"])


def assert_wrong(output: CommandOutput, subject: str, *words: str) -> None:
    """Check that `doctor` fails with a finding, and prints the error on one line."""
    text = " ".join(" ".join(output.lines).split())
    assert output.code != 0 and text.startswith(f"wrong {subject}") and "->" in text
    for word in words:
        assert word in text
    assert len(output.error.splitlines()) == 1


async def test_connect_refuses_a_replica(replica: PostgresServer) -> None:
    for pooler in (False, True):
        with pytest.raises(Unavailable) as refused:
            await connect(replica.dsn, durable=False, migrate=False, pooler=pooler)
        assert refused.value.code == "server_read_only"
        assert "replica" in refused.value.message and "connect to the primary" in refused.value.message


async def test_doctor_of_a_replica_fails(replica: PostgresServer, shell: Shell) -> None:
    assert_wrong(await shell.run("--store", replica.dsn, "doctor"), "store", "replica", "primary")


async def test_connect_refuses_a_database_whose_encoding_is_not_utf8(postgres: PostgresServer, shell: Shell) -> None:
    store = PostgresTestStore(postgres.dsn)
    await store.query("CREATE DATABASE latin ENCODING 'LATIN1' TEMPLATE template0 LC_COLLATE 'C' LC_CTYPE 'C'")
    url = store.url.replace("/postgres?", "/latin?")
    try:
        with pytest.raises(InvalidRequest) as refused:
            await connect(url)
        assert (refused.value.code, refused.value.fields["encoding"]) == ("unsupported_encoding", "LATIN1")
        assert "ENCODING 'UTF8'" in refused.value.message
        assert_wrong(await shell.run("--store", url, "doctor"), "store", "LATIN1", "UTF8")
    finally:
        await store.query("DROP DATABASE latin")


@pytest.mark.parametrize("refuses", [True, False], ids=["refuses settings", "drops settings"])
async def test_connect_refuses_a_pooler_that_was_not_declared(
    owner: PostgresTestStore, tmp_path: Path, shell: Shell, refuses: bool
) -> None:
    async with pooler_before(owner.url, tmp_path, refuses_settings=refuses) as (address, _):
        with pytest.raises(InvalidRequest) as refused:
            await connect(address, schema=owner.schema)
        assert refused.value.code == "pooler_undeclared"
        assert "pooler=True" in refused.value.message
        output = await shell.run("--store", address, "doctor")
        assert_wrong(output, "store", "pooler", "--pooler")
        assert "--pooler" in output.error
        async with connect(address, schema=owner.schema, pooler=True, durable=False) as engine:
            await submitted(engine)


@pytest.mark.parametrize("form", HIDING)
async def test_connect_refuses_row_level_security_that_hides_rows(
    owner: PostgresTestStore, tenant: PostgresTestStore, shell: Shell, form: str
) -> None:
    await owner.queries(["ALTER TABLE ff.execution ENABLE ROW LEVEL SECURITY", *filter(None, HIDING[form].split("; "))])
    with pytest.raises(InvalidRequest) as refused:
        await tenant.connecting()
    assert (refused.value.code, refused.value.fields["table"]) == ("rows_hidden", "execution")
    assert "DISABLE ROW LEVEL SECURITY" in refused.value.message and "tenant" in refused.value.message
    output = await shell.run("--store", tenant.url, "--schema", tenant.schema, "doctor")
    assert_wrong(output, "store", "row-level security", "BYPASSRLS")
    async with opened(owner) as engine:  # The owner of the tables sees all rows.
        await submitted(engine)


async def test_row_level_security_on_the_migrations_does_not_look_like_an_empty_schema(
    owner: PostgresTestStore, tenant: PostgresTestStore
) -> None:
    await owner.query("ALTER TABLE ff.migration ENABLE ROW LEVEL SECURITY")
    with pytest.raises(FlowFabricError) as refused:
        await tenant.connecting(migrate=False)
    assert refused.value.code == "rows_hidden"


async def test_policy_that_shows_every_row_is_accepted(owner: PostgresTestStore, tenant: PostgresTestStore) -> None:
    role = f"tenant_{owner.schema}"
    await owner.query("ALTER TABLE ff.execution ENABLE ROW LEVEL SECURITY")
    await owner.query(f"CREATE POLICY everything ON ff.execution TO {role} USING (TRUE)")
    async with opened(tenant) as engine:
        await submitted(engine)
        assert sum(count.value for count in (await engine.executions.count()).values()) == 2
