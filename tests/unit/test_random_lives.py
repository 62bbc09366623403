"""Whatever happens to an execution in whatever order, its record stays sound and its epochs and versions move on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from flowfabric.core import attempts, control, leasing
from flowfabric.core.decisions import Decision
from flowfabric.core.records import Attempt, AttemptOutcome, Execution
from flowfabric.core.requests import (
    Command,
    Completion,
    FailureReport,
    LeaseTerms,
    OwnCancel,
    Pause,
    ReplayFrom,
    WhichLease,
)  # fmt: skip
from flowfabric.core.retry import FailureClass
from flowfabric.core.states import State
from flowfabric.engine import Backoff, Grant, OnAttemptTimeout, OnLeaseLoss, Policy, Refused
from tests.unit.builders import T0, TTL, WORKER, broken_invariants, fence_of, fresh

COMMAND = Command(principal="ada", reason="because")
Answered = Decision[Any] | None


class Life:
    """One execution under a moving clock, with everything that was written about it."""

    def __init__(self, policy: Policy, deadline: timedelta | None) -> None:
        self.now: datetime = T0
        deadline_at = T0 + deadline if deadline is not None else None
        self.execution = fresh(policy=policy, created_at=T0, changed_at=T0, deadline_at=deadline_at)
        self.attempts: list[Attempt] = []
        self.lease_ids = iter(range(1, 1_000_000))

    def terms(self) -> LeaseTerms:
        return LeaseTerms(worker=WORKER, lease_id=UUID(int=next(self.lease_ids)), ttl=TTL)

    def grant(self) -> Grant:
        return Grant(
            id=UUID(int=1), execution_id=self.execution.id, worker=WORKER, granted_at=self.now,
            expires_at=self.now + TTL,
        )  # fmt: skip

    def apply(self, decide: Callable[[Life], Answered]) -> None:
        """Takes a decision as an operation would: a refusal or None changes nothing."""
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
        assert after is not None, "the caller saw it"
        assert broken_invariants(after) == []
        assert after.epoch >= before.epoch
        if decision.event is None:
            assert after == replace(before, lease=after.lease), "without an event only the lease's times may move"
            return
        assert after.version == decision.event.version == before.version + 1
        assert decision.event.ends_lease == (before.lease is not None and after.lease is None)
        new_owner = after.lease is not None and (before.lease is None or before.lease.id != after.lease.id)
        assert not new_owner or after.epoch > before.epoch
        _check_life(before, after)


def _check_life(before: Execution, after: Execution) -> None:
    if before.state.is_terminal:
        assert after.generation == before.generation + 1, "only a replay leaves the end"
    else:
        assert after.generation == before.generation
    assert before.started_at in (None, after.started_at), "it is set once"
    assert after.attempt_index in (before.attempt_index, before.attempt_index + 1)
    assert after.created_at == before.created_at


def _fail(failure_class: FailureClass) -> Callable[[Life], Answered]:
    def decide(life: Life) -> Answered:
        if life.execution.fence is None:
            return None
        report = FailureReport(
            fence=fence_of(life.execution), message="no", failure_class=failure_class, category="c", detail=None,
            chance=0.5,
        )  # fmt: skip
        return attempts.decide_fail(life.execution, report, life.now)

    return decide


def _complete(life: Life) -> Answered:
    if life.execution.fence is None:
        return None
    request = Completion(fence=fence_of(life.execution), result=b"out", encoding="json")
    return attempts.decide_complete(life.execution, request, life.now)


def _pause(after: timedelta | None) -> Callable[[Life], Answered]:
    def decide(life: Life) -> Answered:
        if life.execution.fence is None:
            return None
        return attempts.decide_pause(life.execution, Pause(fence=fence_of(life.execution), after=after), life.now)

    return decide


def _own_cancel(life: Life) -> Answered:
    if life.execution.fence is None:
        return None
    request = OwnCancel(fence=fence_of(life.execution), reason="enough")
    return attempts.decide_own_cancel(life.execution, request, life.now)


MOVES: dict[str, Callable[[Life], Answered]] = {
    "claim": lambda life: leasing.decide_claim(life.execution, life.terms(), life.now),
    "complete": _complete,
    "fail": _fail(FailureClass.TRANSIENT),
    "fail for good": _fail(FailureClass.PERMANENT),
    "delay": _pause(timedelta(minutes=1)),
    "delay until now": _pause(timedelta(0)),
    "release": _pause(None),
    "own cancel": _own_cancel,
    "attempt timeout": lambda life: attempts.decide_attempt_timeout(life.execution, 0.5, life.now),
    "lease check": lambda life: leasing.decide_lease_check(life.execution, life.now),
    "revoke": lambda life: leasing.decide_revoke(life.execution, WhichLease(), COMMAND, life.now),
    "reclaim": lambda life: leasing.decide_reclaim(life.execution, life.grant(), life.terms(), life.now),
    "cancel": lambda life: control.decide_cancel(life.execution, COMMAND, "operator_override", life.now),
    "hold": lambda life: control.decide_hold(life.execution, COMMAND, life.now),
    "unhold": lambda life: control.decide_unhold(life.execution, COMMAND, life.now),
    "priority": lambda life: control.decide_change_priority(life.execution, 7, COMMAND, life.now),
    "replay": lambda life: control.decide_replay(life.execution, COMMAND, ReplayFrom(), life.now),
    "ready": lambda life: control.decide_ready(life.execution, life.now),
    "deadline": lambda life: control.decide_deadline(life.execution, life.now),
}
# Work that goes on is drawn more often than what ends it, so that lives become long.
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
def test_a_life_of_any_moves_stays_sound(
    policy: Policy, deadline: timedelta | None, steps: list[tuple[str, int]]
) -> None:
    life = Life(policy, deadline)
    for name, seconds in steps:
        life.now += timedelta(seconds=seconds)
        life.apply(MOVES[name])
    _check_attempts(life)


def _check_attempts(life: Life) -> None:
    """The attempts that ended have every index once, in order, and as many as the policy allows."""
    execution, policy = life.execution, life.execution.policy
    indexes = [attempt.attempt_index for attempt in life.attempts]
    assert indexes == list(range(len(indexes)))
    assert execution.attempt_index in (len(indexes), len(indexes) - 1)
    failures = [item for item in life.attempts if item.generation == execution.generation]
    retried = [item for item in failures if item.outcome is AttemptOutcome.FAILURE]
    assert len(retried) <= policy.max_retries + 1
    assert all(attempt.started_at <= attempt.ended_at for attempt in life.attempts)
    successes = [item for item in life.attempts if item.outcome is AttemptOutcome.SUCCESS]
    assert len({item.generation for item in successes}) == len(successes), "one generation, one success"


PATHS = [
    ["claim", "complete"],
    ["claim", "fail"],
    ["claim", "fail for good"],
    ["claim", "delay"],
    ["claim", "release"],
    ["cancel"],
    ["hold"],
    ["claim"],
    ["deadline"],
]


def test_the_moves_reach_every_state_but_those_of_later_operations() -> None:
    """A check of the test itself: lives that never leave the start would prove nothing."""
    reached = set()
    for path in PATHS:
        life = Life(Policy(), timedelta(0) if path == ["deadline"] else None)
        for name in path:
            life.apply(MOVES[name])
        reached.add(life.execution.state)
    assert reached == set(State) - {State.SUSPENDED, State.SKIPPED}
