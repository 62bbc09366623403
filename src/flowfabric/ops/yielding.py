"""What operations share by which a worker gives up its lease: complete, fail, delay, release, its own cancel, hold."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any, Protocol, TypeVar

from flowfabric.core.decisions import Decision
from flowfabric.core.fences import repeated, require_owner
from flowfabric.core.outcomes import answer_again
from flowfabric.core.records import Execution, Fence
from flowfabric.core.requests import Step
from flowfabric.ops.journaling import record_steps
from flowfabric.ops.locking import lock_to_end
from flowfabric.ops.writing import write
from flowfabric.store.transaction import Transaction


class Yielding(Protocol):
    """A fenced request that ends the lease it names."""

    @property
    def fence(self) -> Fence: ...
    @property
    def steps(self) -> tuple[Step, ...]: ...
    def digest(self) -> str: ...


Request = TypeVar("Request", bound=Yielding)


async def give_up_lease(
    tx: Transaction, namespace: str, request: Request, decide: Callable[[Execution, Request, datetime], Decision[Any]]
) -> Any:
    """The answer of the decision, written with the steps that ride along; the same request again is answered alike."""
    execution, now = await lock_to_end(tx, namespace, request.fence.execution_id)
    former = repeated(execution, request.fence, request.digest())
    if former is not None:
        return answer_again(former)
    execution = require_owner(execution, request.fence, now)
    execution = await record_steps(tx, execution, request.steps, now)
    decision = decide(execution, request, now)
    await write(tx, [decision])
    return decision.answer
