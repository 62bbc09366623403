"""Tests of `signals.skip`: a worker excludes a signal that it cannot read, and every wait stays open."""

from __future__ import annotations

from flowfabric.engine import Engine, Satisfied, StandingWaitpoint, State, Suspended
from tests.expectations import nothing_written, refused
from tests.scenarios import leased
from tests.stores import TestStore


async def test_skipped_signal_ends_no_wait_and_is_in_the_history_once(engine: Engine) -> None:
    lease = await leased(engine, signals=["paid"])
    for payload in (b"bad", b"2"):
        await engine.signals.send(lease.execution_id, "paid", payload)
    assert await engine.signals.skip(lease.fence, 1, "it cannot be read as int")
    assert not await engine.signals.skip(lease.fence, 1, "it cannot be read as int")
    assert not await engine.signals.skip(lease.fence, 3, "there is none")
    snapshot = await engine.leases.read_waits(lease.fence, {"paid": 0}, skipped=[1])
    assert [signal.seq for signal in snapshot.signals] == [2]
    outcome = await engine.leases.suspend(lease.fence, [StandingWaitpoint("paid", 0)])
    assert isinstance(outcome, Satisfied)
    assert [signal.seq for signal in outcome.signals] == [2]
    history = await engine.executions.history(lease.execution_id)
    [event] = [event for event in history if (event.family, event.name) == ("signal", "unreadable")]
    details = event.details or {}
    assert (details["waitpoint"], details["reason"]) == ("paid", "it cannot be read as int")


async def test_explain_names_skipped_signals(engine: Engine) -> None:
    lease = await leased(engine, signals=["paid"])
    await engine.signals.send(lease.execution_id, "paid", b"bad")
    await engine.signals.skip(lease.fence, 1, "it cannot be read as int")
    assert isinstance(await engine.leases.suspend(lease.fence, [StandingWaitpoint("paid", 0)]), Suspended)
    explanation = await engine.operator.explain(lease.execution_id)
    assert "1 signal was skipped, because the task could not read the payload." in str(explanation)
    assert explanation.facts["skipped_signals"] == 1


async def test_replay_makes_skipped_signals_available_again(engine: Engine) -> None:
    lease = await leased(engine, signals=["paid"])
    await engine.signals.send(lease.execution_id, "paid", b"bad")
    await engine.signals.skip(lease.fence, 1, "it cannot be read as int")
    await engine.leases.complete(lease.fence, b"1")
    await engine.operator.replay(lease.execution_id)
    again = await engine.leases.claim_execution(lease.execution_id, lease.worker, lease_ttl="30s")
    snapshot = await engine.leases.read_waits(again.fence, {"paid": 0})
    assert [signal.seq for signal in snapshot.signals] == [1]


async def test_signal_is_skipped_only_under_the_lease(engine: Engine, store: TestStore) -> None:
    lease = await leased(engine, signals=["paid"])
    await engine.signals.send(lease.execution_id, "paid", b"bad")
    await engine.operator.revoke_lease(lease.execution_id)
    async with nothing_written(store):
        await refused(engine.signals.skip(lease.fence, 1, "late"), "lease_revoked")
    assert (await engine.executions.describe(lease.execution_id)).state is State.WAITING
