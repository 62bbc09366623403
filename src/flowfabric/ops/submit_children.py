"""submit_children: a worker submits executions that belong to the one it works on, under its fence.

The first children of an execution make it the root of a flow of its own id; children of a member join its flow. The
id of a child follows from its parent, the parent's generation and its key, so a repeated submit makes no second one.
A detached one is made in the same way and belongs to nobody.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from flowfabric.core.decisions import Decision
from flowfabric.core.errors import Conflict, Refused
from flowfabric.core.fences import require_owner
from flowfabric.core.flows import Flow
from flowfabric.core.frozen import replace
from flowfabric.core.graph import ChildSubmission
from flowfabric.core.ids import derived_id
from flowfabric.core.outcomes import Created, Duplicate, Submitted
from flowfabric.core.records import Execution, Fence, Route
from flowfabric.core.requests import Step
from flowfabric.core.standing import standing
from flowfabric.ops.journaling import record_steps
from flowfabric.ops.locking import lock_with_flow
from flowfabric.ops.routes import ensure_routes
from flowfabric.ops.storing import store
from flowfabric.ops.submit import Arrival, check_deadline, new_row, why_not_stored
from flowfabric.store.executions import NewExecution
from flowfabric.store.transaction import Transaction


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmitChildren:
    """A worker's wish for children, with the route of each as far as it is known."""

    fence: Fence
    children: tuple[tuple[ChildSubmission, int | None], ...]
    steps: tuple[Step, ...] = ()


async def submit_children(
    tx: Transaction, namespace: str, request: SubmitChildren
) -> tuple[list[Submitted], dict[Route, int]]:
    """What became of each child, in their order; all of them are stored, or none. Also the routes that were not known.
    They are made here, where a refused fence takes them back."""
    parent, flow, now = await lock_with_flow(tx, namespace, request.fence.execution_id)
    require_owner(parent, request.fence, now)
    unknown = [_route(namespace, child) for child, route in request.children if route is None]
    routes = await ensure_routes(tx, list(dict.fromkeys(unknown)))
    rows = [
        _row(namespace, parent, child, routes[_route(namespace, child)] if route is None else route, now)
        for child, route in request.children
    ]
    known = await tx.executions.get(None, [row.id for row in rows]) if rows else {}
    new = [row for row in rows if row.id not in known]
    for row, (child, _) in zip(rows, request.children, strict=True):
        if row.id in known and not _is_same(known[row.id], row, namespace):
            raise _mismatch(row.id, child.key)
    moved = await record_steps(tx, parent, request.steps, now)
    members = [row for row in new if row.flow_id is not None]
    if members:
        await _join(tx, parent, flow, len(members), now)
        moved = replace(moved, plain=False, has_children=True)
    if new:
        await _insert(tx, namespace, new, now)
    if moved != parent:
        await store(tx, [Decision(None, parent, moved)])
    states = {row.id: row.state for row in new}
    answers = [Created(row.id, states[row.id]) if row.id in states else Duplicate(row.id) for row in rows]
    return answers, routes


def child_id(parent: Execution, key: str) -> UUID:
    """The id of a child: the same for the same parent, generation and key."""
    return derived_id(parent.id, "child", str(parent.generation), key)


async def _join(tx: Transaction, parent: Execution, flow: Flow | None, number: int, now: datetime) -> None:
    """Makes room for so many members in the flow of the parent, which is made if this is its first child."""
    if flow is None:
        flow = _implicit(parent, now)
        if not await tx.flows.add([flow]):
            raise _mismatch(parent.id, None)
    if flow.is_frozen:
        message = f"flow {flow.id} is cancelled, so nothing is started in it any more"
        raise Refused("flow_already_terminal", message, flow_id=flow.id)
    await tx.flows.put([replace(flow, open_members=flow.open_members + number, changed_at=now)])


async def _insert(tx: Transaction, namespace: str, rows: Sequence[NewExecution], now: datetime) -> None:
    for row in rows:
        check_deadline(row.submission, now)
    stored = await tx.hot.insert(rows)
    for row in rows:
        if row.id not in stored:
            raise await why_not_stored(tx, namespace, Arrival(row.id, row.route_id, row.submission), None)
    waits = [standing(row.id, 0, row.submission.signals, now) for row in rows if row.submission.signals]
    if waits:
        await tx.waits.apply(waits)


def _route(namespace: str, child: ChildSubmission) -> Route:
    submission = child.submission
    return Route(namespace, submission.lane, submission.kind, tuple(submission.requires))


def _row(namespace: str, parent: Execution, child: ChildSubmission, route: int, now: datetime) -> NewExecution:
    row = new_row(namespace, Arrival(child_id(parent, child.key), route, child.submission), now)
    if child.detached:
        return row
    return replace(row, flow_id=parent.flow_id or parent.id, member_name=child.key, parent_id=parent.id)


def _is_same(known: Execution, row: NewExecution, namespace: str) -> bool:
    return known.parent_id == row.parent_id and known.fingerprint == row.submission.fingerprint(namespace)


def _implicit(parent: Execution, now: datetime) -> Flow:
    return Flow(
        id=parent.id, namespace=parent.namespace, name=parent.kind, implicit=True, tags={}, digest="", sealed=False,
        revision=0, open_members=0, ended_badly=0, created_at=now, changed_at=now,
    )  # fmt: skip


def _mismatch(id_: UUID, key: str | None) -> Conflict:
    what = f"a child with the key {key!r} was submitted before with another body" if key else f"id {id_} is a flow's"
    return Conflict("idempotency_mismatch", f"{what}; use another key", execution_id=id_)
