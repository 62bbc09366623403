"""Locking executions before a decision. The time is read by the statement after the lock: it is as late as the wait."""

from __future__ import annotations

from datetime import datetime
from uuid import UUID

from flowfabric.core.fences import execution_not_found, require_owner
from flowfabric.core.records import Execution, Fence
from flowfabric.store.transaction import Transaction


async def lock(tx: Transaction, namespace: str, id_: UUID) -> tuple[Execution, datetime]:
    """The execution, locked, and the time after that; `execution_not_found` if it is not in this namespace."""
    found = await tx.executions.lock(namespace, [id_])
    if id_ not in found:
        raise execution_not_found(id_)
    return found[id_], await tx.now()


async def lock_owned(tx: Transaction, namespace: str, fence: Fence) -> tuple[Execution, datetime]:
    """The same for a worker, refused unless its fence owns the execution."""
    execution, now = await lock(tx, namespace, fence.execution_id)
    return require_owner(execution, fence, now), now


async def read(tx: Transaction, namespace: str, id_: UUID) -> Execution:
    """The execution as it is, not locked."""
    found = await tx.executions.get(namespace, [id_])
    if id_ not in found:
        raise execution_not_found(id_)
    return found[id_]
