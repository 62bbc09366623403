"""erase: removes a scratch namespace with everything in it. Nobody else knows its name."""

from __future__ import annotations

from uuid import UUID

from flowfabric.core.states import State
from flowfabric.store.executions import Listing
from flowfabric.store.transaction import Transaction

_LAST_ID = UUID(int=2**128 - 1)


async def erase_next(tx: Transaction, namespace: str, limit: int) -> int:
    """How many executions were removed, with all that belongs to them and their events; 0 when none is left."""
    wanted = Listing(namespace=namespace, states=tuple(State), before=_LAST_ID, limit=limit)
    ids = [execution.id for execution in await tx.executions.page(wanted)]
    if not ids:
        await tx.routes.forget(namespace)
        return 0
    locked = await tx.executions.lock(namespace, ids)
    await tx.purging.remove(list(locked), None)
    await tx.trimming.forget(list(locked))
    return len(locked)
