"""Tests of `unused_waitpoints="keep"`, by which a satisfied AnyOf closes only the waitpoints it used."""

from __future__ import annotations

from datetime import timedelta

from flowfabric.core.executions.outcomes import Satisfied
from flowfabric.engine import (
    Accepted,
    AllOf,
    AnyOf,
    Effect,
    Engine,
    PendingWaitpoint,
    Single,
    Suspended,
    Timer,
    UnusedWaitpoints,
    WaitpointState,
)
from flowfabric.testing import VirtualClock
from tests.expectations import refused
from tests.scenarios import leased, suspended

CONDITION = AnyOf([Single("a", "yes"), AllOf([Single("b", "yes"), Single("c", "yes")])])


async def test_unused_waitpoints_return_to_pending_with_tokens_and_signals(engine: Engine) -> None:
    wait = await suspended(engine, ["a", "b", "c"], CONDITION, unused_waitpoints="keep", timeout="1h")
    await engine.signals.deliver(wait.token("b"), "yes", b"early")
    await engine.signals.deliver(wait.token("a"), "yes")
    assert [signal.waitpoint for signal in await engine.signals.list(wait.id)] == ["a"]
    waitpoints = {waitpoint.key: waitpoint for waitpoint in await engine.waitpoints.list(wait.id)}
    assert {key: waitpoint.state for key, waitpoint in waitpoints.items()} == {
        "a": WaitpointState.CLOSED,
        "b": WaitpointState.PENDING,
        "c": WaitpointState.PENDING,
    }
    assert {waitpoints[key].expires_at for key in "bc"} == {None}
    buffered = await engine.signals.deliver(wait.token("c"), "no")
    assert isinstance(buffered, Accepted)
    assert buffered.effect is Effect.BUFFERED
    lease = await engine.leases.claim_resumed(wait.id, "worker-2")
    second_wait = await suspended(
        engine, [PendingWaitpoint("b"), PendingWaitpoint("c")], CONDITION.members[1], lease=lease
    )
    assert [second_wait.token(key) for key in "bc"] == [wait.token(key) for key in "bc"]
    outcome = await engine.signals.deliver(wait.token("c"), "yes")
    assert isinstance(outcome, Accepted)
    assert outcome.effect is Effect.SATISFIED
    assert [signal.payload for signal in await engine.signals.list(wait.id)] == [b"early", b""]


async def test_all_waitpoints_close_without_the_option(engine: Engine) -> None:
    wait = await suspended(engine, ["a", "b", "c"], CONDITION, unused_waitpoints=UnusedWaitpoints.CLOSE)
    await engine.signals.deliver(wait.token("b"), "yes")
    await engine.signals.deliver(wait.token("a"), "yes")
    assert {waitpoint.close_reason for waitpoint in await engine.waitpoints.list(wait.id)} == {"resumed"}
    await refused(engine.signals.deliver(wait.token("c"), "yes"), "waitpoint_closed")


async def test_other_condition_an_operator_and_a_timeout_close_all_waitpoints(
    engine: Engine, clock: VirtualClock
) -> None:
    root = await suspended(engine, ["a", "b"], AllOf([AnyOf([Single("a"), Single("b")])]), unused_waitpoints="keep")
    await engine.signals.deliver(root.token("a"), "go")
    operator = await suspended(engine, ["a", "b", "c"], CONDITION, unused_waitpoints="keep")
    await engine.operator.resume(operator.id)
    timed = await suspended(
        engine, ["a", "b", "c"], CONDITION, unused_waitpoints="keep", timeout="1h", on_timeout="auto_resume"
    )
    clock.advance("1h")
    await engine.reconcilers.tick()
    for wait in (root, operator, timed):
        assert {waitpoint.state for waitpoint in await engine.waitpoints.list(wait.id)} == {WaitpointState.CLOSED}


async def test_unused_waitpoints_are_kept_when_the_wait_is_satisfied_immediately(engine: Engine) -> None:
    lease = await leased(engine)
    early = {key: await engine.waitpoints.create(lease.fence, key) for key in "ab"}
    for key in "ba":
        token = early[key].token
        assert token is not None
        await engine.signals.deliver(token, "yes")
    outcome = await engine.leases.suspend(lease.fence, ["a", "b", "c"], CONDITION, unused_waitpoints="keep")
    assert isinstance(outcome, Satisfied)
    assert [signal.waitpoint for signal in outcome.signals] == ["a"]
    open_keys = [waitpoint.key for waitpoint in (await engine.executions.describe(lease.execution_id)).waitpoints]
    assert open_keys == ["b", "c"]
    second_outcome = await engine.leases.suspend(lease.fence, [PendingWaitpoint("b")], Single("b", "yes"))
    assert isinstance(second_outcome, Satisfied), "the earlier signal still counts"


async def test_kept_timer_buffers_its_signal(engine: Engine, clock: VirtualClock) -> None:
    condition = AnyOf([Single("go"), Single("t")])
    wait = await suspended(
        engine, ["go", Timer("t", clock.now() + timedelta(minutes=1))], condition, unused_waitpoints="keep"
    )
    await engine.signals.deliver(wait.token(), "go")
    lease = await engine.leases.claim_resumed(wait.id, "worker-2", lease_ttl="1h")
    clock.advance("1m")
    await engine.reconcilers.tick()
    outcome = await engine.leases.suspend(lease.fence, [Timer("t", clock.now())])
    assert isinstance(outcome, Satisfied)
    assert [signal.name for signal in outcome.signals] == ["timer"]


async def test_repeated_suspend_gets_the_first_outcome_after_unused_waitpoints_are_bound(engine: Engine) -> None:
    wait = await suspended(engine, ["a", "b", "c"], CONDITION, unused_waitpoints="keep", key="k", timeout="1h")
    await engine.signals.deliver(wait.token("a"), "yes")
    lease = await engine.leases.claim_resumed(wait.id, "worker-2")
    await suspended(engine, [PendingWaitpoint("b"), PendingWaitpoint("c")], lease=lease)
    repeated = await engine.leases.suspend(
        wait.lease.fence, ["a", "b", "c"], CONDITION, unused_waitpoints="keep", key="k", timeout="1h"
    )
    assert isinstance(repeated, Suspended)
    assert repeated == wait.answer
