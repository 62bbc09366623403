"""postpone: a worker gives up an execution that its code could not continue."""

from __future__ import annotations

from flowfabric.core.executions.outcomes import Delayed, Held
from flowfabric.core.executions.postpone import (
    DIVERGED,
    MAX_POSTPONEMENTS,
    Postponement,
    Setbacks,
    can_run,
    decide_postpone,
    find_setbacks,
)
from flowfabric.core.executions.records import Execution
from flowfabric.core.executions.requests import find_repeated, require_owner
from flowfabric.ops.apply import write_one
from flowfabric.ops.leases.checkpoint import record_steps
from flowfabric.ops.locks import lock_to_end
from flowfabric.ops.operation import operation
from flowfabric.store.transaction import Transaction

_MAX_WORKERS = 1000


@operation()
async def postpone(tx: Transaction, namespace: str, request: Postponement) -> Delayed | Held:
    """Delay the execution for another run, or hold it with the report. A repeated request returns the same outcome."""
    execution, now = await lock_to_end(tx, namespace, request.fence.execution_id)
    former = find_repeated(execution, request.fence, request.digest())
    if former is not None:
        return Held(request.reason) if former.until is None else Delayed(former.until)
    execution = require_owner(execution, request.fence, now)
    setbacks = await read_setbacks(tx, execution)
    await record_steps(tx, execution, request.steps, now)
    progress = await tx.steps.progress(execution.id)
    versions = set[str]()
    if request.reason == DIVERGED:
        workers = await tx.workers.page(namespace, execution.lane, now, _MAX_WORKERS)
        requires = await tx.routes.requires(execution) or ()
        versions = {worker.version for worker in workers if can_run(worker, execution, requires)}
    return await write_one(tx, decide_postpone(execution, request, setbacks, progress, versions, now))


async def read_setbacks(tx: Transaction, execution: Execution) -> Setbacks:
    """Return the setbacks in the history of an execution."""
    progress = await tx.steps.progress(execution.id)
    return find_setbacks(execution, progress, await tx.events.postponements(execution.id, MAX_POSTPONEMENTS))
