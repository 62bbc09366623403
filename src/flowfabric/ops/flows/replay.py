"""Plan and write the changes that the replay of an execution makes in its flow.

Of the edges from the replayed member, those to members that have not started open again. A replayed member that never
started waits for its dependencies again: its impossible edges open again, and its satisfied edges stay satisfied.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from flowfabric.core.errors import Refused
from flowfabric.core.executions.records import Execution
from flowfabric.core.fast_dataclass import replace
from flowfabric.core.flows.records import (
    DEPENDENCIES,
    EdgeGroup,
    EdgeState,
    FlowRecord,
    GroupState,
    StoredEdge,
    counts_as_bad,
)
from flowfabric.core.flows.resolution import recount
from flowfabric.ops.flows.extend import block_again
from flowfabric.store.transaction import Transaction


@dataclass(frozen=True, slots=True)
class ReplayPlan:
    """What to write besides the replayed execution. `is_blocked` means that the execution must wait for its group."""

    flow: FlowRecord | None = None
    edges: tuple[StoredEdge, ...] = ()
    groups: tuple[EdgeGroup, ...] = ()
    blocked: tuple[UUID, ...] = ()
    is_blocked: bool = False


async def plan_replay(tx: Transaction, execution: Execution, now: datetime) -> ReplayPlan:
    """Return the changes that a replay of this execution makes in its flow; refuse if the flow was cancelled."""
    if execution.flow is None or not execution.state.is_terminal:
        return ReplayPlan()
    flow = (await tx.flows.lock(None, [execution.flow]))[execution.flow]
    is_root = execution.flow_id is None
    if flow.is_frozen if is_root else flow.cancel is not None:
        # A root could start no children in the cancelled flow, so it would only fail again.
        message = f"flow {flow.id} was cancelled, so its executions cannot be replayed; submit it again"
        raise Refused("flow_already_terminal", message, flow_id=flow.id, execution_id=execution.id)
    if is_root:
        # The flow is open again, because the root may submit more children.
        return ReplayPlan(replace(flow, sealed=False, finished=None, ended_at=None, changed_at=now))
    was_bad = counts_as_bad(execution.state, execution.cancelled_by)
    flow = replace(
        flow,
        open_members=flow.open_members + 1,
        ended_badly=flow.ended_badly - was_bad,
        finished=None,
        ended_at=None,
        changed_at=now,
    )
    inbound, own = await _dependencies(tx, execution)
    outbound, groups, blocked = await _dependents(tx, execution)
    is_blocked = own is not None and own.state is GroupState.OPEN
    return ReplayPlan(flow, (*inbound, *outbound), (*((own,) if own else ()), *groups), tuple(blocked), is_blocked)


async def write_replay(tx: Transaction, plan: ReplayPlan, now: datetime) -> None:
    """Write a plan. The caller has locked the flow."""
    if plan.edges:
        await tx.edges.put(plan.edges)
    if plan.groups:
        await tx.edges.put_groups(plan.groups)
    for execution in (await tx.executions.lock(None, plan.blocked) if plan.blocked else {}).values():
        await block_again(tx, execution, now)
    if plan.flow is not None:
        await tx.flows.put([plan.flow])


async def _dependencies(tx: Transaction, execution: Execution) -> tuple[list[StoredEdge], EdgeGroup | None]:
    """Return the inbound edges that open again, and their group. Return no edges and None if the member has started."""
    groups = await tx.edges.groups_of([execution.id]) if execution.started_at is None else []
    own = next((group for group in groups if group.seq == DEPENDENCIES), None)
    if own is None:
        return [], None
    edges = [_reopen(edge) for edge, _ in await tx.edges.into([execution.id])]
    changed = [edge for edge in edges if edge.state is EdgeState.OPEN]
    return changed, recount(own, edges)


def _reopen(edge: StoredEdge) -> StoredEdge:
    if edge.state is not EdgeState.IMPOSSIBLE:
        return edge
    return replace(edge, state=EdgeState.OPEN, resolved_at=None)


async def _dependents(tx: Transaction, execution: Execution) -> tuple[list[StoredEdge], list[EdgeGroup], list[UUID]]:
    """Return the reopened edges to members that have not started, their groups, and the members that wait again."""
    outbound = [edge for edge in await tx.edges.out_of([execution.id]) if edge.seq == DEPENDENCIES]
    ids = [edge.downstream_id for edge in outbound]
    if ids:
        # The lock keeps workers from claiming these members after the check below that they have not started.
        await tx.members.lock(ids)
    facts = await tx.members.facts(ids) if ids else {}
    opened = [
        replace(edge, state=EdgeState.OPEN, resolved_at=None)
        for edge in outbound
        if edge.state is not EdgeState.OPEN and not facts[edge.downstream_id].started
    ]
    ids = [edge.downstream_id for edge in opened]
    groups = [group for group in (await tx.edges.groups_of(ids) if ids else []) if group.seq == DEPENDENCIES]
    inbound = await tx.edges.into(ids) if ids else []
    recalculated, blocked = [], []
    for group in groups:
        edges = [_latest(edge, opened) for edge, _ in inbound if edge.downstream_id == group.downstream_id]
        counted = recount(group, edges)
        if facts[group.downstream_id].state.is_terminal:
            # An ended member stays ended until it is replayed itself, and only then is its group evaluated.
            counted = replace(counted, state=group.state)
        elif counted.state is GroupState.OPEN:
            blocked.append(group.downstream_id)
        recalculated.append(counted)
    return opened, recalculated, blocked


def _latest(edge: StoredEdge, opened: Sequence[StoredEdge]) -> StoredEdge:
    same = (other for other in opened if other.downstream_id == edge.downstream_id)
    return next((other for other in same if other.upstream_id == edge.upstream_id), edge)
