"""Apps and kits for tests of how executions come out, on a store of the test's own, once per backend."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from flowfabric import App
from flowfabric.engine import Engine
from flowfabric.testing import Kit, VirtualClock
from tests.stores import PostgresSchemas, TestStore, opened

NewKit: TypeAlias = Callable[[App], Kit]


@pytest.fixture
def app() -> App:
    """An app for the tasks of one test."""
    return App("never-opened.db")


@pytest.fixture(params=["memory", pytest.param("postgres", marks=pytest.mark.long)])
async def kit(app: App, request: pytest.FixtureRequest) -> AsyncIterator[Kit]:
    """A kit that performs the tasks of the test's app, one execution at a time."""
    if request.param == "memory":
        async with Kit(app) as kit:
            yield kit
        return
    schemas: PostgresSchemas = request.getfixturevalue("schemas")
    store = await schemas.take()
    async with Kit(app, store.url, schema=store.schema, durable=False) as kit:
        yield kit
    await schemas.give_back(store)


@pytest.fixture(params=["file", "postgres"])
async def new_kit(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[NewKit]:
    """Makes kits one after another on the same store: code that changed finds what the old code left."""
    clock = VirtualClock()

    def made(address: str, **options: Any) -> NewKit:
        return lambda app: Kit(app, address, clock=clock, durable=False, **options)

    if request.param == "file":
        yield made(str(tmp_path / "test.db"))
        return
    schemas: PostgresSchemas = request.getfixturevalue("schemas")
    store = await schemas.take()
    yield made(store.url, schema=store.schema)
    await schemas.give_back(store)


@pytest.fixture
async def memory_kit(app: App) -> AsyncIterator[Kit]:
    """The same in memory only, for facts that no store has a part in."""
    async with Kit(app) as kit:
        yield kit


@pytest.fixture
async def real_engine(store: TestStore) -> AsyncIterator[Engine]:
    """An engine under the store's own clock: whoever waits here waits for real."""
    async with opened(store) as engine:
        yield engine


@pytest.fixture
async def real_app(real_engine: Engine) -> App:
    """An app for workers, on that engine."""
    app = App("never-opened.db")
    app.engines.adopt(real_engine)
    return app
