"""cancel: end an execution as cancelled, by an operator or by its own worker.

With `grace` the execution is first asked to stop. With `children` the cancel reaches all of its descendants.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from flowfabric.core.executions.attempts import decide_own_cancel
from flowfabric.core.executions.decision import Decision
from flowfabric.core.executions.operator import decide_cancel, decide_cancel_request
from flowfabric.core.executions.outcomes import Ended
from flowfabric.core.executions.records import Execution
from flowfabric.core.executions.requests import CancelOwnRequest
from flowfabric.core.executions.states import AttemptState, State
from flowfabric.core.fast_dataclass import replace
from flowfabric.core.flows.outcomes import CancelPending
from flowfabric.core.flows.records import DEPENDENCIES, GroupState
from flowfabric.core.flows.resolution import MAX_CANCELLED
from flowfabric.ops.apply import write, write_one
from flowfabric.ops.flows.descendants import CancelCommand, Descendant, end_descendants, read_descendants
from flowfabric.ops.leases.release import give_up_lease
from flowfabric.ops.locks import lock_to_end
from flowfabric.ops.operation import operation
from flowfabric.ops.waits.load import load_open_waits
from flowfabric.store.transaction import Transaction

_FIRST_ID = UUID(int=0)


@dataclass(frozen=True, slots=True)
class CancelTarget:
    """The execution to cancel. `after` is the id of the last descendant that an earlier transaction asked to stop."""

    execution_id: UUID
    command: CancelCommand
    after: UUID = _FIRST_ID


@operation()
async def cancel(tx: Transaction, namespace: str, target: CancelTarget) -> tuple[Ended | CancelPending, UUID | None]:
    """Cancel an execution, and return the outcome. Refuse if the execution has already ended and is not cancelled.

    One transaction asks a limited number of descendants to stop. If there are more, also return the last one asked, so
    that `request_cancel_next` can continue after it.
    """
    command = target.command
    execution, now = await lock_to_end(tx, namespace, target.execution_id)
    if command.grace is not None:
        descendants, last = await _lock_next(tx, execution, command, target.after)
        outcomes = await _request_cancel(tx, [execution, *descendants], command, now)
        return outcomes[0], last
    outcome = await write_one(tx, decide_cancel(execution, command.audit, command.source, now))
    if command.children and execution.flow is not None:
        await end_descendants(tx, execution.flow, await _descendants(tx, execution), command, now)
    return outcome, None


@operation()
async def request_cancel_next(tx: Transaction, namespace: str, target: CancelTarget) -> UUID | None:
    """Ask the next descendants to stop. Return the id of the last one asked, or None after the last batch."""
    execution, now = await lock_to_end(tx, namespace, target.execution_id)
    descendants, last = await _lock_next(tx, execution, target.command, target.after)
    await _request_cancel(tx, descendants, target.command, now)
    return last


@operation()
async def cancel_own(tx: Transaction, namespace: str, request: CancelOwnRequest) -> Ended:
    """Cancel the execution that the worker holds a lease on."""
    return await give_up_lease(tx, namespace, request, decide_own_cancel)


async def _lock_next(
    tx: Transaction, execution: Execution, command: CancelCommand, after: UUID
) -> tuple[list[Execution], UUID | None]:
    """Lock and return the next descendants, with the id of the last one if there are more."""
    descendants = await _descendants(tx, execution) if command.children else []
    ids = sorted(descendant.member.id for descendant in descendants if descendant.member.id > after)
    batch = ids[:MAX_CANCELLED]
    executions = await tx.executions.lock(None, batch) if batch else {}
    return list(executions.values()), batch[-1] if len(ids) > MAX_CANCELLED else None


async def _request_cancel(
    tx: Transaction, executions: Sequence[Execution], command: CancelCommand, now: datetime
) -> list[Ended | CancelPending]:
    assert command.grace is not None, "only a cancel with grace is requested first"
    request = command.request(now + command.grace)
    waits = await load_open_waits(tx, executions)
    decisions = [
        decide_cancel_request(
            execution, waits.get(execution.id), request, now, has_steps=await _has_steps(tx, execution)
        )
        for execution in executions
    ]
    await _close_waits(tx, decisions)
    await write(tx, decisions)
    return [decision.outcome for decision in decisions]


async def _close_waits(tx: Transaction, decisions: Sequence[Decision[Any]]) -> None:
    """Some executions waited for children and now resume to clean up. Close these waits.

    Otherwise the end of a child could end the parent's next wait, or cancel siblings that still clean up.
    """
    resumed = [
        decision.before.id
        for decision in decisions
        if decision.after is not None and decision.before.state is State.BLOCKED
    ]
    groups = await tx.edges.groups_of(resumed) if resumed else []
    open_waits = [group for group in groups if group.seq != DEPENDENCIES and group.state is GroupState.OPEN]
    if open_waits:
        await tx.edges.put_groups([replace(group, state=GroupState.CLOSED) for group in open_waits])


async def _has_steps(tx: Transaction, execution: Execution) -> bool:
    """Return True if the execution was replayed from a step and has not started since. It then has steps to undo."""
    return execution.attempt_state is AttemptState.PENDING_REPLAY and await tx.steps.count(execution.id) > 0


async def _descendants(tx: Transaction, execution: Execution) -> list[Descendant]:
    return await read_descendants(tx, [execution.id] if execution.has_children else [])
