"""submit_children: a worker that holds a lease submits children of the leased execution.

The first children of an execution make it the root of a flow with the same id. Children of a member join its flow. The
id of a child follows from its parent, the parent's generation and its key, so a repeated submit creates no second
child. A child inherits the deadline of its parent, unless its own is earlier. A detached child gets its id in the same
way, but belongs to no flow and inherits no deadline. The submission of a detached child may carry an idempotency key of
the namespace.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from flowfabric.core.errors import Conflict, Refused
from flowfabric.core.executions.decision import Decision
from flowfabric.core.executions.outcomes import Created, Duplicate, Submitted
from flowfabric.core.executions.records import Execution, Fence
from flowfabric.core.executions.requests import Step, Submission, require_owner
from flowfabric.core.fast_dataclass import replace
from flowfabric.core.flows.graph import ChildSubmission
from flowfabric.core.flows.records import FlowRecord
from flowfabric.core.ids import derive_id
from flowfabric.core.policy import optional_span
from flowfabric.ops.executions.submit import SubmitRequest, insert_all, new_row, take_key
from flowfabric.ops.leases.checkpoint import record_steps
from flowfabric.ops.locks import lock_with_flow, read_execution
from flowfabric.ops.operation import operation
from flowfabric.ops.write_set import store
from flowfabric.store.records import NewExecution
from flowfabric.store.transaction import Transaction


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmitChildren:
    """Children to submit, and steps to record with them."""

    fence: Fence
    children: tuple[ChildSubmission, ...]
    steps: tuple[Step, ...] = ()


@operation()
async def submit_children(tx: Transaction, namespace: str, request: SubmitChildren) -> list[Submitted]:
    """Store all children or none, and return the outcome of each child."""
    taken = await _take_keys(tx, namespace, request)
    parent, flow, now = await lock_with_flow(tx, namespace, request.fence.execution_id)
    require_owner(parent, request.fence, now)
    rows = [_row(namespace, parent, child, now) for child in request.children]
    existing = await tx.executions.get(None, [row.id for row in rows]) if rows else {}
    new = [row for row in rows if row.id not in existing and row.id not in taken]
    for row, child in zip(rows, request.children, strict=True):
        if row.id in existing and not _is_same(existing[row.id], row, namespace):
            raise _mismatch(row.id, child.key)
    await record_steps(tx, parent, request.steps, now)
    members = [row for row in new if row.flow_id is not None]
    linked = parent
    if members:
        await _join_flow(tx, parent, flow, len(members), now)
        linked = replace(parent, is_standalone=False, has_children=True)
    if new:
        await insert_all(tx, namespace, new, now)
    if linked != parent:
        await store(tx, [Decision(None, parent, linked)])
    created = {row.id: Created(row.id, row.state) for row in new}
    return [created.get(row.id) or taken.get(row.id) or Duplicate(row.id) for row in rows]


def child_id(parent: Execution, key: str) -> UUID:
    """Return the id of a child, which is the same for the same parent, generation and key."""
    return derive_id(parent.id, "child", str(parent.generation), key)


async def _take_keys(tx: Transaction, namespace: str, request: SubmitChildren) -> dict[UUID, Duplicate]:
    """Reserve the idempotency keys of detached children. Return the duplicates by the id that the child would have.

    Keys are locked before the flow and the parent, so the parent is read without a lock. If its generation changes
    until it is locked, the fence is refused.
    """
    keyed = sorted(
        (child for child in request.children if child.submission.key is not None),
        key=lambda child: str(child.submission.key),
    )
    if not keyed:
        return {}
    parent = await read_execution(tx, namespace, request.fence.execution_id)
    requests = [SubmitRequest(child_id(parent, child.key), child.submission) for child in keyed]
    outcomes = {each.id: await take_key(tx, namespace, each) for each in requests}
    return {id_: outcome for id_, outcome in outcomes.items() if outcome is not None}


async def _join_flow(tx: Transaction, parent: Execution, flow: FlowRecord | None, number: int, now: datetime) -> None:
    """Add `number` members to the flow of the parent. If the parent has no flow yet, create the flow first."""
    if flow is None:
        flow = _implicit_flow(parent, now)
        if not await tx.flows.add([flow]):
            raise _mismatch(parent.id, None)
    if flow.is_frozen:
        message = f"flow {flow.id} was cancelled, so it cannot get children"
        raise Refused("flow_already_terminal", message, flow_id=flow.id)
    await tx.flows.put([replace(flow, open_members=flow.open_members + number, changed_at=now)])


def _row(namespace: str, parent: Execution, child: ChildSubmission, now: datetime) -> NewExecution:
    row = new_row(namespace, SubmitRequest(child_id(parent, child.key), child.submission), now)
    if child.detached:
        return row
    return replace(
        row,
        flow_id=parent.flow_id or parent.id,
        member_name=child.key,
        parent_id=parent.id,
        deadline_at=_inherited_deadline(parent, child.submission, now),
    )


def _inherited_deadline(parent: Execution, submission: Submission, now: datetime) -> datetime | None:
    """Return the deadline of the parent, unless the child's own deadline is earlier."""
    relative = optional_span(submission.policy.deadline)
    own = submission.deadline or (None if relative is None else now + relative)
    return (
        None if own is not None and parent.deadline_at is not None and own < parent.deadline_at else parent.deadline_at
    )


def _is_same(existing: Execution, row: NewExecution, namespace: str) -> bool:
    return existing.parent_id == row.parent_id and existing.fingerprint == row.submission.fingerprint(namespace)


def _implicit_flow(parent: Execution, now: datetime) -> FlowRecord:
    return FlowRecord(
        id=parent.id,
        namespace=parent.namespace,
        name=parent.kind,
        implicit=True,
        tags={},
        digest="",
        sealed=False,
        revision=0,
        open_members=0,
        ended_badly=0,
        created_at=now,
        changed_at=now,
    )


def _mismatch(id_: UUID, key: str | None) -> Conflict:
    what = (
        f"this execution has submitted another child with the key {key!r}; the key of a child is scoped to its parent"
        if key
        else f"id {id_} belongs to a flow"
    )
    return Conflict("idempotency_mismatch", f"{what}; use another key", execution_id=id_)
