"""grant_reclaim: gives one worker the right to take over an execution that is kept for a hand-off."""

from __future__ import annotations

from uuid import UUID

from flowfabric.core.capabilities import require
from flowfabric.core.leasing import check_reclaimable, decide_grant
from flowfabric.core.records import Grant
from flowfabric.core.requests import GrantTerms
from flowfabric.core.transitions import refusal
from flowfabric.ops.locking import lock
from flowfabric.ops.writing import write
from flowfabric.store.transaction import Transaction


async def grant_reclaim(tx: Transaction, namespace: str, id_: UUID, terms: GrantTerms) -> Grant:
    """The grant; the same worker asking again gets the one it has, another one is refused until that runs out."""
    execution, now = await lock(tx, namespace, id_)
    check_reclaimable(execution)
    require(await tx.routes.requires(execution.route_id), terms.capabilities)
    existing = await tx.grants.open(id_, now)
    if existing is not None and existing.worker == terms.worker:
        return existing
    if existing is not None:
        raise refusal(execution, "grant_already_exists", f"worker {existing.worker.name} was granted it")
    decision = decide_grant(execution, terms, now)
    await tx.grants.add(decision.answer)
    await write(tx, [decision])
    return decision.answer
