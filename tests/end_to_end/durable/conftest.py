"""Kits on an empty store: in memory in every run, and on PostgreSQL in long runs."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from flowfabric import App
from flowfabric.testing import Kit
from tests.end_to_end.durable.kits import KitFactory
from tests.marks import mark_folder
from tests.stores import PostgresSchemas

Options: TypeAlias = dict[str, Any]


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark every test of this folder, so that `dev.py faults` runs it at full size."""
    mark_folder(items, Path(__file__).parent, pytest.mark.full)


@pytest.fixture
def app() -> App:
    """Return an app for the tasks of one test."""
    return App("durable.db", url="https://shop.example/ff")


@pytest.fixture(params=["memory", pytest.param("postgres", marks=pytest.mark.long)])
async def new_kit(request: pytest.FixtureRequest) -> AsyncIterator[KitFactory]:
    """Return a factory of kits on the test's store."""
    if request.param == "memory":
        yield KitFactory()
        return
    schemas: PostgresSchemas = request.getfixturevalue("schemas")
    store = await schemas.take()
    yield KitFactory(store.url, {"schema": store.schema, "durable": False})
    await schemas.give_back(store)


@pytest.fixture
async def kit(app: App, new_kit: KitFactory) -> AsyncIterator[Kit]:
    """Return a kit that runs the tasks of the test's app."""
    async with new_kit(app) as kit:
        yield kit
