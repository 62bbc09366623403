"""add_member, add_edge and seal: change the graph of a flow while it runs. A caller may require a certain revision."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from flowfabric.core.errors import Conflict, InvalidRequest, NotFound, Refused
from flowfabric.core.executions.decision import make_decision
from flowfabric.core.executions.records import Execution
from flowfabric.core.executions.states import BlockingReason, State
from flowfabric.core.executions.transitions import BLOCK, apply_transition, refusal
from flowfabric.core.fast_dataclass import replace
from flowfabric.core.flows.graph import ALL_OF, EdgeKind, check_quorum
from flowfabric.core.flows.outcomes import EdgeAdded, MemberAdded, MemberDuplicate, Sealed
from flowfabric.core.flows.records import (
    DEPENDENCIES,
    EdgeGroup,
    FlowRecord,
    GroupState,
    MemberFacts,
    StoredEdge,
)
from flowfabric.core.flows.resolution import recount
from flowfabric.ops.executions.submit import insert_all
from flowfabric.ops.flows.resolve import consider_groups, put_flows, resolve_new_edge
from flowfabric.ops.flows.submit import NewMember, edges_of, group_of, member_row
from flowfabric.ops.operation import operation
from flowfabric.ops.write_set import store
from flowfabric.store.transaction import Transaction


@dataclass(frozen=True, slots=True, kw_only=True)
class NewEdge:
    """An edge to add to a flow. If `expected_revision` is given, the graph must have this revision."""

    flow_id: UUID
    upstream_id: UUID
    downstream_id: UUID
    kind: EdgeKind
    input: str | None
    expected_revision: int | None


@dataclass(frozen=True, slots=True)
class MemberAddition:
    """A member to add to a flow. If `expected_revision` is given, the graph must have this revision."""

    flow_id: UUID
    member: NewMember
    expected_revision: int | None


@dataclass(frozen=True, slots=True)
class SealRequest:
    """What to seal: one draft member of a flow, or all of its drafts and the flow itself."""

    flow_id: UUID
    member_id: UUID | None
    expected_revision: int | None


@operation()
async def add_member(tx: Transaction, namespace: str, addition: MemberAddition) -> MemberAdded | MemberDuplicate:
    """Add a member with its edges. An edge from an upstream member that has already ended is resolved immediately."""
    flow_id, member = addition.flow_id, addition.member
    flow = await lock_flow(tx, namespace, flow_id)
    fingerprint = await tx.executions.fingerprint(namespace, member.id)
    if fingerprint is not None:
        return _duplicate(flow, member, fingerprint)
    check_growing(flow, addition.expected_revision)
    now = await tx.now()
    edges = await _resolve_edges(tx, flow, member, now)
    await insert_all(tx, namespace, [member_row(namespace, flow_id, member, now)], now)
    await tx.edges.add(edges)
    flow = replace(flow, revision=flow.revision + 1, open_members=flow.open_members + 1, changed_at=now)
    await tx.flows.put([flow])
    groups = [replace(recount(group, edges), state=GroupState.OPEN) for group in group_of(flow_id, member)]
    # Cancelled members look up the groups of their edges, so the group of the new member must be stored first.
    await tx.edges.put_groups(groups)
    await consider_groups(tx, flow, [(group, _new_facts(flow, member, now)) for group in groups], now)
    return MemberAdded(member.id, flow.revision)


@operation()
async def add_edge(tx: Transaction, namespace: str, new: NewEdge) -> EdgeAdded:
    """Add an edge. A downstream member that has not started then waits for the upstream; an ended one stays ended."""
    flow = await lock_flow(tx, namespace, new.flow_id)
    facts = await _member_facts(tx, flow, [new.upstream_id, new.downstream_id])
    name = new.input or await _member_name(tx, new.upstream_id)
    if new.upstream_id == new.downstream_id:
        raise InvalidRequest("self_edge", f"member {new.upstream_id} cannot come after itself", member=new.upstream_id)
    existing = await tx.edges.between(new.upstream_id, new.downstream_id)
    if existing is not None:
        return _duplicate_edge(flow, existing, new, name)
    check_growing(flow, new.expected_revision)
    [downstream] = (await tx.executions.lock(namespace, [new.downstream_id])).values()
    if not downstream.state.is_terminal:
        check_not_started(downstream)
    await _check_cycle(tx, flow, new)
    edges = await _existing_edges(tx, flow, new, name)
    now = await tx.now()
    edge = StoredEdge(
        flow_id=flow.id,
        upstream_id=new.upstream_id,
        downstream_id=new.downstream_id,
        seq=DEPENDENCIES,
        kind=new.kind,
        input=name,
    )
    edge = resolve_new_edge(edge, facts[new.upstream_id], now)
    await tx.edges.add([edge])
    flow = replace(flow, revision=flow.revision + 1, changed_at=now)
    await tx.flows.put([flow])
    await _join_group(tx, flow, downstream, [*edges, edge], now)
    return EdgeAdded(flow.revision, edge.state)


@operation()
async def seal(tx: Transaction, namespace: str, request: SealRequest) -> Sealed:
    """Let drafts start when their edges allow it. A sealed flow gets no new members, and so it can finish."""
    member_id = request.member_id
    flow = await lock_flow(tx, namespace, request.flow_id)
    if member_id is not None:
        await _member_facts(tx, flow, [member_id])
    groups = await _draft_groups(tx, flow, member_id)
    if not groups and (flow.sealed or member_id is not None):
        return Sealed(flow.revision)
    check_alive(flow)
    check_revision(flow, request.expected_revision)
    for group in groups:
        check_quorum(group.join, group.n, await _member_name(tx, group.downstream_id))
    now = await tx.now()
    flow = replace(flow, revision=flow.revision + 1, changed_at=now, sealed=flow.sealed or member_id is None)
    # The flow is written first, because a skipped member may finish it.
    await put_flows(tx, [flow], now)
    await _start_drafts(tx, flow, groups, now)
    return Sealed(flow.revision)


async def seal_drafts(tx: Transaction, flow: FlowRecord, now: datetime) -> None:
    """Let all drafts of a flow start when their edges allow it, and skip the drafts that can never start."""
    await _start_drafts(tx, flow, await _draft_groups(tx, flow, None), now)


async def block_again(tx: Transaction, execution: Execution, now: datetime) -> Execution:
    """Make a member wait for its dependencies again, and return the changed member. Refuse if the member has started.

    The reason is a new edge of the member, or an upstream member that runs again. A member that an operator holds stays
    held.
    """
    check_not_started(execution)
    if execution.state is State.BLOCKED:
        return execution
    after = apply_transition(execution, BLOCK, now)
    await store(tx, [make_decision(None, execution, after, BLOCK)])
    return after


def check_not_started(execution: Execution) -> None:
    """Refuse a member that has started."""
    if execution.started_at is not None:
        raise refusal(execution, "downstream_already_started", "a member that has started cannot get dependencies")


async def lock_flow(tx: Transaction, namespace: str, flow_id: UUID) -> FlowRecord:
    """Lock and return a flow; raise `flow_not_found` if it is not in this namespace."""
    flows = await tx.flows.lock(namespace, [flow_id])
    if flow_id not in flows:
        raise flow_not_found(flow_id)
    return flows[flow_id]


def flow_not_found(flow_id: UUID) -> NotFound:
    """Return the error for an id that belongs to no flow in this namespace."""
    return NotFound("flow_not_found", f"there is no flow {flow_id} in this namespace", flow_id=flow_id)


def check_alive(flow: FlowRecord) -> None:
    """Refuse to change a flow that was cancelled or has finished."""
    if flow.cancel is not None or flow.finished is not None:
        state = flow.finished or "cancelled"
        message = f"flow {flow.id} is {state} and can no longer change"
        raise Refused("flow_already_terminal", message, flow_id=flow.id, state=state)


def check_growing(flow: FlowRecord, expected: int | None) -> None:
    """Refuse additions to a flow that has ended, is sealed, or does not have the expected revision."""
    check_alive(flow)
    if flow.sealed or flow.implicit:
        what = "belongs to an execution, and only its worker adds children" if flow.implicit else "is sealed"
        raise Refused("flow_sealed", f"flow {flow.id} {what}", flow_id=flow.id)
    check_revision(flow, expected)


def check_revision(flow: FlowRecord, expected: int | None) -> None:
    """Refuse if the graph does not have the expected revision."""
    if expected is not None and expected != flow.revision:
        message = f"the graph of flow {flow.id} is at revision {flow.revision}, not {expected}; read it again"
        raise Conflict("stale_revision", message, flow_id=flow.id, revision=flow.revision, expected=expected)


def _duplicate(flow: FlowRecord, member: NewMember, fingerprint: bytes) -> MemberDuplicate:
    if fingerprint != member.fingerprint:
        message = f"flow {flow.id} has a member {member.drawn.name!r} with another body; use another name"
        raise Conflict("idempotency_mismatch", message, flow_id=flow.id, execution_id=member.id)
    return MemberDuplicate(member.id, flow.revision)


def _duplicate_edge(flow: FlowRecord, existing: StoredEdge, new: NewEdge, name: str) -> EdgeAdded:
    if (existing.kind, existing.input) != (new.kind, name):
        message = f"these members already have an edge, of kind {existing.kind} with input {existing.input!r}"
        raise InvalidRequest("duplicate_edge", message, flow_id=flow.id)
    return EdgeAdded(flow.revision, existing.state)


async def _member_facts(tx: Transaction, flow: FlowRecord, ids: list[UUID]) -> dict[UUID, MemberFacts]:
    """Return the facts of members; raise `member_not_found` for an id that is no member of the flow."""
    facts = await tx.members.facts(ids) if ids else {}
    for id_ in ids:
        if id_ not in facts or facts[id_].flow_id != flow.id:
            message = f"flow {flow.id} has no member {id_}"
            raise NotFound("member_not_found", message, flow_id=flow.id, execution_id=id_)
    return facts


async def _resolve_edges(tx: Transaction, flow: FlowRecord, member: NewMember, now: datetime) -> list[StoredEdge]:
    edges = edges_of(flow.id, member)
    facts = await _member_facts(tx, flow, [edge.upstream_id for edge in edges])
    return [resolve_new_edge(edge, facts[edge.upstream_id], now) for edge in edges]


def _new_facts(flow: FlowRecord, member: NewMember, now: datetime) -> MemberFacts:
    submission = member.drawn.submission
    ready_at = submission.ready_at if submission.delay is None else now + submission.delay  # type: ignore[operator]
    return MemberFacts(
        id=member.id,
        flow_id=flow.id,
        state=State.BLOCKED,
        blocking_reason=BlockingReason.WAITING_FOR_CHILDREN,
        ready_at=ready_at,
        parent_id=None,
        has_children=False,
        started=False,
        name=member.drawn.name,
    )


async def _check_cycle(tx: Transaction, flow: FlowRecord, new: NewEdge) -> None:
    if await tx.edges.reaches(flow.id, new.downstream_id, new.upstream_id):
        message = f"member {new.upstream_id} already depends on {new.downstream_id}; the edge would close a cycle"
        raise InvalidRequest("cycle", message, flow_id=flow.id)


async def _existing_edges(tx: Transaction, flow: FlowRecord, new: NewEdge, name: str) -> list[StoredEdge]:
    """Return the edges into the downstream member; refuse if one of these edges already has the input name `name`."""
    edges = [edge for edge, _ in await tx.edges.into([new.downstream_id])]
    if any(edge.input == name for edge in edges):
        message = f"member {new.downstream_id} already has an input {name!r}; give the new one another name"
        raise InvalidRequest("duplicate_edge", message, flow_id=flow.id, input=name)
    return edges


async def _join_group(
    tx: Transaction, flow: FlowRecord, downstream: Execution, edges: list[StoredEdge], now: datetime
) -> None:
    """Count these edges in the group of their downstream member. A new edge may make a decided group open again."""
    existing = [group for group in await tx.edges.groups_of([downstream.id]) if group.seq == DEPENDENCIES]
    group = (
        existing[0]
        if existing
        else EdgeGroup(downstream_id=downstream.id, seq=DEPENDENCIES, flow_id=flow.id, join=ALL_OF, n=0)
    )
    counted = recount(group, edges)
    if downstream.state.is_terminal:
        await tx.edges.put_groups([replace(counted, state=group.state if existing else GroupState.CLOSED)])
        return
    if counted.state is not GroupState.FIRED:
        downstream = await block_again(tx, downstream, now)
    facts = (await tx.members.facts([downstream.id]))[downstream.id]
    opened = replace(counted, state=GroupState.OPEN)
    await tx.edges.put_groups([opened])
    await consider_groups(tx, flow, [(opened, facts)], now)


async def _start_drafts(tx: Transaction, flow: FlowRecord, drafts: list[EdgeGroup], now: datetime) -> None:
    facts = await tx.members.facts([group.downstream_id for group in drafts]) if drafts else {}
    groups = [(replace(group, draft=False), facts[group.downstream_id]) for group in drafts]
    await consider_groups(tx, flow, groups, now)


async def _draft_groups(tx: Transaction, flow: FlowRecord, member_id: UUID | None) -> list[EdgeGroup]:
    if member_id is not None:
        groups = await tx.edges.groups_of([member_id])
    else:
        _, groups = await tx.edges.of_flow(flow.id, 10**6)
    return [group for group in groups if group.draft]


async def _member_name(tx: Transaction, id_: UUID) -> str:
    execution = (await tx.executions.get(None, [id_])).get(id_)
    return (execution.member_name if execution else None) or str(id_)
