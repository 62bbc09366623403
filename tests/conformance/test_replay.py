"""replay: a terminal execution runs again as a new generation, from its start or from a recorded step."""

from __future__ import annotations

from datetime import timedelta
from uuid import UUID

from flowfabric.engine import (
    AttemptOutcome,
    Engine,
    Lease,
    NotFound,
    OnLeaseLoss,
    Policy,
    PublicState,
    Replayed,
    State,
    Step,
)
from flowfabric.testing import VirtualClock
from tests.facts import ENDED, LIVE, error_of, every_write_is_refused, last_event, nothing_written, refused
from tests.scenarios import SITUATIONS, completed, leased, submitted
from tests.stores import TestStore

STEPS = [Step("fetch", b"1"), Step("charge", b"2"), Step("mail", b"3")]


async def test_every_outcome_can_be_replayed(engine: Engine, clock: VirtualClock) -> None:
    for situation in ENDED:
        id_ = await SITUATIONS[situation](engine, clock)
        before = await engine.executions.describe(id_)
        answer = await engine.operator.replay(id_, "wrong rate", principal="ada")
        assert answer == Replayed(1, PublicState.WAITING), situation
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


async def test_what_has_not_ended_cannot_be_replayed(engine: Engine, clock: VirtualClock) -> None:
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
    assert [(item.attempt_index, item.generation, item.result) for item in attempts] == [
        (0, 0, b"out"), (1, 1, b"better"),
    ]  # fmt: skip
    assert {item.outcome for item in attempts} == {AttemptOutcome.SUCCESS}
    outcome = await engine.executions.result(id_)
    assert outcome is not None
    assert outcome.result == b"better"


async def test_retries_reclaims_and_progress_start_again(engine: Engine, clock: VirtualClock) -> None:
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
    spent = await engine.executions.describe(id_)
    assert (spent.state, spent.retry_count, spent.reclaim_count) == (State.FAILED, 1, 1)
    await engine.operator.replay(id_)
    fresh = await engine.executions.describe(id_)
    assert (fresh.retry_count, fresh.reclaim_count, fresh.attempt_index) == (0, 0, 3)
    assert (fresh.progress_percent, fresh.progress_message) == (None, None)
    again = await engine.leases.claim_execution(id_, "worker-4")
    await engine.leases.fail(again.fence, "three")
    assert (await engine.executions.describe(id_)).state is State.DELAYED


async def test_a_relative_deadline_starts_again_and_an_absolute_one_is_cleared(
    engine: Engine, clock: VirtualClock
) -> None:
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


async def test_a_replay_from_the_start_or_the_first_step_has_an_empty_journal(engine: Engine) -> None:
    other, id_ = await completed_with_steps(engine), await completed_with_steps(engine)
    await engine.operator.replay(other, from_step="fetch")
    assert await engine.executions.steps(other) == []
    await engine.operator.replay(id_)
    assert await engine.executions.steps(id_) == []
    lease = await engine.leases.claim_execution(id_, "worker-2")
    await engine.leases.checkpoint(lease.fence, [Step("fetch", b"another")])
    assert [(step.name, step.payload) for step in await engine.executions.steps(id_)] == [("fetch", b"another")]


async def test_a_replay_from_a_step_keeps_what_was_recorded_before_it(engine: Engine) -> None:
    id_ = await completed_with_steps(engine)
    await engine.operator.replay(id_, from_step="charge")
    assert await step_names(engine, id_) == ["fetch"]
    lease = await engine.leases.claim_execution(id_, "worker-2")
    await engine.leases.complete(lease.fence, steps=[Step("charge", b"new"), Step("mail", b"new")])
    found = await engine.executions.steps(id_)
    assert [(step.name, step.payload, step.generation) for step in found] == [
        ("fetch", b"1", 0), ("charge", b"new", 1), ("mail", b"new", 1),
    ]  # fmt: skip
    await engine.operator.replay(id_, from_step="mail")
    assert await step_names(engine, id_) == ["fetch", "charge"]


async def test_a_step_that_does_not_answer_cannot_be_replayed_from(engine: Engine, store: TestStore) -> None:
    id_ = await completed_with_steps(engine)
    await engine.operator.replay(id_, from_step="charge")
    await engine.operator.cancel(id_)
    async with nothing_written(store):
        for name in ("mail", "never recorded"):
            error = await error_of(engine.operator.replay(id_, from_step=name))
            assert isinstance(error, NotFound)
            assert error.code == "step_not_found"
    assert (await engine.executions.describe(id_)).state is State.CANCELLED


async def test_ten_replays_are_the_most_unless_the_policy_allows_fewer(engine: Engine) -> None:
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


async def test_with_the_generation_it_saw_a_caller_can_repeat_itself(
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


async def test_an_execution_that_was_never_attempted_starts_with_its_first_attempt(engine: Engine) -> None:
    id_ = await submitted(engine)
    await engine.operator.cancel(id_)
    await engine.operator.replay(id_)
    lease = await engine.leases.claim_execution(id_, "worker-1")
    assert (lease.attempt_index, lease.generation, lease.origin) == (0, 1, "replayed")
    await engine.leases.complete(lease.fence, b"out")
    assert [item.attempt_index for item in (await engine.executions.describe(id_)).attempts] == [0]


async def test_an_owner_from_before_the_replay_gets_nowhere(engine: Engine) -> None:
    lease = await leased(engine, policy=Policy(on_lease_loss=OnLeaseLoss.HAND_OFF))
    await engine.operator.cancel(lease.execution_id)
    await engine.operator.replay(lease.execution_id)
    await every_write_is_refused(engine, lease.fence, "execution_not_active")
    second = await engine.leases.claim_execution(lease.execution_id, "worker-2")
    await engine.leases.release(second.fence)
    await every_write_is_refused(engine, lease.fence, "stale_lease")


async def completed_with_steps(engine: Engine) -> UUID:
    """A completed execution with three recorded steps."""
    lease: Lease = await leased(engine)
    await engine.leases.checkpoint(lease.fence, STEPS[:2])
    await engine.leases.complete(lease.fence, b"out", steps=STEPS[2:])
    return lease.execution_id


async def step_names(engine: Engine, id_: UUID) -> list[str]:
    return [step.name for step in await engine.executions.steps(id_)]
