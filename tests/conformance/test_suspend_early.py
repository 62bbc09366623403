"""Signals that came before the suspend: they satisfy at once, or stay and count later."""

from __future__ import annotations

from flowfabric.core.outcomes import Satisfied
from flowfabric.core.waits import Trigger
from flowfabric.engine import (
    AnyOf,
    Count,
    Counted,
    Engine,
    Pending,
    Policy,
    Single,
    State,
    WaitpointState,
)  # fmt: skip
from flowfabric.testing import VirtualClock
from tests.facts import last_event, nothing_written
from tests.scenarios import leased, suspended
from tests.stores import TestStore


async def test_signals_that_came_before_satisfy_at_once_and_the_lease_is_kept(
    engine: Engine, store: TestStore, clock: VirtualClock
) -> None:
    lease = await leased(engine)
    early = await engine.waitpoints.create(lease.fence, "go")
    await engine.signals.deliver(early.token or "", "approved", b"1")
    before = await engine.executions.describe(lease.execution_id)
    answer = await engine.leases.suspend(lease.fence, [Pending("go")], Single("go", "approved"), key="step-1")
    assert isinstance(answer, Satisfied)
    assert (answer.by, [signal.payload for signal in answer.signals]) == (Trigger.SIGNALS, [b"1"])
    after = await engine.executions.describe(lease.execution_id)
    assert (after.state, after.epoch, after.lease) == (State.ACTIVE, before.epoch, before.lease)
    assert (after.version, after.suspension, after.waitpoints) == (before.version + 1, None, ())
    event = await last_event(engine, lease.execution_id)
    assert (event.family, event.name, event.ends_lease) == ("lifecycle", "resumed", False)
    [closed] = await engine.waitpoints.list(lease.execution_id)
    assert (closed.state, closed.close_reason) == (WaitpointState.CLOSED, "resumed")
    async with nothing_written(store):
        again = await engine.leases.suspend(lease.fence, [Pending("go")], Single("go", "approved"), key="step-1")
        assert again == answer
    await engine.leases.complete(lease.fence)
    async with nothing_written(store):
        again = await engine.leases.suspend(lease.fence, [Pending("go")], Single("go", "approved"), key="step-1")
        assert again == answer


async def test_fresh_waitpoints_of_a_wait_that_is_over_at_once_are_closed_too(engine: Engine) -> None:
    lease = await leased(engine)
    early = await engine.waitpoints.create(lease.fence, "a")
    await engine.signals.deliver(early.token or "", "go")
    answer = await engine.leases.suspend(lease.fence, ["a", "b"], AnyOf([Single("a"), Single("b")]))
    assert isinstance(answer, Satisfied)
    states = {item.key: item.state for item in await engine.waitpoints.list(lease.execution_id)}
    assert states == {"a": WaitpointState.CLOSED, "b": WaitpointState.CLOSED}


async def test_buffered_signals_that_do_not_satisfy_stay_and_count_later(engine: Engine) -> None:
    lease = await leased(engine)
    keys = ["a", "b"]
    early = [await engine.waitpoints.create(lease.fence, key) for key in keys]
    await engine.signals.deliver(early[0].token or "", "no")
    await engine.signals.deliver(early[0].token or "", "yes", source_identity="ada")
    wait = await suspended(engine, [Pending("a"), Pending("b")], Count(2, "sources", keys, "yes"), lease=lease)
    found = await engine.executions.describe(wait.id)
    assert found.suspension is not None
    assert "1 more of 2 distinct sources" in found.suspension.missing[0]
    same = await engine.signals.deliver(wait.token("b"), "yes", source_identity="ada")
    assert getattr(same, "counted", None) is Counted.NOTHING_NEW
    await engine.signals.deliver(wait.token("b"), "yes", source_identity="bob")
    observed = await engine.signals.observe(wait.id)
    assert [signal.source_identity for signal in observed] == ["ada", "bob"]
    names = [signal.name for signal in await engine.signals.observe(wait.id, include_unmatched=True)]
    assert names == ["no", "yes", "yes", "yes"]


async def test_a_waitpoint_of_an_earlier_attempt_can_be_bound_by_a_later_one(
    engine: Engine, clock: VirtualClock
) -> None:
    """Waitpoints belong to the execution: retry, reclaim and revocation leave them as they are."""
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
    answer = await engine.leases.suspend(lease.fence, [Pending("go")])
    assert isinstance(answer, Satisfied)
