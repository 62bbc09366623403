"""What reads show follows from the record, and never holds what proves ownership."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest

from flowfabric.core.decisions import end_attempt
from flowfabric.core.records import Execution
from flowfabric.core.states import derive_vector
from flowfabric.core.views import Failure, Summary, describe_execution, outcome_of, summarize
from flowfabric.engine import Attempt, AttemptOutcome, Policy, State
from tests.unit.builders import ENDED, LEASE_ID, SITUATIONS, T0, TTL, WORKER, ended, leased, live_lease, started


def _last_attempt(execution: Execution) -> Attempt:
    attempt = end_attempt(execution, AttemptOutcome.SUCCESS, T0, result=b"out", encoding="json")
    assert attempt is not None
    return attempt


@pytest.mark.parametrize("situation", SITUATIONS)
def test_a_summary_shows_the_stored_fields_and_the_derived_vector(situation: str) -> None:
    execution = SITUATIONS[situation](
        priority=3, retry_count=1, reclaim_count=2, progress_percent=40, progress_message="on it", deadline_at=T0
    )
    summary = summarize(execution)
    for item in fields(Summary):
        if item.name not in ("vector", "lease", "last_failure"):
            assert getattr(summary, item.name) == getattr(execution, item.name)
    assert summary.vector == derive_vector(
        execution.state, execution.blocking_reason, execution.attempt_state, execution.ownership
    )
    assert (summary.lease is not None) == (situation == "leased")


def test_a_lease_is_shown_without_its_id() -> None:
    renewed = live_lease(expires_at=T0 + TTL)
    summary = summarize(leased(lease=renewed))
    assert summary.lease is not None
    assert (summary.lease.worker, summary.lease.acquired_at) == (WORKER, renewed.acquired_at)
    assert (summary.lease.renewed_at, summary.lease.expires_at) == (T0, T0 + TTL)
    assert str(LEASE_ID) not in repr(summary)
    assert LEASE_ID.hex not in repr(summary)


def test_the_last_failure_has_message_and_category() -> None:
    assert summarize(started()).last_failure is None
    assert summarize(started(failure_message="no", failure_category="net")).last_failure == Failure("no", "net")


def test_a_description_adds_input_policy_requirements_and_attempts() -> None:
    execution = ended(State.COMPLETED, policy=Policy(max_retries=1))
    attempt = _last_attempt(execution)
    description = describe_execution(execution, ["gpu"], [attempt], None, [])
    assert (description.payload, description.encoding) == (b"in", "json")
    assert (description.policy, description.requires) == (Policy(max_retries=1), ("gpu",))
    assert description.attempts == (attempt,)
    assert (description.suspension, description.waitpoints) == (None, ())
    assert description.vector == summarize(execution).vector


@pytest.mark.parametrize("situation", sorted(ENDED))
def test_an_outcome_says_how_it_ended(situation: str) -> None:
    execution = SITUATIONS[situation](
        failure_message="no", failure_category="net", cancelled_by="operator_override", cancel_reason="enough"
    )
    outcome = outcome_of(execution, _last_attempt(execution))
    assert (outcome.state, outcome.ended_at) == (execution.state, execution.ended_at)
    assert (outcome.result, outcome.encoding) == (b"out", "json")
    # A failure of an earlier attempt is not how a completed or cancelled execution ended.
    assert outcome.failure == (Failure("no", "net") if execution.state in ("failed", "expired") else None)
    assert (outcome.cancelled_by, outcome.cancel_reason) == ("operator_override", "enough")


def test_what_ended_without_an_attempt_has_no_result() -> None:
    outcome = outcome_of(replace(ended(State.CANCELLED), attempt_started_at=None), None)
    assert (outcome.result, outcome.encoding) == (None, None)
