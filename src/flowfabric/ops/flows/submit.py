"""submit_flow: store a flow with its members and edges in one transaction.

A repeated call with the same graph returns a duplicate. The id of a member is derived from the id of the flow and the
name of the member.

```text
flow ──┬── an id of the caller's, or many members ──> locked_single
       └── otherwise ──> batch
                           │ one of the flows cannot be stored
                           └──> locked_single
```
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from uuid import UUID

from flowfabric.core.errors import Conflict, FlowFabricError
from flowfabric.core.executions.states import BlockingReason, State
from flowfabric.core.fast_dataclass import record
from flowfabric.core.flows.graph import MemberSpec
from flowfabric.core.flows.outcomes import FlowCreated, FlowDuplicate
from flowfabric.core.flows.records import DEPENDENCIES, EdgeGroup, FlowRecord, StoredEdge
from flowfabric.core.ids import derive_id
from flowfabric.ops.executions.submit import first_state, insert_all
from flowfabric.ops.flows.resolve import put_flows
from flowfabric.ops.operation import BatchOperation, BatchRejected
from flowfabric.store.records import NewExecution
from flowfabric.store.transaction import Transaction

_MAX_SHARED_MEMBERS = 100


@record(frozen=True, slots=True)
class NewMember:
    """A member with its id, and the fingerprint that identifies a repeated submission."""

    id: UUID
    drawn: MemberSpec
    fingerprint: bytes


@record(frozen=True, slots=True, kw_only=True)
class NewFlow:
    """A flow to store."""

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


class SubmitFlow(BatchOperation[NewFlow, FlowCreated | FlowDuplicate]):
    """Store flows with all of their members and edges."""

    name = "submit_flow"
    single_statement = False

    def key(self, request: NewFlow) -> UUID:
        return request.id

    async def run_batch(
        self, tx: Transaction, namespace: str, requests: Sequence[NewFlow]
    ) -> list[FlowCreated | FlowDuplicate | None]:
        """Store all flows; if one of them cannot be stored, reject the batch."""
        now = await tx.now()
        try:
            stored = await _store(tx, namespace, requests, now)
        except FlowFabricError:
            raise BatchRejected from None
        return [FlowCreated(flow.id, flow.named) if flow.id in stored else None for flow in requests]

    async def run_one(self, tx: Transaction, namespace: str, request: NewFlow) -> FlowCreated | FlowDuplicate:
        if await tx.executions.get(None, [request.id]):
            raise _mismatch(request.id)
        if await _store(tx, namespace, [request], await tx.now()):
            return FlowCreated(request.id, request.named)
        return await _find_duplicate(tx, namespace, request)

    def is_exclusive(self, request: NewFlow) -> bool:
        """Return True if the insert may wait for another transaction, or is large enough to delay other requests."""
        return request.is_given or len(request.members) > _MAX_SHARED_MEMBERS


SUBMIT_FLOW = SubmitFlow()


async def _store(tx: Transaction, namespace: str, requests: Sequence[NewFlow], now: datetime) -> set[UUID]:
    flows = [_flow(namespace, request, now) for request in requests]
    stored = await tx.flows.add(flows)
    placed = [(request.id, member) for request in requests if request.id in stored for member in request.members]
    await insert_all(tx, namespace, [member_row(namespace, flow_id, member, now) for flow_id, member in placed], now)
    await tx.edges.add([edge for flow_id, member in placed for edge in edges_of(flow_id, member)])
    await tx.edges.put_groups([group for flow_id, member in placed for group in group_of(flow_id, member)])
    empty = [flow for flow in flows if flow.id in stored and flow.sealed and flow.open_members == 0]
    await put_flows(tx, empty, now)
    return stored


def _flow(namespace: str, request: NewFlow, now: datetime) -> FlowRecord:
    return FlowRecord(
        id=request.id,
        namespace=namespace,
        name=request.name,
        implicit=False,
        tags=request.tags,
        digest=request.digest,
        sealed=request.seal,
        revision=0,
        open_members=len(request.members),
        ended_badly=0,
        created_at=now,
        changed_at=now,
    )


def edges_of(flow_id: UUID, member: NewMember) -> list[StoredEdge]:
    """Return the inbound edges of a new member, all in the state open."""
    return [
        StoredEdge(
            flow_id=flow_id,
            upstream_id=upstream_of(flow_id, edge.upstream_name),
            downstream_id=member.id,
            seq=DEPENDENCIES,
            kind=edge.kind,
            input=edge.input_name,
        )
        for edge in member.drawn.edges
    ]


def group_of(flow_id: UUID, member: NewMember) -> list[EdgeGroup]:
    """Return a list with the group of a new member, or an empty list if the member may start immediately."""
    drawn = member.drawn
    if not drawn.edges and not drawn.draft:
        return []
    group = EdgeGroup(
        downstream_id=member.id,
        seq=DEPENDENCIES,
        flow_id=flow_id,
        join=drawn.join,
        n=len(drawn.edges),
        draft=drawn.draft,
    )
    return [group]


def upstream_of(flow_id: UUID, name: str) -> UUID:
    """Return the id of an upstream member. `name` is its name in the flow, or its id as text."""
    try:
        return UUID(name) if len(name) == 36 else derive_id(flow_id, name)
    except ValueError:
        return derive_id(flow_id, name)


def member_row(namespace: str, flow_id: UUID, member: NewMember, now: datetime) -> NewExecution:
    """Return the execution of a new member, which is blocked if it has edges or is a draft."""
    drawn = member.drawn
    state, reason, ready_at = first_state(drawn.submission, now)
    if drawn.edges or drawn.draft:
        state, reason = State.BLOCKED, BlockingReason.WAITING_FOR_CHILDREN
    return NewExecution(
        member.id,
        namespace,
        drawn.submission,
        state,
        reason,
        ready_at,
        flow_id=flow_id,
        member_name=drawn.name,
        fingerprint=member.fingerprint,
    )


async def _find_duplicate(tx: Transaction, namespace: str, request: NewFlow) -> FlowDuplicate:
    existing = (await tx.flows.get(namespace, [request.id])).get(request.id)
    if existing is None or existing.implicit or existing.digest != request.digest:
        raise _mismatch(request.id)
    return FlowDuplicate(request.id, request.named)


def _mismatch(id_: UUID) -> Conflict:
    message = f"id {id_} was used before for something else; use another one, or send the same graph"
    return Conflict("idempotency_mismatch", message, flow_id=id_)
