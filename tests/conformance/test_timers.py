"""Timers in a condition: the engine delivers a signal when their time has come, so time can be one member of many."""

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
)  # fmt: skip
from flowfabric.testing import VirtualClock
from tests.facts import event_names, nothing_written, refused
from tests.scenarios import suspended
from tests.stores import TestStore

MINUTE = timedelta(minutes=1)


async def test_a_timer_fires_at_its_time_and_not_before(engine: Engine, clock: VirtualClock, store: TestStore) -> None:
    wait = await suspended(engine, [Timer("t", clock.now() + MINUTE)])
    clock.advance("59.999999s")
    async with nothing_written(store):
        await engine.reconcilers.tick()
    clock.advance(0.000001)
    await engine.reconcilers.tick()
    found = await engine.executions.describe(wait.id)
    assert (found.state, found.waitpoints) == (State.WAITING, ())
    [signal] = await engine.signals.observe(wait.id)
    assert (signal.name, signal.category, signal.waitpoint) == ("timer", "system", "t")
    assert (signal.source_type, signal.source_identity) == ("system", "timer")
    assert (signal.accepted_at, signal.effect) == (clock.now(), Effect.SATISFIED)
    assert (await event_names(engine, wait.id))[-2:] == ["signal.delivered", "lifecycle.resumed"]
    async with nothing_written(store):
        await engine.reconcilers.tick()


async def test_it_has_no_token_and_nobody_can_address_it(engine: Engine, clock: VirtualClock) -> None:
    wait = await suspended(engine, [Timer("t", clock.now() + MINUTE)])
    [shown] = wait.answer.waitpoints
    assert (shown.key, shown.token) == ("t", None)
    assert await engine.keys.list() == ()
    call = engine.signals.deliver("ffw1.k1." + "A" * 60 + "." + "A" * 43, "timer")
    await refused(call, "invalid_token", InvalidRequest)


async def test_people_and_time_can_be_mixed(engine: Engine, clock: VirtualClock) -> None:
    at = clock.now() + MINUTE
    both = await suspended(engine, ["go", Timer("t", at)], AllOf([Single("go"), Single("t")]))
    either = await suspended(engine, ["go", Timer("t", at)], AnyOf([Single("go"), Single("t")]))
    early = await suspended(engine, ["go", Timer("t", at)], AnyOf([Single("go"), Single("t")]))
    await engine.signals.deliver(early.token(), "go")
    clock.advance(MINUTE)
    await engine.reconcilers.tick()
    assert (await engine.executions.describe(both.id)).state is State.SUSPENDED
    assert (await engine.executions.describe(either.id)).state is State.WAITING
    assert [signal.name for signal in await engine.signals.observe(early.id)] == ["go"]
    answer = await engine.signals.deliver(both.token(), "go")
    assert isinstance(answer, Accepted)
    assert answer.effect is Effect.SATISFIED
    assert [signal.name for signal in await engine.signals.observe(both.id)] == ["timer", "go"]


async def test_a_timer_that_did_not_satisfy_fires_once(engine: Engine, clock: VirtualClock, store: TestStore) -> None:
    await suspended(engine, ["go", Timer("t", clock.now() + MINUTE)])
    clock.advance("1h")
    await engine.reconcilers.tick()
    async with nothing_written(store):
        await engine.reconcilers.tick()


async def test_several_timers_of_one_execution_fire_one_after_another_in_order(
    engine: Engine, clock: VirtualClock
) -> None:
    keys = ["c", "a", "b"]
    timers = [Timer(key, clock.now() + place * MINUTE) for place, key in enumerate(keys)]
    wait = await suspended(engine, timers, Count(3, "waitpoints", keys))
    clock.advance("1h")
    for _ in range(3):
        await engine.reconcilers.tick()
    assert (await engine.executions.describe(wait.id)).state is State.WAITING
    assert [signal.waitpoint for signal in await engine.signals.observe(wait.id)] == keys


async def test_a_timer_ends_with_its_wait_and_with_its_execution(
    engine: Engine, clock: VirtualClock, store: TestStore
) -> None:
    resumed = await suspended(engine, [Timer("t", clock.now() + MINUTE)])
    await engine.operator.resume(resumed.id)
    cancelled = await suspended(engine, [Timer("t", clock.now() + MINUTE)])
    await engine.operator.cancel(cancelled.id)
    clock.advance("1h")
    async with nothing_written(store):
        await engine.reconcilers.tick()


async def test_no_limit_of_signals_keeps_a_timer_out(engine: Engine, clock: VirtualClock) -> None:
    submit = {"policy": Policy(max_signals=1)}
    condition = AllOf([Single("go"), Single("t")])
    wait = await suspended(engine, ["go", Timer("t", clock.now() + MINUTE)], condition, submit=submit)
    await engine.signals.deliver(wait.token(), "go")
    clock.advance(MINUTE)
    await engine.reconcilers.tick()
    assert (await engine.executions.describe(wait.id)).state is State.WAITING


async def test_a_timer_that_is_due_already_fires_at_the_next_run(engine: Engine, clock: VirtualClock) -> None:
    wait = await suspended(engine, [Timer("t", clock.now() - MINUTE)])
    assert (await engine.executions.describe(wait.id)).state is State.SUSPENDED
    await engine.reconcilers.tick()
    assert (await engine.executions.describe(wait.id)).state is State.WAITING
