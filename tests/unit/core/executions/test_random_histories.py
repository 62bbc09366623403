"""Tests that random histories of decisions keep the record valid and never decrease epochs and versions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from flowfabric.core.executions import attempts
from flowfabric.core.executions import leases as leasing
from flowfabric.core.executions import operator as control
from flowfabric.core.executions.decision import Decision
from flowfabric.core.executions.records import Attempt, AttemptOutcome, Execution
from flowfabric.core.executions.requests import (
    AuditInfo,
    CancelOwnRequest,
    Completion,
    DelayRequest,
    FailureReport,
    LeaseFilter,
    LeaseTerms,
    ReplayFrom,
)
from flowfabric.core.executions.states import State
from flowfabric.core.policy import FailureClass
from flowfabric.engine import Backoff, Grant, OnAttemptTimeout, OnLeaseLoss, Policy, Refused
from tests.unit.builders import T0, TTL, WORKER, find_broken_invariants, get_fence, make_new

COMMAND = AuditInfo(principal="ada", reason="because")
OptionalDecision = Decision[Any] | None


class SimulatedExecution:
    """One execution under a moving clock, with every attempt that was recorded for it."""

    def __init__(self, policy: Policy, deadline: timedelta | None) -> None:
        self.now: datetime = T0
        deadline_at = T0 + deadline if deadline is not None else None
        self.execution = make_new(policy=policy, created_at=T0, changed_at=T0, deadline_at=deadline_at)
        self.attempts: list[Attempt] = []
        self.lease_ids = iter(range(1, 1_000_000))

    def terms(self) -> LeaseTerms:
        return LeaseTerms(worker=WORKER, lease_id=UUID(int=next(self.lease_ids)), ttl=TTL)

    def grant(self) -> Grant:
        return Grant(
            id=UUID(int=1),
            execution_id=self.execution.id,
            worker=WORKER,
            granted_at=self.now,
            expires_at=self.now + TTL,
        )

    def apply(self, decide: Callable[[SimulatedExecution], OptionalDecision]) -> None:
        """Call `decide` and apply its decision as an operation would. An error or None changes nothing."""
        before = self.execution
        try:
            decision = decide(self)
        except Refused:
            assert self.execution == before
            return
        if decision is None or decision.after is None:
            return
        self._check(before, decision)
        self.execution = decision.after
        if decision.attempt is not None:
            self.attempts.append(decision.attempt)

    def _check(self, before: Execution, decision: Decision[Any]) -> None:
        after = decision.after
        assert after is not None, "the caller has checked it"
        assert find_broken_invariants(after) == []
        assert after.epoch >= before.epoch
        if decision.event is None:
            assert after == replace(before, lease=after.lease), (
                "without an event only the times of the lease may change"
            )
            return
        assert after.version == decision.event.version == before.version + 1
        assert decision.event.ends_lease == (before.lease is not None and after.lease is None)
        new_owner = after.lease is not None and (before.lease is None or before.lease.id != after.lease.id)
        assert not new_owner or after.epoch > before.epoch
        _check_lifecycle(before, after)


def _check_lifecycle(before: Execution, after: Execution) -> None:
    if before.state.is_terminal:
        assert after.generation == before.generation + 1, "only a replay leaves a terminal state"
    else:
        assert after.generation == before.generation
    assert before.started_at in (None, after.started_at), "the start time is set only once"
    assert after.attempt_index in (before.attempt_index, before.attempt_index + 1)
    assert after.created_at == before.created_at


def _fail(failure_class: FailureClass) -> Callable[[SimulatedExecution], OptionalDecision]:
    def decide(simulation: SimulatedExecution) -> OptionalDecision:
        if simulation.execution.fence is None:
            return None
        report = FailureReport(
            fence=get_fence(simulation.execution),
            message="no",
            failure_class=failure_class,
            category="c",
            detail=None,
            chance=0.5,
        )
        return attempts.decide_fail(simulation.execution, report, simulation.now)

    return decide


def _complete(simulation: SimulatedExecution) -> OptionalDecision:
    if simulation.execution.fence is None:
        return None
    request = Completion(fence=get_fence(simulation.execution), result=b"out", encoding="json")
    return attempts.decide_complete(simulation.execution, request, simulation.now)


def _pause(after: timedelta | None) -> Callable[[SimulatedExecution], OptionalDecision]:
    def decide(simulation: SimulatedExecution) -> OptionalDecision:
        if simulation.execution.fence is None:
            return None
        return attempts.decide_delay(
            simulation.execution, DelayRequest(fence=get_fence(simulation.execution), after=after), simulation.now
        )

    return decide


def _own_cancel(simulation: SimulatedExecution) -> OptionalDecision:
    if simulation.execution.fence is None:
        return None
    request = CancelOwnRequest(fence=get_fence(simulation.execution), reason="enough")
    return attempts.decide_own_cancel(simulation.execution, request, simulation.now)


MOVES: dict[str, Callable[[SimulatedExecution], OptionalDecision]] = {
    "claim": lambda simulation: leasing.decide_claim(simulation.execution, simulation.terms(), simulation.now),
    "complete": _complete,
    "fail": _fail(FailureClass.TRANSIENT),
    "fail permanently": _fail(FailureClass.PERMANENT),
    "delay": _pause(timedelta(minutes=1)),
    "delay until now": _pause(timedelta(0)),
    "release": _pause(None),
    "own cancel": _own_cancel,
    "attempt timeout": lambda simulation: attempts.decide_attempt_timeout(simulation.execution, 0.5, simulation.now),
    "lease check": lambda simulation: leasing.decide_lease_check(simulation.execution, simulation.now),
    "revoke": lambda simulation: leasing.decide_revoke(simulation.execution, LeaseFilter(), COMMAND, simulation.now),
    "reclaim": lambda simulation: leasing.decide_reclaim(
        simulation.execution, simulation.grant(), simulation.terms(), simulation.now
    ),
    "cancel": lambda simulation: control.decide_cancel(
        simulation.execution, COMMAND, "operator_override", simulation.now
    ),
    "hold": lambda simulation: control.decide_hold(simulation.execution, COMMAND, simulation.now),
    "unhold": lambda simulation: control.decide_unhold(simulation.execution, COMMAND, simulation.now),
    "priority": lambda simulation: control.decide_change_priority(simulation.execution, 7, COMMAND, simulation.now),
    "replay": lambda simulation: control.decide_replay(simulation.execution, COMMAND, ReplayFrom(), simulation.now),
    "ready": lambda simulation: control.decide_ready(simulation.execution, simulation.now),
    "deadline": lambda simulation: control.decide_deadline(simulation.execution, simulation.now),
}
# Moves that continue an execution are listed several times. So they are drawn more often, and histories become long.
NAMES = [*MOVES, *["claim", "ready", "lease check", "reclaim", "fail", "release", "replay"] * 3]
STEPS = st.lists(st.tuples(st.sampled_from(NAMES), st.sampled_from([0, 0, 5, 31, 100])), max_size=60)
POLICIES = st.builds(
    Policy,
    max_retries=st.integers(0, 3),
    max_reclaims=st.integers(0, 2),
    max_replays=st.integers(0, 3),
    backoff=st.builds(Backoff, jitter=st.booleans()),
    attempt_timeout=st.sampled_from([None, 20, 200]),
    on_attempt_timeout=st.sampled_from(OnAttemptTimeout),
    on_lease_loss=st.sampled_from(OnLeaseLoss),
    deadline=st.sampled_from([None, 300]),
)


@given(POLICIES, st.sampled_from([None, timedelta(seconds=400)]), STEPS)
def test_random_moves_keep_the_execution_valid(
    policy: Policy, deadline: timedelta | None, steps: list[tuple[str, int]]
) -> None:
    simulation = SimulatedExecution(policy, deadline)
    for name, seconds in steps:
        simulation.now += timedelta(seconds=seconds)
        simulation.apply(MOVES[name])
    _check_attempts(simulation)


def _check_attempts(simulation: SimulatedExecution) -> None:
    """Check that ended attempts have consecutive indexes and that the policy limits their number."""
    execution, policy = simulation.execution, simulation.execution.policy
    indexes = [attempt.attempt_index for attempt in simulation.attempts]
    assert indexes == list(range(len(indexes)))
    assert execution.attempt_index in (len(indexes), len(indexes) - 1)
    of_this_generation = [attempt for attempt in simulation.attempts if attempt.generation == execution.generation]
    failures = [attempt for attempt in of_this_generation if attempt.outcome is AttemptOutcome.FAILURE]
    assert len(failures) <= policy.max_retries + 1
    assert all(attempt.started_at <= attempt.ended_at for attempt in simulation.attempts)
    successes = [attempt for attempt in simulation.attempts if attempt.outcome is AttemptOutcome.SUCCESS]
    assert len({attempt.generation for attempt in successes}) == len(successes), "each generation succeeds at most once"


PATHS = [
    ["claim", "complete"],
    ["claim", "fail"],
    ["claim", "fail permanently"],
    ["claim", "delay"],
    ["claim", "release"],
    ["cancel"],
    ["hold"],
    ["claim"],
    ["deadline"],
]


def test_moves_reach_every_state_except_suspended_and_skipped() -> None:
    """Check the test above, since histories that never leave the first state would prove nothing."""
    reached = set()
    for path in PATHS:
        simulation = SimulatedExecution(Policy(), timedelta(0) if path == ["deadline"] else None)
        for name in path:
            simulation.apply(MOVES[name])
        reached.add(simulation.execution.state)
    assert reached == set(State) - {State.SUSPENDED, State.SKIPPED}
