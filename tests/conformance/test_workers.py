"""The register of workers: who is there, what they offer, when they count as gone; `explain` reads it."""

from __future__ import annotations

from datetime import timedelta

from flowfabric.engine import AlreadySatisfied, Conflict, Engine, MarkedDead, NotFound, WorkerId
from flowfabric.testing import VirtualClock
from tests.facts import refused
from tests.scenarios import leased, submitted
from tests.stores import TestStore


async def worker_events(engine: Engine) -> list[str]:
    found = engine.events.subscribe(["worker"], start="beginning", follow=False)
    return [f"{event.name} {event.worker.instance if event.worker else '?'}" async for event in found]


async def test_a_worker_is_listed_as_it_registered(engine: Engine, clock: VirtualClock) -> None:
    answer = await engine.workers.register(
        WorkerId("mailer", "mailer-1"), ["post", "default"], capabilities=["gpu", "eu"], version="1.2", host="box",
        slots=8, ttl="30s",
    )  # fmt: skip
    assert (answer.refreshed, answer.expires_at) == (False, clock.now() + timedelta(seconds=30))
    [worker] = await engine.workers.list()
    assert (worker.id, worker.lanes, worker.capabilities) == (
        WorkerId("mailer", "mailer-1"), ("post", "default"), ("eu", "gpu"),
    )  # fmt: skip
    assert (worker.version, worker.host, worker.slots, worker.busy, worker.kinds) == ("1.2", "box", 8, 0, None)
    assert worker.registered_at == worker.seen_at == clock.now()
    assert await worker_events(engine) == ["registered mailer-1"]


async def test_again_it_replaces_what_was_said_and_leaves_no_event(engine: Engine, clock: VirtualClock) -> None:
    await engine.workers.register("w1", ["a"], capabilities=["gpu"])
    clock.advance("10s")
    answer = await engine.workers.register("w1", ["b"], slots=4)
    assert answer.refreshed
    [worker] = await engine.workers.list()
    assert (worker.lanes, worker.capabilities, worker.slots) == (("b",), (), 4)
    assert worker.seen_at - worker.registered_at == timedelta(seconds=10)
    assert await worker_events(engine) == ["registered w1"]


async def test_an_instance_of_another_worker_is_refused_while_it_lives(engine: Engine, clock: VirtualClock) -> None:
    await engine.workers.register(WorkerId("one", "i"), ["a"], ttl="10s")
    await refused(engine.workers.register(WorkerId("two", "i"), ["a"]), "instance_reassigned", Conflict)
    clock.advance("10s")
    answer = await engine.workers.register(WorkerId("two", "i"), ["a"])
    assert not answer.refreshed


async def test_a_heartbeat_keeps_it_there_and_tells_its_load(engine: Engine, clock: VirtualClock) -> None:
    await engine.workers.register("w1", ["a"], ttl="10s", slots=3)
    clock.advance("9s")
    assert await engine.workers.heartbeat("w1", busy=2) == clock.now() + timedelta(seconds=10)
    clock.advance("9s")
    [worker] = await engine.workers.list()
    assert worker.busy == 2


async def test_a_heartbeat_that_comes_too_late_must_register_again(engine: Engine, clock: VirtualClock) -> None:
    await refused(engine.workers.heartbeat("w1"), "worker_not_found", NotFound)
    await engine.workers.register("w1", ["a"], ttl="10s")
    clock.advance("10s")
    assert await engine.workers.list() == []
    await refused(engine.workers.heartbeat("w1"), "worker_not_found", NotFound)


async def test_whoever_is_silent_too_long_is_swept_with_one_event(engine: Engine, clock: VirtualClock) -> None:
    await engine.workers.register("w1", ["a"], ttl="10s")
    await engine.within("other").workers.register("w2", ["a"], ttl="10s")
    await engine.workers.register("w3", ["a"], ttl="1h")
    clock.advance("10s")
    for _ in range(2):
        await engine.reconcilers.tick()
    assert await worker_events(engine) == ["registered w1", "registered w3", "swept w1"]
    assert await worker_events(engine.within("other")) == ["registered w2", "swept w2"]
    assert [worker.id.name for worker in await engine.workers.list()] == ["w3"]


async def test_the_loop_knows_when_a_worker_is_gone(engine: Engine, store: TestStore, clock: VirtualClock) -> None:
    await engine.workers.register("w1", ["a"], ttl="10s")
    await engine.reconcilers._round()
    assert await engine.workers.list() != []
    clock.advance("10s")
    await engine.reconcilers._round()
    assert await store.query("SELECT * FROM ff.worker") == []


async def test_a_dead_one_is_marked_once_and_its_leases_are_not_touched(engine: Engine) -> None:
    await engine.workers.register("worker-1", ["default"])
    lease = await leased(engine)
    assert await engine.workers.mark_dead("worker-1", "on fire", principal="ada") == MarkedDead("worker-1")
    assert await engine.workers.mark_dead("worker-1") == AlreadySatisfied("not_registered")
    await engine.leases.renew(lease.fence)
    assert await worker_events(engine) == ["registered worker-1", "marked_dead worker-1"]


async def test_workers_are_listed_by_lane(engine: Engine) -> None:
    await engine.workers.register("w1", ["a", "b"])
    await engine.workers.register("w2", ["b"])
    assert [worker.id.name for worker in await engine.workers.list(lane="b")] == ["w1", "w2"]
    assert [worker.id.name for worker in await engine.workers.list(lane="a")] == ["w1"]
    assert await engine.within("other").workers.list() == []


async def test_explain_says_what_no_live_worker_offers(engine: Engine, clock: VirtualClock) -> None:
    id_ = await submitted(engine, requires=["gpu", "eu"])
    assert "no live worker is registered for that lane" in (await engine.operator.explain(id_)).sentence
    await engine.workers.register("w1", ["default"], capabilities=["eu"])
    await engine.workers.register("w2", ["elsewhere"], capabilities=["eu", "gpu"])
    found = await engine.operator.explain(id_)
    assert "no live worker offers gpu" in found.sentence
    assert (found.facts["nobody_offers"], found.facts["live_workers"]) == (("gpu",), 1)
    await engine.workers.register("w3", ["default"], capabilities=["gpu"], ttl="10s")
    assert "no live worker offers all of eu, gpu" in (await engine.operator.explain(id_)).sentence
    await engine.workers.register("w4", ["default"], capabilities=["gpu", "eu"], ttl="10s")
    assert "no live worker" not in (await engine.operator.explain(id_)).sentence
    clock.advance("10s")
    assert "no live worker offers gpu" in (await engine.operator.explain(id_)).sentence


async def test_explain_names_a_kind_that_no_live_worker_knows(engine: Engine) -> None:
    id_ = await submitted(engine, kind="refund@2", requires=["gpu"])
    await engine.workers.register("w1", ["default"], capabilities=["gpu"], kinds=["refund", "ship"])
    await engine.workers.register("w2", ["default"], kinds=["ship"])
    assert [worker.kinds for worker in await engine.workers.list()] == [("refund", "ship"), ("ship",)]
    found = await engine.operator.explain(id_)
    assert "no live worker knows the kind 'refund@2'" in found.sentence
    assert (found.facts["nobody_knows"], found.facts["live_workers"]) == ("refund@2", 2)
    await engine.workers.register("w2", ["default"], kinds=["refund@2"])
    assert "no live worker offers gpu" in (await engine.operator.explain(id_)).sentence
    await engine.workers.register("w3", ["default"], capabilities=["gpu"])
    assert "no live worker" not in (await engine.operator.explain(id_)).sentence
