"""A PostgreSQL server whose timeline changed, as after a failover.

The tests change the timeline that the store remembers. `tests/faults/rows/failovers.py` promotes real standbys.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from flowfabric.core.events.cursor import write_cursor
from flowfabric.engine import Engine, Unavailable
from tests.conformance.test_eras import current_position
from tests.expectations import refused
from tests.postgres_server import PostgresServer
from tests.scenarios import leased, submitted
from tests.stores import PostgresTestStore, opened


@pytest.fixture
async def store(postgres: PostgresServer) -> AsyncIterator[PostgresTestStore]:
    store = PostgresTestStore(postgres.dsn)
    yield store
    await store.drop()


async def change_timeline(store: PostgresTestStore) -> None:
    """Let the store believe that it was last used in another timeline."""
    await store.query("UPDATE ff.store SET timeline = '000000FF'")


async def era_of(engine: Engine) -> int:
    return (await engine.events.status()).era


async def test_claim_notices_another_timeline(store: PostgresTestStore) -> None:
    async with opened(store) as engine:
        await submitted(engine)
        await change_timeline(store)
        [lease] = await engine.leases.claim(["default"], "worker-1")
        assert lease.era == 1
        assert lease.ordered_epoch == 2**40 + 1


async def test_claim_by_id_and_held_notice_another_timeline(store: PostgresTestStore) -> None:
    async with opened(store) as engine:
        await change_timeline(store)
        lease = await leased(engine)
        assert lease.era == 1
        await change_timeline(store)
        assert [held.era for held in await engine.leases.held(lease.worker.instance)] == [2]


async def test_connect_and_status_notice_another_timeline(store: PostgresTestStore) -> None:
    async with opened(store) as engine:
        assert await era_of(engine) == 0
        await change_timeline(store)
        assert await era_of(engine) == 1
    await change_timeline(store)
    async with opened(store):
        [row] = await store.query("SELECT era FROM ff.store")
        assert row["era"] == 2


async def test_restart_in_the_same_timeline_begins_no_era(store: PostgresTestStore) -> None:
    for _ in range(3):
        async with opened(store, pooler=True) as engine:
            await leased(engine)
            assert await era_of(engine) == 0


async def test_era_starts_at_the_last_position_that_was_noted(store: PostgresTestStore) -> None:
    async with opened(store) as engine:
        await engine.leases.complete((await leased(engine, kind="old")).fence)
        lease = await leased(engine, kind="new")
        await engine.events.cursor()
        await change_timeline(store)
        # A write does not begin an era, so the era begins after this event. The cursor was read in the old timeline,
        # and its number was used again.
        await engine.leases.complete(lease.fence)
        read = await current_position(engine)
        cursor = write_cursor(read.scope, read.position)
        async with engine.events.subscribe(["completion"], cursor=cursor, follow=False) as events:
            assert [event.kind async for event in events] == ["new"]


async def test_role_that_may_not_read_the_timeline_works_without_it(store: PostgresTestStore) -> None:
    async with opened(store) as engine, store.raw_connection() as admin:
        await submitted(engine)
        schema, role = store.schema, f"role_{store.schema}"
        await admin.execute(f'CREATE ROLE "{role}" LOGIN')
        try:
            await admin.execute(f'GRANT USAGE ON SCHEMA "{schema}" TO "{role}"')
            await admin.execute(f'GRANT ALL ON ALL TABLES IN SCHEMA "{schema}" TO "{role}"')
            await admin.execute(f'GRANT ALL ON ALL SEQUENCES IN SCHEMA "{schema}" TO "{role}"')
            await admin.execute("REVOKE EXECUTE ON FUNCTION pg_current_wal_lsn() FROM PUBLIC")
            limited = PostgresTestStore(store.url.replace("postgres@", f"{role}@"))
            limited.schema = schema
            async with opened(limited) as other, other.events.subscribe(["lease"]) as events:
                [lease] = await other.leases.claim(["default"], "worker-1")
                assert (lease.era, (await anext(events)).name) == (0, "acquired")
            assert await era_of(engine) == 0
        finally:
            await admin.execute("GRANT EXECUTE ON FUNCTION pg_current_wal_lsn() TO PUBLIC")
            await admin.execute(f'DROP OWNED BY "{role}"')
            await admin.execute(f'DROP ROLE "{role}"')


async def test_server_that_refuses_writes_is_reported_as_read_only(store: PostgresTestStore) -> None:
    async with opened(store) as engine:
        await submitted(engine)
    read_only = PostgresTestStore(f"{store.url}&options=-c%20default_transaction_read_only%3Don")
    read_only.schema = store.schema
    async with opened(read_only) as engine:
        await refused(engine.executions.submit("job"), "server_read_only", Unavailable)
