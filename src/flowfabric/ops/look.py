"""look and glances: what came to an execution, and how others ended, while its worker goes on. It locks nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from uuid import UUID

from flowfabric.core.fences import execution_not_found
from flowfabric.core.looking import MOST_SIGNALS, Look
from flowfabric.core.views import Glance
from flowfabric.store.transaction import Transaction


async def look(tx: Transaction, namespace: str, id_: UUID, places: Mapping[str, int], children: Sequence[UUID]) -> Look:
    """Exactly one statement."""
    found = await tx.looks.look(namespace, id_, places, children, MOST_SIGNALS)
    if found is None:
        raise execution_not_found(id_)
    return found


async def glances(tx: Transaction, namespace: str, ids: Sequence[UUID]) -> dict[UUID, Glance]:
    """Where these executions are."""
    return await tx.looks.glances(namespace, ids)
