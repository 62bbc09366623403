"""reconcile: lock due executions that are free, decide again, and write."""

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
) -> int:
    """Return how many executions were changed. Locked rows are skipped, because another transaction handles them."""
    executions = await lock_free_to_end(tx, ids)
    now = await tx.now()
    decisions = [decision for execution in executions.values() if (decision := decide(execution, now)) is not None]
    await write(tx, decisions)
    return len(decisions)
