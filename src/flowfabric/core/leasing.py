"""How a lease begins, and how it is lost: claim, expiry, revocation, hand-off."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from flowfabric.core.decisions import Decision, decided, end_attempt, next_attempt
from flowfabric.core.frozen import replace
from flowfabric.core.outcomes import AlreadySatisfied, Ended, Lease, Revoked, lease_of
from flowfabric.core.policy import OnLeaseLoss, optional_span, span
from flowfabric.core.records import AttemptOrigin, AttemptOutcome, Execution, Grant, HeldLease
from flowfabric.core.requests import Command, GrantTerms, LeaseTerms, WhichLease
from flowfabric.core.states import AttemptState, Ownership
from flowfabric.core.transitions import (
    CLAIM,
    EXHAUST,
    GRANT,
    KEEP_EXPIRED,
    KEEP_REVOKED,
    RECLAIM,
    REQUEUE_EXPIRED,
    REQUEUE_REVOKED,
    Transition,
    check,
    move,
    refusal,
)  # fmt: skip

MAX_RECLAIMS_EXCEEDED = "max_reclaims_exceeded"


def decide_claim(execution: Execution, terms: LeaseTerms, now: datetime) -> Decision[Lease]:
    """The execution becomes active under a fresh lease; an interrupted attempt goes on, any other pending one opens."""
    after = move(execution, CLAIM, now, **_begin_lease(execution, terms, now))
    return decided(lease_of(after), execution, after, CLAIM, details={"origin": lease_of(after).origin})


def decide_lease_check(execution: Execution, now: datetime) -> Decision[str] | None:
    """What the expiry duty does with a lease whose check is due: ends it if it ran out, else looks again when the
    present term ends. None: there is no lease any more."""
    lease = execution.lease
    if lease is None:
        return None
    if lease.expires_at > now:
        after = replace(execution, lease=replace(lease, check_at=lease.expires_at))
        return Decision("renewed", execution, after)
    if execution.policy.on_lease_loss is OnLeaseLoss.HAND_OFF:
        return decided("kept", execution, move(execution, KEEP_EXPIRED, now), KEEP_EXPIRED)
    if execution.reclaim_count >= execution.policy.max_reclaims:
        over = _exhaust(execution, now)
        return Decision("exhausted", over.before, over.after, over.event, over.attempt)
    return _requeue("requeued", execution, REQUEUE_EXPIRED, now, reclaim_count=execution.reclaim_count + 1)


def decide_revoke(
    execution: Execution, which: WhichLease, command: Command, now: datetime
) -> Decision[Revoked | AlreadySatisfied]:
    """The live lease is taken away; with an instance, lease or epoch named, only if it is that one."""
    reason = _nothing_to_revoke(execution, which, now)
    if reason is not None or execution.lease is None:
        return Decision(AlreadySatisfied(reason or "no_active_lease"), execution)
    answer = Revoked(execution.lease.id, execution.epoch + 1)
    facts: dict[str, Any] = {"principal": command.principal, "reason": command.reason}
    if execution.policy.on_lease_loss is OnLeaseLoss.HAND_OFF:
        return decided(answer, execution, move(execution, KEEP_REVOKED, now), KEEP_REVOKED, **facts)
    again = _requeue("revoked", execution, REQUEUE_REVOKED, now, **facts)
    return Decision(answer, again.before, again.after, again.event, again.attempt)


def check_reclaimable(execution: Execution) -> None:
    """Refuses with `execution_not_reclaimable` unless the execution is kept for a hand-off."""
    check(execution, RECLAIM)


def decide_grant(execution: Execution, terms: GrantTerms, now: datetime) -> Decision[Grant]:
    """A worker may take over a kept execution, which stays as it is until then."""
    check_reclaimable(execution)
    grant = Grant(
        id=terms.grant_id, execution_id=execution.id, worker=terms.worker, granted_at=now, expires_at=now + terms.ttl
    )
    after = move(execution, GRANT, now, plain=False)
    details = {"grant": str(grant.id), "worker": terms.worker.name, "expires_at": grant.expires_at.isoformat()}
    principal, reason = terms.command.principal, terms.command.reason
    return decided(grant, execution, after, GRANT, details=details, principal=principal, reason=reason)


def decide_reclaim(execution: Execution, grant: Grant, terms: LeaseTerms, now: datetime) -> Decision[Lease | Ended]:
    """The named worker takes over a kept execution as a new attempt; past the cap of reclaims it fails instead."""
    check_reclaimable(execution)
    if grant.consumed_by is not None:
        raise refusal(execution, "grant_already_consumed", f"grant {grant.id} was used before")
    if grant.expires_at <= now:
        raise refusal(execution, "grant_expired", f"grant {grant.id} ran out; ask for a new one")
    counts = execution.ownership is Ownership.EXPIRED
    if counts and execution.reclaim_count >= execution.policy.max_reclaims:
        return _exhaust(execution, now)
    attempt = end_attempt(execution, AttemptOutcome.RECLAIMED, now)
    opened = replace(execution, attempt_origin=AttemptOrigin.RECLAIMED, **next_attempt(execution))
    after = move(
        opened, RECLAIM, now, reclaim_count=execution.reclaim_count + counts, **_begin_lease(opened, terms, now)
    )
    return decided(lease_of(after), execution, after, RECLAIM, attempt, details={"grant": str(grant.id)})


def resumed_claim_only(execution: Execution) -> None:
    """Refuses with `not_a_resumed_execution` unless an interrupted attempt waits to go on."""
    if execution.attempt_state is not AttemptState.INTERRUPTED:
        raise refusal(execution, "not_a_resumed_execution", "there is no interrupted attempt to go on with")


def _begin_lease(execution: Execution, terms: LeaseTerms, now: datetime) -> dict[str, Any]:
    ttl = terms.ttl or span(execution.policy.lease_ttl)
    lease = HeldLease(
        id=terms.lease_id, worker=terms.worker, ttl=ttl, acquired_at=now, expires_at=now + ttl, check_at=now + ttl,
        resumed=execution.attempt_state is AttemptState.INTERRUPTED,
    )  # fmt: skip
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


def _requeue(answer: str, execution: Execution, transition: Transition, now: datetime, **facts: Any) -> Decision[str]:
    attempt = end_attempt(execution, AttemptOutcome.RECLAIMED, now)
    reclaims = facts.pop("reclaim_count", execution.reclaim_count)
    opened = {"attempt_origin": AttemptOrigin.RECLAIMED, "reclaim_count": reclaims} | next_attempt(execution)
    return decided(answer, execution, move(execution, transition, now, **opened), transition, attempt, **facts)


def _exhaust(execution: Execution, now: datetime) -> Decision[Lease | Ended]:
    message = (
        f"lost by {execution.reclaim_count + 1} workers, the policy allows {execution.policy.max_reclaims} reclaims"
    )
    failure: dict[str, Any] = {"failure_message": message, "failure_category": MAX_RECLAIMS_EXCEEDED}
    after = move(execution, EXHAUST, now, **failure)
    attempt = end_attempt(execution, AttemptOutcome.RECLAIMED, now, **failure)
    details = {"category": MAX_RECLAIMS_EXCEEDED}
    return decided(Ended(after.state), execution, after, EXHAUST, attempt, reason=message, details=details)


def _nothing_to_revoke(execution: Execution, which: WhichLease, now: datetime) -> str | None:
    lease = execution.lease
    if lease is None:
        return _LOST.get(execution.ownership, "no_active_lease") if execution.ownership else "no_active_lease"
    if which.epoch not in (None, execution.epoch):
        return "epoch_moved"
    if which.instance not in (None, lease.worker.instance):
        return "different_worker_instance"
    if which.lease_id not in (None, lease.id):
        return "different_lease"
    return "already_expired" if lease.expires_at <= now else None


_LOST = {Ownership.EXPIRED: "already_expired", Ownership.REVOKED: "already_revoked"}
