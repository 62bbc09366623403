"""Test that locked rows at the head of a queue do not hide later rows, and are found after they are unlocked."""

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


async def test_claim_that_found_only_locked_rows_is_retried_soon_without_a_wake_up(store: PostgresTestStore) -> None:
    async with opened(store) as engine, engine.reconcilers.run_in_background():
        id_ = await submitted(engine)
        with engine.leases.watch(["default"]) as work:
            async with store.locked(id_):
                while await work.wait("100ms"):
                    pass  # Consume the notification of the submission.
                assert await claimed(engine, 1) == []
            claimed_ids: list[UUID] = []
            async with asyncio.timeout(IN_TIME_S):
                while not claimed_ids:
                    await work.wait()
                    claimed_ids = await claimed(engine, 1)
    assert claimed_ids == [id_]
