"""heartbeat_worker: a registered worker is still there; one statement."""

from __future__ import annotations

from datetime import datetime

from flowfabric.core.workers import worker_not_found
from flowfabric.store.transaction import Transaction


async def heartbeat_worker(tx: Transaction, namespace: str, instance: str, busy: int) -> datetime:
    """Until when it counts as live."""
    until = await tx.workers.beat(namespace, instance, busy)
    if until is None:
        raise worker_not_found(instance)
    return until
