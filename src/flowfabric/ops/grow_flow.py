"""add_to_flow, add_edge and seal: a flow grows while it runs. The revision of its graph can be compared and set."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from flowfabric.core.errors import Conflict, InvalidRequest, NotFound, Refused
from flowfabric.core.flow_outcomes import EdgeAdded, MemberAdded, MemberDuplicate, Sealed
from flowfabric.core.flows import (
    DEPENDENCIES,
    EdgeGroup,
    EdgeState,
    Flow,
    GroupState,
    MemberFacts,
    StoredEdge,
    resolved,
)  # fmt: skip
from flowfabric.core.frozen import replace
from flowfabric.core.graph import ALL_OF, EdgeKind, check_quorum
from flowfabric.core.membership import Resolution, recounted
from flowfabric.core.records import Execution
from flowfabric.core.states import BlockingReason, State
from flowfabric.ops.blocking import block_again, check_not_started
from flowfabric.ops.resolving import put_flows, settle_flows
from flowfabric.ops.submit_flow import NewMember, edges_of, group_of, insert_members
from flowfabric.store.transaction import Transaction


@dataclass(frozen=True, slots=True, kw_only=True)
class NewEdge:
    """An edge to be added to a flow."""

    upstream_id: UUID
    downstream_id: UUID
    kind: EdgeKind
    input: str | None


async def add_to_flow(
    tx: Transaction, namespace: str, flow_id: UUID, member: NewMember, expected: int | None
) -> MemberAdded | MemberDuplicate:
    """The new member, with its edges. What has ended before counts at once."""
    flow = await lock_flow(tx, namespace, flow_id)
    known = await tx.executions.fingerprint(namespace, member.id)
    if known is not None:
        return _same(flow, member, known == member.fingerprint)
    check_growing(flow, expected)
    now = await tx.now()
    edges = await _resolved_edges(tx, flow, member, now)
    await insert_members(tx, namespace, [(flow_id, member)], now)
    await tx.flows.edges.add(edges)
    flow = replace(flow, revision=flow.revision + 1, open_members=flow.open_members + 1, changed_at=now)
    await tx.flows.put([flow])
    resolution = _resolution(flow, now)
    for group in group_of(flow_id, member):
        counted = _counted(group, edges)
        # Whoever it cancels looks for the groups of its edges, so it must be there.
        await tx.flows.edges.put_groups([counted])
        resolution.consider(counted, _new_facts(flow, member, now))
    await settle_flows(tx, {flow.id: flow}, resolution, [])
    return MemberAdded(member.id, flow.revision)


async def add_edge(tx: Transaction, namespace: str, flow_id: UUID, new: NewEdge, expected: int | None) -> EdgeAdded:
    """The new edge; a member that has not started waits for it, one that has ended does not notice."""
    flow = await lock_flow(tx, namespace, flow_id)
    facts = await _members(tx, flow, [new.upstream_id, new.downstream_id])
    name = new.input or await _name_of(tx, new.upstream_id)
    if new.upstream_id == new.downstream_id:
        raise InvalidRequest("self_edge", f"member {new.upstream_id} cannot come after itself", member=new.upstream_id)
    existing = await tx.flows.edges.between(new.upstream_id, new.downstream_id)
    if existing is not None:
        return _same_edge(flow, existing, new, name)
    check_growing(flow, expected)
    [downstream] = (await tx.executions.lock(namespace, [new.downstream_id])).values()
    if not downstream.state.is_terminal:
        check_not_started(downstream)
    await _check_cycle(tx, flow, new)
    edges = await _edges_beside(tx, flow, new, name)
    now = await tx.now()
    state = resolved(new.kind, facts[new.upstream_id].state)
    edge = StoredEdge(
        flow_id=flow.id, upstream_id=new.upstream_id, downstream_id=new.downstream_id, seq=DEPENDENCIES,
        kind=new.kind, input=name, state=state, resolved_at=None if state is EdgeState.OPEN else now,
    )  # fmt: skip
    await tx.flows.edges.add([edge])
    flow = replace(flow, revision=flow.revision + 1, changed_at=now)
    await tx.flows.put([flow])
    await _join_group(tx, flow, downstream, [*edges, edge], now)
    return EdgeAdded(flow.revision, state)


async def seal(tx: Transaction, namespace: str, flow_id: UUID, member_id: UUID | None, expected: int | None) -> Sealed:
    """A draft member may start when its edges let it; a sealed flow takes no more members, and finishes by itself."""
    flow = await lock_flow(tx, namespace, flow_id)
    if member_id is not None:
        await _members(tx, flow, [member_id])
    groups = await _drafts(tx, flow, member_id)
    if not groups and (flow.sealed or member_id is not None):
        return Sealed(flow.revision)
    check_alive(flow)
    check_revision(flow, expected)
    for group in groups:
        check_quorum(group.join, group.n, await _name_of(tx, group.downstream_id))
    now = await tx.now()
    flow = replace(flow, revision=flow.revision + 1, changed_at=now, sealed=flow.sealed or member_id is None)
    # Written first, because whoever is skipped by it may finish the flow.
    await put_flows(tx, [flow], now)
    await _let_start(tx, flow, groups, now)
    return Sealed(flow.revision)


async def seal_drafts(tx: Transaction, flow: Flow, now: datetime) -> None:
    """Lets all drafts of a flow start that takes no more edges; those that never can are skipped."""
    await _let_start(tx, flow, await _drafts(tx, flow, None), now)


async def lock_flow(tx: Transaction, namespace: str, flow_id: UUID) -> Flow:
    """The flow, locked; `flow_not_found` if it is not in this namespace."""
    found = await tx.flows.lock(namespace, [flow_id])
    if flow_id not in found:
        raise flow_not_found(flow_id)
    return found[flow_id]


def flow_not_found(flow_id: UUID) -> NotFound:
    """The answer to an id that is no flow in this namespace."""
    return NotFound("flow_not_found", f"there is no flow {flow_id} in this namespace", flow_id=flow_id)


def check_alive(flow: Flow) -> None:
    """Refuses what can no longer be done to a flow that was cancelled or has finished."""
    if flow.cancel is not None or flow.finished is not None:
        state = flow.finished or "cancelled"
        raise Refused("flow_already_terminal", f"flow {flow.id} is {state} already", flow_id=flow.id, state=state)


def check_growing(flow: Flow, expected: int | None) -> None:
    """Refuses to add to a flow that has ended or is sealed, or whose graph is not as the caller saw it."""
    check_alive(flow)
    if flow.sealed or flow.implicit:
        what = "belongs to an execution, which alone adds children" if flow.implicit else "is sealed"
        raise Refused("flow_sealed", f"flow {flow.id} {what}", flow_id=flow.id)
    check_revision(flow, expected)


def check_revision(flow: Flow, expected: int | None) -> None:
    """Refuses if the graph is not as the caller saw it."""
    if expected is not None and expected != flow.revision:
        message = f"the graph of flow {flow.id} is at revision {flow.revision}, not {expected}; look again"
        raise Conflict("stale_revision", message, flow_id=flow.id, revision=flow.revision, expected=expected)


def _resolution(flow: Flow, now: datetime) -> Resolution:
    return Resolution(now, frozen={flow.id} if flow.is_frozen else set())


def _same(flow: Flow, member: NewMember, is_same: bool) -> MemberDuplicate:
    if not is_same:
        message = f"flow {flow.id} has a member {member.drawn.name!r} with another body; use another name"
        raise Conflict("idempotency_mismatch", message, flow_id=flow.id, execution_id=member.id)
    return MemberDuplicate(member.id, flow.revision)


def _same_edge(flow: Flow, existing: StoredEdge, new: NewEdge, name: str) -> EdgeAdded:
    if (existing.kind, existing.input) != (new.kind, name):
        message = f"there is an edge between these members already: {existing.kind}, input {existing.input!r}"
        raise InvalidRequest("duplicate_edge", message, flow_id=flow.id)
    return EdgeAdded(flow.revision, existing.state)


async def _members(tx: Transaction, flow: Flow, ids: list[UUID]) -> dict[UUID, MemberFacts]:
    """What is known of these members; `member_not_found` for whoever is not one of the flow's."""
    found = await tx.flows.members.facts(ids) if ids else {}
    for id_ in ids:
        if id_ not in found or found[id_].flow_id != flow.id:
            message = f"flow {flow.id} has no member {id_}"
            raise NotFound("member_not_found", message, flow_id=flow.id, execution_id=id_)
    return found


async def _resolved_edges(tx: Transaction, flow: Flow, member: NewMember, now: datetime) -> list[StoredEdge]:
    edges = edges_of(flow.id, member)
    facts = await _members(tx, flow, [edge.upstream_id for edge in edges])
    states = [resolved(edge.kind, facts[edge.upstream_id].state) for edge in edges]
    return [
        replace(edge, state=state, resolved_at=None if state is EdgeState.OPEN else now)
        for edge, state in zip(edges, states, strict=True)
    ]


def _counted(group: EdgeGroup, edges: list[StoredEdge]) -> EdgeGroup:
    return replace(recounted(group, edges), state=GroupState.OPEN)


def _new_facts(flow: Flow, member: NewMember, now: datetime) -> MemberFacts:
    submission = member.drawn.submission
    ready_at = submission.ready_at if submission.delay is None else now + submission.delay  # type: ignore[operator]
    return MemberFacts(
        id=member.id, flow_id=flow.id, state=State.BLOCKED, blocking_reason=BlockingReason.WAITING_FOR_CHILDREN,
        ready_at=ready_at, parent_id=None, has_children=False, started=False,
    )  # fmt: skip


async def _check_cycle(tx: Transaction, flow: Flow, new: NewEdge) -> None:
    if await tx.flows.edges.reaches(flow.id, new.downstream_id, new.upstream_id):
        message = f"member {new.upstream_id} comes after {new.downstream_id} already; the edge would close a circle"
        raise InvalidRequest("cycle", message, flow_id=flow.id)


async def _edges_beside(tx: Transaction, flow: Flow, new: NewEdge, name: str) -> list[StoredEdge]:
    """The edges that the downstream has already; none of them may have the name of the new input."""
    edges = [edge for edge, _ in await tx.flows.edges.into([new.downstream_id])]
    if any(edge.input == name for edge in edges):
        message = f"member {new.downstream_id} has an input {name!r} already; give the new one another name"
        raise InvalidRequest("duplicate_edge", message, flow_id=flow.id, input=name)
    return edges


async def _join_group(
    tx: Transaction, flow: Flow, downstream: Execution, edges: list[StoredEdge], now: datetime
) -> None:
    """All of these edges are the group of their downstream from now on, which may open again by a new one."""
    known = [group for group in await tx.flows.edges.groups_of([downstream.id]) if group.seq == DEPENDENCIES]
    group = known[0] if known else EdgeGroup(
        downstream_id=downstream.id, seq=DEPENDENCIES, flow_id=flow.id, join=ALL_OF, n=0
    )  # fmt: skip
    counted = recounted(group, edges)
    if downstream.state.is_terminal:
        await tx.flows.edges.put_groups([replace(counted, state=group.state if known else GroupState.CLOSED)])
        return
    if counted.state is not GroupState.FIRED:
        downstream = await block_again(tx, downstream, now)
    facts = (await tx.flows.members.facts([downstream.id]))[downstream.id]
    opened = replace(counted, state=GroupState.OPEN)
    await tx.flows.edges.put_groups([opened])
    resolution = _resolution(flow, now)
    resolution.consider(opened, facts)
    await settle_flows(tx, {flow.id: flow}, resolution, [])


async def _let_start(tx: Transaction, flow: Flow, drafts: list[EdgeGroup], now: datetime) -> None:
    facts = await tx.flows.members.facts([group.downstream_id for group in drafts]) if drafts else {}
    resolution = _resolution(flow, now)
    for group in drafts:
        resolution.consider(replace(group, draft=False), facts[group.downstream_id])
    await settle_flows(tx, {flow.id: flow}, resolution, [])


async def _drafts(tx: Transaction, flow: Flow, member_id: UUID | None) -> list[EdgeGroup]:
    if member_id is not None:
        groups = await tx.flows.edges.groups_of([member_id])
    else:
        _, groups = await tx.flows.edges.of_flow(flow.id, 10**6)
    return [group for group in groups if group.draft]


async def _name_of(tx: Transaction, id_: UUID) -> str:
    found = (await tx.executions.get(None, [id_])).get(id_)
    return (found.member_name if found else None) or str(id_)
