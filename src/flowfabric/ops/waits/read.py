"""Reads of waits: received signals, waitpoints, and suspended executions. They lock nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

from flowfabric.core.errors import NotFound
from flowfabric.core.executions.operator import is_held
from flowfabric.core.executions.records import Execution
from flowfabric.core.executions.transitions import HOLD
from flowfabric.core.executions.views import SuspendedView, WaitpointView, view_suspension, view_waitpoint
from flowfabric.core.waits.records import StoredSignal, Suspension, Waitpoint
from flowfabric.ops.locks import read_execution
from flowfabric.ops.operation import operation
from flowfabric.ops.waits.load import load_signals
from flowfabric.store.transaction import Transaction


@dataclass(frozen=True, slots=True)
class SignalQuery:
    """A query for the signals of one suspension: `suspension_id`, or without it the latest one of the execution."""

    execution_id: UUID
    suspension_id: UUID | None
    include_unmatched: bool


@operation(read_only=True)
async def list_signals(tx: Transaction, namespace: str, query: SignalQuery) -> tuple[StoredSignal, ...]:
    """Return the signals of a suspension, in order of acceptance."""
    id_ = query.execution_id
    await read_execution(tx, namespace, id_)
    suspension = await tx.waits.last_suspension(id_, id_=query.suspension_id)
    if suspension is not None:
        return await load_signals(tx, suspension, include_unmatched=query.include_unmatched)
    if query.suspension_id is None:
        return ()
    message = f"execution {id_} has no suspension {query.suspension_id}"
    raise NotFound("suspension_not_found", message, execution_id=id_, suspension_id=query.suspension_id)


@dataclass(frozen=True, slots=True)
class WaitpointPage:
    """A page of the waitpoints of one execution, in order of their ids."""

    execution_id: UUID
    after: UUID
    limit: int


@operation(read_only=True)
async def list_waitpoints(tx: Transaction, namespace: str, page: WaitpointPage) -> list[WaitpointView]:
    """Return waitpoints of an execution, including closed ones, without their tokens."""
    id_ = page.execution_id
    await read_execution(tx, namespace, id_)
    suspensions = await tx.waits.open_suspensions([id_])
    waitpoints = await tx.waits.list_waitpoints(id_, page.after, page.limit)
    return [_view(waitpoint, suspensions.get(id_)) for waitpoint in waitpoints]


@dataclass(frozen=True, slots=True)
class SuspendedPage:
    """A page of the suspended executions, in order of their ids."""

    after: UUID
    limit: int


@operation(read_only=True)
async def list_suspended(tx: Transaction, namespace: str, page: SuspendedPage) -> list[SuspendedView]:
    """Return suspended executions with their conditions."""
    executions = await tx.executions.list_suspended(namespace, page.after, page.limit)
    ids = [execution.id for execution in executions]
    suspensions = await tx.waits.open_suspensions(ids) if ids else {}
    waitpoints = await tx.waits.open_waitpoints(ids) if ids else {}
    counting = (await tx.waits.received_signals(ids)).counting if ids else {}
    return [
        view_suspension(suspensions[id_], waitpoints.get(id_, []), counting.get(id_, ()))
        for id_ in ids
        if id_ in suspensions
    ]


async def read_wait_views(tx: Transaction, id_: UUID) -> tuple[SuspendedView | None, Sequence[WaitpointView]]:
    """Return views of the open wait of an execution and of its open waitpoints."""
    suspension = (await tx.waits.open_suspensions([id_])).get(id_)
    waitpoints = (await tx.waits.open_waitpoints([id_])).get(id_, [])
    counting = (await tx.waits.received_signals([id_])).counting.get(id_, ()) if suspension else ()
    view = view_suspension(suspension, waitpoints, counting) if suspension else None
    return view, [_view(waitpoint, suspension) for waitpoint in waitpoints]


async def read_hold_report(tx: Transaction, execution: Execution) -> str | None:
    """Return the report of the worker that held an execution, or None if an operator held it."""
    return await read_report(tx, execution.id) if is_held(execution) else None


async def read_report(tx: Transaction, held: UUID) -> str | None:
    """Return the report of the worker that held this held execution, or None if an operator held it."""
    event = await tx.events.last_named(held, *HOLD.event)
    return event.details.get("report") if event is not None and event.details else None


def _view(waitpoint: Waitpoint, suspension: Suspension | None) -> WaitpointView:
    is_bound = suspension is not None and waitpoint.suspension == suspension.number
    return view_waitpoint(waitpoint, suspension if is_bound else None)
