"""Test that a store that stays open behaves like a new one in the next test."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import fields
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from flowfabric.engine import Engine
from flowfabric.testing import VirtualClock
from tests.open_stores import OpenPostgresStore, OpenSqliteStore, OpenStore, OpenStores
from tests.stores import PostgresSchemas, SqliteTestStore, TestStore, opened, snapshot

# Attributes that always differ: ids and the number of claims before a vacuum are random, and the offset of a running
# clock changes all the time.
ALWAYS_DIFFERENT = ("ids", "claims_left", "_zero_time")
PLAIN = (bool, int, float, str, bytes, datetime, timedelta, type(None))


@pytest.fixture
def open_store(store: TestStore, open_stores: OpenStores) -> OpenStore:
    """Return a store that stays open, once per backend."""
    assert isinstance(store, OpenStore)
    return store


@pytest.fixture
async def new_store(store: TestStore, tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[TestStore]:
    """Yield a store of the same backend that no test has used."""
    if store.name == "sqlite":
        yield SqliteTestStore(tmp_path)
        return
    schemas: PostgresSchemas = request.getfixturevalue("schemas")
    schema = await schemas.take()
    yield schema
    await schemas.give_back(schema)


async def story(engine: Engine) -> list[object]:
    """Use everything that an engine caches (routes, keys, leases, due times, waiters) and return the results."""
    submitted = await engine.executions.submit("k", lane="mail", key="once", tags={"team.owner": "ann"})
    again = await engine.executions.submit("k", lane="mail", key="once", tags={"team.owner": "ann"})
    [lease] = await engine.leases.claim(["mail"], "worker-1", limit=5)
    waitpoint = await engine.waitpoints.create(lease.fence, "boss")
    assert waitpoint.token is not None
    await engine.signals.deliver(waitpoint.token, "go")
    waiting = asyncio.ensure_future(engine.executions.wait(submitted.id, timeout="10s"))
    await engine.leases.complete(lease.fence, b"done")
    outcome = await waiting
    assert outcome is not None
    await engine.executions.submit("late", delay="1h")
    ticks = await engine.reconcilers.tick()
    history = [f"{event.family}.{event.name}" for event in await engine.executions.history(submitted.id)]
    due = await engine.reconcilers.due_times()
    return [type(again).__name__, again.id == submitted.id, outcome.result, history, ticks, sorted(due)]


def memory(value: Any, path: str = "engine", seen: set[int] | None = None) -> dict[str, object]:
    """Return the attributes of an engine and of its parts, without its store. A collection is shown by its size."""
    seen = set() if seen is None else seen
    if isinstance(value, PLAIN):
        return {path: value}
    if isinstance(value, dict | set | list | tuple):
        return {path: len(value)}
    module = type(value).__module__
    if not module.startswith("flowfabric.") or module.startswith("flowfabric.backends.") or id(value) in seen:
        return {}
    seen.add(id(value))
    names = [field.name for field in fields(value)] if hasattr(value, "__dataclass_fields__") else list(vars(value))
    held: dict[str, object] = {}
    for name in names:
        if name not in ALWAYS_DIFFERENT:
            held |= memory(getattr(value, name), f"{path}.{name}", seen)
    return held


async def test_engine_on_a_reset_store_equals_a_new_engine(open_store: OpenStore, new_store: TestStore) -> None:
    async with open_store.engine(VirtualClock()) as used:
        await story(used)
        remembered = memory(used)
    assert await open_store.reset()
    async with open_store.engine(VirtualClock()) as engine, opened(new_store, VirtualClock()) as new:
        assert memory(engine) == memory(new)
        assert memory(engine) != remembered


async def test_reset_store_gives_the_same_history_as_a_new_one(
    open_store: OpenStore, store: TestStore, new_store: TestStore
) -> None:
    async with open_store.engine(VirtualClock()) as engine:
        await story(engine)
    assert await open_store.reset()
    assert not any((await snapshot(store)).values())
    async with open_store.engine(VirtualClock()) as engine, opened(new_store, VirtualClock()) as new:
        assert await story(engine) == await story(new)
    stored, expected = await snapshot(store), await snapshot(new_store)
    assert {table: len(rows) for table, rows in stored.items()} == {
        table: len(rows) for table, rows in expected.items()
    }


async def test_reset_removes_the_clock_of_an_earlier_test(open_store: OpenStore) -> None:
    late = VirtualClock()
    late.advance("30d")
    async with open_store.engine(late) as engine:
        await engine.executions.submit("k")
    assert await open_store.reset()
    clock = VirtualClock()
    async with open_store.engine(clock) as engine:
        submitted = await engine.executions.submit("k")
        assert (await engine.executions.describe(submitted.id)).created_at == clock.now()


async def test_reset_cancels_leftover_tasks(open_store: OpenStore) -> None:
    async with open_store.engine(VirtualClock()) as engine:
        submitted = await engine.executions.submit("k")
        left = asyncio.ensure_future(engine.executions.wait(submitted.id, timeout="1h"))
        await asyncio.sleep(0)
    assert left.cancelled()


async def test_reset_removes_attributes_set_on_the_store(open_store: OpenStore) -> None:
    async with open_store.engine(VirtualClock()) as engine:
        engine._context.store.read_single = engine._context.store.read  # type: ignore[method-assign]
    assert await open_store.reset()
    assert "read_single" not in vars(engine._context.store)


@pytest.mark.parametrize("part", ["_writer", "_pool"])
async def test_store_with_a_patched_part_is_replaced(open_store: OpenStore, part: str) -> None:
    async with open_store.engine(VirtualClock()) as engine:
        parts = vars(engine._context.store)
    if part in parts:
        whole, parts[part] = parts[part], object()
        assert not await open_store.reset()
        parts[part] = whole
    assert await open_store.reset()


async def test_store_with_other_tables_is_replaced(open_store: OpenStore) -> None:
    assert isinstance(open_store, OpenSqliteStore | OpenPostgresStore)
    async with open_store.engine(VirtualClock()):
        await open_store.query("ALTER TABLE ff.execution ADD COLUMN another INTEGER")
    assert not await open_store.reset()


async def test_store_of_a_closed_engine_is_replaced(open_store: OpenStore) -> None:
    async with open_store.engine(VirtualClock()) as engine:
        await engine.close()
    assert not await open_store.reset()
