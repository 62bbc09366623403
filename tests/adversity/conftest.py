"""A PostgreSQL server that tests may stop, start and fill with roles."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack

import pytest

from tests.postgres_server import DSN_VARIABLE, PostgresServer, postgres_server
from tests.stores import PostgresTestStore


@pytest.fixture(scope="session")
def spare_server() -> Iterator[PostgresServer]:
    """Yield a separate server with production durability, even if the environment names a server for other tests."""
    with ExitStack() as stack:
        with pytest.MonkeyPatch.context() as patch:
            patch.delenv(DSN_VARIABLE, raising=False)
            server = stack.enter_context(postgres_server(fsync="on", full_page_writes="on"))
        yield server


@pytest.fixture
async def spare(spare_server: PostgresServer) -> AsyncIterator[PostgresTestStore]:
    """Yield an empty schema of the separate server."""
    store = PostgresTestStore(spare_server.dsn)
    yield store
    await store.drop()
