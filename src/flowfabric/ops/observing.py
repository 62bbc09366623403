"""The reads of waits: what was observed, which waitpoints there are, who is suspended. They lock nothing."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from flowfabric.core.control import is_held
from flowfabric.core.errors import NotFound
from flowfabric.core.records import Execution
from flowfabric.core.transitions import HOLD
from flowfabric.core.views import SuspendedView, WaitpointView, view_suspension, view_waitpoint
from flowfabric.core.waits import Signal, Suspension, Waitpoint
from flowfabric.ops.locking import read
from flowfabric.ops.waiting import observed
from flowfabric.store.transaction import Transaction


async def observe_signals(
    tx: Transaction, namespace: str, id_: UUID, suspension_id: UUID | None, include_unmatched: bool
) -> tuple[Signal, ...]:
    """The signals of the latest suspension, or of this one, in order of acceptance."""
    await read(tx, namespace, id_)
    suspension = await tx.waits.last_suspension(id_, id_=suspension_id)
    if suspension is not None:
        return await observed(tx, suspension, include_unmatched=include_unmatched)
    if suspension_id is None:
        return ()
    message = f"execution {id_} has no suspension {suspension_id}"
    raise NotFound("suspension_not_found", message, execution_id=id_, suspension_id=suspension_id)


async def list_waitpoints(tx: Transaction, namespace: str, id_: UUID, after: UUID, limit: int) -> list[WaitpointView]:
    """The waitpoints of an execution in order of their ids, closed ones too; never a token."""
    await read(tx, namespace, id_)
    suspensions = await tx.waits.open_suspensions([id_])
    return [_view(item, suspensions.get(id_)) for item in await tx.waits.list_waitpoints(id_, after, limit)]


async def list_suspended(tx: Transaction, namespace: str, after: UUID, limit: int) -> list[SuspendedView]:
    """Executions that are suspended, in order of their ids, with what they wait for."""
    executions = await tx.executions.suspended(namespace, after, limit)
    ids = [execution.id for execution in executions]
    suspensions = await tx.waits.open_suspensions(ids) if ids else {}
    waitpoints = await tx.waits.open_waitpoints(ids) if ids else {}
    counting = (await tx.waits.heard(ids)).counting if ids else {}
    return [
        view_suspension(suspensions[id_], waitpoints.get(id_, []), counting.get(id_, ()))
        for id_ in ids
        if id_ in suspensions
    ]


async def views(tx: Transaction, id_: UUID) -> tuple[SuspendedView | None, Sequence[WaitpointView]]:
    """The open wait of an execution and its open waitpoints, as they are shown."""
    suspension = (await tx.waits.open_suspensions([id_])).get(id_)
    waitpoints = (await tx.waits.open_waitpoints([id_])).get(id_, [])
    counting = (await tx.waits.heard([id_])).counting.get(id_, ()) if suspension else ()
    shown = view_suspension(suspension, waitpoints, counting) if suspension else None
    return shown, [_view(item, suspension) for item in waitpoints]


async def hold_report(tx: Transaction, execution: Execution) -> str | None:
    """What the worker that holds an execution had to say; an operator says no more than the reason."""
    if not is_held(execution):
        return None
    event = await tx.events.last_named(execution.id, *HOLD.event)
    return event.details.get("report") if event is not None and event.details else None


def _view(waitpoint: Waitpoint, suspension: Suspension | None) -> WaitpointView:
    bound = suspension is not None and waitpoint.suspension == suspension.number
    return view_waitpoint(waitpoint, suspension if bound else None)
