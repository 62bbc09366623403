"""Tests of approve, by which an operator approves an open waitpoint without a token."""

from __future__ import annotations

from flowfabric.engine import (
    Accepted,
    Count,
    Counted,
    DuplicateSignal,
    Effect,
    Engine,
    NewWaitpoint,
    NotFound,
    Single,
    State,
    Timer,
)
from flowfabric.testing import VirtualClock
from tests.expectations import nothing_written, refused
from tests.scenarios import leased, suspended
from tests.stores import TestStore


async def test_approval_resumes_the_execution_and_records_the_approver(engine: Engine) -> None:
    wait = await suspended(engine, ["go"], Single("go", "approved"))
    outcome = await engine.signals.approve(wait.id, "go", payload=b'"fine"', principal="ada")
    assert isinstance(outcome, Accepted)
    assert (outcome.effect, outcome.counted) == (Effect.SATISFIED, Counted.YES)
    [signal] = await engine.signals.list(wait.id)
    assert (signal.name, signal.category, signal.payload) == ("approved", "approval", b'"fine"')
    assert (signal.source_type, signal.source_identity) == ("operator", "ada")


async def test_approval_with_a_suffix_is_accepted_once_per_name_even_after_the_resume(
    engine: Engine, store: TestStore
) -> None:
    wait = await suspended(engine, ["go"], Count(3, "signals", ["go"]))
    first = await engine.signals.approve(wait.id, "go", suffix="r1")
    assert isinstance(first, Accepted)
    async with nothing_written(store):
        assert await engine.signals.approve(wait.id, "go", suffix="r1") == DuplicateSignal(first.signal_id)
    assert isinstance(await engine.signals.approve(wait.id, "go", "noted", suffix="r1"), Accepted)
    assert isinstance(await engine.signals.approve(wait.id, "go", suffix="r2"), Accepted)
    assert (await engine.executions.describe(wait.id)).state is State.WAITING
    async with nothing_written(store):
        assert await engine.signals.approve(wait.id, "go", suffix="r1") == DuplicateSignal(first.signal_id)
        await refused(engine.signals.approve(wait.id, "go", suffix="r3"), "waitpoint_closed")
    await engine.operator.cancel(wait.id)
    async with nothing_written(store):
        assert await engine.signals.approve(wait.id, "go", suffix="r1") == DuplicateSignal(first.signal_id)
        await refused(engine.signals.approve(wait.id, "go"), "target_not_signalable")


async def test_token_holder_cannot_preempt_the_key_of_a_later_approval(engine: Engine) -> None:
    wait = await suspended(engine, ["go"], Single("go", "approved"))
    for key in ("approval:approved:r1", "approval approved r1"):
        await engine.signals.deliver(wait.token(), "rejected", key=key)
    assert isinstance(await engine.signals.approve(wait.id, "go", suffix="r1"), Accepted)
    pair = await suspended(engine, ["go"], Count(2, "signals", ["go"]))
    await engine.signals.approve(pair.id, "go", "x:y", suffix="z")
    assert isinstance(await engine.signals.approve(pair.id, "go", "x", suffix="y:z"), Accepted)


async def test_approver_bound_waitpoint_counts_as_its_approver_for_every_principal(engine: Engine) -> None:
    wait = await suspended(
        engine, [NewWaitpoint("ada", "ada"), NewWaitpoint("bob", "bob")], Count(2, "sources", ["ada", "bob"])
    )
    await engine.signals.approve(wait.id, "ada", principal="root")
    await engine.signals.approve(wait.id, "bob", principal="root")
    assert [signal.source for signal in await engine.signals.list(wait.id)] == ["approver:ada", "approver:bob"]


async def test_one_operator_is_one_source_on_a_shared_waitpoint(engine: Engine) -> None:
    wait = await suspended(engine, ["go"], Count(2, "sources", ["go"]))
    await engine.signals.approve(wait.id, "go", principal="ada")
    again = await engine.signals.approve(wait.id, "go", principal="ada")
    assert isinstance(again, Accepted)
    assert again.counted is Counted.NOTHING_NEW
    other = await engine.signals.approve(wait.id, "go", principal="bob")
    assert isinstance(other, Accepted)
    assert other.effect is Effect.SATISFIED


async def test_pending_waitpoint_buffers_an_approval_and_an_internal_one_is_not_found(
    engine: Engine, clock: VirtualClock, store: TestStore
) -> None:
    lease = await leased(engine)
    await engine.waitpoints.create(lease.fence, "early")
    outcome = await engine.signals.approve(lease.execution_id, "early")
    assert isinstance(outcome, Accepted)
    assert outcome.effect is Effect.BUFFERED
    wait = await suspended(engine, ["go", Timer("late", clock.now())], lease=lease)
    async with nothing_written(store):
        await refused(engine.signals.approve(wait.id, "late"), "waitpoint_not_found", NotFound)
        await refused(engine.signals.approve(wait.id, "unknown"), "waitpoint_not_found", NotFound)


async def test_expired_waitpoint_is_closed_to_the_operator_too(
    engine: Engine, clock: VirtualClock, store: TestStore
) -> None:
    lease = await leased(engine)
    await engine.waitpoints.create(lease.fence, "early", expires="1m")
    clock.advance("1m")
    async with nothing_written(store):
        await refused(engine.signals.approve(lease.execution_id, "early"), "waitpoint_closed")


async def test_escalated_wait_can_still_be_approved_by_the_operator(engine: Engine, clock: VirtualClock) -> None:
    wait = await suspended(engine, timeout="1h", on_timeout="escalate")
    clock.advance("1h")
    await engine.reconcilers.tick()
    await refused(engine.signals.deliver(wait.token(), "late"), "token_expired")
    outcome = await engine.signals.approve(wait.id, "go", principal="ada")
    assert isinstance(outcome, Accepted)
    assert outcome.effect is Effect.SATISFIED


async def test_repeated_approval_returns_a_duplicate(engine: Engine, store: TestStore) -> None:
    wait = await suspended(engine, ["go"], Count(2, "signals", ["go"]))
    first = await engine.signals.approve(wait.id, "go", suffix="1")
    async with nothing_written(store):
        assert await engine.signals.approve(wait.id, "go", suffix="1") == DuplicateSignal(first.signal_id)
