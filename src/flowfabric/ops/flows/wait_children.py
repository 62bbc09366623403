"""wait_children: a worker gives up its lease until its children have ended, or learns that they have already ended.

The flow is locked, so no child can end after its state is read and before the edge from it is stored.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from flowfabric.core.errors import NotFound
from flowfabric.core.executions.decision import make_decision
from flowfabric.core.executions.records import Execution, Fence
from flowfabric.core.executions.requests import Step, digest, find_repeated, require_owner, step_parts
from flowfabric.core.executions.transitions import WAIT_CHILDREN, apply_transition
from flowfabric.core.executions.views import Outcome, make_outcome
from flowfabric.core.flows.graph import EdgeKind, Join, Siblings
from flowfabric.core.flows.outcomes import ChildrenReady, WaitingForChildren
from flowfabric.core.flows.records import (
    EdgeGroup,
    EdgeState,
    FlowRecord,
    GroupState,
    MemberFacts,
    StoredEdge,
    judge_group,
)
from flowfabric.ops.flows.resolve import consider_groups, resolve_new_edge
from flowfabric.ops.leases.checkpoint import record_steps
from flowfabric.ops.locks import lock_with_flow
from flowfabric.ops.operation import operation
from flowfabric.ops.write_set import store
from flowfabric.store.transaction import Transaction


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitChildren:
    """The children that the owner of a lease waits for, and the join that decides when to continue."""

    fence: Fence
    children: tuple[UUID, ...]
    join: Join
    edge: EdgeKind = EdgeKind.ON_COMPLETION
    key: str | None = None
    steps: tuple[Step, ...] = ()

    def digest(self) -> str:
        join = f"{self.join.kind}:{self.join.k}:{self.join.siblings}:{self.edge}"
        return digest("wait_children", join, self.key, *map(str, self.children), *step_parts(self.steps))


@operation()
async def wait_children(tx: Transaction, namespace: str, request: WaitChildren) -> WaitingForChildren | ChildrenReady:
    """Give up the lease until the join is decided. If it is decided already, return the outcomes of the children.

    A repeated request returns the same outcome.
    """
    parent, flow, now = await lock_with_flow(tx, namespace, request.fence.execution_id)
    if find_repeated(parent, request.fence, request.digest()) is not None:
        return WaitingForChildren()
    require_owner(parent, request.fence, now)
    facts = await _child_facts(tx, parent, request.children)
    await record_steps(tx, parent, request.steps, now)
    if flow is None:
        return ChildrenReady({})
    group, edges = await _make_group(tx, parent, flow, request, facts, now)
    if judge_group(group.join, group.n, group.satisfied, group.impossible) is not GroupState.OPEN:
        await _write_ready(tx, parent, flow, group, edges, now)
        return ChildrenReady(await _outcomes(tx, request.children))
    after = apply_transition(parent, WAIT_CHILDREN, now, digest=request.digest(), is_standalone=False)
    details = {"children": len(edges), "join": request.join.kind.value}
    await store(tx, [make_decision(WaitingForChildren(), parent, after, WAIT_CHILDREN, details=details)])
    await tx.edges.add(edges)
    await tx.edges.put_groups([group])
    return WaitingForChildren()


async def _child_facts(tx: Transaction, parent: Execution, ids: Sequence[UUID]) -> list[MemberFacts]:
    """Return the facts of children; raise `child_not_found` for an id that is no child of this execution."""
    facts = await tx.members.facts(ids) if ids else {}
    for id_ in ids:
        if id_ not in facts or facts[id_].parent_id != parent.id:
            message = f"execution {parent.id} has no child {id_}"
            raise NotFound("child_not_found", message, execution_id=parent.id, child_id=id_)
    return [facts[id_] for id_ in ids]


async def _make_group(
    tx: Transaction,
    parent: Execution,
    flow: FlowRecord,
    request: WaitChildren,
    children: Sequence[MemberFacts],
    now: datetime,
) -> tuple[EdgeGroup, list[StoredEdge]]:
    """Return a new group that represents this wait, with an edge from each child to the parent."""
    seq = 1 + max((group.seq for group in await tx.edges.groups_of([parent.id])), default=0)
    group = EdgeGroup(downstream_id=parent.id, seq=seq, flow_id=flow.id, join=request.join, n=len(children))
    edges = [_edge(group, request.edge, child, now) for child in children]
    return group.add_resolved([edge.state for edge in edges]), edges


def _edge(group: EdgeGroup, kind: EdgeKind, child: MemberFacts, now: datetime) -> StoredEdge:
    edge = StoredEdge(
        flow_id=group.flow_id,
        upstream_id=child.id,
        downstream_id=group.downstream_id,
        seq=group.seq,
        kind=kind,
        input=str(child.id),
    )
    return resolve_new_edge(edge, child, now)


async def _write_ready(
    tx: Transaction, parent: Execution, flow: FlowRecord, group: EdgeGroup, edges: Sequence[StoredEdge], now: datetime
) -> None:
    """Store the group and its edges, and cancel siblings if the join requires it.

    Store nothing if every ended child already has an edge to the parent, and no siblings are to be cancelled.
    """
    outbound = await tx.edges.out_of([edge.upstream_id for edge in edges]) if edges else []
    waited = {edge.upstream_id for edge in outbound if edge.downstream_id == parent.id}
    if all(edge.upstream_id in waited or edge.state is EdgeState.OPEN for edge in edges) and not _cancels_siblings(
        group
    ):
        return
    await tx.edges.add(edges)
    await tx.edges.put_groups([group])
    facts = await tx.members.facts([parent.id])
    await consider_groups(tx, flow, [(group, facts[parent.id])], now)


def _cancels_siblings(group: EdgeGroup) -> bool:
    return group.join.siblings is Siblings.CANCEL_REMAINING and group.satisfied + group.impossible < group.n


async def _outcomes(tx: Transaction, ids: Sequence[UUID]) -> dict[UUID, Outcome]:
    """Return the outcomes of the children that have ended."""
    executions = await tx.executions.get(None, ids) if ids else {}
    return {
        id_: make_outcome(executions[id_], await tx.attempts.get(id_, executions[id_].attempt_index))
        for id_ in ids
        if executions[id_].state.is_terminal
    }
