"""retry_steps: a worker reports steps that failed and that it tries again, so that people see the failures."""

from __future__ import annotations

from flowfabric.core.executions.attempts import StepRetries, decide_step_retry
from flowfabric.ops.apply import write_one
from flowfabric.ops.leases.checkpoint import record_steps
from flowfabric.ops.locks import lock_owned
from flowfabric.ops.operation import operation
from flowfabric.store.transaction import Transaction


@operation()
async def retry_steps(tx: Transaction, namespace: str, request: StepRetries) -> int:
    """Record the steps, with an event for each retry. A retry whose record is stored already has its event."""
    execution, now = await lock_owned(tx, namespace, request.fence)
    payloads = {step.name: step.payload for step in request.steps}
    stored = {retry.step: await tx.steps.get(execution.id, retry.step) for retry in request.retries}
    new = [
        retry
        for retry in request.retries
        if (step := stored[retry.step]) is None or step.payload != payloads[retry.step]
    ]
    await record_steps(tx, execution, request.steps, now)
    for retry in new:
        decision = decide_step_retry(execution, retry, now)
        await write_one(tx, decision)
        execution = decision.after or execution
    return len(new)
