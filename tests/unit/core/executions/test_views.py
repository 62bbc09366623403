"""Tests for the views of executions, which never include a lease id."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest

from flowfabric.core.executions.decision import end_attempt
from flowfabric.core.executions.records import Execution
from flowfabric.core.executions.states import derive_vector
from flowfabric.core.executions.views import Failure, Summary, describe_execution, make_outcome, summarize
from flowfabric.engine import Attempt, AttemptOutcome, Policy, State
from tests.unit.builders import (
    ENDED,
    LEASE_ID,
    SITUATIONS,
    T0,
    TTL,
    WORKER,
    make_ended,
    make_leased,
    make_live_lease,
    make_started,
)


def _end_attempt(execution: Execution) -> Attempt:
    attempt = end_attempt(execution, AttemptOutcome.SUCCESS, T0, result=b"out", encoding="json")
    assert attempt is not None
    return attempt


@pytest.mark.parametrize("situation", SITUATIONS)
def test_summary_has_the_stored_fields_and_the_derived_vector(situation: str) -> None:
    execution = SITUATIONS[situation](
        priority=3, retry_count=1, reclaim_count=2, progress_percent=40, progress_message="on it", deadline_at=T0
    )
    summary = summarize(execution)
    for field in fields(Summary):
        if field.name not in ("vector", "lease", "last_failure"):
            assert getattr(summary, field.name) == getattr(execution, field.name)
    assert summary.vector == derive_vector(
        execution.state, execution.blocking_reason, execution.attempt_state, execution.ownership
    )
    assert (summary.lease is not None) == (situation == "leased")


def test_summary_shows_a_lease_without_its_id() -> None:
    renewed = make_live_lease(expires_at=T0 + TTL)
    summary = summarize(make_leased(lease=renewed))
    assert summary.lease is not None
    assert (summary.lease.worker, summary.lease.acquired_at) == (WORKER, renewed.acquired_at)
    assert (summary.lease.renewed_at, summary.lease.expires_at) == (T0, T0 + TTL)
    assert str(LEASE_ID) not in repr(summary)
    assert LEASE_ID.hex not in repr(summary)


def test_last_failure_has_message_and_category() -> None:
    assert summarize(make_started()).last_failure is None
    assert summarize(make_started(failure_message="no", failure_category="net")).last_failure == Failure("no", "net")


def test_description_adds_input_policy_requirements_and_attempts() -> None:
    execution = make_ended(State.COMPLETED, policy=Policy(max_retries=1))
    attempt = _end_attempt(execution)
    description = describe_execution(execution, ["gpu"], [attempt], None, [])
    assert (description.payload, description.encoding) == (b"in", "json")
    assert (description.policy, description.requires) == (Policy(max_retries=1), ("gpu",))
    assert description.attempts == (attempt,)
    assert (description.suspension, description.waitpoints) == (None, ())
    assert description.vector == summarize(execution).vector


@pytest.mark.parametrize("situation", sorted(ENDED))
def test_outcome_has_the_end_of_the_execution(situation: str) -> None:
    execution = SITUATIONS[situation](
        failure_message="no", failure_category="net", cancelled_by="operator_override", cancel_reason="enough"
    )
    outcome = make_outcome(execution, _end_attempt(execution))
    assert (outcome.state, outcome.ended_at) == (execution.state, execution.ended_at)
    assert (outcome.result, outcome.encoding) == (b"out", "json")
    # The outcome of a completed or cancelled execution does not contain the failure of an earlier attempt.
    assert outcome.failure == (Failure("no", "net") if execution.state in ("failed", "expired") else None)
    assert (outcome.cancelled_by, outcome.cancel_reason) == ("operator_override", "enough")


def test_outcome_without_an_attempt_has_no_result() -> None:
    outcome = make_outcome(replace(make_ended(State.CANCELLED), attempt_started_at=None), None)
    assert (outcome.result, outcome.encoding) == (None, None)
