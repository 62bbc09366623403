"""held: the leases that a worker instance has, which is how a lost reply to a claim is made good."""

from __future__ import annotations

from flowfabric.core.outcomes import Lease, lease_of
from flowfabric.store.transaction import Transaction


async def held(tx: Transaction, namespace: str, instance: str) -> list[Lease]:
    """Every live lease of the instance, oldest first."""
    return [lease_of(execution) for execution in await tx.executions.held(namespace, instance)]
