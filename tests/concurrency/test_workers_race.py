"""Test that racing registrations give each instance to exactly one worker."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from flowfabric.engine import Conflict, Engine, Registered, WorkerId
from flowfabric.testing import VirtualClock
from tests.concurrency.waits import run_in_forced_order
from tests.stores import TestStore, opened


@pytest.fixture
async def rival(store: TestStore, engine: Engine, clock: VirtualClock) -> AsyncIterator[Engine]:
    """A second engine on the same store and clock."""
    async with opened(store, clock) as rival:
        yield rival


async def events(store: TestStore) -> list[str]:
    return [row["name"] for row in await store.query("SELECT name FROM ff.event ORDER BY id")]


async def test_one_instance_cannot_be_registered_by_two_workers(
    store: TestStore, engine: Engine, rival: Engine
) -> None:
    first, second = await run_in_forced_order(
        store,
        (engine, lambda side: side.workers.register(WorkerId("one", "i"), ["a"])),
        (rival, lambda side: side.workers.register(WorkerId("two", "i"), ["a"])),
    )
    assert isinstance(first, Registered) and not first.refreshed
    assert isinstance(second, Conflict) and second.code == "instance_reassigned"
    assert [worker.id.name for worker in (await engine.workers.list()).items] == ["one"]
    assert await events(store) == ["registered"]


async def test_worker_registering_twice_concurrently_is_new_once(
    store: TestStore, engine: Engine, rival: Engine
) -> None:
    first, second = await run_in_forced_order(
        store,
        (engine, lambda side: side.workers.register("one", ["a"])),
        (rival, lambda side: side.workers.register("one", ["b"])),
    )
    assert [isinstance(result, Registered) and result.refreshed for result in (first, second)] == [False, True]
    assert [worker.lanes for worker in (await engine.workers.list()).items] == [("b",)]
    assert await events(store) == ["registered"]


async def test_worker_registers_again_while_its_old_row_is_swept(
    store: TestStore, engine: Engine, rival: Engine, clock: VirtualClock
) -> None:
    await engine.workers.register(WorkerId("one", "i"), ["a"], ttl="10s")
    clock.advance("10s")
    _, result = await run_in_forced_order(
        store,
        (engine, lambda side: side.workers.mark_dead("i")),
        (rival, lambda side: side.workers.register(WorkerId("two", "i"), ["a"])),
    )
    assert isinstance(result, Registered) and not result.refreshed
    assert [worker.id.name for worker in (await engine.workers.list()).items] == ["two"]
    assert await events(store) == ["registered", "marked_dead", "registered"]
