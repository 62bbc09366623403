"""Tests of cancel. An operator cancels any live execution; a worker cancels the execution that it runs."""

from __future__ import annotations

import asyncio

import pytest

from flowfabric.engine import AttemptOutcome, Ended, Engine, Fence, NotFound, Refused, State, Step, WorkerId
from flowfabric.testing import VirtualClock
from tests.expectations import LIVE, every_write_is_refused, last_event, nothing_written, refused
from tests.scenarios import SITUATIONS, leased, submitted
from tests.stores import TestStore

CANCELLED = Ended(State.CANCELLED)


async def test_every_live_execution_can_be_cancelled(engine: Engine, clock: VirtualClock) -> None:
    for situation in LIVE:
        id_ = await SITUATIONS[situation](engine, clock)
        before = await engine.executions.describe(id_)
        assert await engine.operator.cancel(id_, "not wanted") == CANCELLED, situation
        after = await engine.executions.describe(id_)
        assert after.state is State.CANCELLED, situation
        assert after.epoch == before.epoch + 1, situation
        assert after.version == before.version + 1, situation
        assert after.ended_at == after.changed_at == clock.now(), situation
        assert (after.lease, after.ready_at, after.hold_reason) == (None, None, None), situation


async def test_source_reason_and_principal_are_recorded(engine: Engine) -> None:
    id_ = await submitted(engine)
    await engine.operator.cancel(id_, "not wanted", source="cleanup", principal="ada")
    execution, event = await engine.executions.describe(id_), await last_event(engine, id_)
    assert (execution.cancelled_by, execution.cancel_reason) == ("cleanup", "not wanted")
    assert (event.family, event.name, event.principal, event.reason) == ("completion", "cancelled", "ada", "not wanted")
    outcome = await engine.executions.result(id_)
    assert outcome is not None
    assert (outcome.state, outcome.cancelled_by, outcome.cancel_reason) == (State.CANCELLED, "cleanup", "not wanted")
    assert (outcome.result, outcome.failure) == (None, None)


async def test_second_cancel_returns_the_same_outcome_and_writes_nothing(engine: Engine, store: TestStore) -> None:
    id_ = await submitted(engine)
    await engine.operator.cancel(id_, "first", source="one")
    async with nothing_written(store):
        assert await engine.operator.cancel(id_, "second", source="two") == CANCELLED


async def test_cancel_of_another_outcome_is_refused_and_changes_nothing(engine: Engine, clock: VirtualClock) -> None:
    for situation in ("completed", "failed", "expired"):
        id_ = await SITUATIONS[situation](engine, clock)
        before = await engine.executions.describe(id_)
        error = await refused(engine.operator.cancel(id_), "execution_not_active")
        reported = (error.fields["state"], error.fields["outcome"])
        assert reported == (before.state, before.vector.terminal_outcome), situation
        assert await engine.executions.describe(id_) == before, situation


async def test_running_attempt_is_cancelled_and_its_worker_is_fenced_off(engine: Engine) -> None:
    lease = await leased(engine)
    await engine.operator.cancel(lease.execution_id, "stop")
    [attempt] = (await engine.executions.describe(lease.execution_id)).attempts
    assert (attempt.attempt_index, attempt.outcome) == (0, AttemptOutcome.CANCELLED)
    assert (await last_event(engine, lease.execution_id)).ends_lease
    await every_write_is_refused(engine, lease.fence, "execution_not_active")


async def test_started_attempt_is_cancelled_in_every_interrupted_state(engine: Engine, clock: VirtualClock) -> None:
    for situation in ("waiting: resumable", "delayed: resting", "active: kept, lease expired"):
        id_ = await SITUATIONS[situation](engine, clock)
        await engine.operator.cancel(id_)
        execution = await engine.executions.describe(id_)
        assert [attempt.outcome for attempt in execution.attempts] == [AttemptOutcome.CANCELLED], situation
        assert execution.vector.attempt_state == "attempt_terminal", situation
        assert not (await last_event(engine, id_)).ends_lease, situation
    unstarted = await submitted(engine, delay="1h")
    await engine.operator.cancel(unstarted)
    assert (await engine.executions.describe(unstarted)).attempts == ()


async def test_cancelled_work_is_never_claimed_nor_made_ready(engine: Engine, clock: VirtualClock) -> None:
    waiting, delayed = await submitted(engine), await submitted(engine, delay="1m")
    for id_ in (waiting, delayed):
        await engine.operator.cancel(id_)
    clock.advance("1h")
    await engine.reconcilers.tick()
    assert await engine.leases.claim(["default"], "worker-2", limit=10) == []
    await refused(engine.leases.claim_execution(waiting, "worker-2"), "execution_not_leaseable")


async def test_worker_cancels_its_own_execution(engine: Engine) -> None:
    lease = await leased(engine, worker="worker-1")
    assert await engine.leases.cancel(lease.fence, "no use", steps=[Step("seen", b"1")]) == CANCELLED
    execution, event = (
        await engine.executions.describe(lease.execution_id),
        await last_event(engine, lease.execution_id),
    )
    assert (execution.state, execution.epoch) == (State.CANCELLED, lease.epoch + 1)
    assert (execution.cancelled_by, execution.cancel_reason) == ("lease_holder", "no use")
    assert [attempt.outcome for attempt in execution.attempts] == [AttemptOutcome.CANCELLED]
    assert execution.attempts[0].worker == WorkerId("worker-1", "worker-1")
    assert (event.name, event.principal, event.reason, event.ends_lease) == ("cancelled", "worker-1", "no use", True)
    assert [step.name for step in await engine.executions.steps(lease.execution_id)] == ["seen"]


async def test_repeated_cancel_by_the_worker_returns_the_recorded_outcome(engine: Engine, store: TestStore) -> None:
    lease = await leased(engine)
    await engine.leases.cancel(lease.fence, "no use")
    async with nothing_written(store):
        assert await engine.leases.cancel(lease.fence, "no use") == CANCELLED
        error = await refused(engine.leases.cancel(lease.fence, "another reason"), "execution_not_active")
        assert await engine.operator.cancel(lease.execution_id, "too late") == CANCELLED
    assert error.fields["outcome"] == "cancelled"


async def test_cancel_by_the_worker_needs_a_live_lease(engine: Engine, clock: VirtualClock) -> None:
    lease = await leased(engine)
    clock.advance("30s")
    await refused(engine.leases.cancel(lease.fence), "lease_expired")
    assert (await engine.executions.describe(lease.execution_id)).state is State.ACTIVE


async def test_worker_cancels_only_its_own_execution_and_ends_lease_and_attempt(engine: Engine) -> None:
    lease = await leased(engine)
    foreign = Fence(lease.execution_id, lease.epoch, (await leased(engine)).fence.lease_id)
    with pytest.raises(Refused, match="stale_lease"):
        await engine.leases.cancel(foreign)
    with pytest.raises(NotFound, match="execution_not_found"):
        await engine.leases.cancel(Fence(lease.fence.lease_id, 1, lease.fence.lease_id))
    assert await engine.leases.cancel(lease.fence, "enough") == Ended(State.CANCELLED)
    execution = await engine.executions.describe(lease.execution_id)
    assert (execution.lease, execution.epoch, execution.attempts[0].outcome) == (
        None,
        lease.epoch + 1,
        "ended_cancelled",
    )
    last = (await engine.executions.history(lease.execution_id))[-1]
    assert (last.family, last.name, last.ends_lease) == ("completion", "cancelled", True)


async def test_cancel_of_delayed_work_ends_the_attempt_and_allows_a_replay(engine: Engine) -> None:
    lease = await leased(engine)
    await engine.leases.delay(lease.fence, after="1h")
    await engine.operator.cancel(lease.execution_id, "not wanted", source="budget")
    execution = await engine.executions.describe(lease.execution_id)
    assert (execution.attempts[0].outcome, execution.cancelled_by, execution.ready_at) == (
        "ended_cancelled",
        "budget",
        None,
    )
    assert [event.family for event in await engine.executions.history(lease.execution_id)][-1] == "completion"
    await engine.operator.replay(lease.execution_id)
    assert (await engine.leases.claim_execution(lease.execution_id, "w")).origin == "replayed"


async def test_concurrent_cancel_and_complete_do_not_deadlock_and_the_loser_gets_the_outcome(engine: Engine) -> None:
    for steps in ([], [Step("last")]):
        lease = await leased(engine)
        outcomes = await asyncio.gather(
            engine.leases.complete(lease.fence, b"out", steps=steps),
            engine.operator.cancel(lease.execution_id),
            return_exceptions=True,
        )
        [loser] = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
        assert isinstance(loser, Refused)
        execution = await engine.executions.describe(lease.execution_id)
        assert (loser.code, loser.fields["state"]) == ("execution_not_active", execution.state)
