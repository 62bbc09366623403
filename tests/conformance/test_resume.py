"""Tests of resume, by which an operator ends any wait."""

from __future__ import annotations

from datetime import timedelta

from flowfabric.engine import AlreadySatisfied, Engine, OperatorOnly, PublicState, Resumed, State, TimeoutOnly
from flowfabric.testing import VirtualClock
from tests.expectations import last_event, nothing_written, refused, stored_row
from tests.scenarios import SITUATIONS, suspended
from tests.stores import TestStore


async def test_resume_closes_the_wait_and_all_its_waitpoints(engine: Engine, clock: VirtualClock) -> None:
    wait = await suspended(engine, ["a", "b"], timeout="1h")
    before = await engine.executions.describe(wait.id)
    clock.advance("1s")
    outcome = await engine.operator.resume(wait.id, "enough", principal="ada")
    assert outcome == Resumed(wait.suspension, PublicState.RESUMABLE)
    after = await engine.executions.describe(wait.id)
    assert (after.state, after.suspension, after.waitpoints) == (State.WAITING, None, ())
    assert (after.version, after.epoch, after.attempts) == (before.version + 1, before.epoch, ())
    assert {waitpoint.close_reason for waitpoint in await engine.waitpoints.list(wait.id)} == {"resumed"}
    event = await last_event(engine, wait.id)
    assert (event.family, event.name, event.principal, event.reason) == ("operator", "resumed", "ada", "enough")
    assert event.details == {"suspension": str(wait.suspension), "trigger": "operator"}
    lease = await engine.leases.claim_resumed(wait.id, "worker-2")
    assert lease.resumption is not None
    assert (lease.resumption.suspension_id, lease.resumption.trigger) == (wait.suspension, "operator")
    await refused(engine.signals.deliver(wait.token("a"), "late"), "waitpoint_closed")


async def test_resumed_wait_has_no_timeout(engine: Engine, clock: VirtualClock, store: TestStore) -> None:
    wait = await suspended(engine, timeout="1m")
    await engine.operator.resume(wait.id)
    clock.advance("2m")
    async with nothing_written(store):
        await engine.reconcilers.tick()


async def test_operator_resumes_waits_that_no_signal_can_end(engine: Engine) -> None:
    for condition, timeout in ((OperatorOnly(), None), (TimeoutOnly(), "1h")):
        wait = await suspended(engine, [], condition, timeout=timeout)
        assert isinstance(await engine.operator.resume(wait.id), Resumed)


async def test_resume_delay_of_the_operator_overrides_that_of_the_suspension(
    engine: Engine, clock: VirtualClock
) -> None:
    for of_suspension, of_operator, seconds in (("10s", None, 10), (0, "5s", 5), ("10s", "5s", 5)):
        wait = await suspended(engine, resume_delay=of_suspension)
        outcome = await engine.operator.resume(wait.id, delay=of_operator)
        assert outcome == Resumed(wait.suspension, PublicState.DELAYED)
        execution = await engine.executions.describe(wait.id)
        assert (execution.state, execution.ready_at) == (State.DELAYED, clock.now() + timedelta(seconds=seconds))
        event = await last_event(engine, wait.id)
        assert (event.family, event.name) == ("operator", "resumed")
        clock.advance(seconds)
        await engine.reconcilers.tick()
        await engine.leases.claim_resumed(wait.id, "worker-2")


async def test_execution_that_is_not_suspended_is_refused(
    engine: Engine, clock: VirtualClock, store: TestStore
) -> None:
    for situation in SITUATIONS:
        if situation != "suspended":
            id_ = await SITUATIONS[situation](engine, clock)
            async with nothing_written(store):
                error = await refused(engine.operator.resume(id_), "execution_not_suspended")
            assert error.fields["state"] == situation.partition(":")[0]


async def test_repeated_resume_of_a_suspension_writes_nothing(engine: Engine, store: TestStore) -> None:
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


async def test_resumed_execution_can_be_claimed_by_every_claim(engine: Engine, store: TestStore) -> None:
    waits = [await suspended(engine) for _ in range(3)]
    for wait in waits:
        await engine.signals.deliver(wait.token(), "go")
    assert (await stored_row(store, waits[0].id))["ownership"] is None
    await engine.leases.claim_execution(waits[0].id, "worker-2")
    await engine.leases.claim_resumed(waits[1].id, "worker-2")
    [lease] = await engine.leases.claim(["default"], "worker-2")
    assert (lease.execution_id, lease.attempt_index) == (waits[2].id, 0)


async def test_resume_writes_a_lifecycle_event(engine: Engine) -> None:
    wait = await suspended(engine)
    await engine.signals.deliver(wait.token(), "go")
    event = await last_event(engine, wait.id)
    assert (event.family, event.name, event.namespace) == ("lifecycle", "resumed", "default")


async def test_execution_resumed_by_an_operator_keeps_its_attempt(engine: Engine) -> None:
    wait = await suspended(engine)
    await engine.operator.resume(wait.id)
    lease = await engine.leases.claim_resumed(wait.id, "worker-2")
    assert lease.attempt_index == 0


async def test_delay_of_an_operator_resume_passes_and_its_waitpoints_are_closed(
    engine: Engine, clock: VirtualClock
) -> None:
    wait = await suspended(engine)
    await engine.operator.resume(wait.id, delay="1m")
    await refused(engine.signals.deliver(wait.token(), "late"), "waitpoint_closed")
    clock.advance("1m")
    await engine.reconcilers.tick()
    await engine.leases.claim_resumed(wait.id, "worker-2")
