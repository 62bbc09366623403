"""submit_flow and create_flow: store a flow with its members and edges in one transaction. Repeated with the same body
it answers duplicate; the ids of members follow from the flow's and their names."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from uuid import UUID

from flowfabric.core import limits
from flowfabric.core.errors import Conflict, FlowFabricError
from flowfabric.core.flow_outcomes import FlowCreated, FlowDuplicate
from flowfabric.core.flows import DEPENDENCIES, EdgeGroup, Flow, StoredEdge
from flowfabric.core.frozen import record
from flowfabric.core.graph import Drawn
from flowfabric.core.ids import derived_id
from flowfabric.core.standing import standing
from flowfabric.core.states import BlockingReason, State
from flowfabric.ops.hot import HotOperation, NotTogether
from flowfabric.ops.resolving import put_flows
from flowfabric.ops.submit import Arrival, check_deadline, first_state, why_not_stored
from flowfabric.store.executions import NewExecution
from flowfabric.store.transaction import Transaction

_MOST_SHARED = 100


@record(frozen=True, slots=True)
class NewMember:
    """A member with its id and route, and what a repeated one is compared by."""

    id: UUID
    route_id: int
    drawn: Drawn
    fingerprint: bytes


@record(frozen=True, slots=True, kw_only=True)
class NewFlow:
    """A flow to be stored."""

    id: UUID
    name: str
    tags: dict[str, str]
    digest: str
    seal: bool
    is_given: bool
    members: tuple[NewMember, ...] = ()

    @property
    def named(self) -> dict[str, UUID]:
        return {member.drawn.name: member.id for member in self.members}


async def submit_together(
    tx: Transaction, namespace: str, items: Sequence[NewFlow]
) -> list[FlowCreated | FlowDuplicate | None]:
    """Stores all flows; if one of them cannot be stored, each is looked at alone."""
    now = await tx.now()
    try:
        stored = await _store(tx, namespace, items, now)
    except FlowFabricError:
        raise NotTogether from None
    return [FlowCreated(item.id, item.named) if item.id in stored else None for item in items]


async def submit_alone(tx: Transaction, namespace: str, item: NewFlow) -> FlowCreated | FlowDuplicate:
    """Stores one flow, answers a repeated one, or says why not."""
    if await tx.executions.get(None, [item.id]):
        raise _mismatch(item.id)
    if await _store(tx, namespace, [item], await tx.now()):
        return FlowCreated(item.id, item.named)
    return await _repeated(tx, namespace, item)


def _is_solitary(item: NewFlow) -> bool:
    """With an id of the caller's own an insert may have to wait for somebody; a large one would hold up the others."""
    return item.is_given or len(item.members) > _MOST_SHARED


SUBMIT_FLOW = HotOperation(
    submit_together, submit_alone, subject=lambda item: item.id, one_statement=False, solitary=_is_solitary,
)  # fmt: skip


async def _store(tx: Transaction, namespace: str, items: Sequence[NewFlow], now: datetime) -> set[UUID]:
    flows = [_flow(namespace, item, now) for item in items]
    stored = await tx.flows.add(flows)
    placed = [(item.id, member) for item in items if item.id in stored for member in item.members]
    await insert_members(tx, namespace, placed, now)
    await tx.flows.edges.add([edge for flow_id, member in placed for edge in edges_of(flow_id, member)])
    await tx.flows.edges.put_groups([group for flow_id, member in placed for group in group_of(flow_id, member)])
    empty = [flow for flow in flows if flow.id in stored and flow.sealed and flow.open_members == 0]
    await put_flows(tx, empty, now)
    return stored


def _flow(namespace: str, item: NewFlow, now: datetime) -> Flow:
    return Flow(
        id=item.id, namespace=namespace, name=item.name, implicit=False, tags=item.tags, digest=item.digest,
        sealed=item.seal, revision=0, open_members=len(item.members), ended_badly=0, created_at=now, changed_at=now,
    )  # fmt: skip


async def insert_members(
    tx: Transaction, namespace: str, placed: Sequence[tuple[UUID, NewMember]], now: datetime
) -> None:
    """Stores members of flows: those with edges, and drafts, are blocked. Refuses all if one cannot be stored."""
    for _, member in placed:
        check_deadline(member.drawn.submission, now)
    for start in range(0, len(placed), limits.BATCH):
        batch = placed[start : start + limits.BATCH]
        stored = await tx.hot.insert([_row(namespace, flow_id, member, now) for flow_id, member in batch])
        for _, member in batch:
            if member.id not in stored:
                arrival = Arrival(member.id, member.route_id, member.drawn.submission)
                raise await why_not_stored(tx, namespace, arrival, None)
    members = [member for _, member in placed]
    waits = [standing(item.id, 0, item.drawn.submission.signals, now) for item in members if _has_signals(item)]
    if waits:
        await tx.waits.apply(waits)


def edges_of(flow_id: UUID, member: NewMember) -> list[StoredEdge]:
    """The inbound edges of a new member, open."""
    return [
        StoredEdge(
            flow_id=flow_id, upstream_id=upstream_of(flow_id, edge.upstream_name), downstream_id=member.id,
            seq=DEPENDENCIES, kind=edge.kind, input=edge.input_name,
        )
        for edge in member.drawn.edges
    ]  # fmt: skip


def group_of(flow_id: UUID, member: NewMember) -> list[EdgeGroup]:
    """The group of a new member; none if nothing keeps it from starting."""
    drawn = member.drawn
    if not drawn.edges and not drawn.draft:
        return []
    group = EdgeGroup(
        downstream_id=member.id, seq=DEPENDENCIES, flow_id=flow_id, join=drawn.join, n=len(drawn.edges),
        draft=drawn.draft,
    )  # fmt: skip
    return [group]


def upstream_of(flow_id: UUID, name: str) -> UUID:
    """The id of a member by its name; the text of an id stands for itself."""
    try:
        return UUID(name) if len(name) == 36 else derived_id(flow_id, name)
    except ValueError:
        return derived_id(flow_id, name)


def _row(namespace: str, flow_id: UUID, member: NewMember, now: datetime) -> NewExecution:
    drawn = member.drawn
    state, reason, ready_at = first_state(drawn.submission, now)
    if drawn.edges or drawn.draft:
        state, reason = State.BLOCKED, BlockingReason.WAITING_FOR_CHILDREN
    return NewExecution(
        member.id, namespace, member.route_id, drawn.submission, state, reason, ready_at, flow_id=flow_id,
        member_name=drawn.name, fingerprint=member.fingerprint,
    )  # fmt: skip


def _has_signals(member: NewMember) -> bool:
    return bool(member.drawn.submission.signals)


async def _repeated(tx: Transaction, namespace: str, request: NewFlow) -> FlowDuplicate:
    known = (await tx.flows.get(namespace, [request.id])).get(request.id)
    if known is None or known.implicit or known.digest != request.digest:
        raise _mismatch(request.id)
    return FlowDuplicate(request.id, request.named)


def _mismatch(id_: UUID) -> Conflict:
    message = f"id {id_} was used before, and not for this flow; use another one, or send the same graph"
    return Conflict("idempotency_mismatch", message, flow_id=id_)
