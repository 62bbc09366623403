"""renew: extends leases by their own term. A lease that has run out is never revived."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from flowfabric.core.fences import explain
from flowfabric.core.outcomes import Renewed
from flowfabric.core.records import Fence
from flowfabric.ops.hot import HotOperation
from flowfabric.ops.locking import lock_owned
from flowfabric.store.transaction import Transaction


def renewing(*, noted: bool) -> HotOperation[Fence, Renewed]:
    """The operation. If renewals are to be `noted`, each leaves an event."""
    together, alone = partial(_together, noted=noted), partial(_alone, noted=noted)
    return HotOperation(together, alone, subject=lambda fence: fence.execution_id)


async def _together(tx: Transaction, namespace: str, fences: Sequence[Fence], *, noted: bool) -> list[Renewed | None]:
    """Extends all leases that are owned and whose row is free."""
    renewed = await tx.hot.renew_if_owned(namespace, fences, noted=noted)
    return [renewed.get(fence.execution_id) for fence in fences]


async def _alone(tx: Transaction, namespace: str, fence: Fence, *, noted: bool) -> Renewed:
    """Extends one lease, or says why not."""
    execution, _ = await lock_owned(tx, namespace, fence)
    renewed = await tx.hot.renew_if_owned(namespace, [fence], noted=noted)
    if fence.execution_id not in renewed:
        raise explain(execution, fence)  # It ran out between the two looks at the clock.
    return renewed[fence.execution_id]
