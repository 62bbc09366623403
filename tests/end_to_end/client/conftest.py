"""Apps for the client tests, on each backend."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from flowfabric import App
from flowfabric.engine import Engine
from tests.stores import TestStore, opened


@pytest.fixture
async def engine(store: TestStore) -> AsyncIterator[Engine]:
    """Return an engine with the store's own clock, so waits take real time."""
    async with opened(store) as engine:
        yield engine


@pytest.fixture
async def app(engine: Engine) -> App:
    """Return an app without tasks on the test's engine."""
    app = App("never-opened.db")
    app.engines.adopt(engine)
    return app
