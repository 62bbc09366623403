"""A durable PostgreSQL server with an empty database for each example."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import asyncpg
import pytest

from tests.marks import mark_folder
from tests.postgres_server import PostgresServer, postgres_server


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark every test of this folder, so that `dev.py faults` runs it at full size."""
    mark_folder(items, Path(__file__).parent, pytest.mark.full)


@pytest.fixture(scope="session")
def durable_postgres() -> Iterator[PostgresServer]:
    """Return a durable server, since the examples do not pass `durable=False`."""
    with postgres_server(fsync="on", full_page_writes="on") as server:
        yield server


@pytest.fixture
async def database(durable_postgres: PostgresServer) -> AsyncIterator[str]:
    """Return the URL of an empty database."""
    name = f"example_{uuid.uuid4().hex[:12]}"
    connection = await asyncpg.connect(durable_postgres.dsn)
    await connection.execute(f"CREATE DATABASE {name}")
    yield _with_database(durable_postgres.dsn, name)
    await connection.execute(f"DROP DATABASE {name} WITH (FORCE)")
    await connection.close()


def _with_database(dsn: str, name: str) -> str:
    address, question, settings = dsn.partition("?")
    return f"{address.rpartition('/')[0]}/{name}{question}{settings}"
