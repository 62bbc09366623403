"""How a lease begins, and what happens to an execution that loses it."""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from flowfabric.core.leasing import (
    check_reclaimable,
    decide_claim,
    decide_lease_check,
    decide_reclaim,
    decide_revoke,
    resumed_claim_only,
)  # fmt: skip
from flowfabric.core.records import AttemptOrigin, Execution
from flowfabric.core.requests import Command, LeaseTerms, WhichLease
from flowfabric.core.states import AttemptState, BlockingReason, Ownership
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
    broken_invariants,
    fresh,
    kept,
    leased,
    live_lease,
    started,
)  # fmt: skip

NEW_ID = UUID(int=0xC)
TERMS = LeaseTerms(worker=WORKER, lease_id=NEW_ID, ttl=None)
COMMAND = Command(principal="ada", reason="stuck")
KEEPING = Policy(on_lease_loss=OnLeaseLoss.HAND_OFF)
RUN_OUT = live_lease(expires_at=T0)


def _grant(**changes: Any) -> Grant:
    values: dict[str, Any] = {
        "id": UUID(int=0xD), "execution_id": ID, "worker": WORKER, "granted_at": T0, "expires_at": T0 + MINUTE,
    }  # fmt: skip
    return Grant(**(values | changes))


def _sound(execution: Execution | None) -> Execution:
    assert execution is not None
    assert broken_invariants(execution) == []
    return execution


def test_a_first_claim_starts_the_execution_and_its_attempt() -> None:
    decision = decide_claim(fresh(), TERMS, T0)
    after = _sound(decision.after)
    assert (after.state, after.ownership, after.epoch) == (State.ACTIVE, Ownership.LEASED, 1)
    assert (after.started_at, after.attempt_started_at, after.attempt_index) == (T0, T0, 0)
    assert after.lease is not None
    assert (after.lease.id, after.lease.worker, after.lease.resumed) == (NEW_ID, WORKER, False)
    assert (after.lease.acquired_at, after.lease.expires_at, after.lease.check_at) == (T0, T0 + TTL, T0 + TTL)
    assert decision.attempt is None
    assert decision.answer.fence == after.fence
    assert decision.answer.origin == "fresh"
    assert decision.event is not None
    assert decision.event.details == {"origin": "fresh"}


@pytest.mark.parametrize("ttl", [SECOND, timedelta(days=7)])
def test_the_claims_own_term_wins_over_the_policys(ttl: timedelta) -> None:
    asked = decide_claim(fresh(), LeaseTerms(worker=WORKER, lease_id=NEW_ID, ttl=ttl), T0)
    assert asked.answer.expires_at == T0 + ttl
    by_policy = decide_claim(fresh(policy=Policy(lease_ttl=ttl)), TERMS, T0)
    assert by_policy.answer.expires_at == T0 + ttl


def test_an_interrupted_attempt_goes_on() -> None:
    before = started(attempt_index=2, attempt_origin=AttemptOrigin.RETRY)
    decision = decide_claim(before, TERMS, T0)
    after = _sound(decision.after)
    assert (after.attempt_index, after.attempt_started_at) == (2, before.attempt_started_at)
    assert (after.started_at, after.epoch) == (before.started_at, EPOCH + 1)
    assert decision.answer.origin == "resumed"


@pytest.mark.parametrize(
    ("pending", "origin"),
    [
        (AttemptState.PENDING_RETRY, AttemptOrigin.RETRY),
        (AttemptState.PENDING_RECLAIM, AttemptOrigin.RECLAIMED),
        (AttemptState.PENDING_REPLAY, AttemptOrigin.REPLAYED),
    ],
)
def test_a_pending_attempt_opens_with_its_origin(pending: AttemptState, origin: AttemptOrigin) -> None:
    before = started(attempt_state=pending, attempt_origin=origin, attempt_index=3, attempt_started_at=None)
    decision = decide_claim(before, TERMS, T0)
    after = _sound(decision.after)
    assert (after.attempt_index, after.attempt_started_at, after.started_at) == (3, T0, before.started_at)
    assert decision.answer.origin == origin.value


@pytest.mark.parametrize(
    ("timeout", "left", "armed"),
    [
        (None, None, None),
        (MINUTE, None, MINUTE),
        (MINUTE, 5 * SECOND, 5 * SECOND),
        (MINUTE, timedelta(0), timedelta(0)),
    ],
)
def test_the_attempts_time_is_armed_with_what_is_left_of_it(timeout: Any, left: Any, armed: timedelta | None) -> None:
    before = started(policy=Policy(attempt_timeout=timeout), attempt_timeout_left=left)
    after = _sound(decide_claim(before, TERMS, T0).after)
    assert after.attempt_timeout_at == (None if armed is None else T0 + armed)
    assert after.attempt_timeout_left is None


def test_a_lease_that_was_renewed_is_looked_at_again_when_its_term_ends() -> None:
    before = leased(lease=live_lease(expires_at=T0 + SECOND, check_at=T0))
    decision = decide_lease_check(before, T0)
    assert decision is not None
    after = _sound(decision.after)
    assert decision.answer == "renewed"
    assert after.lease is not None
    assert after.lease.check_at == T0 + SECOND
    assert (after.version, after.epoch, decision.event) == (before.version, EPOCH, None)


@pytest.mark.parametrize("situation", sorted(set(SITUATIONS) - {"leased"}))
def test_without_a_lease_there_is_nothing_to_check(situation: str) -> None:
    assert decide_lease_check(SITUATIONS[situation](), T0 + 1000 * MINUTE) is None


def test_an_expired_lease_puts_the_execution_back_as_a_new_attempt() -> None:
    decision = decide_lease_check(leased(lease=RUN_OUT, attempt_timeout_at=T0 + MINUTE), T0)
    assert decision is not None
    after, attempt = _sound(decision.after), decision.attempt
    assert (after.state, after.attempt_state) == (State.WAITING, AttemptState.PENDING_RECLAIM)
    assert after.blocking_reason is BlockingReason.WAITING_FOR_WORKER
    assert (after.reclaim_count, after.attempt_index, after.epoch, after.retry_count) == (1, 1, EPOCH + 1, 0)
    assert (after.attempt_origin, after.attempt_timeout_left) == (AttemptOrigin.RECLAIMED, None)
    assert attempt is not None and after.former is not None
    assert (attempt.outcome, attempt.attempt_index, attempt.worker) == (AttemptOutcome.RECLAIMED, 0, WORKER)
    assert (after.former.end, after.former.digest) == ("lease_expired", None)


def test_an_expired_lease_of_a_keeping_policy_stays_for_a_hand_off() -> None:
    decision = decide_lease_check(leased(lease=RUN_OUT, policy=KEEPING, reclaim_count=100), T0)
    assert decision is not None
    after = _sound(decision.after)
    assert (after.state, after.ownership) == (State.ACTIVE, Ownership.EXPIRED)
    assert (after.attempt_state, after.attempt_index) == (AttemptState.PENDING_RECLAIM, 0)
    assert (after.reclaim_count, after.epoch) == (100, EPOCH + 1)
    assert decision.attempt is None, "the attempt ends when another worker takes over"


@pytest.mark.parametrize(("taken", "most", "fails"), [(0, 0, True), (0, 1, False), (99, 100, False), (100, 100, True)])
def test_past_the_cap_of_reclaims_the_execution_fails(taken: int, most: int, fails: bool) -> None:
    before = leased(lease=RUN_OUT, policy=Policy(max_reclaims=most), reclaim_count=taken)
    decision = decide_lease_check(before, T0)
    assert decision is not None
    after = _sound(decision.after)
    assert (after.state is State.FAILED) == fails
    assert after.epoch == EPOCH + 1
    if fails:
        assert after.failure_category == "max_reclaims_exceeded"
        assert decision.attempt is not None and decision.event is not None
        assert decision.attempt.outcome is AttemptOutcome.RECLAIMED
        assert (decision.event.family, decision.event.name) == ("completion", "failed")
        assert decision.event.ends_lease


def test_a_revoked_lease_puts_the_execution_back_and_counts_no_reclaim() -> None:
    decision = decide_revoke(leased(reclaim_count=100), WhichLease(), COMMAND, T0)
    after, event = _sound(decision.after), decision.event
    assert decision.answer == Revoked(LEASE_ID, EPOCH + 1)
    assert (after.state, after.attempt_state) == (State.WAITING, AttemptState.PENDING_RECLAIM)
    assert (after.reclaim_count, after.attempt_index, after.epoch) == (100, 1, EPOCH + 1)
    assert decision.attempt is not None and event is not None and after.former is not None
    assert decision.attempt.outcome is AttemptOutcome.RECLAIMED
    assert (event.principal, event.reason, event.name) == ("ada", "stuck", "revoked")
    assert after.former.end == "lease_revoked"


def test_a_revoked_lease_of_a_keeping_policy_stays_for_a_hand_off() -> None:
    decision = decide_revoke(leased(policy=KEEPING), WhichLease(), COMMAND, T0)
    after = _sound(decision.after)
    assert decision.answer == Revoked(LEASE_ID, EPOCH + 1)
    assert (after.state, after.ownership, after.attempt_index) == (State.ACTIVE, Ownership.REVOKED, 0)
    assert decision.event is not None
    assert (decision.event.principal, decision.event.reason) == ("ada", "stuck")


@pytest.mark.parametrize("situation", sorted(set(SITUATIONS) - {"leased"}))
def test_without_a_live_lease_a_revoke_is_already_satisfied(situation: str) -> None:
    expected = {"kept expired": "already_expired", "kept revoked": "already_revoked"}.get(situation, "no_active_lease")
    for which in (WhichLease(), WhichLease(instance="x", lease_id=UUID(int=1), epoch=1)):
        decision = decide_revoke(SITUATIONS[situation](), which, COMMAND, T0)
        assert decision.answer == AlreadySatisfied(expected)
        assert (decision.after, decision.event, decision.attempt) == (None, None, None)


@pytest.mark.parametrize(
    ("which", "reason"),
    [
        (WhichLease(instance="another"), "different_worker_instance"),
        (WhichLease(instance=WORKER.name), "different_worker_instance"),
        (WhichLease(lease_id=UUID(int=1)), "different_lease"),
        (WhichLease(epoch=EPOCH - 1), "epoch_moved"),
        (WhichLease(epoch=EPOCH + 1), "epoch_moved"),
        (WhichLease(epoch=0), "epoch_moved"),
    ],
)
def test_another_lease_than_the_one_named_is_left_alone(which: WhichLease, reason: str) -> None:
    decision = decide_revoke(leased(), which, COMMAND, T0)
    assert decision.answer == AlreadySatisfied(reason)
    assert decision.after is None


def test_the_very_lease_that_was_named_is_revoked() -> None:
    which = WhichLease(instance=WORKER.instance, lease_id=LEASE_ID, epoch=EPOCH)
    assert decide_revoke(leased(), which, COMMAND, T0).answer == Revoked(LEASE_ID, EPOCH + 1)


def test_a_lease_that_ran_out_is_not_revoked_any_more() -> None:
    assert decide_revoke(leased(lease=RUN_OUT), WhichLease(), COMMAND, T0).answer == AlreadySatisfied("already_expired")


@pytest.mark.parametrize("ownership", [Ownership.EXPIRED, Ownership.REVOKED])
def test_a_reclaim_opens_the_next_attempt_under_a_new_lease(ownership: Ownership) -> None:
    before = kept(ownership, policy=Policy(attempt_timeout=MINUTE), attempt_timeout_left=SECOND)
    decision = decide_reclaim(before, _grant(), TERMS, T0)
    after, attempt = _sound(decision.after), decision.attempt
    assert isinstance(decision.answer, Lease)
    assert (decision.answer.origin, decision.answer.attempt_index) == ("reclaimed", 1)
    assert (after.state, after.ownership, after.epoch) == (State.ACTIVE, Ownership.LEASED, EPOCH + 1)
    assert (after.attempt_index, after.attempt_started_at) == (1, T0)
    assert after.attempt_timeout_at == T0 + MINUTE, "a new attempt has its whole time"
    assert after.reclaim_count == (1 if ownership is Ownership.EXPIRED else 0)
    assert attempt is not None and decision.event is not None
    assert (attempt.outcome, attempt.attempt_index) == (AttemptOutcome.RECLAIMED, 0)
    assert decision.event.name == "reclaimed"


@pytest.mark.parametrize(("ownership", "fails"), [(Ownership.EXPIRED, True), (Ownership.REVOKED, False)])
def test_past_the_cap_a_reclaim_of_an_expired_one_fails_the_execution(ownership: Ownership, fails: bool) -> None:
    before = kept(ownership, policy=Policy(max_reclaims=2), reclaim_count=2)
    decision = decide_reclaim(before, _grant(), TERMS, T0)
    after = _sound(decision.after)
    assert (decision.answer == Ended(State.FAILED)) == fails
    assert (after.failure_category == "max_reclaims_exceeded") == fails


@pytest.mark.parametrize("situation", sorted(set(SITUATIONS) - {"kept expired", "kept revoked"}))
def test_only_a_kept_execution_can_be_reclaimed(situation: str) -> None:
    execution = SITUATIONS[situation]()
    with pytest.raises(Refused) as checked:
        check_reclaimable(execution)
    with pytest.raises(Refused) as decided:
        decide_reclaim(execution, _grant(), TERMS, T0)
    assert checked.value.code == decided.value.code == "execution_not_reclaimable"


@pytest.mark.parametrize(
    ("grant", "code"),
    [
        (_grant(consumed_by=UUID(int=1)), "grant_already_consumed"),
        (_grant(expires_at=T0), "grant_expired"),
        (_grant(expires_at=T0 - SECOND), "grant_expired"),
        (_grant(consumed_by=UUID(int=1), expires_at=T0), "grant_already_consumed"),
    ],
)
def test_a_used_or_expired_grant_is_refused(grant: Grant, code: str) -> None:
    with pytest.raises(Refused) as refused:
        decide_reclaim(kept(Ownership.EXPIRED), grant, TERMS, T0)
    assert refused.value.code == code


@pytest.mark.parametrize("attempt_state", AttemptState)
def test_only_an_interrupted_attempt_can_be_claimed_as_resumed(attempt_state: AttemptState) -> None:
    execution = started(attempt_state=attempt_state)
    if attempt_state is AttemptState.INTERRUPTED:
        resumed_claim_only(execution)
        return
    with pytest.raises(Refused) as refused:
        resumed_claim_only(execution)
    assert refused.value.code == "not_a_resumed_execution"
