"""claim: leases the best waiting executions that a worker may take."""

from __future__ import annotations

from flowfabric.core.requests import Claim
from flowfabric.store.executions import Claimed
from flowfabric.store.transaction import Transaction


async def claim(tx: Transaction, namespace: str, request: Claim, drawn: bytes, *, past_locked: bool) -> Claimed:
    """Up to `limit` executions, by priority; at equal priority resumed before new, then the oldest."""
    return await tx.hot.claim(namespace, request, drawn, past_locked=past_locked)
