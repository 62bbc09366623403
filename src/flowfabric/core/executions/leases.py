"""How a lease begins and ends: claim, expiry, revocation and hand-off."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from flowfabric.core.executions.decision import Decision, OutcomeT, end_attempt, make_decision, next_attempt
from flowfabric.core.executions.outcomes import AlreadySatisfied, Ended, Lease, Revoked, lease_of
from flowfabric.core.executions.records import AttemptOrigin, AttemptOutcome, Execution, Grant, HeldLease
from flowfabric.core.executions.requests import AuditInfo, GrantTerms, LeaseFilter, LeaseTerms
from flowfabric.core.executions.states import AttemptState, Ownership, State
from flowfabric.core.executions.transitions import (
    CLAIM,
    EXHAUST,
    GRANT,
    KEEP_EXPIRED,
    KEEP_REVOKED,
    RECLAIM,
    REQUEUE_EXPIRED,
    REQUEUE_REVOKED,
    Transition,
    apply_transition,
    check,
    refusal,
)
from flowfabric.core.fast_dataclass import replace
from flowfabric.core.policy import OnLeaseLoss, optional_span, span

MAX_RECLAIMS_EXCEEDED = "max_reclaims_exceeded"


def decide_claim(execution: Execution, terms: LeaseTerms, now: datetime) -> Decision[Lease]:
    """Give the execution a new lease. An interrupted attempt continues; otherwise the pending attempt starts."""
    after = apply_transition(execution, CLAIM, now, **_begin_lease(execution, terms, now))
    lease = lease_of(after, has_journal=execution.attempt_state is not AttemptState.PENDING_FIRST)
    return make_decision(lease, execution, after, CLAIM, details={"origin": lease.origin})


def extend_lease(execution: Execution, now: datetime) -> Execution:
    """Return the execution with a lease that lasts at least one full term from now. The caller has locked the row."""
    lease = execution.lease
    assert lease is not None, "only the owner of a lease extends it"
    return replace(execution, lease=replace(lease, expires_at=max(lease.expires_at, now + lease.ttl)))


def decide_lease_check(execution: Execution, now: datetime) -> Decision[str] | None:
    """End the lease if it has expired; otherwise schedule its next check.

    If the store's clock went back, the lease has more time left than its term. It is then shortened to its term. Return
    None if there is no lease.
    """
    lease = execution.lease
    if lease is None:
        return None
    if lease.expires_at > now:
        expires_at = min(lease.expires_at, now + lease.ttl)
        after = replace(execution, lease=replace(lease, expires_at=expires_at, check_at=expires_at))
        return Decision("renewed", execution, after)
    if execution.policy.on_lease_loss is OnLeaseLoss.HAND_OFF:
        return make_decision("kept", execution, apply_transition(execution, KEEP_EXPIRED, now), KEEP_EXPIRED)
    if execution.reclaim_count >= execution.policy.max_reclaims:
        return _exhaust("exhausted", execution, now)
    return _requeue("requeued", execution, REQUEUE_EXPIRED, now, execution.reclaim_count + 1)


def decide_revoke(
    execution: Execution, which: LeaseFilter, command: AuditInfo, now: datetime
) -> Decision[Revoked | AlreadySatisfied]:
    """Revoke the live lease if its instance, id and epoch match the filter."""
    obstacle = _revoke_obstacle(execution, which, now)
    if obstacle is not None or execution.lease is None:
        return Decision(AlreadySatisfied(obstacle or "no_active_lease"), execution)
    outcome = Revoked(execution.lease.id, execution.epoch + 1)
    if execution.policy.on_lease_loss is OnLeaseLoss.HAND_OFF:
        after = apply_transition(execution, KEEP_REVOKED, now)
        return make_decision(outcome, execution, after, KEEP_REVOKED, **command.facts)
    return _requeue(outcome, execution, REQUEUE_REVOKED, now, execution.reclaim_count, **command.facts)


def check_reclaimable(execution: Execution) -> None:
    """Raise `execution_not_reclaimable` unless the execution is kept for a hand-off."""
    check(execution, RECLAIM)


def decide_grant(execution: Execution, terms: GrantTerms, now: datetime) -> Decision[Grant]:
    """Allow one worker to take over an execution that is kept for a hand-off."""
    check_reclaimable(execution)
    grant = Grant(
        id=terms.grant_id, execution_id=execution.id, worker=terms.worker, granted_at=now, expires_at=now + terms.ttl
    )
    after = apply_transition(execution, GRANT, now, is_standalone=False)
    details = {"grant": str(grant.id), "worker": terms.worker.name, "expires_at": grant.expires_at.isoformat()}
    return make_decision(grant, execution, after, GRANT, details=details, **terms.command.facts)


def decide_reclaim(execution: Execution, grant: Grant, terms: LeaseTerms, now: datetime) -> Decision[Lease | Ended]:
    """Start a new attempt on the worker that holds the grant; fail the execution if it has no reclaims left."""
    check_reclaimable(execution)
    if grant.consumed_by is not None:
        raise refusal(execution, "grant_already_consumed", f"grant {grant.id} was already used; request a new one")
    if grant.expires_at <= now:
        raise refusal(execution, "grant_expired", f"grant {grant.id} expired; request a new one")
    counts = execution.ownership is Ownership.EXPIRED
    if counts and execution.reclaim_count >= execution.policy.max_reclaims:
        return _exhaust(Ended(State.FAILED), execution, now)
    attempt = end_attempt(execution, AttemptOutcome.RECLAIMED, now)
    opened = replace(execution, attempt_origin=AttemptOrigin.RECLAIMED, **next_attempt(execution))
    after = apply_transition(
        opened, RECLAIM, now, reclaim_count=execution.reclaim_count + counts, **_begin_lease(opened, terms, now)
    )
    return make_decision(lease_of(after), execution, after, RECLAIM, attempt, details={"grant": str(grant.id)})


def require_interrupted(execution: Execution) -> None:
    """Raise `not_a_resumed_execution` unless the execution is waiting for a worker to continue its attempt."""
    if execution.attempt_state is not AttemptState.INTERRUPTED:
        raise refusal(execution, "not_a_resumed_execution", "it has no interrupted attempt to continue")
    if execution.state is not State.WAITING:
        raise refusal(execution, "not_a_resumed_execution", "its attempt cannot continue yet")


def _begin_lease(execution: Execution, terms: LeaseTerms, now: datetime) -> dict[str, Any]:
    ttl = terms.ttl or span(execution.policy.lease_ttl)
    lease = HeldLease(
        id=terms.lease_id,
        worker=terms.worker,
        ttl=ttl,
        acquired_at=now,
        expires_at=now + ttl,
        check_at=now + ttl,
        resumed=execution.attempt_state is AttemptState.INTERRUPTED,
    )
    allowed = execution.attempt_timeout_left
    if allowed is None:
        allowed = optional_span(execution.policy.attempt_timeout)
    return {
        "lease": lease,
        "started_at": execution.started_at or now,
        "attempt_started_at": execution.attempt_started_at or now,
        "attempt_timeout_at": None if allowed is None else now + allowed,
        "attempt_timeout_left": None,
    }


def _requeue(
    outcome: OutcomeT, execution: Execution, transition: Transition, now: datetime, reclaim_count: int, **facts: Any
) -> Decision[OutcomeT]:
    attempt = end_attempt(execution, AttemptOutcome.RECLAIMED, now)
    opened = next_attempt(execution) | {"attempt_origin": AttemptOrigin.RECLAIMED, "reclaim_count": reclaim_count}
    after = apply_transition(execution, transition, now, **opened)
    return make_decision(outcome, execution, after, transition, attempt, **facts)


def _exhaust(outcome: OutcomeT, execution: Execution, now: datetime) -> Decision[OutcomeT]:
    lost, allowed = execution.reclaim_count + 1, execution.policy.max_reclaims
    message = f"{lost} workers lost the lease, the policy allows {allowed} reclaims"
    failure: dict[str, Any] = {"failure_message": message, "failure_category": MAX_RECLAIMS_EXCEEDED}
    after = apply_transition(execution, EXHAUST, now, **failure)
    attempt = end_attempt(execution, AttemptOutcome.RECLAIMED, now, **failure)
    details = {"category": MAX_RECLAIMS_EXCEEDED}
    return make_decision(outcome, execution, after, EXHAUST, attempt, reason=message, details=details)


def _revoke_obstacle(execution: Execution, which: LeaseFilter, now: datetime) -> str | None:
    lease = execution.lease
    if lease is None:
        return _LOST.get(execution.ownership, "no_active_lease")
    if which.epoch not in (None, execution.epoch):
        return "epoch_moved"
    if which.instance not in (None, lease.worker.instance):
        return "different_worker_instance"
    if which.lease_id not in (None, lease.id):
        return "different_lease"
    return "already_expired" if lease.expires_at <= now else None


_LOST: dict[Ownership | None, str] = {Ownership.EXPIRED: "already_expired", Ownership.REVOKED: "already_revoked"}
