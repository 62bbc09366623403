"""checkpoint and transact: record steps. An open step may change; a final step may only be recorded again unchanged."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol
from uuid import UUID

from flowfabric.core import validation
from flowfabric.core.errors import Conflict, InvalidRequest
from flowfabric.core.executions.leases import extend_lease
from flowfabric.core.executions.records import Execution, Fence
from flowfabric.core.executions.requests import Checkpoint, Step, StepStatus, parse_steps
from flowfabric.ops.locks import lock_owned
from flowfabric.ops.operation import BatchOperation, BatchRejected, operation
from flowfabric.store.rows import fence_parameters, to_uuid
from flowfabric.store.transaction import SharedTransaction, StepRecorder, Transaction, UserBody


class RecordCheckpoint(BatchOperation[Checkpoint, int]):
    """Record the steps of many leases by one statement, and return the number of recorded steps of each lease."""

    name = "checkpoint"

    def key(self, request: Checkpoint) -> int:
        return request.fence.execution_id.int

    async def run_batch(self, tx: Transaction, namespace: str, requests: Sequence[Checkpoint]) -> list[int | None]:
        """Record the steps of all requests whose lease is owned and whose row is free."""
        recorded = await record_steps_if_owned(tx, namespace, requests)
        for request in requests:
            if recorded.get(request.fence.execution_id, len(request.steps)) < len(request.steps):
                raise BatchRejected
        return [recorded.get(request.fence.execution_id) for request in requests]

    async def run_one(self, tx: Transaction, namespace: str, request: Checkpoint) -> int:
        execution, now = await lock_owned(tx, namespace, request.fence)
        await record_steps(tx, execution, request.steps, now)
        return len(request.steps)


CHECKPOINT = RecordCheckpoint()


async def record_steps_if_owned(tx: Transaction, namespace: str, checkpoints: Sequence[Checkpoint]) -> dict[UUID, int]:
    """Record steps by one guarded statement, and return the number of recorded steps per execution.

    An execution that is missing in the result is not owned, or its row is locked, or all its steps are final with other
    content.
    """
    parameters = [
        {
            **fence_parameters(checkpoint.fence),
            "place": place,
            "name": step.name,
            "status": step.status,
            "payload": step.payload,
            "encoding": step.encoding,
            "digest": step.digest(),
        }
        for checkpoint in checkpoints
        for place, step in enumerate(checkpoint.steps, start=1)
    ]
    counts = await tx.session.fetch_batch(
        "record_steps_if_owned",
        parameters,
        namespace=namespace,
        now=tx.session.bound_now,
        most=validation.MAX_STEPS,
    )
    recorded: Counter[UUID] = Counter()
    for row in counts:
        recorded[to_uuid(row["execution_id"])] += row["recorded"]
    return recorded


async def record_steps(tx: Transaction, execution: Execution, steps: Sequence[Step], now: datetime) -> None:
    """Record steps of a locked execution.

    Raise if a step differs from a final step of the same name, or if the execution would have too many steps.
    """
    if steps:
        await record_steps_of(tx, [(execution, steps)], now)


async def record_steps_of(tx: Transaction, entries: Sequence[tuple[Execution, Sequence[Step]]], now: datetime) -> None:
    """Record steps of several locked executions; raise if any step cannot be recorded."""
    recorded = await tx.steps.record(entries, now)
    for execution, new_steps in entries:
        for step in new_steps:
            if (execution.id, step.name) not in recorded:
                message = f"step {step.name!r} is final with other content; record it under another name"
                raise Conflict("step_already_recorded", message, execution_id=execution.id, step=step.name)
        if any(recorded[execution.id, step.name] > validation.MAX_STEPS for step in new_steps):
            await _check_number(tx, execution)


async def _check_number(tx: Transaction, execution: Execution) -> None:
    # Struck steps also used up numbers, so the limit is checked against the number of valid steps.
    number = await tx.steps.count(execution.id)
    if number > validation.MAX_STEPS:
        message = f"an execution may have {validation.MAX_STEPS} steps; continue with a fresh journal or use children"
        raise InvalidRequest("too_many_steps", message, execution_id=execution.id, limit=validation.MAX_STEPS)


class LockWatch(Protocol):
    """A caller that must know while the transaction of a lease locks the row of its execution."""

    def locked(self) -> None:
        """Note that the row is locked by the owner of the lease, and stays locked until the transaction ends."""

    def extending(self) -> None:
        """Note that the lease is extended by a full term from now on, if the transaction commits."""

    def rolled_back(self) -> None:
        """Note that the transaction failed, so that the row is no longer locked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Transact:
    """User code to run in the engine's transaction, and the function that turns its result into a step.

    If `repeated_step` names a step, an earlier try may have recorded it. The code then runs only if it did not.
    """

    fence: Fence
    body: UserBody
    record: StepRecorder
    watch: LockWatch
    repeated_step: str | None = None


@operation(runs_user_code=True, can_repeat=False)
async def transact(tx: SharedTransaction, namespace: str, request: Transact) -> Any:
    """Run user code, record its step in the same commit, extend the lease, and return the result of the code.

    The row of the execution stays locked until the commit, so no other call can end the lease before the commit. So
    the code may take longer than the lease on a store where other leases can be renewed meanwhile.
    """
    execution, _ = await lock_owned(tx, namespace, request.fence)
    assert execution.lease is not None, "the fence owns the lease"
    if tx.outlasts_leases:
        request.watch.locked()
    try:
        if request.repeated_step is not None:
            await _require_new(tx, execution.id, request.repeated_step)
        result, step_record = await tx.run_user_code(request.body, request.record, execution.lease.ttl)
        if tx.outlasts_leases:
            request.watch.extending()
        now = await tx.now()
        [step] = parse_steps([step_record])
        await _require_new(tx, execution.id, step.name)
        await record_steps(tx, execution, [step], now)
        await tx.executions.save([(execution, extend_lease(execution, now))])
    except BaseException:
        request.watch.rolled_back()
        raise
    return result


async def _require_new(tx: SharedTransaction, execution_id: UUID, name: str) -> None:
    existing = await tx.steps.get(execution_id, name)
    if existing is not None and existing.status != StepStatus.OPEN:
        # An earlier call has recorded the step. Even equal content is refused, because the code may have run twice.
        message = f"step {name!r} was recorded before; nothing of this call is kept, read the step instead"
        raise Conflict("step_already_recorded", message, execution_id=execution_id, step=name)
