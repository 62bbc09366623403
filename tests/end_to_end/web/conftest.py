"""A browser for an application on the test's engine and clock."""

from __future__ import annotations

import pytest

from flowfabric.engine import Engine
from flowfabric.testing import VirtualClock
from flowfabric.web import asgi_app
from tests.end_to_end.web.browser import Browser


@pytest.fixture
def browser(engine: Engine, clock: VirtualClock) -> Browser:
    """Return a browser for an application without task kinds."""

    async def get_engine() -> Engine:
        return engine

    return Browser(asgi_app(get_engine))
