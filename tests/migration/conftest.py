"""Fixtures for stores that have never been opened."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.postgres_server import PostgresServer
from tests.stores import PostgresTestStore, SqliteTestStore, TestStore


@pytest.fixture(params=["sqlite", "postgres"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[TestStore]:
    """Return a store without a schema, once per backend."""
    if request.param == "sqlite":
        yield SqliteTestStore(tmp_path)
        return
    server: PostgresServer = request.getfixturevalue("postgres")
    schema = PostgresTestStore(server.dsn)
    yield schema
    await schema.drop()
