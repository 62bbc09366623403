"""Tests that the public state vector follows from the stored fields as in the state table."""

from __future__ import annotations

from itertools import product

import pytest

from flowfabric.core.executions import states
from flowfabric.core.executions.states import (
    AttemptState,
    BlockingReason,
    Eligibility,
    LifecyclePhase,
    Ownership,
    PublicState,
    State,
    TerminalOutcome,
    derive_vector,
)

# (state, ownership, blocking_reason) of the stored row, mapped to the derived
# (lifecycle_phase, ownership_state, eligibility_state, terminal_outcome, public_state).
TABLE: dict[tuple[str, str | None, str], tuple[str, str, str, str, str]] = {
    ("waiting", None, "waiting_for_worker"): ("runnable", "unowned", "eligible_now", "none", "waiting"),
    ("delayed", None, "waiting_for_delay"): ("runnable", "unowned", "not_eligible_until_time", "none", "delayed"),
    ("delayed", None, "waiting_for_retry_backoff"): (
        "runnable", "unowned", "not_eligible_until_time", "none", "delayed",
    ),
    ("delayed", None, "waiting_for_resume_delay"): (
        "runnable", "unowned", "not_eligible_until_time", "none", "delayed",
    ),
    ("blocked", None, "waiting_for_children"): (
        "runnable", "unowned", "blocked_by_dependencies", "none", "waiting_children",
    ),
    ("blocked", None, "waiting_for_budget"): ("runnable", "unowned", "blocked_by_budget", "none", "rate_limited"),
    ("blocked", None, "waiting_for_quota"): ("runnable", "unowned", "blocked_by_quota", "none", "rate_limited"),
    ("blocked", None, "waiting_for_capable_worker"): ("runnable", "unowned", "blocked_by_route", "none", "waiting"),
    ("blocked", None, "waiting_for_locality_match"): ("runnable", "unowned", "blocked_by_route", "none", "waiting"),
    ("blocked", None, "paused_by_policy"): ("runnable", "unowned", "blocked_by_lane_state", "none", "waiting"),
    ("blocked", None, "paused_by_operator"): ("runnable", "unowned", "blocked_by_operator", "none", "waiting"),
    ("blocked", None, "paused_by_flow_cancel"): ("runnable", "unowned", "blocked_by_operator", "none", "waiting"),
    ("active", "leased", "none"): ("active", "leased", "not_applicable", "none", "active"),
    ("active", "lease_expired_reclaimable", "waiting_for_worker"): (
        "active", "lease_expired_reclaimable", "not_applicable", "none", "active",
    ),
    ("active", "lease_revoked", "waiting_for_worker"): ("active", "lease_revoked", "not_applicable", "none", "active"),
    ("suspended", None, "waiting_for_signal"): ("suspended", "unowned", "not_applicable", "none", "suspended"),
    ("suspended", None, "waiting_for_approval"): ("suspended", "unowned", "not_applicable", "none", "suspended"),
    ("suspended", None, "waiting_for_callback"): ("suspended", "unowned", "not_applicable", "none", "suspended"),
    ("suspended", None, "waiting_for_tool_result"): ("suspended", "unowned", "not_applicable", "none", "suspended"),
    ("suspended", None, "paused_by_policy"): ("suspended", "unowned", "not_applicable", "none", "suspended"),
    ("suspended", None, "paused_by_operator"): ("suspended", "unowned", "not_applicable", "none", "suspended"),
    ("suspended", None, "waiting_for_budget"): ("suspended", "unowned", "not_applicable", "none", "suspended"),
    ("completed", None, "none"): ("terminal", "unowned", "not_applicable", "success", "completed"),
    ("failed", None, "none"): ("terminal", "unowned", "not_applicable", "failed", "failed"),
    ("cancelled", None, "none"): ("terminal", "unowned", "not_applicable", "cancelled", "cancelled"),
    ("expired", None, "none"): ("terminal", "unowned", "not_applicable", "expired", "expired"),
    ("skipped", None, "none"): ("terminal", "unowned", "not_applicable", "skipped", "skipped"),
}  # fmt: skip

WORDS = {
    State: "waiting delayed blocked active suspended completed failed cancelled expired skipped",
    AttemptState: "none pending_first_attempt running_attempt attempt_interrupted pending_retry_attempt "
    "pending_reclaim_attempt pending_replay_attempt attempt_terminal",
    Ownership: "leased lease_expired_reclaimable lease_revoked",
    BlockingReason: "none waiting_for_worker waiting_for_retry_backoff waiting_for_resume_delay waiting_for_delay "
    "waiting_for_signal waiting_for_approval waiting_for_callback waiting_for_tool_result waiting_for_children "
    "waiting_for_budget waiting_for_quota waiting_for_capable_worker waiting_for_locality_match paused_by_operator "
    "paused_by_policy paused_by_flow_cancel",
    LifecyclePhase: "runnable active suspended terminal",
    Eligibility: "eligible_now not_eligible_until_time blocked_by_dependencies blocked_by_budget blocked_by_quota "
    "blocked_by_route blocked_by_lane_state blocked_by_operator not_applicable",
    TerminalOutcome: "none success failed cancelled expired skipped",
    PublicState: "waiting delayed rate_limited waiting_children active suspended resumable completed failed cancelled "
    "expired skipped",
}


@pytest.mark.parametrize("kind", WORDS, ids=lambda kind: kind.__name__)
def test_enum_values_are_those_of_the_contract(kind: type[State]) -> None:
    assert {member.value for member in kind} == set(WORDS[kind].split())


@pytest.mark.parametrize(("stored", "expected"), TABLE.items(), ids=lambda value: "-".join(map(str, value)))
@pytest.mark.parametrize("attempt_state", AttemptState)
def test_vector_equals_the_table(
    stored: tuple[str, str | None, str], expected: tuple[str, str, str, str, str], attempt_state: AttemptState
) -> None:
    state, owner, reason = stored
    ownership = Ownership(owner) if owner else None
    vector = derive_vector(State(state), BlockingReason(reason), attempt_state, ownership)
    phase, ownership_state, eligibility, outcome, public = expected
    resumed = state == "waiting" and attempt_state is AttemptState.INTERRUPTED
    assert vector == states.StateVector(
        lifecycle_phase=LifecyclePhase(phase),
        ownership_state=ownership_state,
        eligibility_state=Eligibility(eligibility),
        blocking_reason=BlockingReason(reason),
        terminal_outcome=TerminalOutcome(outcome),
        attempt_state=attempt_state,
        public_state=PublicState.RESUMABLE if resumed else PublicState(public),
    )


def test_table_covers_every_state_ownership_and_blocking_reason() -> None:
    assert {state for state, _, _ in TABLE} == set(State)
    assert {owner for _, owner, _ in TABLE} == {None, *Ownership}
    assert {reason for state, _, reason in TABLE if state == "blocked"} == frozenset(states._BLOCKED_BY)
    assert {reason for _, _, reason in TABLE} == set(BlockingReason)


@pytest.mark.parametrize("state", State)
def test_phase_and_outcome_depend_on_the_state_only(state: State) -> None:
    reasons = frozenset(states._BLOCKED_BY) if state is State.BLOCKED else frozenset(BlockingReason)
    vectors = [derive_vector(state, *rest) for rest in product(reasons, AttemptState, (None, *Ownership))]
    phase_of = {row[0]: expected[0] for row, expected in TABLE.items()}
    outcome_of = {row[0]: expected[3] for row, expected in TABLE.items()}
    assert {vector.lifecycle_phase for vector in vectors} == {phase_of[state]}
    assert {vector.terminal_outcome for vector in vectors} == {outcome_of[state]}


def test_state_sets_are_those_of_the_table() -> None:
    phases = {State(state): expected[0] for (state, _, _), expected in TABLE.items()}
    assert {state for state, phase in phases.items() if phase == "terminal"} == states.TERMINAL
    assert {state for state, phase in phases.items() if phase == "runnable"} == states.RUNNABLE
    assert set(State) - states.TERMINAL == states.LIVE
    assert all(state.is_terminal == (state in states.TERMINAL) for state in State)
