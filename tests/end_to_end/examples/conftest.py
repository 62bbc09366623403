"""A PostgreSQL as users have it: durable, with an empty database for each example."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Iterator

import asyncpg
import pytest

from tests.postgres_server import PostgresServer, postgres_server


@pytest.fixture(scope="session")
def durable_postgres() -> Iterator[PostgresServer]:
    """A server that an app takes as it is: examples do not know how to ask for less than durable."""
    with postgres_server(fsync="on", full_page_writes="on") as server:
        yield server


@pytest.fixture
async def database(durable_postgres: PostgresServer) -> AsyncIterator[str]:
    """The address of an empty database."""
    name = f"example_{uuid.uuid4().hex[:12]}"
    connection = await asyncpg.connect(durable_postgres.dsn)
    await connection.execute(f"CREATE DATABASE {name}")
    yield _with_database(durable_postgres.dsn, name)
    await connection.execute(f"DROP DATABASE {name} WITH (FORCE)")
    await connection.close()


def _with_database(dsn: str, name: str) -> str:
    address, question, settings = dsn.partition("?")
    return f"{address.rpartition('/')[0]}/{name}{question}{settings}"
