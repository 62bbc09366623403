"""The kit as pytest fixtures. Enable them in a conftest.py: `pytest_plugins = ["flowfabric.testing.fixtures"]`.

async def test_a_refund(kit):                       def test_a_refund(sync_kit):
    async with kit(shop.app) as shop_kit:               shop_kit = sync_kit(shop.app)
        await shop_kit.run(shop.refund, "o-17")         shop_kit.run(shop.refund, "o-17")

`pytest --replay="every record"` runs every body again from its top after each record, in all tests that use them.
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
    """Adds `--replay`."""
    parser.addoption(
        _REPLAY, choices=["suspensions", "every record"], default=None,
        help="run the bodies of tasks again at these points, in tests with the fixtures kit and sync_kit",
    )  # fmt: skip


@pytest.fixture
def kit(request: pytest.FixtureRequest) -> Callable[..., Kit]:
    """Makes kits, to be entered with `async with`; takes what `flowfabric.testing.Kit` takes."""
    replay = request.config.getoption(_REPLAY, default=None)
    return Kit if replay is None else partial(Kit, replay=replay)


@pytest.fixture
def sync_kit(kit: Callable[..., Kit]) -> Iterator[Callable[..., SyncKit]]:
    """Makes kits for plain tests, which are open until the end of the test."""
    with ExitStack() as stack:
        yield lambda *args, **options: stack.enter_context(kit(*args, **options).sync)
