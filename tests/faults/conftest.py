"""What the fault tests share: the fork server."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.faults.fork_server import ForkServer, fork_server


@pytest.fixture(scope="session")
def forks() -> Iterator[ForkServer]:
    """One fork server for the whole run."""
    with fork_server() as server:
        yield server
