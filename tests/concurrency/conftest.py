"""Fixtures for the concurrency tests."""

from __future__ import annotations

import asyncpg
import pytest

from flowfabric.backends.postgres import pool as running
from flowfabric.backends.postgres import store
from flowfabric.backends.postgres import user_connections as sharing
from flowfabric.backends.postgres.errors import is_conflict


@pytest.fixture
def deadlocks(monkeypatch: pytest.MonkeyPatch) -> list[BaseException]:
    """Record the deadlocks that aborted transactions of this process.

    The engine retries these transactions, so callers do not see the deadlocks. The server also counts deadlocks, but it
    publishes the count with a delay.
    """
    seen: list[BaseException] = []

    def noting(error: BaseException) -> bool:
        if isinstance(error, asyncpg.DeadlockDetectedError):
            seen.append(error)
        return is_conflict(error)

    for module in (running, sharing, store):
        monkeypatch.setattr(module, "is_conflict", noting)
    return seen
