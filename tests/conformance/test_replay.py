"""Tests of replay, which runs a terminal execution as a new generation, from its start or from a step."""

from __future__ import annotations

from datetime import timedelta
from uuid import UUID

import pytest

from flowfabric.engine import (
    AttemptOutcome,
    Backoff,
    Engine,
    Lease,
    NotFound,
    OnLeaseLoss,
    Policy,
    PublicState,
    Refused,
    Replayed,
    State,
    Step,
)
from flowfabric.testing import VirtualClock
from tests.expectations import ENDED, LIVE, error_of, every_write_is_refused, last_event, nothing_written, refused
from tests.scenarios import SITUATIONS, completed, leased, submitted
from tests.stores import TestStore

STEPS = [Step("fetch", b"1"), Step("charge", b"2"), Step("mail", b"3")]


async def test_every_outcome_can_be_replayed(engine: Engine, clock: VirtualClock) -> None:
    for situation in ENDED:
        id_ = await SITUATIONS[situation](engine, clock)
        before = await engine.executions.describe(id_)
        outcome = await engine.operator.replay(id_, "wrong rate", principal="ada")
        assert outcome == Replayed(1, PublicState.WAITING), situation
        event = await last_event(engine, id_)
        assert (event.family, event.name, event.generation) == ("operator", "replayed", 1), situation
        assert (event.principal, event.reason) == ("ada", "wrong rate"), situation
        after = await engine.executions.describe(id_)
        assert (after.state, after.vector.attempt_state) == (State.WAITING, "pending_replay_attempt"), situation
        assert (after.generation, after.replay_count) == (1, 1), situation
        assert (after.epoch, after.version) == (before.epoch + 1, before.version + 1), situation
        assert (after.ended_at, after.last_failure, after.cancelled_by, after.cancel_reason) == (None,) * 4, situation
        assert after.attempts == before.attempts, situation
        assert await engine.executions.result(id_) is None, situation


async def test_live_execution_cannot_be_replayed(engine: Engine, clock: VirtualClock) -> None:
    for situation in LIVE:
        id_ = await SITUATIONS[situation](engine, clock)
        before = await engine.executions.describe(id_)
        await refused(engine.operator.replay(id_), "execution_not_terminal")
        assert await engine.executions.describe(id_) == before, situation


async def test_each_attempt_has_the_same_input_and_keeps_its_own_result(engine: Engine, clock: VirtualClock) -> None:
    id_ = await completed(engine, clock)
    started_at = (await engine.executions.describe(id_)).started_at
    clock.advance("1h")
    await engine.operator.replay(id_)
    lease = await engine.leases.claim_execution(id_, "worker-2")
    assert (lease.origin, lease.attempt_index, lease.generation, lease.payload) == ("replayed", 1, 1, b"in")
    assert (await engine.executions.describe(id_)).started_at == started_at
    await engine.leases.complete(lease.fence, b"better")
    attempts = (await engine.executions.describe(id_)).attempts
    assert [(attempt.attempt_index, attempt.generation, attempt.result) for attempt in attempts] == [
        (0, 0, b"out"),
        (1, 1, b"better"),
    ]
    assert {attempt.outcome for attempt in attempts} == {AttemptOutcome.SUCCESS}
    outcome = await engine.executions.result(id_)
    assert outcome is not None
    assert outcome.result == b"better"


async def test_replay_resets_retries_reclaims_and_progress(engine: Engine, clock: VirtualClock) -> None:
    lease = await leased(engine, policy=Policy(max_retries=1, max_reclaims=1))
    id_ = lease.execution_id
    await engine.leases.fail(lease.fence, "one")
    clock.advance("1m")
    await engine.reconcilers.tick()
    await engine.leases.claim_execution(id_, "worker-2")
    clock.advance("30s")
    await engine.reconcilers.tick()
    last = await engine.leases.claim_execution(id_, "worker-3")
    await engine.leases.progress(last.fence, 50, "half")
    await engine.leases.fail(last.fence, "two")
    before = await engine.executions.describe(id_)
    assert (before.state, before.retry_count, before.reclaim_count) == (State.FAILED, 1, 1)
    await engine.operator.replay(id_)
    after = await engine.executions.describe(id_)
    assert (after.retry_count, after.reclaim_count, after.attempt_index) == (0, 0, 3)
    assert (after.progress_percent, after.progress_message) == (None, None)
    next_lease = await engine.leases.claim_execution(id_, "worker-4")
    await engine.leases.fail(next_lease.fence, "three")
    assert (await engine.executions.describe(id_)).state is State.DELAYED


async def test_relative_deadline_restarts_and_an_absolute_one_is_cleared(engine: Engine, clock: VirtualClock) -> None:
    relative = await submitted(engine, policy=Policy(deadline="1h"))
    absolute = await submitted(engine, deadline=clock.now() + timedelta(hours=1))
    for id_ in (relative, absolute):
        await engine.operator.cancel(id_)
    clock.advance("2h")
    for id_ in (relative, absolute):
        await engine.operator.replay(id_)
    assert (await engine.executions.describe(relative)).deadline_at == clock.now() + timedelta(hours=1)
    assert (await engine.executions.describe(absolute)).deadline_at is None
    await engine.reconcilers.tick()
    assert (await engine.executions.describe(absolute)).state is State.WAITING


async def test_replay_from_the_start_or_the_first_step_has_an_empty_journal(engine: Engine) -> None:
    other, id_ = await complete_with_steps(engine), await complete_with_steps(engine)
    await engine.operator.replay(other, from_step="fetch")
    assert await engine.executions.steps(other) == []
    await engine.operator.replay(id_)
    assert await engine.executions.steps(id_) == []
    lease = await engine.leases.claim_execution(id_, "worker-2")
    await engine.leases.checkpoint(lease.fence, [Step("fetch", b"another")])
    assert [(step.name, step.payload) for step in await engine.executions.steps(id_)] == [("fetch", b"another")]


async def test_replay_from_a_step_keeps_the_steps_before_it(engine: Engine) -> None:
    id_ = await complete_with_steps(engine)
    await engine.operator.replay(id_, from_step="charge")
    assert await read_step_names(engine, id_) == ["fetch"]
    lease = await engine.leases.claim_execution(id_, "worker-2")
    await engine.leases.complete(lease.fence, steps=[Step("charge", b"new"), Step("mail", b"new")])
    steps = await engine.executions.steps(id_)
    assert [(step.name, step.payload, step.generation) for step in steps] == [
        ("fetch", b"1", 0),
        ("charge", b"new", 1),
        ("mail", b"new", 1),
    ]
    await engine.operator.replay(id_, from_step="mail")
    assert await read_step_names(engine, id_) == ["fetch", "charge"]


async def test_replay_from_an_unrecorded_step_is_not_found(engine: Engine, store: TestStore) -> None:
    id_ = await complete_with_steps(engine)
    await engine.operator.replay(id_, from_step="charge")
    await engine.operator.cancel(id_)
    async with nothing_written(store):
        for name in ("mail", "never recorded"):
            error = await error_of(engine.operator.replay(id_, from_step=name))
            assert isinstance(error, NotFound)
            assert error.code == "step_not_found"
    assert (await engine.executions.describe(id_)).state is State.CANCELLED


async def test_ten_replays_are_the_maximum_unless_the_policy_allows_fewer(engine: Engine) -> None:
    id_ = await submitted(engine)
    for generation in range(1, 11):
        await engine.operator.cancel(id_)
        assert await engine.operator.replay(id_) == Replayed(generation, PublicState.WAITING)
    await engine.operator.cancel(id_)
    before = await engine.executions.describe(id_)
    await refused(engine.operator.replay(id_), "max_replays_exhausted")
    assert await engine.executions.describe(id_) == before
    never = await submitted(engine, policy=Policy(max_replays=0))
    once = await submitted(engine, policy=Policy(max_replays=1))
    for id_ in (never, once):
        await engine.operator.cancel(id_)
    await refused(engine.operator.replay(never), "max_replays_exhausted")
    await engine.operator.replay(once)
    await engine.operator.cancel(once)
    await refused(engine.operator.replay(once), "max_replays_exhausted")


async def test_replay_with_the_expected_generation_can_be_repeated(
    engine: Engine, clock: VirtualClock, store: TestStore
) -> None:
    id_ = await completed(engine, clock)
    first = await engine.operator.replay(id_, expected_generation=0)
    async with nothing_written(store):
        assert await engine.operator.replay(id_, expected_generation=0) == first
        await refused(engine.operator.replay(id_, expected_generation=1), "execution_not_terminal")
    for _ in range(2):
        await engine.operator.cancel(id_)
        await engine.operator.replay(id_)
    await engine.operator.cancel(id_)
    await refused(engine.operator.replay(id_, expected_generation=0), "generation_moved")
    assert (await engine.executions.describe(id_)).generation == 3


async def test_execution_without_an_attempt_replays_as_its_first_attempt(engine: Engine) -> None:
    id_ = await submitted(engine)
    await engine.operator.cancel(id_)
    await engine.operator.replay(id_)
    lease = await engine.leases.claim_execution(id_, "worker-1")
    assert (lease.attempt_index, lease.generation, lease.origin) == (0, 1, "replayed")
    await engine.leases.complete(lease.fence, b"out")
    assert [attempt.attempt_index for attempt in (await engine.executions.describe(id_)).attempts] == [0]


async def test_owner_from_before_the_replay_is_refused(engine: Engine) -> None:
    lease = await leased(engine, policy=Policy(on_lease_loss=OnLeaseLoss.HAND_OFF))
    await engine.operator.cancel(lease.execution_id)
    await engine.operator.replay(lease.execution_id)
    await every_write_is_refused(engine, lease.fence, "execution_not_active")
    second = await engine.leases.claim_execution(lease.execution_id, "worker-2")
    await engine.leases.release(second.fence)
    await every_write_is_refused(engine, lease.fence, "stale_lease")


async def complete_with_steps(engine: Engine) -> UUID:
    """Return a completed execution with three recorded steps."""
    lease: Lease = await leased(engine)
    await engine.leases.checkpoint(lease.fence, STEPS[:2])
    await engine.leases.complete(lease.fence, b"out", steps=STEPS[2:])
    return lease.execution_id


async def read_step_names(engine: Engine, id_: UUID) -> list[str]:
    return [step.name for step in await engine.executions.steps(id_)]


async def test_replay_is_capped_resets_the_counts_and_keeps_earlier_attempts(
    engine: Engine, clock: VirtualClock
) -> None:
    policy = Policy(max_retries=1, max_replays=1, backoff=Backoff(initial=0))
    id_ = await submitted(engine, policy=policy)
    for _ in range(2):
        lease = await engine.leases.claim_execution(id_, "w")
        await engine.leases.fail(lease.fence, "no")
        await engine.reconcilers.tick()
    await engine.operator.replay(id_)
    execution = await engine.executions.describe(id_)
    assert (execution.retry_count, execution.attempt_index, execution.last_failure) == (0, 2, None)
    assert execution.vector.terminal_outcome == "none"
    assert [attempt.generation for attempt in execution.attempts] == [0, 0]
    await engine.operator.cancel(id_)
    with pytest.raises(Refused, match="max_replays_exhausted"):
        await engine.operator.replay(id_)
