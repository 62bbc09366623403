"""What is told about executions without a lock: to their workers while they go on, and to whoever waits for an end."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from flowfabric.core.fences import execution_not_found
from flowfabric.core.looking import MOST_SIGNALS, Look, Looking, Recalling
from flowfabric.core.records import RecordedStep
from flowfabric.core.views import Glance
from flowfabric.ops.hot import HotOperation
from flowfabric.store.transaction import Transaction


async def look_together(tx: Transaction, namespace: str, items: Sequence[Looking]) -> list[Look | None]:
    """What came to executions, and how others ended that they ask for; None for what is not there."""
    found = await tx.looks.look(namespace, items, MOST_SIGNALS)
    return [found.get(item.execution_id) for item in items]


async def look_alone(tx: Transaction, namespace: str, item: Looking) -> Look:
    """The same for one, or that it is not there."""
    [found] = await look_together(tx, namespace, [item])
    if found is None:
        raise execution_not_found(item.execution_id)
    return found


async def recall_together(
    tx: Transaction, namespace: str, items: Sequence[Recalling]
) -> list[list[RecordedStep] | None]:
    """The steps of executions that answer at present, in their order; None for what is not there."""
    found = await tx.looks.journals(namespace, items)
    return [found.get(item.execution_id) for item in items]


async def recall_alone(tx: Transaction, namespace: str, item: Recalling) -> list[RecordedStep]:
    """The same for one, or that it is not there."""
    [found] = await recall_together(tx, namespace, [item])
    if found is None:
        raise execution_not_found(item.execution_id)
    return found


LOOK = HotOperation(look_together, look_alone, subject=lambda item: item.execution_id, reads=True)
RECALL = HotOperation(recall_together, recall_alone, subject=lambda item: item.execution_id, reads=True)


async def glances(tx: Transaction, namespace: str, ids: Sequence[UUID]) -> dict[UUID, Glance]:
    """Where these executions are."""
    return await tx.looks.glances(namespace, ids)
