"""The application on the test's engine, under the test's clock."""

from __future__ import annotations

import pytest

from flowfabric.asgi import asgi_app
from flowfabric.engine import Engine
from flowfabric.testing import VirtualClock
from tests.end_to_end.asgi.browsing import Browser


@pytest.fixture
def browser(engine: Engine, clock: VirtualClock) -> Browser:
    """Asks an application that knows no kinds."""

    async def engine_of() -> Engine:
        return engine

    return Browser(asgi_app(engine_of, now=clock.now))
