"""renew: extends leases by their own term. A lease that has run out is never revived."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from functools import partial
from uuid import UUID

from flowfabric.core.errors import FlowFabricError
from flowfabric.core.fences import explain, require_owner
from flowfabric.core.outcomes import Renewed
from flowfabric.core.records import Execution, Fence
from flowfabric.ops.hot import HotOperation
from flowfabric.ops.locking import lock_owned
from flowfabric.store.transaction import Transaction


def renewing(*, noted: bool) -> HotOperation[Fence, Renewed]:
    """The operation. If renewals are to be `noted`, each leaves an event."""
    together, alone = partial(_together, noted=noted), partial(_alone, noted=noted)
    lost = HotOperation(_lost, alone, subject=_subject, one_statement=False)
    return HotOperation(together, alone, subject=_subject, others=lost)


async def _together(tx: Transaction, namespace: str, fences: Sequence[Fence], *, noted: bool) -> list[Renewed | None]:
    """Extends all leases that are owned and whose row is free."""
    renewed = await tx.hot.renew_if_owned(namespace, fences, noted=noted)
    return [renewed.get(fence.execution_id) for fence in fences]


async def _lost(tx: Transaction, namespace: str, fences: Sequence[Fence]) -> list[FlowFabricError | None]:
    """Why leases could not be extended, since many may be lost at once. None for what is owned after all, busy with
    another renewal perhaps, or not there."""
    found = await tx.executions.lock_free(list(map(_subject, fences)))
    now = await tx.now()
    return [_loss(namespace, found.get(fence.execution_id), fence, now) for fence in fences]


def _loss(namespace: str, execution: Execution | None, fence: Fence, now: datetime) -> FlowFabricError | None:
    if execution is None or execution.namespace != namespace:
        return None
    try:
        require_owner(execution, fence, now)
    except FlowFabricError as error:
        return error
    return None


def _subject(fence: Fence) -> UUID:
    return fence.execution_id


async def _alone(tx: Transaction, namespace: str, fence: Fence, *, noted: bool) -> Renewed:
    """Extends one lease, or says why not."""
    execution, _ = await lock_owned(tx, namespace, fence)
    renewed = await tx.hot.renew_if_owned(namespace, [fence], noted=noted)
    if fence.execution_id not in renewed:
        raise explain(execution, fence)  # It ran out between the two looks at the clock.
    return renewed[fence.execution_id]
