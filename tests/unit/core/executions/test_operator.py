"""Tests for operator decisions about an execution, for delays and for deadlines."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from flowfabric.core.executions.decision import Decision
from flowfabric.core.executions.operator import (
    decide_cancel,
    decide_change_priority,
    decide_deadline,
    decide_hold,
    decide_ready,
    decide_replay,
    decide_unhold,
    is_held,
)
from flowfabric.core.executions.records import AttemptOrigin, Event, Execution
from flowfabric.core.executions.requests import AuditInfo, ReplayFrom
from flowfabric.core.executions.states import AttemptState, BlockingReason
from flowfabric.engine import (
    AlreadySatisfied,
    AttemptOutcome,
    Ended,
    Held,
    Policy,
    PriorityChanged,
    PublicState,
    Refused,
    Replayed,
    State,
    Unheld,
)
from tests.unit.builders import (
    ENDED,
    EPOCH,
    LIVE,
    MINUTE,
    SECOND,
    SITUATIONS,
    T0,
    find_broken_invariants,
    make_delayed,
    make_ended,
    make_held,
    make_leased,
    make_new,
    make_started,
)

COMMAND = AuditInfo(principal="ada", reason="because")


def _require_valid(execution: Execution | None) -> Execution:
    assert execution is not None
    assert find_broken_invariants(execution) == []
    return execution


def _require_event(decision: Decision[Any]) -> Event:
    assert decision.event is not None
    assert (decision.event.principal, decision.event.reason) == ("ada", "because")
    return decision.event


def _wrote_nothing(decision: Decision[Any]) -> bool:
    return (decision.after, decision.event, decision.attempt) == (None, None, None)


def _get_error_code(decide: Any, *arguments: Any) -> str:
    with pytest.raises(Refused) as refused:
        decide(*arguments, T0)
    return refused.value.code


@pytest.mark.parametrize("situation", sorted(LIVE))
def test_live_execution_can_be_cancelled(situation: str) -> None:
    before = SITUATIONS[situation]()
    decision = decide_cancel(before, COMMAND, "operator_override", T0)
    after, event = _require_valid(decision.after), _require_event(decision)
    assert decision.outcome == Ended(State.CANCELLED)
    assert (after.cancelled_by, after.cancel_reason) == ("operator_override", "because")
    assert (after.epoch, after.lease) == (EPOCH + 1, None)
    assert (event.family, event.name, event.details) == ("completion", "cancelled", {"source": "operator_override"})
    assert event.ends_lease == (situation == "leased")
    assert decision.attempt is not None
    assert decision.attempt.outcome is AttemptOutcome.CANCELLED


def test_cancel_before_the_first_attempt_ends_no_attempt() -> None:
    decision = decide_cancel(make_new(), COMMAND, "operator_override", T0)
    assert decision.attempt is None
    assert _require_valid(decision.after).attempt_state is AttemptState.PENDING_FIRST


def test_repeated_cancel_returns_the_same_and_another_end_is_rejected() -> None:
    repeated = decide_cancel(make_ended(State.CANCELLED), COMMAND, "operator_override", T0)
    assert repeated.outcome == Ended(State.CANCELLED)
    assert _wrote_nothing(repeated)
    for situation in ENDED - {"cancelled"}:
        assert _get_error_code(decide_cancel, SITUATIONS[situation](), COMMAND, "x") == "execution_not_active"


def test_priority_of_a_waiting_execution_can_be_changed() -> None:
    decision = decide_change_priority(make_started(priority=3), 7, COMMAND, T0)
    after, event = _require_valid(decision.after), _require_event(decision)
    assert decision.outcome == PriorityChanged(3, 7)
    assert (after.priority, after.state, after.epoch) == (7, State.WAITING, EPOCH)
    assert (event.name, event.details) == ("priority_changed", {"old": 3, "new": 7})


def test_unchanged_priority_writes_nothing() -> None:
    decision = decide_change_priority(make_started(priority=3), 3, COMMAND, T0)
    assert decision.outcome == PriorityChanged(3, 3)
    assert _wrote_nothing(decision)


@pytest.mark.parametrize("situation", sorted(set(SITUATIONS) - {"waiting"}))
@pytest.mark.parametrize("priority", [0, 7])
def test_priority_of_an_ineligible_execution_cannot_be_changed(situation: str, priority: int) -> None:
    assert (
        _get_error_code(decide_change_priority, SITUATIONS[situation](), priority, COMMAND) == "execution_not_eligible"
    )


@pytest.mark.parametrize("situation", ["waiting", "delayed"])
def test_hold_blocks_the_execution_and_keeps_its_ready_time(situation: str) -> None:
    before = SITUATIONS[situation]()
    decision = decide_hold(before, COMMAND, T0)
    after = _require_valid(decision.after)
    assert decision.outcome == Held("because")
    assert is_held(after)
    assert (after.ready_at, after.attempt_state, after.epoch) == (before.ready_at, before.attempt_state, EPOCH)
    assert after.hold_reason == "because"
    assert _require_event(decision).name == "held"


def test_repeated_hold_returns_the_first_reason() -> None:
    decision = decide_hold(make_held(hold_reason="first"), COMMAND, T0)
    assert decision.outcome == Held("first")
    assert _wrote_nothing(decision)


@pytest.mark.parametrize("situation", sorted(set(SITUATIONS) - {"waiting", "delayed", "blocked"}))
def test_ineligible_execution_can_be_neither_held_nor_unheld(situation: str) -> None:
    assert _get_error_code(decide_hold, SITUATIONS[situation](), COMMAND) == "execution_not_eligible"
    assert _get_error_code(decide_unhold, SITUATIONS[situation](), COMMAND) == "execution_not_eligible"


def test_execution_blocked_for_another_reason_can_be_neither_held_nor_unheld() -> None:
    other = make_held(blocking_reason=BlockingReason.WAITING_FOR_CHILDREN)
    assert not is_held(other)
    assert _get_error_code(decide_hold, other, COMMAND) == "execution_not_eligible"
    assert _get_error_code(decide_unhold, other, COMMAND) == "execution_not_eligible"


@pytest.mark.parametrize("situation", ["waiting", "delayed"])
def test_unhold_of_an_execution_that_is_not_held_is_already_satisfied(situation: str) -> None:
    decision = decide_unhold(SITUATIONS[situation](), COMMAND, T0)
    assert decision.outcome == AlreadySatisfied("not_held")
    assert _wrote_nothing(decision)


@pytest.mark.parametrize("ready_at", [None, T0 - SECOND, T0])
def test_unhold_after_the_ready_time_returns_to_waiting(ready_at: Any) -> None:
    decision = decide_unhold(make_held(ready_at=ready_at), COMMAND, T0)
    after = _require_valid(decision.after)
    assert decision.outcome == Unheld(State.WAITING)
    assert (after.blocking_reason, after.hold_reason) == (BlockingReason.WAITING_FOR_WORKER, None)
    assert _require_event(decision).name == "unheld"


@pytest.mark.parametrize(
    ("attempt_state", "reason"),
    [
        (AttemptState.PENDING_RETRY, BlockingReason.WAITING_FOR_RETRY_BACKOFF),
        (AttemptState.INTERRUPTED, BlockingReason.WAITING_FOR_DELAY),
        (AttemptState.PENDING_FIRST, BlockingReason.WAITING_FOR_DELAY),
    ],
)
def test_unhold_before_the_ready_time_returns_to_delayed(attempt_state: AttemptState, reason: BlockingReason) -> None:
    before = make_held(ready_at=T0 + SECOND, attempt_state=attempt_state)
    decision = decide_unhold(before, COMMAND, T0)
    after = _require_valid(decision.after)
    assert decision.outcome == Unheld(State.DELAYED)
    assert (after.ready_at, after.blocking_reason, after.attempt_state) == (T0 + SECOND, reason, attempt_state)


@pytest.mark.parametrize("situation", sorted(ENDED))
def test_replay_starts_a_new_generation_and_resets_the_counts(situation: str) -> None:
    before = SITUATIONS[situation](
        generation=2,
        replay_count=2,
        retry_count=3,
        reclaim_count=9,
        attempt_index=4,
        progress_percent=80,
        progress_message="nearly",
        failure_message="no",
        failure_category="net",
        cancelled_by="x",
        cancel_reason="y",
        deadline_at=T0 - SECOND,
        version=11,
    )
    decision = decide_replay(before, COMMAND, ReplayFrom(step="pay"), T0)
    after, event = _require_valid(decision.after), _require_event(decision)
    assert decision.outcome == Replayed(3, PublicState.WAITING)
    assert (after.state, after.attempt_state) == (State.WAITING, AttemptState.PENDING_REPLAY)
    assert (after.generation, after.replay_count, after.epoch, after.version) == (3, 3, EPOCH + 1, 12)
    assert (after.retry_count, after.reclaim_count, after.attempt_index) == (0, 0, 5)
    assert (after.attempt_origin, after.attempt_started_at) == (AttemptOrigin.REPLAYED, None)
    assert (after.progress_percent, after.progress_message) == (None, None)
    assert (after.failure_message, after.failure_category, after.cancelled_by, after.cancel_reason) == (None,) * 4
    assert (after.ended_at, after.purge_at, after.started_at) == (None, None, before.started_at)
    assert after.deadline_at is None, "an absolute deadline is cleared"
    assert (event.name, event.details) == ("replayed", {"generation": 3, "from_step": "pay"})
    assert decision.attempt is None


def test_relative_deadline_restarts_with_a_replay() -> None:
    before = make_ended(State.EXPIRED, policy=Policy(deadline=MINUTE), deadline_at=T0 - SECOND)
    assert _require_valid(decide_replay(before, COMMAND, ReplayFrom(), T0).after).deadline_at == T0 + MINUTE


@pytest.mark.parametrize("situation", sorted(LIVE))
def test_live_execution_cannot_be_replayed(situation: str) -> None:
    assert _get_error_code(decide_replay, SITUATIONS[situation](), COMMAND, ReplayFrom()) == "execution_not_terminal"


@pytest.mark.parametrize(("taken", "maximum"), [(9, 10), (0, 1)])
def test_replays_are_limited_by_the_policy(taken: int, maximum: int) -> None:
    before = make_ended(State.FAILED, policy=Policy(max_replays=maximum), replay_count=taken, generation=taken)
    assert decide_replay(before, COMMAND, ReplayFrom(), T0).outcome.generation == maximum
    exhausted = make_ended(State.FAILED, policy=Policy(max_replays=maximum), replay_count=maximum, generation=maximum)
    assert _get_error_code(decide_replay, exhausted, COMMAND, ReplayFrom()) == "max_replays_exhausted"


def test_replay_of_a_known_generation_can_be_repeated() -> None:
    first = decide_replay(make_ended(State.FAILED), COMMAND, ReplayFrom(generation=0), T0)
    repeated = decide_replay(_require_valid(first.after), COMMAND, ReplayFrom(generation=0), T0 + SECOND)
    assert repeated.outcome == first.outcome
    assert _wrote_nothing(repeated)
    later_generation = make_ended(State.FAILED, generation=2, replay_count=2)
    assert _get_error_code(decide_replay, later_generation, COMMAND, ReplayFrom(generation=0)) == "generation_moved"
    assert _get_error_code(decide_replay, later_generation, COMMAND, ReplayFrom(generation=3)) == "generation_moved"


def test_replay_reuses_the_index_of_an_attempt_that_never_started() -> None:
    before = make_ended(
        State.CANCELLED, started_at=None, attempt_started_at=None, attempt_state=AttemptState.PENDING_FIRST
    )
    assert _require_valid(decide_replay(before, COMMAND, ReplayFrom(), T0).after).attempt_index == 0


@pytest.mark.parametrize("late", [timedelta(0), MINUTE])
def test_delayed_execution_becomes_waiting_at_its_ready_time(late: timedelta) -> None:
    decision = decide_ready(make_delayed(ready_at=T0), T0 + late)
    assert decision is not None
    after = _require_valid(decision.after)
    assert (after.state, after.ready_at, after.epoch) == (State.WAITING, None, EPOCH)
    assert (after.attempt_state, after.blocking_reason) == (AttemptState.INTERRUPTED, BlockingReason.WAITING_FOR_WORKER)


def test_only_a_delayed_execution_becomes_ready_and_never_early() -> None:
    assert decide_ready(make_delayed(ready_at=T0), T0 - timedelta(microseconds=1)) is None
    for situation in set(SITUATIONS) - {"delayed"}:
        assert decide_ready(SITUATIONS[situation](), T0 + 1000 * MINUTE) is None
    assert decide_ready(make_held(ready_at=T0), T0) is None, "a held execution keeps its ready time"


@pytest.mark.parametrize("situation", sorted(LIVE))
def test_deadline_expires_a_live_execution_in_every_state(situation: str) -> None:
    decision = decide_deadline(SITUATIONS[situation](deadline_at=T0), T0)
    assert decision is not None
    after = _require_valid(decision.after)
    assert decision.outcome == Ended(State.EXPIRED)
    assert (after.state, after.failure_category, after.epoch) == (State.EXPIRED, "deadline", EPOCH + 1)
    assert decision.attempt is not None and decision.event is not None
    assert decision.attempt.outcome is AttemptOutcome.FAILURE
    assert (decision.event.family, decision.event.name) == ("completion", "expired")


def test_deadline_does_not_apply_early_or_after_the_end() -> None:
    assert decide_deadline(make_leased(deadline_at=T0 + timedelta(microseconds=1)), T0) is None
    assert decide_deadline(make_leased(deadline_at=None), T0) is None
    for situation in ENDED:
        assert decide_deadline(SITUATIONS[situation](deadline_at=T0), T0 + MINUTE) is None
