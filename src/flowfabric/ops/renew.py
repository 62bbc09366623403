"""renew: extends leases by their own term. A lease that has run out is never revived."""

from __future__ import annotations

from collections.abc import Sequence

from flowfabric.core.fences import explain
from flowfabric.core.outcomes import Renewed
from flowfabric.core.records import Fence
from flowfabric.ops.hot import HotOperation
from flowfabric.ops.locking import lock_owned
from flowfabric.store.transaction import Transaction


async def renew_together(tx: Transaction, namespace: str, fences: Sequence[Fence]) -> list[Renewed | None]:
    """Extends all leases that are owned and whose row is free."""
    renewed = await tx.hot.renew_if_owned(namespace, fences)
    return [renewed.get(fence.execution_id) for fence in fences]


async def renew_alone(tx: Transaction, namespace: str, fence: Fence) -> Renewed:
    """Extends one lease, or says why not."""
    execution, _ = await lock_owned(tx, namespace, fence)
    renewed = await tx.hot.renew_if_owned(namespace, [fence])
    if fence.execution_id not in renewed:
        raise explain(execution, fence)  # It ran out between the two looks at the clock.
    return renewed[fence.execution_id]


RENEW = HotOperation(renew_together, renew_alone, subject=lambda fence: fence.execution_id)
