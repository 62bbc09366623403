"""reclaim: uses a grant; the execution goes on as a new attempt under a new lease."""

from __future__ import annotations

from uuid import UUID

from flowfabric.core.errors import NotFound, Refused
from flowfabric.core.leasing import decide_reclaim
from flowfabric.core.outcomes import Ended, Lease, lease_of
from flowfabric.core.records import Execution, Grant
from flowfabric.core.requests import LeaseTerms
from flowfabric.core.states import State
from flowfabric.ops.locking import lock_to_end
from flowfabric.ops.writing import write
from flowfabric.store.transaction import Transaction

_NO_LEASE = UUID(int=0)


async def reclaim(tx: Transaction, namespace: str, grant_id: UUID, terms: LeaseTerms) -> Lease | Ended:
    """The lease, again if it was given before and lives; past the cap of reclaims, that the execution has failed."""
    grant = await tx.grants.get(grant_id)
    if grant is None:
        raise _unknown(grant_id)
    if not await tx.executions.get(namespace, [grant.execution_id]):
        raise _unknown(grant_id)
    execution, now = await lock_to_end(tx, namespace, grant.execution_id)
    # It may have been used while this transaction waited for the lock.
    grant = await tx.grants.get(grant_id) or grant
    if grant.worker != terms.worker:
        raise Refused(
            "different_worker", f"grant {grant_id} was given to worker {grant.worker.name}", grant_id=grant_id
        )
    if _answered_before(execution, grant):
        return lease_of(execution)
    if grant.consumed_by == _NO_LEASE:
        return Ended(State.FAILED)  # Using it was what ended the execution.
    decision = decide_reclaim(execution, grant, terms, now)
    await tx.grants.consume(grant_id, terms.lease_id if isinstance(decision.answer, Lease) else _NO_LEASE)
    await write(tx, [decision])
    return decision.answer


def _answered_before(execution: Execution, grant: Grant) -> bool:
    return execution.lease is not None and execution.lease.id == grant.consumed_by


def _unknown(grant_id: UUID) -> NotFound:
    return NotFound("grant_not_found", f"there is no grant {grant_id} in this namespace", grant_id=grant_id)
