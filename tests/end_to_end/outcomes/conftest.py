"""Apps and kits for tests of execution outcomes, on an empty store of each backend."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from flowfabric import App
from flowfabric.engine import Engine
from flowfabric.testing import Kit, VirtualClock
from tests.marks import mark_folder
from tests.stores import PostgresSchemas, TestStore, opened

KitFactory: TypeAlias = Callable[[App], Kit]


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark every test of this folder, so that `dev.py faults` runs it at full size."""
    mark_folder(items, Path(__file__).parent, pytest.mark.full)


@pytest.fixture
def app() -> App:
    """Return an app for the tasks of one test."""
    return App("never-opened.db")


@pytest.fixture(params=["memory", pytest.param("postgres", marks=pytest.mark.long)])
async def kit(app: App, request: pytest.FixtureRequest) -> AsyncIterator[Kit]:
    """Return a kit that runs the tasks of the test's app, one execution at a time."""
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
async def new_kit(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[KitFactory]:
    """Return a factory of kits on one store, so that changed code can continue the executions of the old code."""
    clock = VirtualClock()

    def make_factory(address: str, **options: Any) -> KitFactory:
        return lambda app: Kit(app, address, clock=clock, durable=False, **options)

    if request.param == "file":
        yield make_factory(str(tmp_path / "test.db"))
        return
    schemas: PostgresSchemas = request.getfixturevalue("schemas")
    store = await schemas.take()
    yield make_factory(store.url, schema=store.schema)
    await schemas.give_back(store)


@pytest.fixture
async def memory_kit(app: App) -> AsyncIterator[Kit]:
    """Return a kit in memory, for tests that do not depend on the backend."""
    async with Kit(app) as kit:
        yield kit


@pytest.fixture
async def real_engine(store: TestStore) -> AsyncIterator[Engine]:
    """Return an engine with the store's own clock, so waits take real time."""
    async with opened(store) as engine:
        yield engine


@pytest.fixture
async def real_app(real_engine: Engine) -> App:
    """Return an app for workers, on the real engine."""
    app = App("never-opened.db")
    app.engines.adopt(real_engine)
    return app


@pytest.fixture
async def memory_app() -> AsyncIterator[App]:
    """Return an app for workers on a store in memory, for tests that do not depend on the backend."""
    async with App(":memory:") as app:
        yield app
