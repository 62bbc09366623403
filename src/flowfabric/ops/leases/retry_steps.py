"""retry_steps: a worker reports steps that failed and that it tries again, so that people see the failures."""

from __future__ import annotations

from flowfabric.core.executions.attempts import StepRetries, StepRetry, decide_step_retry
from flowfabric.core.executions.records import RecordedStep
from flowfabric.core.executions.requests import StepStatus
from flowfabric.core.executions.steps import failed_tries
from flowfabric.ops.apply import write_one
from flowfabric.ops.leases.checkpoint import record_steps
from flowfabric.ops.locks import lock_owned
from flowfabric.ops.operation import operation
from flowfabric.store.transaction import Transaction


@operation()
async def retry_steps(tx: Transaction, namespace: str, request: StepRetries) -> int:
    """Record the steps, with an event for each retry.

    A retry is skipped, with its record, if the stored record is the same or has as many failed tries.
    """
    execution, now = await lock_owned(tx, namespace, request.fence)
    payloads = {step.name: step.payload for step in request.steps}
    new, skipped = list[StepRetry](), set[str]()
    for retry in request.retries:
        step = await tx.steps.get(execution.id, retry.step)
        if step is not None and _is_stored(step, retry, payloads[retry.step]):
            skipped.add(retry.step)
        else:
            new.append(retry)
    await record_steps(tx, execution, [step for step in request.steps if step.name not in skipped], now)
    for retry in new:
        decision = decide_step_retry(execution, retry, now)
        await write_one(tx, decision)
        execution = decision.after or execution
    return len(new)


def _is_stored(step: RecordedStep, retry: StepRetry, payload: bytes) -> bool:
    """Return True if this record, or that of a later try, is stored. A final record is refused when it is written."""
    is_later = step.status == StepStatus.OPEN and failed_tries(step) >= retry.tries
    return is_later or step.payload == payload
