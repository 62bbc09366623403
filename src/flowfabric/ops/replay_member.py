"""What a replay means for the flow of the execution: it runs again, and so may those that wait for it.

Edges to members that have not started open again, all others keep what they got. A member that never started itself
waits for its dependencies again: those that had become impossible are open, those that were satisfied stay so.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from flowfabric.core.errors import Refused
from flowfabric.core.flows import DEPENDENCIES, EdgeGroup, EdgeState, Flow, GroupState, StoredEdge, counts_as_bad
from flowfabric.core.frozen import replace
from flowfabric.core.membership import recounted
from flowfabric.core.records import Execution
from flowfabric.ops.blocking import block_again
from flowfabric.store.transaction import Transaction


@dataclass(frozen=True, slots=True)
class Again:
    """What is to be written beside the replayed execution, and whether it is blocked by its group."""

    flow: Flow | None = None
    edges: tuple[StoredEdge, ...] = ()
    groups: tuple[EdgeGroup, ...] = ()
    blocked: tuple[UUID, ...] = ()
    is_blocked: bool = False


async def member_again(tx: Transaction, execution: Execution, now: datetime) -> Again:
    """What a replay of this execution changes in its flow; refused in a cancelled one. Reads only."""
    if execution.flow is None or not execution.state.is_terminal:
        return Again()
    flow = (await tx.flows.lock(None, [execution.flow]))[execution.flow]
    is_root = execution.flow_id is None
    if flow.is_frozen if is_root else flow.cancel is not None:
        # A root could start no children in it, so it would only fail again.
        message = f"flow {flow.id} was cancelled, so nothing of it is replayed; submit it anew"
        raise Refused("flow_already_terminal", message, flow_id=flow.id, execution_id=execution.id)
    if is_root:
        # More children may come.
        return Again(replace(flow, sealed=False, finished=None, ended_at=None, changed_at=now))
    was_bad = counts_as_bad(execution.state, execution.cancelled_by)
    flow = replace(
        flow, open_members=flow.open_members + 1, ended_badly=flow.ended_badly - was_bad, finished=None, ended_at=None,
        changed_at=now,
    )  # fmt: skip
    inbound, own = await _dependencies(tx, execution)
    outbound, groups, blocked = await _dependents(tx, execution)
    is_blocked = own is not None and own.state is GroupState.OPEN
    return Again(
        flow, (*inbound, *outbound), (*((own,) if own else ()), *groups), tuple(blocked), is_blocked
    )  # fmt: skip


async def write_again(tx: Transaction, again: Again, now: datetime) -> None:
    """Writes it; the flow is locked."""
    if again.edges:
        await tx.flows.edges.put(again.edges)
    if again.groups:
        await tx.flows.edges.put_groups(again.groups)
    for execution in (await tx.executions.lock(None, again.blocked) if again.blocked else {}).values():
        await block_again(tx, execution, now)
    if again.flow is not None:
        await tx.flows.put([again.flow])


async def _dependencies(tx: Transaction, execution: Execution) -> tuple[list[StoredEdge], EdgeGroup | None]:
    """The edges of the member itself that open again, and its group, if it never started."""
    groups = await tx.flows.edges.groups_of([execution.id]) if execution.started_at is None else []
    own = next((group for group in groups if group.seq == DEPENDENCIES), None)
    if own is None:
        return [], None
    edges = [_reopened(edge) for edge, _ in await tx.flows.edges.into([execution.id])]
    changed = [edge for edge in edges if edge.state is EdgeState.OPEN]
    return changed, recounted(own, edges)


def _reopened(edge: StoredEdge) -> StoredEdge:
    if edge.state is not EdgeState.IMPOSSIBLE:
        return edge
    return replace(edge, state=EdgeState.OPEN, resolved_at=None)


async def _dependents(tx: Transaction, execution: Execution) -> tuple[list[StoredEdge], list[EdgeGroup], list[UUID]]:
    """The edges to members that have not started, open again; their groups; and who must wait again because of it."""
    outbound = [edge for edge in await tx.flows.edges.out_of([execution.id]) if edge.seq == DEPENDENCIES]
    ids = [edge.downstream_id for edge in outbound]
    if ids:
        # Nobody may claim them between the look whether they have started and the write.
        await tx.flows.members.lock(ids)
    facts = await tx.flows.members.facts(ids) if ids else {}
    opened = [
        replace(edge, state=EdgeState.OPEN, resolved_at=None)
        for edge in outbound
        if edge.state is not EdgeState.OPEN and not facts[edge.downstream_id].started
    ]
    ids = [edge.downstream_id for edge in opened]
    groups = [group for group in (await tx.flows.edges.groups_of(ids) if ids else []) if group.seq == DEPENDENCIES]
    inbound = await tx.flows.edges.into(ids) if ids else []
    recalculated, blocked = [], []
    for group in groups:
        edges = [_as_opened(edge, opened) for edge, _ in inbound if edge.downstream_id == group.downstream_id]
        counted = recounted(group, edges)
        if facts[group.downstream_id].state.is_terminal:
            # It stays as it ended until it is replayed itself, and is judged again then.
            counted = replace(counted, state=group.state)
        elif counted.state is GroupState.OPEN:
            blocked.append(group.downstream_id)
        recalculated.append(counted)
    return opened, recalculated, blocked


def _as_opened(edge: StoredEdge, opened: Sequence[StoredEdge]) -> StoredEdge:
    same = (item for item in opened if item.downstream_id == edge.downstream_id)
    return next((item for item in same if item.upstream_id == edge.upstream_id), edge)
