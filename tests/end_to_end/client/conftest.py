"""Apps for the tests of the client's face: on each backend, with the engine of the test."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from flowfabric import App
from flowfabric.engine import Engine
from tests.stores import TestStore, opened


@pytest.fixture
async def engine(store: TestStore) -> AsyncIterator[Engine]:
    """An engine under the store's own clock: whoever waits here waits for real."""
    async with opened(store) as engine:
        yield engine


@pytest.fixture
async def app(engine: Engine) -> App:
    """An app without tasks that uses that engine."""
    app = App("never-opened.db")
    app.engines.adopt(engine)
    return app
