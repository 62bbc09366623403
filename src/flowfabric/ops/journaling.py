"""Recording steps of a locked execution: within the limit, and never over a final step with other content."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from flowfabric.core import limits
from flowfabric.core.errors import Conflict, InvalidRequest
from flowfabric.core.frozen import replace
from flowfabric.core.records import Execution
from flowfabric.core.requests import Step
from flowfabric.store.transaction import Transaction


async def record_steps(tx: Transaction, execution: Execution, steps: Sequence[Step], now: datetime) -> Execution:
    """The execution with its journal moved on; raises if a step contradicts what is recorded under its name."""
    if not steps:
        return execution
    await record_together(tx, [(execution, steps)], now)
    return replace(execution, step_seq=execution.step_seq + len(steps))


async def record_together(tx: Transaction, entries: Sequence[tuple[Execution, Sequence[Step]]], now: datetime) -> None:
    """The same for several executions; raises if one of their steps does."""
    recorded = await tx.steps.record(entries, now)
    for execution, steps in entries:
        for step in steps:
            if (execution.id, step.name) not in recorded:
                message = f"step {step.name!r} is final with other content; record it under another name"
                raise Conflict("step_already_recorded", message, execution_id=execution.id, step=step.name)
        if steps and execution.step_seq + len(steps) > limits.STEPS_PER_EXECUTION:
            await _check_number(tx, execution)


async def _check_number(tx: Transaction, execution: Execution) -> None:
    """Sequence numbers also count steps that were changed or struck out, so over the limit the rows are counted."""
    number = await tx.steps.count(execution.id)
    if number > limits.STEPS_PER_EXECUTION:
        message = (
            f"an execution may have {limits.STEPS_PER_EXECUTION} steps; continue with a fresh journal or use children"
        )
        raise InvalidRequest("too_many_steps", message, execution_id=execution.id, limit=limits.STEPS_PER_EXECUTION)
