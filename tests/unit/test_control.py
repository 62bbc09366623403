"""What an operator decides about an execution, and what the clock decides about its whole life."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from flowfabric.core.control import (
    decide_cancel,
    decide_change_priority,
    decide_deadline,
    decide_hold,
    decide_ready,
    decide_replay,
    decide_unhold,
    is_held,
)  # fmt: skip
from flowfabric.core.decisions import Decision
from flowfabric.core.records import AttemptOrigin, Event, Execution
from flowfabric.core.requests import Command, ReplayFrom
from flowfabric.core.states import AttemptState, BlockingReason
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
)  # fmt: skip
from tests.unit.builders import (
    ENDED,
    EPOCH,
    LIVE,
    MINUTE,
    SECOND,
    SITUATIONS,
    T0,
    broken_invariants,
    delayed,
    ended,
    fresh,
    held,
    leased,
    started,
)  # fmt: skip

COMMAND = Command(principal="ada", reason="because")


def _sound(execution: Execution | None) -> Execution:
    assert execution is not None
    assert broken_invariants(execution) == []
    return execution


def _event(decision: Decision[Any]) -> Event:
    assert decision.event is not None
    assert (decision.event.principal, decision.event.reason) == ("ada", "because")
    return decision.event


def _wrote_nothing(decision: Decision[Any]) -> bool:
    return (decision.after, decision.event, decision.attempt) == (None, None, None)


def _code(decide: Any, *arguments: Any) -> str:
    with pytest.raises(Refused) as refused:
        decide(*arguments, T0)
    return refused.value.code


@pytest.mark.parametrize("situation", sorted(LIVE))
def test_whatever_has_not_ended_can_be_cancelled(situation: str) -> None:
    before = SITUATIONS[situation]()
    decision = decide_cancel(before, COMMAND, "operator_override", T0)
    after, event = _sound(decision.after), _event(decision)
    assert decision.answer == Ended(State.CANCELLED)
    assert (after.cancelled_by, after.cancel_reason) == ("operator_override", "because")
    assert (after.epoch, after.lease) == (EPOCH + 1, None)
    assert (event.family, event.name, event.details) == ("completion", "cancelled", {"source": "operator_override"})
    assert event.ends_lease == (situation == "leased")
    assert decision.attempt is not None
    assert decision.attempt.outcome is AttemptOutcome.CANCELLED


def test_cancelling_what_was_never_attempted_ends_no_attempt() -> None:
    decision = decide_cancel(fresh(), COMMAND, "operator_override", T0)
    assert decision.attempt is None
    assert _sound(decision.after).attempt_state is AttemptState.PENDING_FIRST


def test_cancelling_again_answers_the_same_and_another_outcome_is_refused() -> None:
    again = decide_cancel(ended(State.CANCELLED), COMMAND, "operator_override", T0)
    assert again.answer == Ended(State.CANCELLED)
    assert _wrote_nothing(again)
    for situation in ENDED - {"cancelled"}:
        assert _code(decide_cancel, SITUATIONS[situation](), COMMAND, "x") == "execution_not_active"


def test_waiting_work_changes_its_priority() -> None:
    decision = decide_change_priority(started(priority=3), 7, COMMAND, T0)
    after, event = _sound(decision.after), _event(decision)
    assert decision.answer == PriorityChanged(3, 7)
    assert (after.priority, after.state, after.epoch) == (7, State.WAITING, EPOCH)
    assert (event.name, event.details) == ("priority_changed", {"old": 3, "new": 7})


def test_the_same_priority_again_writes_nothing() -> None:
    decision = decide_change_priority(started(priority=3), 3, COMMAND, T0)
    assert decision.answer == PriorityChanged(3, 3)
    assert _wrote_nothing(decision)


@pytest.mark.parametrize("situation", sorted(set(SITUATIONS) - {"waiting"}))
@pytest.mark.parametrize("priority", [0, 7])
def test_only_eligible_work_changes_its_priority(situation: str, priority: int) -> None:
    assert _code(decide_change_priority, SITUATIONS[situation](), priority, COMMAND) == "execution_not_eligible"


@pytest.mark.parametrize("situation", ["waiting", "delayed"])
def test_a_hold_blocks_the_work_and_keeps_its_time(situation: str) -> None:
    before = SITUATIONS[situation]()
    decision = decide_hold(before, COMMAND, T0)
    after = _sound(decision.after)
    assert decision.answer == Held("because")
    assert is_held(after)
    assert (after.ready_at, after.attempt_state, after.epoch) == (before.ready_at, before.attempt_state, EPOCH)
    assert after.hold_reason == "because"
    assert _event(decision).name == "held"


def test_holding_what_is_held_answers_why_it_is() -> None:
    decision = decide_hold(held(hold_reason="first"), COMMAND, T0)
    assert decision.answer == Held("first")
    assert _wrote_nothing(decision)


@pytest.mark.parametrize("situation", sorted(set(SITUATIONS) - {"waiting", "delayed", "blocked"}))
def test_other_work_can_be_neither_held_nor_unheld(situation: str) -> None:
    assert _code(decide_hold, SITUATIONS[situation](), COMMAND) == "execution_not_eligible"
    assert _code(decide_unhold, SITUATIONS[situation](), COMMAND) == "execution_not_eligible"


def test_what_is_blocked_for_another_reason_is_neither_held_nor_unheld() -> None:
    other = held(blocking_reason=BlockingReason.WAITING_FOR_CHILDREN)
    assert not is_held(other)
    assert _code(decide_hold, other, COMMAND) == "execution_not_eligible"
    assert _code(decide_unhold, other, COMMAND) == "execution_not_eligible"


@pytest.mark.parametrize("situation", ["waiting", "delayed"])
def test_unholding_what_is_not_held_is_already_satisfied(situation: str) -> None:
    decision = decide_unhold(SITUATIONS[situation](), COMMAND, T0)
    assert decision.answer == AlreadySatisfied("not_held")
    assert _wrote_nothing(decision)


@pytest.mark.parametrize("ready_at", [None, T0 - SECOND, T0])
def test_held_work_goes_on_waiting_when_its_time_has_come(ready_at: Any) -> None:
    decision = decide_unhold(held(ready_at=ready_at), COMMAND, T0)
    after = _sound(decision.after)
    assert decision.answer == Unheld(State.WAITING)
    assert (after.blocking_reason, after.hold_reason) == (BlockingReason.WAITING_FOR_WORKER, None)
    assert _event(decision).name == "unheld"


@pytest.mark.parametrize(
    ("attempt_state", "reason"),
    [
        (AttemptState.PENDING_RETRY, BlockingReason.WAITING_FOR_RETRY_BACKOFF),
        (AttemptState.INTERRUPTED, BlockingReason.WAITING_FOR_DELAY),
        (AttemptState.PENDING_FIRST, BlockingReason.WAITING_FOR_DELAY),
    ],
)
def test_held_work_is_delayed_until_the_time_that_was_kept(attempt_state: AttemptState, reason: BlockingReason) -> None:
    before = held(ready_at=T0 + SECOND, attempt_state=attempt_state)
    decision = decide_unhold(before, COMMAND, T0)
    after = _sound(decision.after)
    assert decision.answer == Unheld(State.DELAYED)
    assert (after.ready_at, after.blocking_reason, after.attempt_state) == (T0 + SECOND, reason, attempt_state)


@pytest.mark.parametrize("situation", sorted(ENDED))
def test_a_replay_opens_a_new_generation_and_starts_the_counts_again(situation: str) -> None:
    before = SITUATIONS[situation](
        generation=2, replay_count=2, retry_count=3, reclaim_count=9, attempt_index=4, progress_percent=80,
        progress_message="nearly", failure_message="no", failure_category="net", cancelled_by="x", cancel_reason="y",
        deadline_at=T0 - SECOND, version=11,
    )  # fmt: skip
    decision = decide_replay(before, COMMAND, ReplayFrom(step="pay"), T0)
    after, event = _sound(decision.after), _event(decision)
    assert decision.answer == Replayed(3, PublicState.WAITING)
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


def test_a_relative_deadline_starts_again_with_the_replay() -> None:
    before = ended(State.EXPIRED, policy=Policy(deadline=MINUTE), deadline_at=T0 - SECOND)
    assert _sound(decide_replay(before, COMMAND, ReplayFrom(), T0).after).deadline_at == T0 + MINUTE


@pytest.mark.parametrize("situation", sorted(LIVE))
def test_only_what_has_ended_can_be_replayed(situation: str) -> None:
    assert _code(decide_replay, SITUATIONS[situation](), COMMAND, ReplayFrom()) == "execution_not_terminal"


@pytest.mark.parametrize(("taken", "most"), [(9, 10), (0, 1)])
def test_there_are_as_many_replays_as_the_policy_allows(taken: int, most: int) -> None:
    before = ended(State.FAILED, policy=Policy(max_replays=most), replay_count=taken, generation=taken)
    assert decide_replay(before, COMMAND, ReplayFrom(), T0).answer.generation == most
    full = ended(State.FAILED, policy=Policy(max_replays=most), replay_count=most, generation=most)
    assert _code(decide_replay, full, COMMAND, ReplayFrom()) == "max_replays_exhausted"


def test_a_replay_with_the_generation_that_was_seen_can_be_repeated() -> None:
    first = decide_replay(ended(State.FAILED), COMMAND, ReplayFrom(generation=0), T0)
    again = decide_replay(_sound(first.after), COMMAND, ReplayFrom(generation=0), T0 + SECOND)
    assert again.answer == first.answer
    assert _wrote_nothing(again)
    moved_on = ended(State.FAILED, generation=2, replay_count=2)
    assert _code(decide_replay, moved_on, COMMAND, ReplayFrom(generation=0)) == "generation_moved"
    assert _code(decide_replay, moved_on, COMMAND, ReplayFrom(generation=3)) == "generation_moved"


def test_an_index_that_was_never_started_is_used_by_the_replay() -> None:
    before = ended(State.CANCELLED, started_at=None, attempt_started_at=None, attempt_state=AttemptState.PENDING_FIRST)
    assert _sound(decide_replay(before, COMMAND, ReplayFrom(), T0).after).attempt_index == 0


@pytest.mark.parametrize("late", [timedelta(0), MINUTE])
def test_delayed_work_waits_for_a_worker_from_its_time_on(late: timedelta) -> None:
    decision = decide_ready(delayed(ready_at=T0), T0 + late)
    assert decision is not None
    after = _sound(decision.after)
    assert (after.state, after.ready_at, after.epoch) == (State.WAITING, None, EPOCH)
    assert (after.attempt_state, after.blocking_reason) == (AttemptState.INTERRUPTED, BlockingReason.WAITING_FOR_WORKER)


def test_delayed_work_is_never_ready_early_and_nothing_else_gets_ready() -> None:
    assert decide_ready(delayed(ready_at=T0), T0 - timedelta(microseconds=1)) is None
    for situation in set(SITUATIONS) - {"delayed"}:
        assert decide_ready(SITUATIONS[situation](), T0 + 1000 * MINUTE) is None
    assert decide_ready(held(ready_at=T0), T0) is None, "what is held keeps its time"


@pytest.mark.parametrize("situation", sorted(LIVE))
def test_the_deadline_expires_work_in_every_state(situation: str) -> None:
    decision = decide_deadline(SITUATIONS[situation](deadline_at=T0), T0)
    assert decision is not None
    after = _sound(decision.after)
    assert decision.answer == Ended(State.EXPIRED)
    assert (after.state, after.failure_category, after.epoch) == (State.EXPIRED, "deadline", EPOCH + 1)
    assert decision.attempt is not None and decision.event is not None
    assert decision.attempt.outcome is AttemptOutcome.FAILURE
    assert (decision.event.family, decision.event.name) == ("completion", "expired")


def test_before_the_deadline_or_after_the_end_nothing_expires() -> None:
    assert decide_deadline(leased(deadline_at=T0 + timedelta(microseconds=1)), T0) is None
    assert decide_deadline(leased(deadline_at=None), T0) is None
    for situation in ENDED:
        assert decide_deadline(SITUATIONS[situation](deadline_at=T0), T0 + MINUTE) is None
