"""hold and unhold: an operator blocks a waiting or delayed execution, and unblocks it. A worker may hold its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

from flowfabric.core import validation
from flowfabric.core.executions.attempts import HoldRequest, decide_own_hold
from flowfabric.core.executions.operator import decide_hold, decide_unhold, is_held
from flowfabric.core.executions.outcomes import AlreadySatisfied, Held, Unheld
from flowfabric.core.executions.records import Execution
from flowfabric.core.executions.requests import AuditInfo, HoldFilter
from flowfabric.core.flows.records import GroupState
from flowfabric.ops.apply import write, write_one
from flowfabric.ops.leases.release import give_up_lease
from flowfabric.ops.locks import lock, lock_to_end
from flowfabric.ops.operation import operation
from flowfabric.store.transaction import Transaction


@dataclass(frozen=True, slots=True)
class OperatorRequest:
    """An operator's request about one execution or waitpoint, with who makes it and why."""

    id: UUID
    audit: AuditInfo


@operation()
async def hold(tx: Transaction, namespace: str, request: OperatorRequest) -> Held:
    """Hold an execution, and return the reason. If it is already held, return the earlier reason."""
    execution, now = await lock(tx, namespace, request.id)
    return await write_one(tx, decide_hold(execution, request.audit, now))


@operation()
async def hold_own(tx: Transaction, namespace: str, request: HoldRequest) -> Held:
    """Hold the execution that the worker leases, and give up the lease. A repeated request returns the same outcome."""
    await give_up_lease(tx, namespace, request, decide_own_hold)
    return Held(request.reason)


@operation()
async def unhold(tx: Transaction, namespace: str, request: OperatorRequest) -> Unheld | AlreadySatisfied:
    """Let a held execution continue, and return its new state. If it was not held, return `AlreadySatisfied`."""
    execution, now = await lock_to_end(tx, namespace, request.id)
    blocked = await _with_open_group(tx, [execution])
    return await write_one(tx, decide_unhold(execution, request.audit, now, has_open_group=request.id in blocked))


@dataclass(frozen=True, slots=True)
class UnholdBatch:
    """Which held executions to unhold next: executions that pass the filter `holds` and have an id above `after`."""

    holds: HoldFilter
    after: UUID
    audit: AuditInfo


@operation()
async def unhold_next(tx: Transaction, namespace: str, batch: UnholdBatch) -> tuple[int, UUID | None]:
    """Unhold a batch of held executions. Return how many, and the id to continue after, or None at the end."""
    ids = await tx.executions.list_held(namespace, batch.holds, batch.after, validation.MAX_BATCH)
    # A transaction that waits to lock several members of a flow must first lock the flow.
    await tx.flows.lock_of(ids, wait=True)
    executions = await tx.executions.lock(namespace, ids) if ids else {}
    now = await tx.now()
    blocked = await _with_open_group(tx, list(executions.values()))
    decisions = [
        decide_unhold(execution, batch.audit, now, has_open_group=id_ in blocked)
        for id_, execution in executions.items()
        if is_held(execution)
    ]
    await write(tx, decisions)
    return len(decisions), ids[-1] if len(ids) == validation.MAX_BATCH else None


async def _with_open_group(tx: Transaction, executions: Sequence[Execution]) -> set[UUID]:
    """Return the ids of the executions that still wait for upstream members."""
    members = [execution.id for execution in executions if execution.flow_id is not None]
    groups = await tx.edges.groups_of(members) if members else []
    return {group.downstream_id for group in groups if group.state is GroupState.OPEN}
