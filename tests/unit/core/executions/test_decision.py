"""Tests for history rows of attempts, attempt indexes, and the fields of a decision."""

from __future__ import annotations

import pytest

from flowfabric.core.executions.decision import Decision, end_attempt, make_decision, next_attempt
from flowfabric.core.executions.records import AttemptOrigin
from flowfabric.core.executions.transitions import RELEASE, apply_transition
from flowfabric.engine import AttemptOutcome
from tests.unit.builders import MINUTE, OTHER_WORKER, T0, WORKER, make_leased, make_new, make_started


@pytest.mark.parametrize("outcome", AttemptOutcome)
def test_started_attempt_ends_with_a_history_row(outcome: AttemptOutcome) -> None:
    execution = make_leased(attempt_index=2, generation=1, attempt_origin=AttemptOrigin.RETRY)
    attempt = end_attempt(execution, outcome, T0, result=b"out", encoding="json")
    assert attempt is not None
    assert (attempt.execution_id, attempt.attempt_index, attempt.generation) == (execution.id, 2, 1)
    assert (attempt.origin, attempt.outcome) == (AttemptOrigin.RETRY, outcome)
    assert (attempt.started_at, attempt.ended_at, attempt.worker) == (T0 - MINUTE, T0, WORKER)
    assert (attempt.result, attempt.encoding) == (b"out", "json")


def test_attempt_without_a_lease_ends_with_its_last_worker() -> None:
    attempt = end_attempt(make_started(), AttemptOutcome.CANCELLED, T0)
    assert attempt is not None
    assert attempt.worker == OTHER_WORKER


def test_attempt_that_never_started_has_no_history_row() -> None:
    assert end_attempt(make_new(), AttemptOutcome.CANCELLED, T0) is None


def test_index_of_an_attempt_that_never_started_is_reused() -> None:
    assert next_attempt(make_started(attempt_index=2))["attempt_index"] == 3
    assert next_attempt(make_new(attempt_index=2))["attempt_index"] == 2


def test_next_attempt_is_not_started_and_has_its_full_timeout() -> None:
    columns = next_attempt(make_started(attempt_timeout_left=MINUTE))
    assert (columns["attempt_started_at"], columns["attempt_timeout_left"]) == (None, None)


def test_decision_has_before_after_event_and_attempt() -> None:
    before = make_leased()
    after = apply_transition(before, RELEASE, T0)
    decision = make_decision("outcome", before, after, RELEASE, reason="because", principal="ada", details={"a": 1})
    assert (decision.outcome, decision.before, decision.after, decision.attempt) == ("outcome", before, after, None)
    assert decision.event is not None
    assert (decision.event.reason, decision.event.principal, decision.event.details) == ("because", "ada", {"a": 1})


def test_decision_without_a_change_has_only_an_outcome() -> None:
    decision = Decision("outcome", make_new())
    assert (decision.after, decision.event, decision.attempt) == (None, None, None)
