"""grant_reclaim, reclaim and revoke_lease: hand an execution from one worker to another."""

from __future__ import annotations

from dataclasses import dataclass, replace
from uuid import UUID

from flowfabric.core.errors import NotFound, Refused
from flowfabric.core.executions.leases import check_reclaimable, decide_grant, decide_reclaim, decide_revoke
from flowfabric.core.executions.outcomes import AlreadySatisfied, Ended, Lease, Revoked, lease_of
from flowfabric.core.executions.records import Execution, Grant
from flowfabric.core.executions.requests import AuditInfo, GrantTerms, LeaseFilter, LeaseTerms
from flowfabric.core.executions.states import State
from flowfabric.core.executions.transitions import refusal
from flowfabric.core.workers import require_capabilities
from flowfabric.ops.apply import write_one
from flowfabric.ops.events.eras import current_era
from flowfabric.ops.locks import lock, lock_to_end
from flowfabric.ops.operation import operation
from flowfabric.store.transaction import Transaction

_NO_LEASE = UUID(int=0)


@dataclass(frozen=True, slots=True)
class ReclaimRequest:
    """A worker's use of a grant, with the terms of the new lease."""

    grant_id: UUID
    terms: LeaseTerms


@operation()
async def reclaim(tx: Transaction, namespace: str, request: ReclaimRequest) -> Lease | Ended:
    """Use a grant. Return the lease of the new attempt, or `Ended` if the execution was reclaimed too often and fails.

    A repeated call returns the same lease as long as that lease is live.
    """
    grant_id, terms = request.grant_id, request.terms
    grant = await tx.grants.get(grant_id)
    if grant is None or not await tx.executions.get(namespace, [grant.execution_id]):
        raise NotFound("grant_not_found", f"there is no grant {grant_id} in this namespace", grant_id=grant_id)
    execution, now = await lock_to_end(tx, namespace, grant.execution_id)
    # The grant may have been used while this transaction waited for the lock.
    grant = await tx.grants.get(grant_id) or grant
    if grant.worker != terms.worker:
        raise Refused(
            "different_worker", f"grant {grant_id} was given to worker {grant.worker.name}", grant_id=grant_id
        )
    if _has_lease_of(execution, grant):
        return replace(lease_of(execution), era=await current_era(tx))
    if grant.consumed_by == _NO_LEASE:
        return Ended(State.FAILED)  # An earlier use of this grant ended the execution.
    decision = decide_reclaim(execution, grant, terms, now)
    await tx.grants.consume(grant_id, terms.lease_id if isinstance(decision.outcome, Lease) else _NO_LEASE)
    outcome = await write_one(tx, decision)
    return replace(outcome, era=await current_era(tx)) if isinstance(outcome, Lease) else outcome


def _has_lease_of(execution: Execution, grant: Grant) -> bool:
    return execution.lease is not None and execution.lease.id == grant.consumed_by


@dataclass(frozen=True, slots=True)
class GrantRequest:
    """An operator's grant of an execution to a worker."""

    execution_id: UUID
    terms: GrantTerms


@operation()
async def grant_reclaim(tx: Transaction, namespace: str, request: GrantRequest) -> Grant:
    """Return the worker's existing grant or a new grant; refuse while a different worker has an open grant."""
    id_, terms = request.execution_id, request.terms
    execution, now = await lock(tx, namespace, id_)
    check_reclaimable(execution)
    require_capabilities(await tx.routes.requires(execution) or (), terms.capabilities)
    existing = await tx.grants.open(id_, now)
    if existing is not None and existing.worker == terms.worker:
        return existing
    if existing is not None:
        raise refusal(execution, "grant_already_exists", f"worker {existing.worker.name} was granted it")
    decision = decide_grant(execution, terms, now)
    await tx.grants.add(decision.outcome)
    return await write_one(tx, decision)


@dataclass(frozen=True, slots=True)
class RevokeRequest:
    """An operator's revocation of the live lease of an execution, if the lease matches `which`."""

    execution_id: UUID
    which: LeaseFilter
    audit: AuditInfo


def _names_a_lease(request: RevokeRequest) -> bool:
    """Return True if a repeat cannot revoke a later lease."""
    return request.which.lease_id is not None or request.which.epoch is not None


@operation(can_repeat=_names_a_lease)
async def revoke_lease(tx: Transaction, namespace: str, request: RevokeRequest) -> Revoked | AlreadySatisfied:
    """Revoke a live lease. Return the revoked lease, or why there was nothing to revoke."""
    execution, now = await lock(tx, namespace, request.execution_id)
    return await write_one(tx, decide_revoke(execution, request.which, request.audit, now))
