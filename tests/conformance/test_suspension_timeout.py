"""Tests of the suspension timeout with its five behaviours."""

from __future__ import annotations

from datetime import timedelta

import pytest

from flowfabric.engine import (
    AllOf,
    AttemptOutcome,
    Effect,
    Engine,
    OnTimeout,
    Policy,
    PublicState,
    Resumed,
    Single,
    State,
    TimeoutOnly,
    WaitpointState,
)
from flowfabric.testing import VirtualClock
from tests.concurrency.soundness import assert_sound
from tests.expectations import event_names, last_event, nothing_written, refused
from tests.scenarios import suspended
from tests.stores import TestStore

ENDINGS = {
    "fail": (State.FAILED, "completion.failed", AttemptOutcome.FAILURE),
    "cancel": (State.CANCELLED, "completion.cancelled", AttemptOutcome.CANCELLED),
    "expire": (State.EXPIRED, "completion.expired", AttemptOutcome.FAILURE),
}


@pytest.mark.parametrize("on_timeout", OnTimeout)
async def test_timeout_never_fires_early(
    engine: Engine, clock: VirtualClock, store: TestStore, on_timeout: str
) -> None:
    await suspended(engine, timeout="1h", on_timeout=on_timeout)
    clock.advance("59m")
    clock.advance("59.999999s")
    async with nothing_written(store):
        await engine.reconcilers.tick()
    clock.advance(0.000001)
    ticks = {tick.duty: tick.done for tick in await engine.reconcilers.tick()}
    assert ticks["suspension_timeout"] == 1
    async with nothing_written(store):
        await engine.reconcilers.tick()


@pytest.mark.parametrize("on_timeout", ENDINGS)
async def test_timeout_ends_the_execution_with_its_outcome_and_closes_everything(
    engine: Engine, clock: VirtualClock, on_timeout: str
) -> None:
    state, event_name, outcome = ENDINGS[on_timeout]
    submit = {"policy": Policy(max_retries=3), "signals": ["mail"]}
    wait = await suspended(engine, ["a", "b"], submit=submit, timeout="1h", on_timeout=on_timeout)
    await engine.signals.deliver(wait.token("a"), "go")
    before = await engine.executions.describe(wait.id)
    clock.advance("1h")
    await engine.reconcilers.tick()
    after = await engine.executions.describe(wait.id)
    assert (after.state, after.vector.public_state) == (state, state.value)
    assert (after.suspension, after.waitpoints, after.lease) == (None, (), None)
    assert (after.version, after.epoch) == (before.version + 1, before.epoch + 1)
    assert after.ended_at == clock.now()
    [attempt] = after.attempts
    assert (attempt.attempt_index, attempt.outcome, attempt.ended_at) == (0, outcome, clock.now())
    reasons = {waitpoint.key: waitpoint.close_reason for waitpoint in await engine.waitpoints.list(wait.id)}
    assert reasons == {"a": "timed_out", "b": "timed_out", "mail": "ended"}
    assert (await event_names(engine, wait.id))[-1] == event_name
    assert sum(name.startswith("completion.") for name in await event_names(engine, wait.id)) == 1
    result = await engine.executions.result(wait.id)
    assert result is not None
    if on_timeout == "cancel":
        assert (result.failure, result.cancelled_by) == (None, "suspension_timeout")
    else:
        assert result.failure is not None
        assert result.failure.category == "suspension_timeout"
    for token in (wait.token("a"), wait.token("b")):
        await refused(engine.signals.deliver(token, "late"), "token_expired")


async def test_auto_resume_adds_a_timeout_signal(engine: Engine, clock: VirtualClock) -> None:
    wait = await suspended(engine, ["a", "b"], timeout="1h", on_timeout="auto_resume")
    await engine.signals.deliver(wait.token("a"), "first")
    await engine.signals.deliver(wait.token("a"), "nothing new")
    clock.advance("1h")
    await engine.reconcilers.tick()
    execution = await engine.executions.describe(wait.id)
    assert (execution.state, execution.vector.public_state) == (State.WAITING, PublicState.RESUMABLE)
    assert (execution.suspension, execution.waitpoints) == (None, ())
    event = await last_event(engine, wait.id)
    assert (event.family, event.name) == ("lifecycle", "resumed")
    assert event.details == {"suspension": str(wait.suspension), "trigger": "timeout"}
    first, timeout = await engine.signals.list(wait.id)
    assert first.name == "first"
    assert (timeout.name, timeout.category, timeout.payload) == ("timeout", "system", b"")
    assert (timeout.source_type, timeout.source_identity) == ("system", "suspension_timeout")
    assert (timeout.accepted_at, timeout.effect, timeout.seq) == (clock.now(), Effect.SATISFIED, 3)
    lease = await engine.leases.claim_resumed(wait.id, "worker-2")
    assert lease.resumption is not None
    assert (lease.resumption.suspension_id, lease.resumption.trigger) == (wait.suspension, "timeout")
    next_wait = await suspended(engine, ["c"], lease=lease)
    await engine.signals.deliver(next_wait.token("c"), "go")
    assert [signal.name for signal in await engine.signals.list(wait.id)] == ["go"]


async def test_timeout_signal_of_the_engine_cannot_be_forged(engine: Engine, clock: VirtualClock) -> None:
    wait = await suspended(engine, timeout="1h", on_timeout="auto_resume")
    await engine.signals.deliver(
        wait.token(), "timeout", category="system", source_type="system", source_identity="suspension_timeout"
    )
    [forged] = await engine.signals.list(wait.id)
    other_wait = await suspended(engine, timeout="1h", on_timeout="auto_resume")
    clock.advance("1h")
    await engine.reconcilers.tick()
    [genuine] = await engine.signals.list(other_wait.id)
    assert forged.source.startswith("claimed:")
    assert genuine.source.startswith("engine:")


async def test_auto_resume_waits_for_the_resume_delay(engine: Engine, clock: VirtualClock) -> None:
    wait = await suspended(engine, [], TimeoutOnly(), timeout="1h", on_timeout="auto_resume", resume_delay="1m")
    clock.advance("1h")
    await engine.reconcilers.tick()
    execution = await engine.executions.describe(wait.id)
    assert (execution.state, execution.ready_at) == (State.DELAYED, clock.now() + timedelta(minutes=1))


async def test_escalated_wait_stays_suspended_for_an_operator_without_a_timer(
    engine: Engine, clock: VirtualClock, store: TestStore
) -> None:
    wait = await suspended(engine, timeout="1h", on_timeout="escalate")
    before = await engine.executions.describe(wait.id)
    clock.advance("1h")
    await engine.reconcilers.tick()
    execution = await engine.executions.describe(wait.id)
    assert (execution.state, execution.version, execution.epoch) == (State.SUSPENDED, before.version + 1, before.epoch)
    assert execution.vector.blocking_reason.value == "paused_by_operator"
    assert execution.suspension is not None
    assert (execution.suspension.id, execution.suspension.timeout_at) == (wait.suspension, None)
    assert [waitpoint.state for waitpoint in execution.waitpoints] == [WaitpointState.ACTIVE]
    assert (await event_names(engine, wait.id))[-1] == "lifecycle.blocked"
    clock.advance("30d")
    async with nothing_written(store):
        await engine.reconcilers.tick()
    assert isinstance(await engine.operator.resume(wait.id), Resumed)
    lease = await engine.leases.claim_resumed(wait.id, "worker-2")
    assert lease.resumption is not None
    assert lease.resumption.trigger == "operator"


@pytest.mark.parametrize("on_timeout", OnTimeout)
async def test_timeout_does_not_affect_resumed_or_ended_executions(
    engine: Engine, clock: VirtualClock, store: TestStore, on_timeout: str
) -> None:
    waiting = await suspended(engine, timeout="1h", on_timeout=on_timeout)
    running = await suspended(engine, timeout="1h", on_timeout=on_timeout)
    finished = await suspended(engine, timeout="1h", on_timeout=on_timeout)
    cancelled = await suspended(engine, timeout="1h", on_timeout=on_timeout)
    for wait in (waiting, running, finished):
        await engine.signals.deliver(wait.token(), "go")
    await engine.leases.claim_resumed(running.id, "worker-2", lease_ttl="2h")
    lease = await engine.leases.claim_resumed(finished.id, "worker-2")
    await engine.leases.complete(lease.fence, b"out")
    await engine.operator.cancel(cancelled.id)
    clock.advance("1h")
    async with nothing_written(store):
        await engine.reconcilers.tick()


async def test_timeout_of_an_earlier_suspension_does_not_end_a_later_one(engine: Engine, clock: VirtualClock) -> None:
    first = await suspended(engine, timeout="1h")
    await engine.signals.deliver(first.token(), "go")
    second = await suspended(
        engine, ["next"], lease=await engine.leases.claim_resumed(first.id, "worker-2"), timeout="3h"
    )
    clock.advance("2h")
    await engine.reconcilers.tick()
    assert (await engine.executions.describe(second.id)).state is State.SUSPENDED
    clock.advance("1h")
    await engine.reconcilers.tick()
    assert (await engine.executions.describe(second.id)).state is State.FAILED


async def test_earlier_of_timeout_and_deadline_wins(engine: Engine, clock: VirtualClock) -> None:
    wait = await suspended(engine, submit={"policy": Policy(deadline="2h")}, timeout="1h", on_timeout="escalate")
    clock.advance("1h")
    await engine.reconcilers.tick()
    assert (await engine.executions.describe(wait.id)).state is State.SUSPENDED
    clock.advance("1h")
    await engine.reconcilers.tick()
    assert (await engine.executions.describe(wait.id)).state is State.EXPIRED


async def test_timeout_in_the_recent_past_is_due_immediately(engine: Engine, clock: VirtualClock) -> None:
    wait = await suspended(engine, timeout_at=clock.now() - timedelta(minutes=9), on_timeout="auto_resume")
    await refused(engine.signals.deliver(wait.token(), "go"), "token_expired")
    await engine.reconcilers.tick()
    assert (await engine.executions.describe(wait.id)).state is State.WAITING


async def test_one_run_ends_many_suspensions_each_by_its_own_behaviour(engine: Engine, clock: VirtualClock) -> None:
    waits = {kind: [await suspended(engine, timeout="1h", on_timeout=kind) for _ in range(4)] for kind in OnTimeout}
    condition = AllOf([Single("a"), Single("b")])
    later = await suspended(engine, ["a", "b"], condition, timeout="2h")
    clock.advance("1h")
    ticks = {tick.duty: tick.done for tick in await engine.reconcilers.tick()}
    assert ticks["suspension_timeout"] == 20
    expected = {"fail": "failed", "cancel": "cancelled", "expire": "expired", "auto_resume": "waiting"}
    for kind, group in waits.items():
        states = {(await engine.executions.describe(wait.id)).state.value for wait in group}
        assert states == {expected.get(kind.value, "suspended")}
    assert (await engine.executions.describe(later.id)).state is State.SUSPENDED


@pytest.mark.parametrize("on_timeout", OnTimeout)
async def test_timeout_of_a_suspension_does_not_survive_its_resume(
    engine: Engine, clock: VirtualClock, store: TestStore, on_timeout: OnTimeout
) -> None:
    wait = await suspended(engine, timeout="1h", on_timeout=on_timeout)
    await engine.signals.deliver(wait.token(), "go")
    lease = await engine.leases.claim_resumed(wait.id, "worker-2", lease_ttl="3h")
    clock.advance("2h")
    async with nothing_written(store):
        await engine.reconcilers.tick()
    await engine.leases.complete(lease.fence, b"out")
    async with nothing_written(store):
        await engine.reconcilers.tick()
    assert sum(name.startswith("completion.") for name in await event_names(engine, wait.id)) == 1
    await assert_sound(store)


async def test_signal_of_an_auto_resume_can_be_read(engine: Engine, clock: VirtualClock) -> None:
    wait = await suspended(engine, timeout="1h", on_timeout="auto_resume")
    clock.advance("1h")
    await engine.reconcilers.tick()
    await engine.leases.claim_resumed(wait.id, "worker-2")
    assert [signal.name for signal in await engine.signals.list(wait.id)] == ["timeout"]


async def test_timeout_with_fail_fails_and_escalate_stays_suspended(engine: Engine, clock: VirtualClock) -> None:
    waits = [await suspended(engine, timeout="1h", on_timeout=kind) for kind in ("fail", "escalate", "expire")]
    clock.advance("1h")
    await engine.reconcilers.tick()
    states = [(await engine.executions.describe(wait.id)).state.value for wait in waits]
    assert states == ["failed", "suspended", "expired"]
    assert (await engine.executions.describe(waits[0].id)).cancel_reason is None


async def test_timeout_ends_the_execution_its_attempt_and_its_waitpoints(
    engine: Engine, clock: VirtualClock, store: TestStore
) -> None:
    wait = await suspended(engine, timeout="1h")
    clock.advance("1h")
    await engine.reconcilers.tick()
    execution = await engine.executions.describe(wait.id)
    assert (execution.vector.public_state.value, execution.waitpoints, execution.suspension) == ("failed", (), None)
    assert [attempt.outcome.value for attempt in execution.attempts] == ["ended_failure"]
    assert await engine.waitpoints.list_suspended() == []
    await assert_sound(store)
