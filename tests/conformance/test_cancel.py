"""cancel: an operator ends whatever has not ended, a worker what it works on; who and why are recorded."""

from __future__ import annotations

from flowfabric.engine import AttemptOutcome, Ended, Engine, State, Step, WorkerId
from flowfabric.testing import VirtualClock
from tests.facts import LIVE, every_write_is_refused, last_event, nothing_written, refused
from tests.scenarios import SITUATIONS, leased, submitted
from tests.stores import TestStore

CANCELLED = Ended(State.CANCELLED)


async def test_every_live_situation_can_be_cancelled(engine: Engine, clock: VirtualClock) -> None:
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
    found, event = await engine.executions.describe(id_), await last_event(engine, id_)
    assert (found.cancelled_by, found.cancel_reason) == ("cleanup", "not wanted")
    assert (event.family, event.name, event.principal, event.reason) == ("completion", "cancelled", "ada", "not wanted")
    outcome = await engine.executions.result(id_)
    assert outcome is not None
    assert (outcome.state, outcome.cancelled_by, outcome.cancel_reason) == (State.CANCELLED, "cleanup", "not wanted")
    assert (outcome.result, outcome.failure) == (None, None)


async def test_a_second_cancel_answers_alike_and_writes_nothing(engine: Engine, store: TestStore) -> None:
    id_ = await submitted(engine)
    await engine.operator.cancel(id_, "first", source="one")
    async with nothing_written(store):
        assert await engine.operator.cancel(id_, "second", source="two") == CANCELLED


async def test_another_outcome_is_refused_and_stays(engine: Engine, clock: VirtualClock) -> None:
    for situation in ("completed", "failed", "expired"):
        id_ = await SITUATIONS[situation](engine, clock)
        before = await engine.executions.describe(id_)
        error = await refused(engine.operator.cancel(id_), "execution_not_active")
        told = (error.fields["state"], error.fields["outcome"])
        assert told == (before.state, before.vector.terminal_outcome), situation
        assert await engine.executions.describe(id_) == before, situation


async def test_the_running_attempt_ends_cancelled_and_its_worker_is_fenced_off(engine: Engine) -> None:
    lease = await leased(engine)
    await engine.operator.cancel(lease.execution_id, "stop")
    [attempt] = (await engine.executions.describe(lease.execution_id)).attempts
    assert (attempt.attempt_index, attempt.outcome) == (0, AttemptOutcome.CANCELLED)
    assert (await last_event(engine, lease.execution_id)).ends_lease
    await every_write_is_refused(engine, lease.fence, "execution_not_active")


async def test_an_attempt_that_was_begun_ends_cancelled_whoever_has_it(engine: Engine, clock: VirtualClock) -> None:
    for situation in ("waiting: resumable", "delayed: resting", "active: kept, lease expired"):
        id_ = await SITUATIONS[situation](engine, clock)
        await engine.operator.cancel(id_)
        found = await engine.executions.describe(id_)
        assert [attempt.outcome for attempt in found.attempts] == [AttemptOutcome.CANCELLED], situation
        assert found.vector.attempt_state == "attempt_terminal", situation
        assert not (await last_event(engine, id_)).ends_lease, situation
    never = await submitted(engine, delay="1h")
    await engine.operator.cancel(never)
    assert (await engine.executions.describe(never)).attempts == ()


async def test_cancelled_work_is_never_given_out_nor_made_ready(engine: Engine, clock: VirtualClock) -> None:
    waiting, delayed = await submitted(engine), await submitted(engine, delay="1m")
    for id_ in (waiting, delayed):
        await engine.operator.cancel(id_)
    clock.advance("1h")
    await engine.reconcilers.tick()
    assert await engine.leases.claim(["default"], "worker-2", limit=10) == []
    await refused(engine.leases.claim_execution(waiting, "worker-2"), "execution_not_leaseable")


async def test_a_worker_cancels_what_it_works_on(engine: Engine) -> None:
    lease = await leased(engine, worker="worker-1")
    assert await engine.leases.cancel(lease.fence, "no use", steps=[Step("seen", b"1")]) == CANCELLED
    found, event = await engine.executions.describe(lease.execution_id), await last_event(engine, lease.execution_id)
    assert (found.state, found.epoch) == (State.CANCELLED, lease.epoch + 1)
    assert (found.cancelled_by, found.cancel_reason) == ("lease_holder", "no use")
    assert [attempt.outcome for attempt in found.attempts] == [AttemptOutcome.CANCELLED]
    assert found.attempts[0].worker == WorkerId("worker-1", "worker-1")
    assert (event.name, event.principal, event.reason, event.ends_lease) == ("cancelled", "worker-1", "no use", True)
    assert [step.name for step in await engine.executions.steps(lease.execution_id)] == ["seen"]


async def test_a_lost_reply_of_an_own_cancel_is_answered_again(engine: Engine, store: TestStore) -> None:
    lease = await leased(engine)
    await engine.leases.cancel(lease.fence, "no use")
    async with nothing_written(store):
        assert await engine.leases.cancel(lease.fence, "no use") == CANCELLED
        error = await refused(engine.leases.cancel(lease.fence, "another reason"), "execution_not_active")
        assert await engine.operator.cancel(lease.execution_id, "too late") == CANCELLED
    assert error.fields["outcome"] == "cancelled"


async def test_an_own_cancel_needs_a_live_lease(engine: Engine, clock: VirtualClock) -> None:
    lease = await leased(engine)
    clock.advance("30s")
    await refused(engine.leases.cancel(lease.fence), "lease_expired")
    assert (await engine.executions.describe(lease.execution_id)).state is State.ACTIVE
