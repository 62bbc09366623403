"""Heads of the queue that somebody else has locked for a moment: they hide nothing, and are not forgotten."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from uuid import UUID

import pytest

from flowfabric.engine import Engine
from tests.postgres_server import PostgresServer
from tests.scenarios import submitted
from tests.stores import PostgresTestStore, opened

IN_TIME_S = 3.0


@pytest.fixture
async def store(postgres: PostgresServer) -> AsyncIterator[PostgresTestStore]:
    store = PostgresTestStore(postgres.dsn)
    yield store
    await store.drop()


async def claimed(engine: Engine, limit: int) -> list[UUID]:
    return [lease.execution_id for lease in await engine.leases.claim(["default"], "worker", limit=limit)]


@pytest.mark.parametrize("limit", [1, 2])
async def test_locked_heads_of_one_route_do_not_hide_the_work_of_another(store: PostgresTestStore, limit: int) -> None:
    async with opened(store) as engine:
        heads = [await submitted(engine, kind="first", priority=5) for _ in range(limit)]
        others = [await submitted(engine, kind=f"other {number}") for number in range(3)]
        async with store.locked(*heads):
            assert await claimed(engine, limit) == others[:limit]
        assert await claimed(engine, limit) == heads


async def test_whoever_found_all_locked_claims_again_soon_though_no_bell_rings(store: PostgresTestStore) -> None:
    async with opened(store) as engine, engine.reconcilers.running():
        id_ = await submitted(engine)
        with engine.leases.watch(["default"]) as work:
            async with store.locked(id_):
                while await work.wait("100ms"):
                    pass  # It rang for the submission.
                assert await claimed(engine, 1) == []
            found: list[UUID] = []
            async with asyncio.timeout(IN_TIME_S):
                while not found:
                    await work.wait()
                    found = await claimed(engine, 1)
    assert found == [id_]
