"""settle: what a reconciler does with due executions: lock those that are free, decide again, write."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

from flowfabric.core.decisions import Decision
from flowfabric.core.records import Execution
from flowfabric.ops.locking import lock_free_to_end
from flowfabric.ops.writing import write
from flowfabric.store.transaction import Transaction


async def settle(
    tx: Transaction, ids: Sequence[UUID], decide: Callable[[Execution, datetime], Decision[Any] | None]
) -> int:
    """How many executions were changed. Rows that others have locked are left; they are being dealt with."""
    found = await lock_free_to_end(tx, ids)
    now = await tx.now()
    decisions = [decision for execution in found.values() if (decision := decide(execution, now)) is not None]
    await write(tx, decisions)
    return len(decisions)
