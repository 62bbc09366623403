"""A member that has not started waits again, because an edge was added to it or its upstream runs once more."""

from __future__ import annotations

from datetime import datetime

from flowfabric.core.decisions import decided
from flowfabric.core.records import Execution
from flowfabric.core.states import State
from flowfabric.core.transitions import BLOCK, move, refusal
from flowfabric.ops.storing import store
from flowfabric.store.transaction import Transaction


async def block_again(tx: Transaction, execution: Execution, now: datetime) -> Execution:
    """The member, blocked by its dependencies; refused if it has started. One that an operator holds stays held."""
    check_not_started(execution)
    if execution.state is State.BLOCKED:
        return execution
    after = move(execution, BLOCK, now)
    await store(tx, [decided(None, execution, after, BLOCK)])
    return after


def check_not_started(execution: Execution) -> None:
    """Refuses a member that has started."""
    if execution.started_at is not None:
        raise refusal(execution, "downstream_already_started", "a member that has started waits for nobody any more")
