"""A dump restored on another server contains transaction ids of the original server.

The engine detects this, and the guide's repair fixes it.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from flowfabric.engine import Engine, InvalidRequest
from tests.expectations import refused
from tests.postgres_server import PostgresServer
from tests.scenarios import leased
from tests.stores import PostgresTestStore, opened

COLUMNS = (
    ("event", "transaction_id"), ("execution", "event_xid"), ("subscriber", "transaction_id"), ("store", "known_xid"),
)  # fmt: skip
PAGE = Path(__file__).parent.parent.parent / "docs" / "guides" / "deploying.md"


@pytest.fixture
async def store(postgres: PostgresServer) -> AsyncIterator[PostgresTestStore]:
    store = PostgresTestStore(postgres.dsn)
    yield store
    await store.drop()


async def names(engine: Engine, **options: Any) -> list[str]:
    async with engine.events.subscribe(["completion"], follow=False, **options) as events:
        return [str(event.kind) async for event in events]


async def done(engine: Engine, kind: str) -> None:
    await engine.leases.complete((await leased(engine, kind=kind)).fence)


async def test_restored_events_are_detected_and_renumbered(store: PostgresTestStore) -> None:
    async with opened(store) as engine:
        await done(engine, "first")
        assert await names(engine, name="billing", start="beginning") == ["first"]
        await done(engine, "second")
        cursor = await engine.events.cursor()
        assert not (await engine.events.status()).is_restored
    await carry_over(store)
    async with opened(store) as engine:
        await done(engine, "third")
        assert (await engine.events.status()).is_restored
        # The subscriber was ahead of this server, so it returned to the beginning, and misses no new event.
        assert (await names(engine, start="beginning"), await names(engine, name="billing")) == (["third"], ["third"])
        assert (await engine.events.status()).era == 1
        assert await names(engine, cursor=cursor) == ["third"]
    await put_in_order(store)
    async with opened(store) as engine:
        await done(engine, "fourth")
        assert not (await engine.events.status()).is_restored
        assert await names(engine, start="beginning") == ["first", "second", "third", "fourth"]
        assert (await names(engine, name="billing"))[-3:] == ["second", "third", "fourth"]
        await refused(anext(engine.events.subscribe(cursor=cursor)), "cursor_foreign", InvalidRequest)


async def carry_over(store: PostgresTestStore) -> None:
    """Simulate a restored dump: other tables, and transaction ids that are far ahead of this server's ids."""
    later = "(({}::TEXT)::BIGINT + 1000000000000)::TEXT::XID8"
    for table, column in COLUMNS:
        await store.query(f"UPDATE ff.{table} SET {column} = {later.format(column)}")
    await store.query("UPDATE ff.store SET origin = 1")


async def put_in_order(store: PostgresTestStore) -> None:
    """Run the repair statements from the guide."""
    match = re.search(r"### Backups.*?```text\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)
    assert match is not None
    connection = await asyncpg.connect(store.url)
    await connection.execute(match[1].replace("flowfabric.", f'"{store.schema}".'))
    await connection.close()
