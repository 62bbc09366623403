"""The kit as pytest fixtures. Enable them in a conftest.py: `pytest_plugins = ["flowfabric.testing.fixtures"]`.

async def test_a_refund(kit):                       def test_a_refund(sync_kit):
    async with kit(shop.app) as shop_kit:               shop_kit = sync_kit(shop.app)
        await shop_kit.run(shop.refund, "o-17")         shop_kit.run(shop.refund, "o-17")

`pytest --replay="every record"` reruns each body from its top after every record, in all tests that use the fixtures.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial

import pytest

from flowfabric.testing.kit import Kit
from flowfabric.testing.sync_kit import SyncKit

_REPLAY = "--replay"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option `--replay`."""
    parser.addoption(
        _REPLAY,
        choices=["suspensions", "every record"],
        default=None,
        help="rerun task bodies at these points, in tests that use the fixtures kit and sync_kit",
    )


@pytest.fixture
def kit(request: pytest.FixtureRequest) -> Callable[..., Kit]:
    """Return a factory with the arguments of `flowfabric.testing.Kit`. Enter each kit with `async with`."""
    replay = request.config.getoption(_REPLAY, default=None)
    return Kit if replay is None else partial(Kit, replay=replay)


@pytest.fixture
def sync_kit(kit: Callable[..., Kit]) -> Iterator[Callable[..., SyncKit]]:
    """Return a factory of kits for plain tests. Each kit stays open until the test ends."""
    with ExitStack() as stack:
        yield lambda *args, **options: stack.enter_context(kit(*args, **options).sync)
