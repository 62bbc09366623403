"""What tests of concurrency can ask for."""

from __future__ import annotations

import asyncpg
import pytest

from flowfabric.backends.postgres import running, sharing, store
from flowfabric.backends.postgres.errors import is_conflict


@pytest.fixture
def deadlocks(monkeypatch: pytest.MonkeyPatch) -> list[BaseException]:
    """The deadlocks that transactions of this process were thrown out of. They are retried inside and would not show;
    the server counts them too, but tells only when it is convenient."""
    seen: list[BaseException] = []

    def noting(error: BaseException) -> bool:
        if isinstance(error, asyncpg.DeadlockDetectedError):
            seen.append(error)
        return is_conflict(error)

    for module in (running, sharing, store):
        monkeypatch.setattr(module, "is_conflict", noting)
    return seen
