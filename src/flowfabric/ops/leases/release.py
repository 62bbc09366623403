"""fail, delay and continue_with: a worker gives up its lease. Other modules also use `give_up_lease`."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Protocol, TypeVar, cast

from flowfabric.core.executions.attempts import Continuation, decide_continue, decide_delay, decide_fail
from flowfabric.core.executions.decision import Decision
from flowfabric.core.executions.outcomes import Continued, Delayed, Ended, Released, RetryScheduled, repeat_outcome
from flowfabric.core.executions.records import Execution, Fence
from flowfabric.core.executions.requests import DelayRequest, FailureReport, Step, find_repeated, require_owner
from flowfabric.ops.apply import write_one
from flowfabric.ops.leases.checkpoint import record_steps
from flowfabric.ops.locks import lock, lock_to_end
from flowfabric.ops.operation import operation
from flowfabric.store.transaction import Transaction


class ReleaseRequest(Protocol):
    """A request that ends the lease named by its fence."""

    @property
    def fence(self) -> Fence: ...
    @property
    def steps(self) -> tuple[Step, ...]: ...
    def digest(self) -> str: ...


Request = TypeVar("Request", bound=ReleaseRequest)
Outcome = TypeVar("Outcome")


async def give_up_lease(
    tx: Transaction,
    namespace: str,
    request: Request,
    decide: Callable[[Execution, Request, datetime], Decision[Outcome]],
) -> Outcome:
    """Write the decision and the steps of the request, and return the outcome.

    A repeated request returns the same outcome.
    """
    execution, now = await lock_to_end(tx, namespace, request.fence.execution_id)
    earlier = find_repeated(execution, request.fence, request.digest())
    if earlier is not None:
        return cast(Outcome, repeat_outcome(earlier))
    execution = require_owner(execution, request.fence, now)
    await record_steps(tx, execution, request.steps, now)
    return await write_one(tx, decide(execution, request, now))


@operation()
async def fail(tx: Transaction, namespace: str, request: FailureReport) -> RetryScheduled | Ended:
    """Fail an attempt; the stored policy decides whether and when the next attempt starts."""
    return await give_up_lease(tx, namespace, request, decide_fail)


@operation()
async def delay(tx: Transaction, namespace: str, request: DelayRequest) -> Delayed | Released:
    """Give up the lease, so that the attempt continues at the given time, or immediately if no time is given."""
    return await give_up_lease(tx, namespace, request, decide_delay)


@operation()
async def continue_with(tx: Transaction, namespace: str, request: Continuation) -> Continued:
    """Start the next generation of the same execution with new input.

    The old journal is deleted, so an execution can continue any number of times without growing.
    """
    execution, now = await lock(tx, namespace, request.fence.execution_id)
    if find_repeated(execution, request.fence, request.digest()):
        return Continued()
    execution = require_owner(execution, request.fence, now)
    waitpoints = {} if execution.is_standalone else await tx.waits.open_waitpoints([execution.id])
    decision = decide_continue(execution, request, waitpoints.get(execution.id, ()), now)
    assert decision.after is not None, "a new generation changes the execution"
    await tx.steps.clear(execution.id)
    await record_steps(tx, decision.after, request.steps, now)
    return await write_one(tx, decision)
