"""Kits on an empty store of the test's own: in memory always, on PostgreSQL at full size."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, TypeAlias

import pytest

from flowfabric import App
from flowfabric.testing import Kit
from tests.end_to_end.durable.kits import NewKit
from tests.stores import PostgresSchemas

Options: TypeAlias = dict[str, Any]


@pytest.fixture
def app() -> App:
    """An app for the tasks of one test."""
    return App("durable.db", url="https://shop.example/ff")


@pytest.fixture(params=["memory", pytest.param("postgres", marks=pytest.mark.long)])
async def new_kit(request: pytest.FixtureRequest) -> AsyncIterator[NewKit]:
    """Makes kits on the test's store."""
    if request.param == "memory":
        yield NewKit()
        return
    schemas: PostgresSchemas = request.getfixturevalue("schemas")
    store = await schemas.take()
    yield NewKit(store.url, {"schema": store.schema, "durable": False})
    await schemas.give_back(store)


@pytest.fixture
async def kit(app: App, new_kit: NewKit) -> AsyncIterator[Kit]:
    """A kit that performs the tasks of the test's app."""
    async with new_kit(app) as kit:
        yield kit
