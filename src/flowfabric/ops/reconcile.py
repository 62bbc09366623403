"""reconcile: lock the due executions that no other transaction has locked, decide again, and write the decisions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

from flowfabric.core.executions.decision import Decision
from flowfabric.core.executions.records import Execution
from flowfabric.ops.apply import write
from flowfabric.ops.locks import lock_free_to_end
from flowfabric.store.transaction import Transaction


async def reconcile(
    tx: Transaction, ids: Sequence[UUID], decide: Callable[[Execution, datetime], Decision[Any] | None]
) -> list[Decision[Any]]:
    """Write the decisions of `decide`, and return them. Skip executions that another transaction has locked."""
    executions = await lock_free_to_end(tx, ids)
    now = await tx.now()
    decisions = [decision for execution in executions.values() if (decision := decide(execution, now)) is not None]
    await write(tx, decisions)
    return decisions
