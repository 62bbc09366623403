"""look: what came meanwhile, by one read, while the worker keeps its lease."""

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
    Signal,
    Single,
    Standing,
    State,
    Submission,
    Suspended,
)  # fmt: skip
from flowfabric.testing import VirtualClock
from tests.facts import nothing_written, refused
from tests.scenarios import ONE_SHOT, leased, submitted, suspended
from tests.stores import TestStore


def token_of(waitpoint: OpenWaitpoint) -> Secret:
    assert waitpoint.token is not None
    return waitpoint.token


def seen(signals: tuple[Signal, ...]) -> list[tuple[str, str, bytes]]:
    return [(signal.waitpoint, signal.name, signal.payload) for signal in signals]


async def claimed(engine: Engine, id_: UUID) -> Lease:
    return await engine.leases.claim_execution(id_, "worker-2")


async def test_a_look_shows_signals_of_the_waitpoints_in_order_of_acceptance(engine: Engine, store: TestStore) -> None:
    lease = await leased(engine, signals=["stop"])
    one = await engine.waitpoints.create(lease.fence, "one")
    other = await engine.waitpoints.create(lease.fence, "other")
    await engine.signals.send(lease.execution_id, "stop", b"a")
    await engine.signals.deliver(token_of(other), "go", b"b")
    await engine.signals.deliver(token_of(one), "go", b"c")
    await engine.signals.send(lease.execution_id, "stop", b"d")
    async with nothing_written(store):
        look = await engine.leases.look(lease.fence, {"one": 0, "stop": 0, "unknown": 0})
    assert seen(look.signals) == [("stop", "stop", b"a"), ("one", "go", b"c"), ("stop", "stop", b"d")]
    assert [signal.seq for signal in look.signals] == [1, 3, 4]
    assert (dict(look.children), dict(look.overridden)) == ({}, {})


async def test_each_waitpoint_is_looked_at_behind_its_own_place(engine: Engine) -> None:
    lease = await leased(engine, signals=["a", "b"])
    for name in ("a", "b", "a", "b"):
        await engine.signals.send(lease.execution_id, name)
    look = await engine.leases.look(lease.fence, {"a": 1, "b": 4})
    assert [(signal.waitpoint, signal.seq) for signal in look.signals] == [("a", 3)]
    assert (await engine.leases.look(lease.fence, {})).signals == ()


async def test_a_look_shows_at_most_a_hundred_signals_of_each_waitpoint_and_none_hides_another(engine: Engine) -> None:
    lease = await leased(engine, signals=["flood", "quiet"])
    for _ in range(103):
        await engine.signals.send(lease.execution_id, "flood")
    await engine.signals.send(lease.execution_id, "quiet")
    look = await engine.leases.look(lease.fence, {"flood": 0, "quiet": 0})
    assert [signal.seq for signal in look.signals] == [*range(1, 101), 104]
    rest = await engine.leases.look(lease.fence, {"flood": 100, "quiet": 104})
    assert [signal.seq for signal in rest.signals] == [101, 102, 103]


async def test_what_closed_a_wait_is_still_seen_after_it(engine: Engine) -> None:
    wait = await suspended(engine)
    await engine.signals.deliver(wait.token(), "go", b"yes")
    lease = await claimed(engine, wait.id)
    look = await engine.leases.look(lease.fence, {"go": 0})
    assert seen(look.signals) == [("go", "go", b"yes")]
    assert (look.signals[0].suspension, look.signals[0].counts) == (1, True)


async def test_the_time_of_a_look_is_the_stores(engine: Engine, clock: VirtualClock) -> None:
    lease = await leased(engine)
    clock.advance("7s")
    assert (await engine.leases.look(lease.fence, {})).now == clock.now()


async def test_a_new_generation_sees_no_signals_of_addressed_waitpoints_before_it(engine: Engine) -> None:
    lease = await leased(engine, signals=["stop"])
    old = await engine.waitpoints.create(lease.fence, "go")
    await engine.signals.deliver(token_of(old), "go", b"old")
    await engine.signals.send(lease.execution_id, "stop", b"kept")
    await engine.leases.complete(lease.fence)
    await engine.operator.replay(lease.execution_id)
    again = await claimed(engine, lease.execution_id)
    assert seen((await engine.leases.look(again.fence, {"go": 0, "stop": 0})).signals) == [("stop", "stop", b"kept")]
    new = await engine.waitpoints.create(again.fence, "go")
    await engine.signals.deliver(token_of(new), "go", b"new")
    assert seen((await engine.leases.look(again.fence, {"go": 0})).signals) == [("go", "go", b"new")]
    wait = await suspended(engine, ["later"], lease=again)
    await engine.signals.deliver(wait.token("later"), "go", b"later")
    last = await claimed(engine, lease.execution_id)
    assert seen((await engine.leases.look(last.fence, {"later": 0})).signals) == [("later", "go", b"later")]


async def test_a_look_says_how_executions_ended_as_their_result_does(engine: Engine, clock: VirtualClock) -> None:
    lease = await leased(engine, lease_ttl="1h")
    child = ChildSubmission("c", Submission(kind="child"))
    [answer] = await engine.leases.submit_children(lease.fence, [child])
    well, badly, cancelled, running = (answer.id, *[await submitted(engine, policy=ONE_SHOT) for _ in range(3)])
    await engine.leases.complete((await claimed(engine, well)).fence, b"out", encoding="raw")
    await engine.leases.fail((await claimed(engine, badly)).fence, "broken", category="net")
    await engine.operator.cancel(cancelled, "not wanted")
    asked: list[UUID | str] = [well, str(badly), cancelled, running, uuid4()]
    look = await engine.leases.look(lease.fence, {}, asked)
    ended = [well, badly, cancelled]
    assert dict(look.children) == {id_: await engine.executions.result(id_) for id_ in ended}
    assert look.children[badly].failure is not None
    assert look.children[well].result == b"out"


async def test_a_failure_before_a_good_end_is_no_part_of_the_outcome(engine: Engine) -> None:
    lease, other = await leased(engine), await leased(engine)
    await engine.leases.fail(other.fence, "not yet")
    await engine.operator.hold(other.execution_id)
    await engine.operator.cancel(other.execution_id)
    look = await engine.leases.look(lease.fence, {}, [other.execution_id])
    assert dict(look.children) == {other.execution_id: await engine.executions.result(other.execution_id)}
    assert look.children[other.execution_id].failure is None


async def test_a_wait_that_an_operator_ended_is_told_with_who_and_why(engine: Engine, clock: VirtualClock) -> None:
    lease = await leased(engine, signals=["stop"])
    await engine.waitpoints.create(lease.fence, "unbound")
    either = AnyOf([Single("go"), Single("stop")])
    answer = await engine.leases.suspend(lease.fence, ["go", Standing("stop")], either)
    assert isinstance(answer, Suspended)
    clock.advance("1m")
    await engine.operator.resume(lease.execution_id, "took too long", principal="ada")
    again = await claimed(engine, lease.execution_id)
    look = await engine.leases.look(again.fence, {"go": 0, "stop": 0, "unbound": 0})
    assert look.overridden.keys() == {"go", "stop"}
    for override in look.overridden.values():
        told = (override.by, override.reason, override.suspension_id, override.at)
        assert told == ("ada", "took too long", answer.suspension_id, clock.now())
    assert look.signals == ()


async def test_only_the_latest_waitpoint_of_a_key_counts_as_overridden(engine: Engine, clock: VirtualClock) -> None:
    wait = await suspended(engine)
    await engine.operator.resume(wait.id)
    clock.advance("1s")
    again = await claimed(engine, wait.id)
    await engine.waitpoints.create(again.fence, "go")
    assert not (await engine.leases.look(again.fence, {"go": 0})).overridden


async def test_waits_that_ended_otherwise_are_not_overridden(engine: Engine) -> None:
    told = await suspended(engine)
    await engine.signals.deliver(told.token(), "go")
    asked_to_stop = await suspended(engine)
    await engine.operator.cancel(asked_to_stop.id, grace="1h")
    for wait in (told, asked_to_stop):
        lease = await claimed(engine, wait.id)
        assert not (await engine.leases.look(lease.fence, {"go": 0})).overridden


async def test_a_look_is_a_plain_read_of_an_execution_of_this_namespace(engine: Engine) -> None:
    lease = await leased(engine, signals=["stop"])
    await engine.signals.send(lease.execution_id, "stop")
    elsewhere = await submitted(engine.within("other"))
    await engine.operator.cancel(lease.execution_id)
    look = await engine.leases.look(lease.fence, {"stop": 0}, [lease.execution_id, elsewhere])
    assert [signal.name for signal in look.signals] == ["stop"]
    assert {id_: outcome.state for id_, outcome in look.children.items()} == {lease.execution_id: State.CANCELLED}
    other = engine.within("other").leases
    await refused(other.look(lease.fence, {"stop": 0}), "execution_not_found", NotFound)
    await refused(engine.leases.look(replace(lease.fence, execution_id=uuid4()), {}), "execution_not_found", NotFound)
