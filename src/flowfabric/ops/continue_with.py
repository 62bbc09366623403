"""continue_with: a worker begins anew as the next generation of the same execution, with other input."""

from __future__ import annotations

from flowfabric.core.continuing import Continuation, decide_continue
from flowfabric.core.fences import repeated, require_owner
from flowfabric.core.frozen import replace
from flowfabric.core.outcomes import Continued
from flowfabric.ops.journaling import record_steps
from flowfabric.ops.locking import lock
from flowfabric.ops.writing import write
from flowfabric.store.transaction import Transaction


async def continue_with(tx: Transaction, namespace: str, request: Continuation) -> Continued:
    """That it goes on anew. The old journal is removed, not struck out: whoever continues for ever must not grow."""
    execution, now = await lock(tx, namespace, request.fence.execution_id)
    if repeated(execution, request.fence, request.digest()):
        return Continued()
    execution = require_owner(execution, request.fence, now)
    waitpoints = {} if execution.plain else await tx.waits.open_waitpoints([execution.id])
    decision = decide_continue(execution, request, waitpoints.get(execution.id, ()), now)
    assert decision.after is not None, "a new generation is a change"
    await tx.steps.clear(execution.id)
    await record_steps(tx, replace(decision.after, step_seq=0), request.steps, now)
    await write(tx, [decision])
    return decision.answer
