"""Tests that legal transitions have exactly the effects in TABLE and that all other transitions are rejected."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

import pytest

from flowfabric.core.executions import transitions
from flowfabric.core.executions.records import Execution
from flowfabric.core.executions.states import AttemptState, BlockingReason, Ownership, State
from flowfabric.core.executions.transitions import TRANSITIONS, Transition, apply_transition, check, transition_event
from flowfabric.engine import Refused
from tests.unit.builders import (
    ENDED,
    LIVE,
    MINUTE,
    SECOND,
    SITUATIONS,
    T0,
    find_broken_invariants,
    make_delayed,
    make_former_lease,
    make_leased,
    make_live_lease,
    make_new,
)

SAME = None


@dataclass(frozen=True)
class Row:
    """The expected values for one transition: the states it starts from, the new state, attempt state and reason,
    the change of the epoch, the event, and the error code from any other state.
    """

    sources: Iterable[str]
    target: str | None
    attempt: str | None
    reason: str | None
    epoch: int
    event: str
    refusal: str
    ownership: str | None = None


_LEASED = ("leased",)
_GONE = "execution_not_active"
_SUSPENDED = ("suspended",)
_AWAKE = "execution_not_suspended"
_RESUMED = ("attempt_interrupted", "waiting_for_worker")
_RESUMED_LATER = ("attempt_interrupted", "waiting_for_resume_delay")
_PENDING = ("pending_reclaim_attempt", "waiting_for_worker")

# The expected values of each transition, by its name; see `Row` for the columns.
TABLE: dict[str, Row] = {
    "CLAIM": Row(
        ("waiting",), "active", "running_attempt", "none", 1, "lease.acquired", "execution_not_leaseable", "leased"
    ),
    "COMPLETE": Row(_LEASED, "completed", "attempt_terminal", "none", 0, "completion.completed", _GONE),
    "FAIL": Row(_LEASED, "failed", "attempt_terminal", "none", 0, "completion.failed", _GONE),
    "RENEW": Row(_LEASED, SAME, SAME, SAME, 0, "lease.renewed", _GONE, SAME),
    "RETRY": Row(
        _LEASED, "delayed", "pending_retry_attempt", "waiting_for_retry_backoff", 1, "lease.retry_scheduled", _GONE
    ),
    "DELAY": Row(_LEASED, "delayed", "attempt_interrupted", "waiting_for_delay", 1, "lease.delayed", _GONE),
    "RELEASE": Row(_LEASED, "waiting", "attempt_interrupted", "waiting_for_worker", 1, "lease.released", _GONE),
    "REQUEUE_EXPIRED": Row(_LEASED, "waiting", *_PENDING, 1, "lease.expired", _GONE),
    "REQUEUE_REVOKED": Row(_LEASED, "waiting", *_PENDING, 1, "lease.revoked", _GONE),
    "KEEP_EXPIRED": Row(_LEASED, "active", *_PENDING, 1, "lease.expired", _GONE, "lease_expired_reclaimable"),
    "KEEP_REVOKED": Row(_LEASED, "active", *_PENDING, 1, "lease.revoked", _GONE, "lease_revoked"),
    "RECLAIM": Row(
        ("kept expired", "kept revoked"), "active", "running_attempt", "none", 1, "lease.reclaimed",
        "execution_not_reclaimable", "leased",
    ),
    "GRANT": Row(
        ("kept expired", "kept revoked"), SAME, SAME, SAME, 0, "operator.reclaim_granted", "execution_not_reclaimable",
    ),
    "EXHAUST": Row(
        ("leased", "kept expired", "kept revoked"), "failed", "attempt_terminal", "none", 1, "completion.failed", _GONE
    ),
    "TIME_OUT": Row(_LEASED, "failed", "attempt_terminal", "none", 1, "completion.failed", _GONE),
    "EXPIRE": Row(LIVE, "expired", "attempt_terminal", "none", 1, "completion.expired", _GONE),
    "CANCEL": Row(LIVE, "cancelled", "attempt_terminal", "none", 1, "completion.cancelled", _GONE),
    "SUSPEND": Row(_LEASED, "suspended", "attempt_interrupted", SAME, 1, "lease.suspended", _GONE),
    "SATISFY_IMMEDIATELY": Row(_LEASED, SAME, SAME, SAME, 0, "lifecycle.resumed", _GONE, SAME),
    "DELIVER": Row(_SUSPENDED, SAME, SAME, SAME, 0, "signal.delivered", "target_not_signalable"),
    "BUFFER": Row(LIVE, SAME, SAME, SAME, 0, "signal.buffered", "target_not_signalable"),
    "RETRY_STEP": Row(_LEASED, SAME, SAME, SAME, 0, "lease.step_retry_scheduled", _GONE, SAME),
    "SKIP_SIGNAL": Row(_LEASED, SAME, SAME, SAME, 0, "signal.unreadable", _GONE, SAME),
    "RESUME": Row(_SUSPENDED, "waiting", *_RESUMED, 0, "lifecycle.resumed", _AWAKE),
    "RESUME_DELAYED": Row(_SUSPENDED, "delayed", *_RESUMED_LATER, 0, "lifecycle.resumed", _AWAKE),
    "OVERRIDE": Row(_SUSPENDED, "waiting", *_RESUMED, 0, "operator.resumed", _AWAKE),
    "OVERRIDE_DELAYED": Row(_SUSPENDED, "delayed", *_RESUMED_LATER, 0, "operator.resumed", _AWAKE),
    "WAIT_FAILED": Row(_SUSPENDED, "failed", "attempt_terminal", "none", 1, "completion.failed", _AWAKE),
    "ESCALATE": Row(_SUSPENDED, SAME, SAME, "paused_by_operator", 0, "lifecycle.blocked", _AWAKE),
    "CLOSE_WAITPOINT": Row(LIVE, SAME, SAME, SAME, 0, "operator.waitpoint_closed", _GONE),
    "READY": Row(("delayed",), "waiting", SAME, "waiting_for_worker", 0, "lifecycle.ready", "execution_not_eligible"),
    "HOLD": Row(
        ("waiting", "delayed"), "blocked", SAME, "paused_by_operator", 0, "operator.held", "execution_not_eligible"
    ),
    "HOLD_OWN": Row(_LEASED, "blocked", "attempt_interrupted", "paused_by_operator", 1, "operator.held", _GONE),
    "CONTINUE": Row(_LEASED, "waiting", "attempt_interrupted", "waiting_for_worker", 1, "lease.continued", _GONE),
    "UNHOLD": Row(("blocked",), "waiting", SAME, "waiting_for_worker", 0, "operator.unheld", "execution_not_eligible"),
    "UNHOLD_DELAYED": Row(
        ("blocked",), "delayed", SAME, "waiting_for_delay", 0, "operator.unheld", "execution_not_eligible"
    ),
    "UNHOLD_BLOCKED": Row(
        ("blocked",), "blocked", SAME, "waiting_for_children", 0, "operator.unheld", "execution_not_eligible"
    ),
    "BLOCK": Row(
        ("waiting", "delayed"), "blocked", SAME, "waiting_for_children", 0, "lifecycle.blocked",
        "execution_not_eligible",
    ),
    "UNBLOCK": Row(("blocked",), "waiting", SAME, "waiting_for_worker", 0, "lifecycle.ready", "execution_not_eligible"),
    "UNBLOCK_DELAYED": Row(
        ("blocked",), "delayed", SAME, "waiting_for_delay", 0, "lifecycle.ready", "execution_not_eligible"
    ),
    "SKIP": Row(
        ("blocked",), "skipped", "attempt_terminal", "none", 1, "completion.skipped", "execution_not_eligible"
    ),
    "WAIT_CHILDREN": Row(
        _LEASED, "blocked", "attempt_interrupted", "waiting_for_children", 1, "lease.waiting_children", _GONE
    ),
    "REQUEST_CANCEL": Row(LIVE, SAME, SAME, SAME, 0, "operator.cancel_requested", _GONE, SAME),
    "REPLAY_BLOCKED": Row(
        ENDED, "blocked", "pending_replay_attempt", "waiting_for_children", 1, "operator.replayed",
        "execution_not_terminal",
    ),
    "PRIORITIZE": Row(("waiting",), SAME, SAME, SAME, 0, "operator.priority_changed", "execution_not_eligible"),
    "REPLAY": Row(
        ENDED, "waiting", "pending_replay_attempt", "waiting_for_worker", 1, "operator.replayed",
        "execution_not_terminal",
    ),
}  # fmt: skip

LEGAL = [(name, situation) for name, row in TABLE.items() for situation in sorted(row.sources)]
ILLEGAL = [(name, situation) for name in TABLE for situation in SITUATIONS if (name, situation) not in LEGAL]


def _get_transition(name: str) -> Transition:
    transition = getattr(transitions, name)
    assert isinstance(transition, Transition)
    return transition


def _get_operation_changes(name: str) -> dict[str, Any]:
    """Return the changes that the operation itself passes to the transition."""
    if name in ("CLAIM", "RECLAIM"):
        return {"lease": make_live_lease(), "attempt_timeout_left": None}
    if name in ("RETRY", "DELAY", "UNHOLD_DELAYED", "UNBLOCK_DELAYED", "RESUME_DELAYED", "OVERRIDE_DELAYED"):
        return {"ready_at": T0 + MINUTE, "hold_reason": None}
    if name in ("REPLAY", "REPLAY_BLOCKED"):
        return {"ended_at": None, "purge_at": None, "generation": 1, "replay_count": 1}
    if name in ("HOLD", "HOLD_OWN"):
        return {"hold_reason": "look"}
    if name in ("UNHOLD", "UNHOLD_BLOCKED", "UNBLOCK"):
        return {"hold_reason": None}
    return {"READY": {"ready_at": None}}.get(name, {})


def test_table_contains_every_transition() -> None:
    assert {id(_get_transition(name)) for name in TABLE} == {id(transition) for transition in TRANSITIONS}
    assert len(TRANSITIONS) == len(TABLE)


@pytest.mark.parametrize("situation", SITUATIONS)
def test_built_executions_are_valid(situation: str) -> None:
    assert find_broken_invariants(SITUATIONS[situation]()) == []


@pytest.mark.parametrize(("name", "situation"), LEGAL)
def test_legal_transition_changes_the_execution_as_in_the_table(name: str, situation: str) -> None:
    row, before = TABLE[name], SITUATIONS[situation]()
    after = apply_transition(before, _get_transition(name), T0, **_get_operation_changes(name))
    assert after.state == (row.target or before.state)
    assert after.attempt_state == (row.attempt or before.attempt_state)
    assert after.blocking_reason == (row.reason or before.blocking_reason)
    assert after.ownership == (row.ownership if row.target else before.ownership)
    assert after.epoch == before.epoch + row.epoch
    assert after.version == before.version + 1
    assert after.changed_at == T0
    assert find_broken_invariants(after) == []


@pytest.mark.parametrize(("name", "situation"), LEGAL)
def test_legal_transition_writes_the_event_of_the_table(name: str, situation: str) -> None:
    row, before = TABLE[name], SITUATIONS[situation]()
    after = apply_transition(before, _get_transition(name), T0, **_get_operation_changes(name))
    event = transition_event(before, after, _get_transition(name), principal="ada", reason="why")
    assert f"{event.family}.{event.name}" == row.event
    assert (event.version, event.epoch, event.state) == (after.version, after.epoch, after.state)
    assert (event.execution_id, event.namespace, event.lane, event.kind) == (after.id, "default", "default", "job")
    assert (event.at, event.generation, event.attempt_index) == (T0, after.generation, after.attempt_index)
    assert (event.principal, event.reason, event.tags) == ("ada", "why", {"team.owner": "ada"})
    assert event.ends_lease == (situation == "leased" and row.target is not None)


@pytest.mark.parametrize(("name", "situation"), ILLEGAL)
def test_illegal_transition_is_rejected_and_changes_nothing(name: str, situation: str) -> None:
    before, unchanged = SITUATIONS[situation](), SITUATIONS[situation]()
    with pytest.raises(Refused) as check_error:
        check(before, _get_transition(name))
    with pytest.raises(Refused) as apply_error:
        apply_transition(before, _get_transition(name), T0, **_get_operation_changes(name))
    assert check_error.value.code == apply_error.value.code == TABLE[name].refusal
    assert before == unchanged


@pytest.mark.parametrize("situation", SITUATIONS)
def test_rejection_has_the_current_state_epoch_and_outcome(situation: str) -> None:
    execution = SITUATIONS[situation]()
    name = next(name for name, source in ILLEGAL if source == situation)
    with pytest.raises(Refused) as refused:
        check(execution, _get_transition(name))
    fields = refused.value.fields
    outcome = "success" if situation == "completed" else situation if situation in ENDED else "none"
    assert fields["execution_id"] == execution.id
    assert (fields["state"], fields["epoch"], fields["outcome"]) == (execution.state, execution.epoch, outcome)
    assert (fields["attempt_index"], fields["generation"]) == (execution.attempt_index, execution.generation)
    assert str(execution.id) in str(refused.value)


def test_only_a_replay_leaves_a_terminal_state() -> None:
    leaving = {name for name, situation in LEGAL if situation in ENDED}
    assert leaving == {"REPLAY", "REPLAY_BLOCKED"}


def test_loss_of_ownership_increments_the_epoch_except_complete_and_fail() -> None:
    same_epoch = set()
    for name, situation in LEGAL:
        before = SITUATIONS[situation]()
        after = apply_transition(before, _get_transition(name), T0, **_get_operation_changes(name))
        if before.lease and not after.lease and after.epoch == before.epoch:
            same_epoch.add(name)
    assert same_epoch == {"COMPLETE", "FAIL"}


@pytest.mark.parametrize("name", [name for name, situation in LEGAL if situation == "leased" and TABLE[name].target])
def test_ended_lease_becomes_the_former_lease(name: str) -> None:
    before = make_leased()
    after = apply_transition(
        before, _get_transition(name), T0, digest="d", until=T0 + SECOND, **_get_operation_changes(name)
    )
    lease, former = before.lease, after.former
    assert lease is not None and former is not None, "the lease was ended"
    assert (former.id, former.epoch, former.worker) == (lease.id, before.epoch, lease.worker)
    assert (former.digest, former.until) == ("d", T0 + SECOND)
    assert after.lease is None
    assert after.attempt_timeout_at is None
    name_parts = {"lease_expired": "EXPIRED", "lease_revoked": "REVOKED"}
    if former.end in name_parts:
        assert name_parts[former.end] in name or name == "EXHAUST"
    else:
        assert "EXPIRED" not in name and "REVOKED" not in name


def test_transition_without_a_lease_keeps_the_former_lease() -> None:
    for name, situation in LEGAL:
        before = SITUATIONS[situation]()
        if before.lease is None:
            assert (
                apply_transition(before, _get_transition(name), T0, **_get_operation_changes(name)).former
                == before.former
            )


@pytest.mark.parametrize(
    ("due", "remaining"),
    [(None, None), (T0 + 5 * SECOND, 5 * SECOND), (T0, timedelta(0)), (T0 - SECOND, timedelta(0))],
)
def test_interrupted_attempt_keeps_its_remaining_timeout(due: Any, remaining: timedelta | None) -> None:
    after = apply_transition(make_leased(attempt_timeout_at=due), transitions.DELAY, T0, ready_at=T0 + MINUTE)
    assert (after.attempt_timeout_at, after.attempt_timeout_left) == (None, remaining)


@pytest.mark.parametrize("name", ["CANCEL", "EXPIRE"])
def test_execution_without_an_attempt_ends_without_a_terminal_attempt(name: str) -> None:
    after = apply_transition(make_new(), _get_transition(name), T0)
    assert after.attempt_state is AttemptState.PENDING_FIRST
    assert find_broken_invariants(after) == []
    attempted = apply_transition(
        make_new(started_at=T0, attempt_state=AttemptState.PENDING_RETRY), _get_transition(name), T0
    )
    assert attempted.attempt_state is AttemptState.TERMINAL


def test_end_sets_the_purge_time_and_clears_other_due_times() -> None:
    before = make_delayed(attempt_timeout_left=SECOND, hold_reason="look")
    after = apply_transition(before, transitions.CANCEL, T0)
    assert (after.ended_at, after.purge_at) == (T0, T0 + timedelta(days=30))
    assert (after.ready_at, after.attempt_timeout_left, after.hold_reason) == (None, None, None)


def test_transition_never_changes_the_deadline() -> None:
    for name, situation in LEGAL:
        before = SITUATIONS[situation](deadline_at=T0 + MINUTE)
        assert (
            apply_transition(before, _get_transition(name), T0, **_get_operation_changes(name)).deadline_at
            == T0 + MINUTE
        ), name


def test_changes_of_the_operation_override_the_table() -> None:
    reason = BlockingReason.WAITING_FOR_RETRY_BACKOFF
    after = apply_transition(make_leased(), transitions.DELAY, T0, ready_at=T0 + SECOND, blocking_reason=reason)
    assert (after.ready_at, after.blocking_reason) == (T0 + SECOND, reason)


def test_event_names_the_lease_that_began_or_ended() -> None:
    before = make_new()
    claimed = apply_transition(
        before, transitions.CLAIM, T0, lease=make_live_lease(), started_at=T0, attempt_started_at=T0
    )
    began = transition_event(before, claimed, transitions.CLAIM)
    released = apply_transition(claimed, transitions.RELEASE, T0)
    ended = transition_event(claimed, released, transitions.RELEASE)
    ready = transition_event(make_delayed(), apply_transition(make_delayed(), transitions.READY, T0), transitions.READY)
    lease = make_live_lease()
    assert (began.lease_id, began.worker, began.ends_lease) == (lease.id, lease.worker, False)
    assert (ended.lease_id, ended.worker, ended.ends_lease) == (lease.id, lease.worker, True)
    assert (ready.lease_id, ready.worker, ready.ends_lease) == (None, None, False)


def test_events_of_an_untagged_execution_have_no_tags() -> None:
    before = make_leased(tags={})
    after = apply_transition(before, transitions.RELEASE, T0)
    assert transition_event(before, after, transitions.RELEASE).tags is None


def test_apply_transition_does_not_change_its_argument() -> None:
    before: Execution = make_leased(former=make_former_lease())
    unchanged = replace(before)
    apply_transition(before, transitions.COMPLETE, T0)
    assert before == unchanged
    assert (before.state, before.ownership) == (State.ACTIVE, Ownership.LEASED)
