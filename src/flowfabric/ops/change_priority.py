"""change_priority: moves eligible work to another place in its queue."""

from __future__ import annotations

from uuid import UUID

from flowfabric.core.control import decide_change_priority
from flowfabric.core.outcomes import PriorityChanged
from flowfabric.core.requests import Command
from flowfabric.ops.locking import lock
from flowfabric.ops.writing import write
from flowfabric.store.transaction import Transaction


async def change_priority(
    tx: Transaction, namespace: str, id_: UUID, priority: int, command: Command
) -> PriorityChanged:
    """The old and the new priority; refused unless the execution waits for a worker."""
    execution, now = await lock(tx, namespace, id_)
    decision = decide_change_priority(execution, priority, command, now)
    await write(tx, [decision])
    return decision.answer
