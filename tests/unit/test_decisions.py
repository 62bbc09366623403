"""An attempt that was started leaves a history row when it ends, and only then the next one has a new index."""

from __future__ import annotations

import pytest

from flowfabric.core.decisions import Decision, decided, end_attempt, next_attempt
from flowfabric.core.records import AttemptOrigin
from flowfabric.core.transitions import RELEASE, move
from flowfabric.engine import AttemptOutcome
from tests.unit.builders import MINUTE, OTHER_WORKER, T0, WORKER, fresh, leased, started


@pytest.mark.parametrize("outcome", AttemptOutcome)
def test_a_started_attempt_ends_with_a_history_row(outcome: AttemptOutcome) -> None:
    execution = leased(attempt_index=2, generation=1, attempt_origin=AttemptOrigin.RETRY)
    attempt = end_attempt(execution, outcome, T0, result=b"out", encoding="json")
    assert attempt is not None
    assert (attempt.execution_id, attempt.attempt_index, attempt.generation) == (execution.id, 2, 1)
    assert (attempt.origin, attempt.outcome) == (AttemptOrigin.RETRY, outcome)
    assert (attempt.started_at, attempt.ended_at, attempt.worker) == (T0 - MINUTE, T0, WORKER)
    assert (attempt.result, attempt.encoding) == (b"out", "json")


def test_an_attempt_that_nobody_runs_is_ended_in_the_name_of_its_last_worker() -> None:
    attempt = end_attempt(started(), AttemptOutcome.CANCELLED, T0)
    assert attempt is not None
    assert attempt.worker == OTHER_WORKER


def test_an_attempt_that_was_never_started_leaves_no_row() -> None:
    assert end_attempt(fresh(), AttemptOutcome.CANCELLED, T0) is None


def test_an_index_that_was_never_started_is_used_again() -> None:
    assert next_attempt(started(attempt_index=2))["attempt_index"] == 3
    assert next_attempt(fresh(attempt_index=2))["attempt_index"] == 2


def test_the_next_attempt_is_not_started_and_has_its_whole_time() -> None:
    columns = next_attempt(started(attempt_timeout_left=MINUTE))
    assert (columns["attempt_started_at"], columns["attempt_timeout_left"]) == (None, None)


def test_a_decision_carries_before_after_event_and_attempt() -> None:
    before = leased()
    after = move(before, RELEASE, T0)
    decision = decided("answer", before, after, RELEASE, reason="because", principal="ada", details={"a": 1})
    assert (decision.answer, decision.before, decision.after, decision.attempt) == ("answer", before, after, None)
    assert decision.event is not None
    assert (decision.event.reason, decision.event.principal, decision.event.details) == ("because", "ada", {"a": 1})


def test_a_decision_that_changes_nothing_has_only_an_answer() -> None:
    decision = Decision("answer", fresh())
    assert (decision.after, decision.event, decision.attempt) == (None, None, None)
