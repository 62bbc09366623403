"""Tests that a kit moves the time only of stores that a kit created, or that the test lets it adopt."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from flowfabric import App
from flowfabric.engine import InvalidRequest
from flowfabric.testing import Kit, VirtualClock
from tests.scenarios import submitted
from tests.stores import PostgresTestStore, TestStore, opened

app = App()


@app.task
async def hello(name: str) -> str:
    """Greet a person."""
    return f"hello {name}"


def kit_on(store: TestStore, **options: Any) -> Kit:
    schema: dict[str, Any] = {"schema": store.schema} if isinstance(store, PostgresTestStore) else {}
    return Kit(app, store.url, durable=False, **schema, **options)


async def test_kit_refuses_a_store_that_a_program_has_used(store: TestStore) -> None:
    async with opened(store) as engine:
        await submitted(engine)
    with pytest.raises(InvalidRequest) as refusal:
        async with kit_on(store):
            pytest.fail("the kit opened the store of a program")
    assert refusal.value.code == "not_a_test_store"
    assert "adopt=True" in refusal.value.message
    async with opened(store) as engine:
        now = (await engine.store_info()).now
    assert abs(now - datetime.now(UTC)) < timedelta(minutes=5)


async def test_kit_opens_its_own_store_again(store: TestStore) -> None:
    for name in ("ann", "bob"):
        async with kit_on(store) as kit:
            assert await kit.run(hello, name) == f"hello {name}"
            await kit.advance("1d")


async def test_kit_adopts_a_used_store_if_the_test_allows_it(store: TestStore) -> None:
    async with opened(store) as engine:
        handle = (await engine.executions.submit("hello", b'{"name": "ann"}')).id
    async with kit_on(store, adopt=True, clock=VirtualClock(datetime.now(UTC))) as kit:
        await kit.work()
        assert (await kit.engine.executions.describe(handle)).id == handle
    async with kit_on(store) as kit:
        assert await kit.run(hello, "bob") == "hello bob"
