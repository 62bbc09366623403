"""revoke_lease: takes a live lease away. An execution that exists is never an error."""

from __future__ import annotations

from uuid import UUID

from flowfabric.core.leasing import decide_revoke
from flowfabric.core.outcomes import AlreadySatisfied, Revoked
from flowfabric.core.requests import Command, WhichLease
from flowfabric.ops.locking import lock
from flowfabric.ops.writing import write
from flowfabric.store.transaction import Transaction


async def revoke_lease(
    tx: Transaction, namespace: str, id_: UUID, which: WhichLease, command: Command
) -> Revoked | AlreadySatisfied:
    """The lease that was revoked, or why there was nothing to do."""
    execution, now = await lock(tx, namespace, id_)
    decision = decide_revoke(execution, which, command, now)
    await write(tx, [decision])
    return decision.answer
