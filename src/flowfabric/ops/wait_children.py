"""wait_children: a worker gives its lease up until children of its own have ended, or hears that they have.

Under the lock of the flow no child can end between the look at the children and the edges that wait for them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from flowfabric.core.decisions import Decision, decided
from flowfabric.core.errors import NotFound
from flowfabric.core.fences import digest, repeated, require_owner
from flowfabric.core.flow_outcomes import ChildrenReady, WaitingForChildren
from flowfabric.core.flows import EdgeGroup, EdgeState, Flow, GroupState, MemberFacts, StoredEdge, judged, resolved
from flowfabric.core.graph import EdgeKind, Join, Siblings
from flowfabric.core.membership import Resolution
from flowfabric.core.records import Execution, Fence
from flowfabric.core.requests import Step, step_parts
from flowfabric.core.transitions import WAIT_CHILDREN, move
from flowfabric.core.views import Outcome, outcome_of
from flowfabric.ops.journaling import record_steps
from flowfabric.ops.locking import lock_with_flow
from flowfabric.ops.resolving import settle_flows
from flowfabric.ops.storing import store
from flowfabric.store.transaction import Transaction


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitChildren:
    """A worker's wish to wait for children."""

    fence: Fence
    children: tuple[UUID, ...]
    join: Join
    edge: EdgeKind = EdgeKind.ON_COMPLETION
    key: str | None = None
    steps: tuple[Step, ...] = ()

    def digest(self) -> str:
        join = f"{self.join.kind}:{self.join.k}:{self.join.siblings}:{self.edge}"
        return digest("wait_children", join, self.key, *map(str, self.children), *step_parts(self.steps))


async def wait_children(tx: Transaction, namespace: str, request: WaitChildren) -> WaitingForChildren | ChildrenReady:
    """That the lease was given up, or how the children ended; the same request again is answered alike."""
    parent, flow, now = await lock_with_flow(tx, namespace, request.fence.execution_id)
    if repeated(parent, request.fence, request.digest()) is not None:
        return WaitingForChildren()
    require_owner(parent, request.fence, now)
    facts = await children_of(tx, parent, request.children)
    owned = await record_steps(tx, parent, request.steps, now)
    if flow is None:
        await _store_steps(tx, parent, owned)
        return ChildrenReady({})
    group, edges = await _group(tx, parent, flow, request, facts, now)
    if judged(group.join, group.n, group.satisfied, group.impossible) is not GroupState.OPEN:
        await _store_steps(tx, parent, owned)
        await _note_ready(tx, parent, flow, group, edges, now)
        return ChildrenReady(await _outcomes(tx, request.children))
    after = move(owned, WAIT_CHILDREN, now, digest=request.digest(), plain=False)
    details = {"children": len(edges), "join": request.join.kind.value}
    await store(tx, [decided(WaitingForChildren(), parent, after, WAIT_CHILDREN, details=details)])
    await tx.flows.edges.add(edges)
    await tx.flows.edges.put_groups([group])
    return WaitingForChildren()


async def children_of(tx: Transaction, parent: Execution, ids: Sequence[UUID]) -> list[MemberFacts]:
    """What is known of these children; `child_not_found` for whatever is not a child of this execution."""
    found = await tx.flows.members.facts(ids) if ids else {}
    for id_ in ids:
        if id_ not in found or found[id_].parent_id != parent.id:
            message = f"execution {parent.id} has no child {id_}"
            raise NotFound("child_not_found", message, execution_id=parent.id, child_id=id_)
    return [found[id_] for id_ in ids]


async def _group(
    tx: Transaction, parent: Execution, flow: Flow, request: WaitChildren, children: Sequence[MemberFacts],
    now: datetime,
) -> tuple[EdgeGroup, list[StoredEdge]]:  # fmt: skip
    """The wait as a group of its own, with an edge from each child."""
    seq = 1 + max((group.seq for group in await tx.flows.edges.groups_of([parent.id])), default=0)
    group = EdgeGroup(downstream_id=parent.id, seq=seq, flow_id=flow.id, join=request.join, n=len(children))
    edges = [_edge(group, request.edge, child, now) for child in children]
    return group.counting([edge.state for edge in edges]), edges


def _edge(group: EdgeGroup, kind: EdgeKind, child: MemberFacts, now: datetime) -> StoredEdge:
    state = resolved(kind, child.state)
    return StoredEdge(
        flow_id=group.flow_id, upstream_id=child.id, downstream_id=group.downstream_id, seq=group.seq, kind=kind,
        input=str(child.id), state=state, resolved_at=None if state is EdgeState.OPEN else now,
    )  # fmt: skip


async def _store_steps(tx: Transaction, parent: Execution, owned: Execution) -> None:
    if owned.step_seq != parent.step_seq:
        await store(tx, [Decision(None, parent, owned)])


async def _note_ready(
    tx: Transaction, parent: Execution, flow: Flow, group: EdgeGroup, edges: Sequence[StoredEdge], now: datetime
) -> None:
    """Records that the parent took up how these children ended, once, and ends those that no longer matter."""
    known = await tx.flows.edges.out_of([edge.upstream_id for edge in edges]) if edges else []
    waited = {edge.upstream_id for edge in known if edge.downstream_id == parent.id}
    if all(edge.upstream_id in waited or edge.state is EdgeState.OPEN for edge in edges) and not _lets_go(group):
        return
    await tx.flows.edges.add(edges)
    await tx.flows.edges.put_groups([group])
    resolution = Resolution(now, frozen={flow.id} if flow.is_frozen else set())
    facts = await tx.flows.members.facts([parent.id])
    resolution.consider(group, facts[parent.id])
    await settle_flows(tx, {flow.id: flow}, resolution, [])


def _lets_go(group: EdgeGroup) -> bool:
    return group.join.siblings is Siblings.CANCEL_REMAINING and group.satisfied + group.impossible < group.n


async def _outcomes(tx: Transaction, ids: Sequence[UUID]) -> dict[UUID, Outcome]:
    """How the children ended that have."""
    found = await tx.executions.get(None, ids) if ids else {}
    return {
        id_: outcome_of(found[id_], await tx.attempts.at(id_, found[id_].attempt_index))
        for id_ in ids
        if found[id_].state.is_terminal
    }
