"""Tests of read_waits, which reads new signals and ended children while the worker keeps its lease."""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID, uuid4

from flowfabric.engine import (
    AnyOf,
    ChildSubmission,
    Engine,
    Lease,
    NotFound,
    OpenWaitpoint,
    Secret,
    Single,
    StandingWaitpoint,
    State,
    StoredSignal,
    Submission,
    Suspended,
)
from flowfabric.testing import VirtualClock
from tests.expectations import nothing_written, refused
from tests.scenarios import ONE_SHOT, leased, submitted, suspended
from tests.stores import TestStore


def require_token(waitpoint: OpenWaitpoint) -> Secret:
    assert waitpoint.token is not None
    return waitpoint.token


def summarize(signals: tuple[StoredSignal, ...]) -> list[tuple[str, str, bytes]]:
    return [(signal.waitpoint, signal.name, signal.payload) for signal in signals]


async def claim(engine: Engine, id_: UUID) -> Lease:
    return await engine.leases.claim_execution(id_, "worker-2")


async def test_signals_are_in_order_of_acceptance(engine: Engine, store: TestStore) -> None:
    lease = await leased(engine, signals=["stop"])
    first = await engine.waitpoints.create(lease.fence, "one")
    second = await engine.waitpoints.create(lease.fence, "other")
    await engine.signals.send(lease.execution_id, "stop", b"a")
    await engine.signals.deliver(require_token(second), "go", b"b")
    await engine.signals.deliver(require_token(first), "go", b"c")
    await engine.signals.send(lease.execution_id, "stop", b"d")
    async with nothing_written(store):
        waits = await engine.leases.read_waits(lease.fence, {"one": 0, "stop": 0, "unknown": 0})
    assert summarize(waits.signals) == [("stop", "stop", b"a"), ("one", "go", b"c"), ("stop", "stop", b"d")]
    assert [signal.seq for signal in waits.signals] == [1, 3, 4]
    assert (dict(waits.children), dict(waits.overridden)) == ({}, {})


async def test_each_waitpoint_is_read_after_its_own_position(engine: Engine) -> None:
    lease = await leased(engine, signals=["a", "b"])
    for name in ("a", "b", "a", "b"):
        await engine.signals.send(lease.execution_id, name)
    waits = await engine.leases.read_waits(lease.fence, {"a": 1, "b": 4})
    assert [(signal.waitpoint, signal.seq) for signal in waits.signals] == [("a", 3)]
    assert (await engine.leases.read_waits(lease.fence, {})).signals == ()


async def test_read_returns_at_most_a_hundred_signals_of_each_waitpoint(engine: Engine) -> None:
    lease = await leased(engine, signals=["flood", "quiet"])
    for _ in range(103):
        await engine.signals.send(lease.execution_id, "flood")
    await engine.signals.send(lease.execution_id, "quiet")
    waits = await engine.leases.read_waits(lease.fence, {"flood": 0, "quiet": 0})
    assert [signal.seq for signal in waits.signals] == [*range(1, 101), 104]
    remaining = await engine.leases.read_waits(lease.fence, {"flood": 100, "quiet": 104})
    assert [signal.seq for signal in remaining.signals] == [101, 102, 103]


async def test_signals_of_a_closed_wait_are_still_read(engine: Engine) -> None:
    wait = await suspended(engine)
    await engine.signals.deliver(wait.token(), "go", b"yes")
    lease = await claim(engine, wait.id)
    waits = await engine.leases.read_waits(lease.fence, {"go": 0})
    assert summarize(waits.signals) == [("go", "go", b"yes")]
    assert (waits.signals[0].suspension, waits.signals[0].counts) == (1, True)


async def test_read_has_the_time_of_the_store(engine: Engine, clock: VirtualClock) -> None:
    lease = await leased(engine)
    clock.advance("7s")
    assert (await engine.leases.read_waits(lease.fence, {})).now == clock.now()


async def test_new_generation_reads_no_earlier_signals_of_addressed_waitpoints(engine: Engine) -> None:
    lease = await leased(engine, signals=["stop"])
    old = await engine.waitpoints.create(lease.fence, "go")
    await engine.signals.deliver(require_token(old), "go", b"old")
    await engine.signals.send(lease.execution_id, "stop", b"kept")
    await engine.leases.complete(lease.fence)
    await engine.operator.replay(lease.execution_id)
    next_lease = await claim(engine, lease.execution_id)
    assert summarize((await engine.leases.read_waits(next_lease.fence, {"go": 0, "stop": 0})).signals) == [
        ("stop", "stop", b"kept")
    ]
    new = await engine.waitpoints.create(next_lease.fence, "go")
    await engine.signals.deliver(require_token(new), "go", b"new")
    assert summarize((await engine.leases.read_waits(next_lease.fence, {"go": 0})).signals) == [("go", "go", b"new")]
    wait = await suspended(engine, ["later"], lease=next_lease)
    await engine.signals.deliver(wait.token("later"), "go", b"later")
    last = await claim(engine, lease.execution_id)
    assert summarize((await engine.leases.read_waits(last.fence, {"later": 0})).signals) == [("later", "go", b"later")]


async def test_outcomes_of_ended_executions_equal_their_results(engine: Engine, clock: VirtualClock) -> None:
    lease = await leased(engine, lease_ttl="1h")
    child = ChildSubmission("c", Submission(kind="child"))
    [created] = await engine.leases.submit_children(lease.fence, [child])
    completed, failed, cancelled, running = (created.id, *[await submitted(engine, policy=ONE_SHOT) for _ in range(3)])
    await engine.leases.complete((await claim(engine, completed)).fence, b"out", encoding="raw")
    await engine.leases.fail((await claim(engine, failed)).fence, "broken", category="net")
    await engine.operator.cancel(cancelled, "not wanted")
    ids: list[UUID | str] = [completed, str(failed), cancelled, running, uuid4()]
    waits = await engine.leases.read_waits(lease.fence, {}, ids)
    ended_ids = [completed, failed, cancelled]
    assert dict(waits.children) == {id_: await engine.executions.result(id_) for id_ in ended_ids}
    assert waits.children[failed].failure is not None
    assert waits.children[completed].result == b"out"


async def test_earlier_failure_is_not_part_of_the_outcome(engine: Engine) -> None:
    lease, other_lease = await leased(engine), await leased(engine)
    await engine.leases.fail(other_lease.fence, "not yet")
    await engine.operator.hold(other_lease.execution_id)
    await engine.operator.cancel(other_lease.execution_id)
    waits = await engine.leases.read_waits(lease.fence, {}, [other_lease.execution_id])
    assert dict(waits.children) == {other_lease.execution_id: await engine.executions.result(other_lease.execution_id)}
    assert waits.children[other_lease.execution_id].failure is None


async def test_wait_ended_by_an_operator_shows_principal_and_reason(engine: Engine, clock: VirtualClock) -> None:
    lease = await leased(engine, signals=["stop"])
    await engine.waitpoints.create(lease.fence, "unbound")
    condition = AnyOf([Single("go"), Single("stop")])
    outcome = await engine.leases.suspend(lease.fence, ["go", StandingWaitpoint("stop")], condition)
    assert isinstance(outcome, Suspended)
    clock.advance("1m")
    await engine.operator.resume(lease.execution_id, "took too long", principal="ada")
    next_lease = await claim(engine, lease.execution_id)
    waits = await engine.leases.read_waits(next_lease.fence, {"go": 0, "stop": 0, "unbound": 0})
    assert waits.overridden.keys() == {"go", "stop"}
    for override in waits.overridden.values():
        recorded = (override.by, override.reason, override.suspension_id, override.at)
        assert recorded == ("ada", "took too long", outcome.suspension_id, clock.now())
    assert waits.signals == ()


async def test_only_the_latest_waitpoint_of_a_key_counts_as_overridden(engine: Engine, clock: VirtualClock) -> None:
    wait = await suspended(engine)
    await engine.operator.resume(wait.id)
    clock.advance("1s")
    next_lease = await claim(engine, wait.id)
    await engine.waitpoints.create(next_lease.fence, "go")
    assert not (await engine.leases.read_waits(next_lease.fence, {"go": 0})).overridden


async def test_waits_ended_by_a_signal_or_a_cancel_are_not_overridden(engine: Engine) -> None:
    signalled = await suspended(engine)
    await engine.signals.deliver(signalled.token(), "go")
    asked_to_stop = await suspended(engine)
    await engine.operator.cancel(asked_to_stop.id, grace="1h")
    for wait in (signalled, asked_to_stop):
        lease = await claim(engine, wait.id)
        assert not (await engine.leases.read_waits(lease.fence, {"go": 0})).overridden


async def test_read_needs_no_live_lease_but_the_right_namespace(engine: Engine) -> None:
    lease = await leased(engine, signals=["stop"])
    await engine.signals.send(lease.execution_id, "stop")
    elsewhere = await submitted(engine.for_namespace("other"))
    await engine.operator.cancel(lease.execution_id)
    waits = await engine.leases.read_waits(lease.fence, {"stop": 0}, [lease.execution_id, elsewhere])
    assert [signal.name for signal in waits.signals] == ["stop"]
    assert {id_: outcome.state for id_, outcome in waits.children.items()} == {lease.execution_id: State.CANCELLED}
    other_leases = engine.for_namespace("other").leases
    await refused(other_leases.read_waits(lease.fence, {"stop": 0}), "execution_not_found", NotFound)
    await refused(
        engine.leases.read_waits(replace(lease.fence, execution_id=uuid4()), {}), "execution_not_found", NotFound
    )
