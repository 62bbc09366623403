"""transact: the user's code and the step that records it become true together, or not at all."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from flowfabric.core.errors import Conflict
from flowfabric.core.records import Fence
from flowfabric.core.requests import StepStatus, steps
from flowfabric.ops.journaling import record_steps
from flowfabric.ops.locking import lock_owned
from flowfabric.store.transaction import Recording, SharedTransaction, UserBody


@dataclass(frozen=True, slots=True, kw_only=True)
class Transact:
    """A worker's wish to run code in the engine's own transaction, and how its answer becomes a step."""

    fence: Fence
    body: UserBody
    record: Recording


async def transact(tx: SharedTransaction, namespace: str, request: Transact) -> Any:
    """What the code answered. The row stays locked until the commit, so nobody can take the lease away meanwhile."""
    execution, now = await lock_owned(tx, namespace, request.fence)
    answer, made = await tx.perform(request.body, request.record)
    [step] = steps([made])
    known = await tx.steps.named(execution.id, step.name)
    if known is not None and known.status != StepStatus.OPEN:
        # Its reply was lost, or somebody was faster. The same content would pass, but the code has run twice by now.
        message = f"step {step.name!r} was recorded before; nothing of this call is kept, read the step instead"
        raise Conflict("step_already_recorded", message, execution_id=execution.id, step=step.name)
    moved = await record_steps(tx, execution, [step], now)
    await tx.executions.save([(execution, moved)])
    return answer
