"""resume: an operator ends a wait, whatever it waits for."""

from __future__ import annotations

from datetime import timedelta

from flowfabric.engine import AlreadySatisfied, Engine, OperatorOnly, PublicState, Resumed, State, TimeoutOnly
from flowfabric.testing import VirtualClock
from tests.facts import last_event, nothing_written, refused
from tests.scenarios import SITUATIONS, suspended
from tests.stores import TestStore


async def test_a_resumed_wait_is_closed_with_all_its_waitpoints(engine: Engine, clock: VirtualClock) -> None:
    wait = await suspended(engine, ["a", "b"], timeout="1h")
    before = await engine.executions.describe(wait.id)
    clock.advance("1s")
    answer = await engine.operator.resume(wait.id, "enough", principal="ada")
    assert answer == Resumed(wait.suspension, PublicState.RESUMABLE)
    after = await engine.executions.describe(wait.id)
    assert (after.state, after.suspension, after.waitpoints) == (State.WAITING, None, ())
    assert (after.version, after.epoch, after.attempts) == (before.version + 1, before.epoch, ())
    assert {item.close_reason for item in await engine.waitpoints.list(wait.id)} == {"resumed"}
    event = await last_event(engine, wait.id)
    assert (event.family, event.name, event.principal, event.reason) == ("operator", "resumed", "ada", "enough")
    assert event.details == {"suspension": str(wait.suspension), "trigger": "operator"}
    lease = await engine.leases.claim_resumed(wait.id, "worker-2")
    assert lease.resumption is not None
    assert (lease.resumption.suspension_id, lease.resumption.trigger) == (wait.suspension, "operator")
    await refused(engine.signals.deliver(wait.token("a"), "late"), "waitpoint_closed")


async def test_no_timeout_comes_after_it(engine: Engine, clock: VirtualClock, store: TestStore) -> None:
    wait = await suspended(engine, timeout="1m")
    await engine.operator.resume(wait.id)
    clock.advance("2m")
    async with nothing_written(store):
        await engine.reconcilers.tick()


async def test_waits_that_no_signal_can_end_are_ended_by_it(engine: Engine) -> None:
    for condition, timeout in ((OperatorOnly(), None), (TimeoutOnly(), "1h")):
        wait = await suspended(engine, [], condition, timeout=timeout)
        assert isinstance(await engine.operator.resume(wait.id), Resumed)


async def test_the_delay_is_kept_and_passes(engine: Engine, clock: VirtualClock) -> None:
    for given, own, seconds in (("10s", None, 10), (0, "5s", 5), ("10s", "5s", 5)):
        wait = await suspended(engine, resume_delay=given)
        answer = await engine.operator.resume(wait.id, delay=own)
        assert answer == Resumed(wait.suspension, PublicState.DELAYED)
        found = await engine.executions.describe(wait.id)
        assert (found.state, found.ready_at) == (State.DELAYED, clock.now() + timedelta(seconds=seconds))
        event = await last_event(engine, wait.id)
        assert (event.family, event.name) == ("operator", "resumed")
        clock.advance(seconds)
        await engine.reconcilers.tick()
        await engine.leases.claim_resumed(wait.id, "worker-2")


async def test_what_is_not_suspended_is_refused(engine: Engine, clock: VirtualClock, store: TestStore) -> None:
    for situation in SITUATIONS:
        if situation != "suspended":
            id_ = await SITUATIONS[situation](engine, clock)
            async with nothing_written(store):
                error = await refused(engine.operator.resume(id_), "execution_not_suspended")
            assert error.fields["state"] == situation.partition(":")[0]


async def test_with_the_suspension_that_was_seen_a_repeat_does_nothing(engine: Engine, store: TestStore) -> None:
    wait = await suspended(engine)
    assert isinstance(await engine.operator.resume(wait.id, suspension=wait.suspension), Resumed)
    async with nothing_written(store):
        again = await engine.operator.resume(wait.id, suspension=wait.suspension)
        assert again == AlreadySatisfied("suspension_closed")
    second = await suspended(engine, ["next"], lease=await engine.leases.claim_resumed(wait.id, "worker-2"))
    async with nothing_written(store):
        again = await engine.operator.resume(wait.id, suspension=wait.suspension)
        assert again == AlreadySatisfied("suspension_closed")
    assert (await engine.executions.describe(second.id)).state is State.SUSPENDED
