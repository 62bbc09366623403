"""checkpoint: records step results. An open step may change, a final one may only be repeated."""

from __future__ import annotations

from collections.abc import Sequence

from flowfabric.core.requests import Checkpoint
from flowfabric.ops.hot import HotOperation, NotTogether
from flowfabric.ops.journaling import record_steps
from flowfabric.ops.locking import lock_owned
from flowfabric.store.transaction import Transaction


async def checkpoint_together(tx: Transaction, namespace: str, items: Sequence[Checkpoint]) -> list[int | None]:
    """Records the steps of all items whose lease is owned and whose row is free; answers how many."""
    recorded = await tx.hot.record_steps_if_owned(namespace, items)
    for item in items:
        if recorded.get(item.fence.execution_id, len(item.steps)) < len(item.steps):
            raise NotTogether
    return [recorded.get(item.fence.execution_id) for item in items]


async def checkpoint_alone(tx: Transaction, namespace: str, item: Checkpoint) -> int:
    """Records the steps of one item, or says why not."""
    execution, now = await lock_owned(tx, namespace, item.fence)
    moved = await record_steps(tx, execution, item.steps, now)
    await tx.executions.save([(execution, moved)])
    return len(item.steps)


CHECKPOINT = HotOperation(checkpoint_together, checkpoint_alone, subject=lambda item: item.fence.execution_id)
