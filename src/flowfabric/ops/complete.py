"""complete: ends an execution well. Plain ones by one statement, the others with everything that hangs on them."""

from __future__ import annotations

from collections.abc import Sequence

from flowfabric.core.attempts import decide_complete
from flowfabric.core.outcomes import Ended
from flowfabric.core.requests import Completion
from flowfabric.core.states import State
from flowfabric.ops.hot import HotOperation
from flowfabric.ops.yielding import give_up_lease
from flowfabric.store.transaction import Transaction


async def complete_together(tx: Transaction, namespace: str, items: Sequence[Completion]) -> list[Ended | None]:
    """Completes all plain executions that are owned and whose row is free; steps to record are left for later."""
    bare = [item for item in items if not item.steps]
    done = await tx.hot.complete_if_owned(namespace, bare) if bare else set()
    return [Ended(State.COMPLETED) if item.fence.execution_id in done and not item.steps else None for item in items]


async def complete_alone(tx: Transaction, namespace: str, item: Completion) -> Ended:
    """Completes one execution with its steps, answers a repeated completion, or says why not."""
    answer: Ended = await give_up_lease(tx, namespace, item, decide_complete)
    return answer


COMPLETE = HotOperation(
    complete_together,
    complete_alone,
    subject=lambda item: item.fence.execution_id,
    solitary=lambda item: bool(item.steps),
)
