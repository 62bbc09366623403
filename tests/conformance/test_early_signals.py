"""Tests of signals that arrive before the suspend. They satisfy its condition immediately or count later."""

from __future__ import annotations

from flowfabric.core.executions.outcomes import Satisfied
from flowfabric.core.waits.records import Trigger
from flowfabric.engine import (
    AnyOf,
    Count,
    Counted,
    Engine,
    PendingWaitpoint,
    Policy,
    Single,
    State,
    WaitpointState,
)
from flowfabric.testing import VirtualClock
from tests.expectations import last_event, nothing_written
from tests.scenarios import early, leased, suspended
from tests.stores import TestStore


async def test_early_signals_satisfy_the_suspend_immediately_and_the_lease_is_kept(
    engine: Engine, store: TestStore, clock: VirtualClock
) -> None:
    lease = await leased(engine)
    early = await engine.waitpoints.create(lease.fence, "go")
    await engine.signals.deliver(early.token or "", "approved", b"1")
    before = await engine.executions.describe(lease.execution_id)
    outcome = await engine.leases.suspend(lease.fence, [PendingWaitpoint("go")], Single("go", "approved"), key="step-1")
    assert isinstance(outcome, Satisfied)
    assert (outcome.by, [signal.payload for signal in outcome.signals]) == (Trigger.SIGNALS, [b"1"])
    after = await engine.executions.describe(lease.execution_id)
    assert (after.state, after.epoch, after.lease) == (State.ACTIVE, before.epoch, before.lease)
    assert (after.version, after.suspension, after.waitpoints) == (before.version + 1, None, ())
    event = await last_event(engine, lease.execution_id)
    assert (event.family, event.name, event.ends_lease) == ("lifecycle", "resumed", False)
    [closed] = await engine.waitpoints.list(lease.execution_id)
    assert (closed.state, closed.close_reason) == (WaitpointState.CLOSED, "resumed")
    async with nothing_written(store):
        repeated_outcome = await engine.leases.suspend(
            lease.fence, [PendingWaitpoint("go")], Single("go", "approved"), key="step-1"
        )
        assert repeated_outcome == outcome
    await engine.leases.complete(lease.fence)
    async with nothing_written(store):
        repeated_outcome = await engine.leases.suspend(
            lease.fence, [PendingWaitpoint("go")], Single("go", "approved"), key="step-1"
        )
        assert repeated_outcome == outcome


async def test_new_waitpoints_of_an_immediately_satisfied_wait_are_closed_too(engine: Engine) -> None:
    lease = await leased(engine)
    early = await engine.waitpoints.create(lease.fence, "a")
    await engine.signals.deliver(early.token or "", "go")
    outcome = await engine.leases.suspend(lease.fence, ["a", "b"], AnyOf([Single("a"), Single("b")]))
    assert isinstance(outcome, Satisfied)
    states = {waitpoint.key: waitpoint.state for waitpoint in await engine.waitpoints.list(lease.execution_id)}
    assert states == {"a": WaitpointState.CLOSED, "b": WaitpointState.CLOSED}


async def test_buffered_signals_that_do_not_satisfy_are_kept_and_count_later(engine: Engine) -> None:
    lease = await leased(engine)
    keys = ["a", "b"]
    early = [await engine.waitpoints.create(lease.fence, key) for key in keys]
    await engine.signals.deliver(early[0].token or "", "no")
    await engine.signals.deliver(early[0].token or "", "yes", source_identity="ada")
    wait = await suspended(
        engine, [PendingWaitpoint("a"), PendingWaitpoint("b")], Count(2, "sources", keys, "yes"), lease=lease
    )
    execution = await engine.executions.describe(wait.id)
    assert execution.suspension is not None
    assert "1 more of 2 sources" in execution.suspension.missing[0]
    repeated_source = await engine.signals.deliver(wait.token("b"), "yes", source_identity="ada")
    assert getattr(repeated_source, "counted", None) is Counted.NOTHING_NEW
    await engine.signals.deliver(wait.token("b"), "yes", source_identity="bob")
    signals = await engine.signals.list(wait.id)
    assert [signal.source_identity for signal in signals] == ["ada", "bob"]
    names = [signal.name for signal in await engine.signals.list(wait.id, include_unmatched=True)]
    assert names == ["no", "yes", "yes", "yes"]


async def test_later_attempt_can_wait_on_a_waitpoint_of_an_earlier_one(engine: Engine, clock: VirtualClock) -> None:
    """Waitpoints belong to the execution, so retries, reclaims and revocations keep them."""
    lease = await leased(engine, policy=Policy(max_retries=1))
    early = await engine.waitpoints.create(lease.fence, "go")
    await engine.leases.fail(lease.fence, "once")
    clock.advance("1h")
    await engine.reconcilers.tick()
    lease = await engine.leases.claim_execution(lease.execution_id, "w2")
    await engine.operator.revoke_lease(lease.execution_id)
    lease = await engine.leases.claim_execution(lease.execution_id, "w3")
    assert lease.attempt_index == 2
    await engine.signals.deliver(early.token or "", "go")
    outcome = await engine.leases.suspend(lease.fence, [PendingWaitpoint("go")])
    assert isinstance(outcome, Satisfied)


async def test_signal_delivered_before_the_wait_is_not_lost(engine: Engine) -> None:
    lease = await leased(engine)
    await engine.signals.deliver(await early(engine, lease), "go")
    assert isinstance(await engine.leases.suspend(lease.fence, [PendingWaitpoint("go")]), Satisfied)
