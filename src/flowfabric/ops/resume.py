"""resume and close_waitpoint: what an operator does about a wait."""

from __future__ import annotations

from datetime import timedelta
from uuid import UUID

from flowfabric.core.errors import NotFound
from flowfabric.core.outcomes import AlreadySatisfied, Resumed, WaitpointClosed
from flowfabric.core.requests import Command
from flowfabric.core.resuming import decide_close_waitpoint, decide_resume
from flowfabric.ops.locking import lock
from flowfabric.ops.waiting import open_waits
from flowfabric.ops.writing import write
from flowfabric.store.transaction import Transaction


async def resume(
    tx: Transaction, namespace: str, id_: UUID, suspension_id: UUID | None, delay: timedelta | None, command: Command
) -> Resumed | AlreadySatisfied:
    """Ends the open suspension, or only this one: if it is closed by now, there is nothing to do."""
    execution, now = await lock(tx, namespace, id_)
    wait = (await open_waits(tx, [execution])).get(id_)
    if suspension_id is not None and (wait is None or wait.suspension.id != suspension_id):
        return AlreadySatisfied("suspension_closed")
    decision = decide_resume(execution, wait, delay, command, now)
    await write(tx, [decision])
    return decision.answer


async def close_waitpoint(tx: Transaction, namespace: str, waitpoint_id: UUID, command: Command) -> WaitpointClosed:
    """Closes one waitpoint; whoever waits on others waits on."""
    found = await tx.waits.waitpoints([waitpoint_id])
    if waitpoint_id not in found:
        raise _unknown(waitpoint_id)
    executions = await tx.executions.lock(namespace, [found[waitpoint_id].execution_id])
    if not executions:
        raise _unknown(waitpoint_id)
    [execution] = executions.values()
    # It may have been closed while this transaction waited for the lock.
    found = await tx.waits.waitpoints([waitpoint_id])
    decision = decide_close_waitpoint(execution, found.get(waitpoint_id), command, await tx.now())
    await write(tx, [decision])
    return decision.answer


def _unknown(waitpoint_id: UUID) -> NotFound:
    message = f"there is no waitpoint {waitpoint_id} in this namespace"
    return NotFound("waitpoint_not_found", message, waitpoint_id=waitpoint_id)
