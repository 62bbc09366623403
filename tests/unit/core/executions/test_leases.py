"""Tests for claims, lease expiry, revocation and reclaims."""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from flowfabric.core.executions.leases import (
    check_reclaimable,
    decide_claim,
    decide_lease_check,
    decide_reclaim,
    decide_revoke,
    require_interrupted,
)
from flowfabric.core.executions.records import AttemptOrigin, Execution
from flowfabric.core.executions.requests import AuditInfo, LeaseFilter, LeaseTerms
from flowfabric.core.executions.states import AttemptState, BlockingReason, Ownership
from flowfabric.engine import (
    AlreadySatisfied,
    AttemptOutcome,
    Ended,
    Grant,
    Lease,
    OnLeaseLoss,
    Policy,
    Refused,
    Revoked,
    State,
)
from tests.unit.builders import (
    EPOCH,
    ID,
    LEASE_ID,
    MINUTE,
    SECOND,
    SITUATIONS,
    T0,
    TTL,
    WORKER,
    find_broken_invariants,
    make_kept,
    make_leased,
    make_live_lease,
    make_new,
    make_started,
)

NEW_ID = UUID(int=0xC)
TERMS = LeaseTerms(worker=WORKER, lease_id=NEW_ID, ttl=None)
COMMAND = AuditInfo(principal="ada", reason="stuck")
HAND_OFF = Policy(on_lease_loss=OnLeaseLoss.HAND_OFF)
EXPIRED_LEASE = make_live_lease(expires_at=T0)


def _make_grant(**changes: Any) -> Grant:
    values: dict[str, Any] = {
        "id": UUID(int=0xD), "execution_id": ID, "worker": WORKER, "granted_at": T0, "expires_at": T0 + MINUTE,
    }  # fmt: skip
    return Grant(**(values | changes))


def _require_valid(execution: Execution | None) -> Execution:
    assert execution is not None
    assert find_broken_invariants(execution) == []
    return execution


def test_first_claim_starts_the_execution_and_its_attempt() -> None:
    decision = decide_claim(make_new(), TERMS, T0)
    after = _require_valid(decision.after)
    assert (after.state, after.ownership, after.epoch) == (State.ACTIVE, Ownership.LEASED, 1)
    assert (after.started_at, after.attempt_started_at, after.attempt_index) == (T0, T0, 0)
    assert after.lease is not None
    assert (after.lease.id, after.lease.worker, after.lease.resumed) == (NEW_ID, WORKER, False)
    assert (after.lease.acquired_at, after.lease.expires_at, after.lease.check_at) == (T0, T0 + TTL, T0 + TTL)
    assert decision.attempt is None
    assert decision.outcome.fence == after.fence
    assert decision.outcome.origin == "fresh"
    assert decision.event is not None
    assert decision.event.details == {"origin": "fresh"}


@pytest.mark.parametrize("ttl", [SECOND, timedelta(days=7)])
def test_ttl_of_the_claim_overrides_the_policy(ttl: timedelta) -> None:
    by_claim = decide_claim(make_new(), LeaseTerms(worker=WORKER, lease_id=NEW_ID, ttl=ttl), T0)
    assert by_claim.outcome.expires_at == T0 + ttl
    by_policy = decide_claim(make_new(policy=Policy(lease_ttl=ttl)), TERMS, T0)
    assert by_policy.outcome.expires_at == T0 + ttl


def test_claim_resumes_an_interrupted_attempt() -> None:
    before = make_started(attempt_index=2, attempt_origin=AttemptOrigin.RETRY)
    decision = decide_claim(before, TERMS, T0)
    after = _require_valid(decision.after)
    assert (after.attempt_index, after.attempt_started_at) == (2, before.attempt_started_at)
    assert (after.started_at, after.epoch) == (before.started_at, EPOCH + 1)
    assert decision.outcome.origin == "resumed"


@pytest.mark.parametrize(
    ("pending", "origin"),
    [
        (AttemptState.PENDING_RETRY, AttemptOrigin.RETRY),
        (AttemptState.PENDING_RECLAIM, AttemptOrigin.RECLAIMED),
        (AttemptState.PENDING_REPLAY, AttemptOrigin.REPLAYED),
    ],
)
def test_claim_starts_a_pending_attempt_with_its_origin(pending: AttemptState, origin: AttemptOrigin) -> None:
    before = make_started(attempt_state=pending, attempt_origin=origin, attempt_index=3, attempt_started_at=None)
    decision = decide_claim(before, TERMS, T0)
    after = _require_valid(decision.after)
    assert (after.attempt_index, after.attempt_started_at, after.started_at) == (3, T0, before.started_at)
    assert decision.outcome.origin == origin.value


@pytest.mark.parametrize(
    ("timeout", "remaining", "armed"),
    [
        (None, None, None),
        (MINUTE, None, MINUTE),
        (MINUTE, 5 * SECOND, 5 * SECOND),
        (MINUTE, timedelta(0), timedelta(0)),
    ],
)
def test_claim_arms_the_attempt_timeout_with_the_remaining_time(
    timeout: Any, remaining: Any, armed: timedelta | None
) -> None:
    before = make_started(policy=Policy(attempt_timeout=timeout), attempt_timeout_left=remaining)
    after = _require_valid(decide_claim(before, TERMS, T0).after)
    assert after.attempt_timeout_at == (None if armed is None else T0 + armed)
    assert after.attempt_timeout_left is None


def test_renewed_lease_is_checked_again_at_its_new_expiry() -> None:
    before = make_leased(lease=make_live_lease(expires_at=T0 + SECOND, check_at=T0))
    decision = decide_lease_check(before, T0)
    assert decision is not None
    after = _require_valid(decision.after)
    assert decision.outcome == "renewed"
    assert after.lease is not None
    assert after.lease.check_at == T0 + SECOND
    assert (after.version, after.epoch, decision.event) == (before.version, EPOCH, None)


@pytest.mark.parametrize("situation", sorted(set(SITUATIONS) - {"leased"}))
def test_lease_check_ignores_executions_without_a_lease(situation: str) -> None:
    assert decide_lease_check(SITUATIONS[situation](), T0 + 1000 * MINUTE) is None


def test_expired_lease_returns_the_execution_to_waiting_with_a_new_attempt() -> None:
    decision = decide_lease_check(make_leased(lease=EXPIRED_LEASE, attempt_timeout_at=T0 + MINUTE), T0)
    assert decision is not None
    after, attempt = _require_valid(decision.after), decision.attempt
    assert (after.state, after.attempt_state) == (State.WAITING, AttemptState.PENDING_RECLAIM)
    assert after.blocking_reason is BlockingReason.WAITING_FOR_WORKER
    assert (after.reclaim_count, after.attempt_index, after.epoch, after.retry_count) == (1, 1, EPOCH + 1, 0)
    assert (after.attempt_origin, after.attempt_timeout_left) == (AttemptOrigin.RECLAIMED, None)
    assert attempt is not None and after.former is not None
    assert (attempt.outcome, attempt.attempt_index, attempt.worker) == (AttemptOutcome.RECLAIMED, 0, WORKER)
    assert (after.former.end, after.former.digest) == ("lease_expired", None)


def test_expired_lease_with_a_hand_off_policy_stays_active() -> None:
    decision = decide_lease_check(make_leased(lease=EXPIRED_LEASE, policy=HAND_OFF, reclaim_count=100), T0)
    assert decision is not None
    after = _require_valid(decision.after)
    assert (after.state, after.ownership) == (State.ACTIVE, Ownership.EXPIRED)
    assert (after.attempt_state, after.attempt_index) == (AttemptState.PENDING_RECLAIM, 0)
    assert (after.reclaim_count, after.epoch) == (100, EPOCH + 1)
    assert decision.attempt is None, "the attempt ends when another worker reclaims it"


@pytest.mark.parametrize(
    ("taken", "maximum", "fails"), [(0, 0, True), (0, 1, False), (99, 100, False), (100, 100, True)]
)
def test_expired_lease_beyond_max_reclaims_fails_the_execution(taken: int, maximum: int, fails: bool) -> None:
    before = make_leased(lease=EXPIRED_LEASE, policy=Policy(max_reclaims=maximum), reclaim_count=taken)
    decision = decide_lease_check(before, T0)
    assert decision is not None
    after = _require_valid(decision.after)
    assert (after.state is State.FAILED) == fails
    assert after.epoch == EPOCH + 1
    if fails:
        assert after.failure_category == "max_reclaims_exceeded"
        assert decision.attempt is not None and decision.event is not None
        assert decision.attempt.outcome is AttemptOutcome.RECLAIMED
        assert (decision.event.family, decision.event.name) == ("completion", "failed")
        assert decision.event.ends_lease


def test_revoked_lease_returns_to_waiting_without_counting_a_reclaim() -> None:
    decision = decide_revoke(make_leased(reclaim_count=100), LeaseFilter(), COMMAND, T0)
    after, event = _require_valid(decision.after), decision.event
    assert decision.outcome == Revoked(LEASE_ID, EPOCH + 1)
    assert (after.state, after.attempt_state) == (State.WAITING, AttemptState.PENDING_RECLAIM)
    assert (after.reclaim_count, after.attempt_index, after.epoch) == (100, 1, EPOCH + 1)
    assert decision.attempt is not None and event is not None and after.former is not None
    assert decision.attempt.outcome is AttemptOutcome.RECLAIMED
    assert (event.principal, event.reason, event.name) == ("ada", "stuck", "revoked")
    assert after.former.end == "lease_revoked"


def test_revoked_lease_with_a_hand_off_policy_stays_active() -> None:
    decision = decide_revoke(make_leased(policy=HAND_OFF), LeaseFilter(), COMMAND, T0)
    after = _require_valid(decision.after)
    assert decision.outcome == Revoked(LEASE_ID, EPOCH + 1)
    assert (after.state, after.ownership, after.attempt_index) == (State.ACTIVE, Ownership.REVOKED, 0)
    assert decision.event is not None
    assert (decision.event.principal, decision.event.reason) == ("ada", "stuck")


@pytest.mark.parametrize("situation", sorted(set(SITUATIONS) - {"leased"}))
def test_revoke_without_a_live_lease_is_already_satisfied(situation: str) -> None:
    expected = {"kept expired": "already_expired", "kept revoked": "already_revoked"}.get(situation, "no_active_lease")
    for which in (LeaseFilter(), LeaseFilter(instance="x", lease_id=UUID(int=1), epoch=1)):
        decision = decide_revoke(SITUATIONS[situation](), which, COMMAND, T0)
        assert decision.outcome == AlreadySatisfied(expected)
        assert (decision.after, decision.event, decision.attempt) == (None, None, None)


@pytest.mark.parametrize(
    ("which", "reason"),
    [
        (LeaseFilter(instance="another"), "different_worker_instance"),
        (LeaseFilter(instance=WORKER.name), "different_worker_instance"),
        (LeaseFilter(lease_id=UUID(int=1)), "different_lease"),
        (LeaseFilter(epoch=EPOCH - 1), "epoch_moved"),
        (LeaseFilter(epoch=EPOCH + 1), "epoch_moved"),
        (LeaseFilter(epoch=0), "epoch_moved"),
    ],
)
def test_revoke_does_not_change_a_lease_other_than_the_named_one(which: LeaseFilter, reason: str) -> None:
    decision = decide_revoke(make_leased(), which, COMMAND, T0)
    assert decision.outcome == AlreadySatisfied(reason)
    assert decision.after is None


def test_revoke_ends_the_named_lease() -> None:
    which = LeaseFilter(instance=WORKER.instance, lease_id=LEASE_ID, epoch=EPOCH)
    assert decide_revoke(make_leased(), which, COMMAND, T0).outcome == Revoked(LEASE_ID, EPOCH + 1)


def test_revoke_of_an_expired_lease_is_already_satisfied() -> None:
    assert decide_revoke(make_leased(lease=EXPIRED_LEASE), LeaseFilter(), COMMAND, T0).outcome == AlreadySatisfied(
        "already_expired"
    )


@pytest.mark.parametrize("ownership", [Ownership.EXPIRED, Ownership.REVOKED])
def test_reclaim_starts_the_next_attempt_under_a_new_lease(ownership: Ownership) -> None:
    before = make_kept(ownership, policy=Policy(attempt_timeout=MINUTE), attempt_timeout_left=SECOND)
    decision = decide_reclaim(before, _make_grant(), TERMS, T0)
    after, attempt = _require_valid(decision.after), decision.attempt
    assert isinstance(decision.outcome, Lease)
    assert (decision.outcome.origin, decision.outcome.attempt_index) == ("reclaimed", 1)
    assert (after.state, after.ownership, after.epoch) == (State.ACTIVE, Ownership.LEASED, EPOCH + 1)
    assert (after.attempt_index, after.attempt_started_at) == (1, T0)
    assert after.attempt_timeout_at == T0 + MINUTE, "a new attempt has its full timeout"
    assert after.reclaim_count == (1 if ownership is Ownership.EXPIRED else 0)
    assert attempt is not None and decision.event is not None
    assert (attempt.outcome, attempt.attempt_index) == (AttemptOutcome.RECLAIMED, 0)
    assert decision.event.name == "reclaimed"


@pytest.mark.parametrize(("ownership", "fails"), [(Ownership.EXPIRED, True), (Ownership.REVOKED, False)])
def test_reclaim_beyond_max_reclaims_fails_an_expired_execution(ownership: Ownership, fails: bool) -> None:
    before = make_kept(ownership, policy=Policy(max_reclaims=2), reclaim_count=2)
    decision = decide_reclaim(before, _make_grant(), TERMS, T0)
    after = _require_valid(decision.after)
    assert (decision.outcome == Ended(State.FAILED)) == fails
    assert (after.failure_category == "max_reclaims_exceeded") == fails


@pytest.mark.parametrize("situation", sorted(set(SITUATIONS) - {"kept expired", "kept revoked"}))
def test_only_an_execution_kept_for_hand_off_can_be_reclaimed(situation: str) -> None:
    execution = SITUATIONS[situation]()
    with pytest.raises(Refused) as checked:
        check_reclaimable(execution)
    with pytest.raises(Refused) as decided:
        decide_reclaim(execution, _make_grant(), TERMS, T0)
    assert checked.value.code == decided.value.code == "execution_not_reclaimable"


@pytest.mark.parametrize(
    ("grant", "code"),
    [
        (_make_grant(consumed_by=UUID(int=1)), "grant_already_consumed"),
        (_make_grant(expires_at=T0), "grant_expired"),
        (_make_grant(expires_at=T0 - SECOND), "grant_expired"),
        (_make_grant(consumed_by=UUID(int=1), expires_at=T0), "grant_already_consumed"),
    ],
)
def test_used_or_expired_grant_is_rejected(grant: Grant, code: str) -> None:
    with pytest.raises(Refused) as refused:
        decide_reclaim(make_kept(Ownership.EXPIRED), grant, TERMS, T0)
    assert refused.value.code == code


@pytest.mark.parametrize("attempt_state", AttemptState)
def test_resumed_claim_requires_an_interrupted_attempt(attempt_state: AttemptState) -> None:
    execution = make_started(state=State.WAITING, attempt_state=attempt_state)
    if attempt_state is AttemptState.INTERRUPTED:
        require_interrupted(execution)
        return
    with pytest.raises(Refused) as refused:
        require_interrupted(execution)
    assert refused.value.code == "not_a_resumed_execution"
