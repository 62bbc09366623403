"""Tests of timers in a condition. At the time of a timer, the engine delivers a signal for it."""

from __future__ import annotations

from datetime import timedelta

from flowfabric.engine import (
    Accepted,
    AllOf,
    AnyOf,
    Count,
    Effect,
    Engine,
    InvalidRequest,
    Policy,
    Single,
    State,
    Timer,
)
from flowfabric.testing import VirtualClock
from tests.expectations import event_names, nothing_written, refused
from tests.scenarios import suspended
from tests.stores import TestStore

MINUTE = timedelta(minutes=1)


async def test_timer_fires_at_its_time_and_not_earlier(engine: Engine, clock: VirtualClock, store: TestStore) -> None:
    wait = await suspended(engine, [Timer("t", clock.now() + MINUTE)])
    clock.advance("59.999999s")
    async with nothing_written(store):
        await engine.reconcilers.tick()
    clock.advance(0.000001)
    await engine.reconcilers.tick()
    execution = await engine.executions.describe(wait.id)
    assert (execution.state, execution.waitpoints) == (State.WAITING, ())
    [signal] = await engine.signals.list(wait.id)
    assert (signal.name, signal.category, signal.waitpoint) == ("timer", "system", "t")
    assert (signal.source_type, signal.source_identity) == ("system", "timer")
    assert (signal.accepted_at, signal.effect) == (clock.now(), Effect.SATISFIED)
    assert (await event_names(engine, wait.id))[-2:] == ["signal.delivered", "lifecycle.resumed"]
    async with nothing_written(store):
        await engine.reconcilers.tick()


async def test_timer_has_no_token_and_cannot_be_signalled(engine: Engine, clock: VirtualClock) -> None:
    wait = await suspended(engine, [Timer("t", clock.now() + MINUTE)])
    [waitpoint] = wait.answer.waitpoints
    assert (waitpoint.key, waitpoint.token) == ("t", None)
    assert await engine.keys.list() == ()
    call = engine.signals.deliver("ffw1.k1." + "A" * 60 + "." + "A" * 43, "timer")
    await refused(call, "invalid_token", InvalidRequest)


async def test_condition_can_combine_people_and_timers(engine: Engine, clock: VirtualClock) -> None:
    at = clock.now() + MINUTE
    all_of = await suspended(engine, ["go", Timer("t", at)], AllOf([Single("go"), Single("t")]))
    any_of = await suspended(engine, ["go", Timer("t", at)], AnyOf([Single("go"), Single("t")]))
    early = await suspended(engine, ["go", Timer("t", at)], AnyOf([Single("go"), Single("t")]))
    await engine.signals.deliver(early.token(), "go")
    clock.advance(MINUTE)
    await engine.reconcilers.tick()
    assert (await engine.executions.describe(all_of.id)).state is State.SUSPENDED
    assert (await engine.executions.describe(any_of.id)).state is State.WAITING
    assert [signal.name for signal in await engine.signals.list(early.id)] == ["go"]
    outcome = await engine.signals.deliver(all_of.token(), "go")
    assert isinstance(outcome, Accepted)
    assert outcome.effect is Effect.SATISFIED
    assert [signal.name for signal in await engine.signals.list(all_of.id)] == ["timer", "go"]


async def test_timer_that_did_not_satisfy_fires_once(engine: Engine, clock: VirtualClock, store: TestStore) -> None:
    await suspended(engine, ["go", Timer("t", clock.now() + MINUTE)])
    clock.advance("1h")
    await engine.reconcilers.tick()
    async with nothing_written(store):
        await engine.reconcilers.tick()


async def test_several_timers_of_one_execution_fire_in_order(engine: Engine, clock: VirtualClock) -> None:
    keys = ["c", "a", "b"]
    timers = [Timer(key, clock.now() + index * MINUTE) for index, key in enumerate(keys)]
    wait = await suspended(engine, timers, Count(3, "waitpoints", keys))
    clock.advance("1h")
    for _ in range(3):
        await engine.reconcilers.tick()
    assert (await engine.executions.describe(wait.id)).state is State.WAITING
    assert [signal.waitpoint for signal in await engine.signals.list(wait.id)] == keys


async def test_timer_ends_with_its_wait_and_with_its_execution(
    engine: Engine, clock: VirtualClock, store: TestStore
) -> None:
    resumed = await suspended(engine, [Timer("t", clock.now() + MINUTE)])
    await engine.operator.resume(resumed.id)
    cancelled = await suspended(engine, [Timer("t", clock.now() + MINUTE)])
    await engine.operator.cancel(cancelled.id)
    clock.advance("1h")
    async with nothing_written(store):
        await engine.reconcilers.tick()


async def test_signal_limit_does_not_apply_to_timers(engine: Engine, clock: VirtualClock) -> None:
    submit = {"policy": Policy(max_signals=1)}
    condition = AllOf([Single("go"), Single("t")])
    wait = await suspended(engine, ["go", Timer("t", clock.now() + MINUTE)], condition, submit=submit)
    await engine.signals.deliver(wait.token(), "go")
    clock.advance(MINUTE)
    await engine.reconcilers.tick()
    assert (await engine.executions.describe(wait.id)).state is State.WAITING


async def test_timer_that_is_already_due_fires_at_the_next_run(engine: Engine, clock: VirtualClock) -> None:
    wait = await suspended(engine, [Timer("t", clock.now() - MINUTE)])
    assert (await engine.executions.describe(wait.id)).state is State.SUSPENDED
    await engine.reconcilers.tick()
    assert (await engine.executions.describe(wait.id)).state is State.WAITING
