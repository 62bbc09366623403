"""progress: stores how far a worker is. It makes no event."""

from __future__ import annotations

from collections.abc import Sequence

from flowfabric.core.fences import explain
from flowfabric.core.requests import Progress
from flowfabric.ops.hot import HotOperation
from flowfabric.ops.locking import lock_owned
from flowfabric.store.transaction import Transaction


async def progress_together(tx: Transaction, namespace: str, items: Sequence[Progress]) -> list[bool | None]:
    """Stores all reports whose lease is owned and whose row is free."""
    stored = await tx.hot.progress_if_owned(namespace, items)
    return [True if item.fence.execution_id in stored else None for item in items]


async def progress_alone(tx: Transaction, namespace: str, item: Progress) -> bool:
    """Stores one report, or says why not."""
    execution, _ = await lock_owned(tx, namespace, item.fence)
    if not await tx.hot.progress_if_owned(namespace, [item]):
        raise explain(execution, item.fence)  # The lease ran out between the two looks at the clock.
    return True


PROGRESS = HotOperation(progress_together, progress_alone, subject=lambda item: item.fence.execution_id)
