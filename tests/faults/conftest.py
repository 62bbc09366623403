"""Fixtures of the fault tests: the fork server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.fork_server import ForkServer, fork_server
from tests.marks import mark_folder


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark every test of this folder, so that `dev.py faults` runs it at full size."""
    mark_folder(items, Path(__file__).parent, pytest.mark.full)


@pytest.fixture(scope="session")
def forks() -> Iterator[ForkServer]:
    """Yield one fork server for the whole run."""
    with fork_server() as server:
        yield server
