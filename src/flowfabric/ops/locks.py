"""Lock executions before a decision. The time is read after locking, because a wait for the lock may take long."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from uuid import UUID

from flowfabric.core.executions.records import Execution, Fence
from flowfabric.core.executions.requests import execution_not_found, require_owner
from flowfabric.core.flows.records import FlowRecord
from flowfabric.store.transaction import Transaction


async def lock(tx: Transaction, namespace: str, id_: UUID) -> tuple[Execution, datetime]:
    """Lock an execution, then read the time, and return both.

    Raise `execution_not_found` if the execution is not in this namespace.
    """
    executions = await tx.executions.lock(namespace, [id_])
    if id_ not in executions:
        raise execution_not_found(id_)
    return executions[id_], await tx.now()


async def lock_to_end(tx: Transaction, namespace: str, id_: UUID) -> tuple[Execution, datetime]:
    """Lock an execution that the caller may end. Lock its flow first, as the lock order requires."""
    execution, _, now = await lock_with_flow(tx, namespace, id_)
    return execution, now


async def lock_with_flow(tx: Transaction, namespace: str, id_: UUID) -> tuple[Execution, FlowRecord | None, datetime]:
    """Lock the flow of an execution (or of its children), then the execution. Return both with the time."""
    flow = (await tx.flows.lock_of([id_], wait=True)).get(id_)
    execution, now = await lock(tx, namespace, id_)
    if execution.flow is not None and flow is None:
        # The execution got its first children between the two statements. This lock is out of order, but a deadlock is
        # retried.
        flow = (await tx.flows.lock(None, [execution.flow]))[execution.flow]
        now = await tx.now()
    return execution, flow, now


async def lock_free_to_end(tx: Transaction, ids: Sequence[UUID]) -> dict[UUID, Execution]:
    """Lock, for a duty that may end them, the executions that are not locked yet and whose flow is not locked yet."""
    flows = await tx.flows.lock_of(ids, wait=False)
    executions = await tx.executions.lock_free(ids)
    return {id_: execution for id_, execution in executions.items() if execution.flow is None or id_ in flows}


async def lock_owned(tx: Transaction, namespace: str, fence: Fence) -> tuple[Execution, datetime]:
    """Lock an execution for a worker; refuse unless the fence proves that the worker owns its lease."""
    execution, now = await lock(tx, namespace, fence.execution_id)
    return require_owner(execution, fence, now), now


async def read_execution(tx: Transaction, namespace: str, id_: UUID) -> Execution:
    """Return an execution without locking it."""
    executions = await tx.executions.get(namespace, [id_])
    if id_ not in executions:
        raise execution_not_found(id_)
    return executions[id_]
