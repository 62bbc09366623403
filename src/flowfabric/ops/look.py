"""What executions, and workers while they go on, are told by reads that callers share. Nothing is locked."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from flowfabric.core.looking import MOST_SIGNALS, Journal, Look, Looking
from flowfabric.core.records import RecordedStep
from flowfabric.core.views import Glance
from flowfabric.store.transaction import Transaction


async def looks(tx: Transaction, namespace: str, asked: Sequence[Looking]) -> dict[UUID, Look]:
    """What came to these executions, and how others ended that they ask for."""
    return await tx.looks.look(namespace, asked, MOST_SIGNALS)


async def journals(tx: Transaction, namespace: str, asked: Sequence[Journal]) -> dict[UUID, list[RecordedStep]]:
    """The steps of these executions that answer at present, in their order."""
    return await tx.looks.journals(namespace, asked)


async def glances(tx: Transaction, namespace: str, ids: Sequence[UUID]) -> dict[UUID, Glance]:
    """Where these executions are."""
    return await tx.looks.glances(namespace, ids)
