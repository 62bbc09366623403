"""backlog: how much waits, and for whom."""

from __future__ import annotations

from flowfabric.core.views import Backlog
from flowfabric.store.transaction import Transaction

COUNTED_EXACTLY = 1_000


async def backlog(tx: Transaction, namespace: str) -> list[Backlog]:
    """What waits for a worker, by lane, kind and required capabilities."""
    return await tx.routes.backlog(namespace, COUNTED_EXACTLY)
