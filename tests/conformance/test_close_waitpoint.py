"""Tests of close_waitpoint. A closed waitpoint refuses signals; the wait on other waitpoints continues."""

from __future__ import annotations

from uuid import uuid4

from flowfabric.engine import (
    Accepted,
    AnyOf,
    Count,
    DuplicateSignal,
    Effect,
    Engine,
    NotFound,
    PendingWaitpoint,
    Single,
    State,
    WaitpointClosed,
    WaitpointState,
)
from flowfabric.testing import VirtualClock
from tests.expectations import last_event, nothing_written, refused
from tests.scenarios import leased, suspended
from tests.stores import TestStore


async def test_closed_waitpoint_refuses_new_signals_and_still_recognizes_duplicates(
    engine: Engine, store: TestStore
) -> None:
    lease = await leased(engine)
    waitpoint = await engine.waitpoints.create(lease.fence, "go")
    assert waitpoint.token is not None
    first = await engine.signals.deliver(waitpoint.token, "go", key="evt")
    outcome = await engine.waitpoints.close(waitpoint.id, "sent to the wrong address", principal="ada")
    assert outcome == WaitpointClosed(waitpoint.id, already=False)
    event = await last_event(engine, lease.execution_id)
    assert (event.family, event.name, event.principal) == ("operator", "waitpoint_closed", "ada")
    assert (event.reason, event.details) == ("sent to the wrong address", {"waitpoint": "go"})
    async with nothing_written(store):
        await refused(engine.signals.deliver(waitpoint.token, "go"), "waitpoint_closed")
        assert await engine.signals.deliver(waitpoint.token, "go", key="evt") == DuplicateSignal(first.signal_id)
        assert await engine.waitpoints.close(waitpoint.id) == WaitpointClosed(waitpoint.id, already=True)
        await refused(engine.leases.suspend(lease.fence, [PendingWaitpoint("go")]), "waitpoint_not_found", NotFound)
    [closed] = await engine.waitpoints.list(lease.execution_id)
    assert (closed.state, closed.close_reason) == (WaitpointState.CLOSED, "closed")


async def test_wait_continues_on_the_other_waitpoints(engine: Engine) -> None:
    wait = await suspended(engine, ["a", "b"], AnyOf([Single("a"), Single("b")]))
    await engine.waitpoints.close(wait.waitpoint("a"))
    execution = await engine.executions.describe(wait.id)
    assert (execution.state, [waitpoint.key for waitpoint in execution.waitpoints]) == (State.SUSPENDED, ["b"])
    outcome = await engine.signals.deliver(wait.token("b"), "go")
    assert isinstance(outcome, Accepted)
    assert outcome.effect is Effect.SATISFIED
    reasons = {waitpoint.key: waitpoint.close_reason for waitpoint in await engine.waitpoints.list(wait.id)}
    assert reasons == {"a": "closed", "b": "resumed"}


async def test_operator_can_resume_a_wait_whose_only_waitpoint_is_closed(engine: Engine) -> None:
    wait = await suspended(engine)
    await engine.waitpoints.close(wait.waitpoint())
    assert (await engine.executions.describe(wait.id)).state is State.SUSPENDED
    await engine.operator.resume(wait.id)
    assert (await engine.executions.describe(wait.id)).state is State.WAITING


async def test_signal_still_counts_after_its_waitpoint_is_closed(engine: Engine) -> None:
    wait = await suspended(engine, ["a", "b"])
    await engine.signals.deliver(wait.token("a"), "go")
    await engine.waitpoints.close(wait.waitpoint("a"))
    outcome = await engine.signals.deliver(wait.token("b"), "go")
    assert isinstance(outcome, Accepted)
    assert outcome.effect is Effect.SATISFIED


async def test_unknown_waitpoint_is_not_found_and_an_ended_one_is_already_closed(
    engine: Engine, store: TestStore
) -> None:
    wait = await suspended(engine)
    await engine.operator.cancel(wait.id)
    async with nothing_written(store):
        await refused(engine.waitpoints.close(uuid4()), "waitpoint_not_found", NotFound)
        assert await engine.waitpoints.close(wait.waitpoint()) == WaitpointClosed(wait.waitpoint(), already=True)


async def test_closing_a_waitpoint_affects_no_other_waitpoint_and_no_timeout(
    engine: Engine, clock: VirtualClock
) -> None:
    wait = await suspended(engine, ["a", "b"], Count(1, "waitpoints", ["a", "b"]), timeout="1h", on_timeout="escalate")
    await engine.waitpoints.close(wait.waitpoint("a"))
    assert isinstance(await engine.signals.deliver(wait.token("b"), "go"), Accepted)
    assert (await engine.executions.describe(wait.id)).state is State.WAITING
    with_timeout = await suspended(engine, timeout="1h", on_timeout="auto_resume")
    clock.advance("1h")
    ticks = {tick.duty: tick.done for tick in await engine.reconcilers.tick()}
    assert (ticks["suspension_timeout"], ticks["waitpoint_expiry"]) == (1, 0)
    assert (await engine.executions.describe(with_timeout.id)).state is State.WAITING
