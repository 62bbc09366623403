"""Locking executions before a decision. The time is read by the statement after the lock: it is as late as the wait."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from uuid import UUID

from flowfabric.core.fences import execution_not_found, require_owner
from flowfabric.core.flows import Flow
from flowfabric.core.records import Execution, Fence
from flowfabric.store.transaction import Transaction


async def lock(tx: Transaction, namespace: str, id_: UUID) -> tuple[Execution, datetime]:
    """The execution, locked, and the time after that; `execution_not_found` if it is not in this namespace."""
    found = await tx.executions.lock(namespace, [id_])
    if id_ not in found:
        raise execution_not_found(id_)
    return found[id_], await tx.now()


async def lock_to_end(tx: Transaction, namespace: str, id_: UUID) -> tuple[Execution, datetime]:
    """The same for whoever may end it: its flow is locked first, as the lock order wants it."""
    execution, _, now = await lock_with_flow(tx, namespace, id_)
    return execution, now


async def lock_with_flow(tx: Transaction, namespace: str, id_: UUID) -> tuple[Execution, Flow | None, datetime]:
    """The same, with the flow of the execution, or of its children, if there is one."""
    flow = (await tx.flows.lock_of([id_], wait=True)).get(id_)
    execution, now = await lock(tx, namespace, id_)
    if execution.flow is not None and flow is None:
        # It got its first children between the two statements. Out of order, but a deadlock is retried.
        flow = (await tx.flows.lock(None, [execution.flow]))[execution.flow]
        now = await tx.now()
    return execution, flow, now


async def lock_free_to_end(tx: Transaction, ids: Sequence[UUID]) -> dict[UUID, Execution]:
    """For duties that may end executions: those that are free, and whose flow is free and locked."""
    flows = await tx.flows.lock_of(ids, wait=False)
    found = await tx.executions.lock_free(ids)
    return {id_: execution for id_, execution in found.items() if execution.flow is None or id_ in flows}


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
