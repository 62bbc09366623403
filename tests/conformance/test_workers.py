"""Tests of the worker registry: registration, heartbeats, expiry, and its use by `explain`."""

from __future__ import annotations

from datetime import timedelta

from flowfabric.engine import AlreadySatisfied, Conflict, Engine, InvalidRequest, MarkedDead, NotFound, WorkerId
from flowfabric.testing import VirtualClock
from tests.expectations import refused
from tests.scenarios import leased, submitted
from tests.stores import TestStore


async def read_worker_events(engine: Engine) -> list[str]:
    events = engine.events.subscribe(["worker"], start="beginning", follow=False)
    return [f"{event.name} {event.worker.instance if event.worker else '?'}" async for event in events]


async def test_worker_is_listed_as_registered(engine: Engine, clock: VirtualClock) -> None:
    registration = await engine.workers.register(
        WorkerId("mailer", "mailer-1"),
        ["post", "default"],
        capabilities=["gpu", "eu"],
        version="1.2",
        host="box",
        slots=8,
        ttl="30s",
    )
    assert (registration.refreshed, registration.expires_at) == (False, clock.now() + timedelta(seconds=30))
    [worker] = (await engine.workers.list()).items
    assert (worker.id, worker.lanes, worker.capabilities) == (
        WorkerId("mailer", "mailer-1"),
        ("post", "default"),
        ("eu", "gpu"),
    )
    assert (worker.version, worker.host, worker.slots, worker.busy, worker.kinds) == ("1.2", "box", 8, 0, None)
    assert worker.registered_at == worker.seen_at == clock.now()
    assert await read_worker_events(engine) == ["registered mailer-1"]


async def test_second_registration_replaces_the_first_and_writes_no_event(engine: Engine, clock: VirtualClock) -> None:
    await engine.workers.register("w1", ["a"], capabilities=["gpu"])
    clock.advance("10s")
    registration = await engine.workers.register("w1", ["b"], slots=4)
    assert registration.refreshed
    [worker] = (await engine.workers.list()).items
    assert (worker.lanes, worker.capabilities, worker.slots) == (("b",), (), 4)
    assert worker.seen_at - worker.registered_at == timedelta(seconds=10)
    assert await read_worker_events(engine) == ["registered w1"]


async def test_instance_of_another_live_worker_is_refused(engine: Engine, clock: VirtualClock) -> None:
    await engine.workers.register(WorkerId("one", "i"), ["a"], ttl="10s")
    await refused(engine.workers.register(WorkerId("two", "i"), ["a"]), "instance_reassigned", Conflict)
    clock.advance("10s")
    registration = await engine.workers.register(WorkerId("two", "i"), ["a"])
    assert not registration.refreshed


async def test_heartbeat_extends_the_registration_and_updates_the_load(engine: Engine, clock: VirtualClock) -> None:
    await engine.workers.register("w1", ["a"], ttl="10s", slots=3)
    clock.advance("9s")
    assert await engine.workers.heartbeat("w1", busy=2) == clock.now() + timedelta(seconds=10)
    clock.advance("9s")
    [worker] = (await engine.workers.list()).items
    assert worker.busy == 2


async def test_late_heartbeat_is_not_found(engine: Engine, clock: VirtualClock) -> None:
    await refused(engine.workers.heartbeat("w1"), "worker_not_found", NotFound)
    await engine.workers.register("w1", ["a"], ttl="10s")
    clock.advance("10s")
    assert (await engine.workers.list()).items == ()
    await refused(engine.workers.heartbeat("w1"), "worker_not_found", NotFound)


async def test_worker_is_silent_after_half_of_its_time(engine: Engine, clock: VirtualClock) -> None:
    await engine.workers.register("w1", ["a"], ttl="60s")

    async def is_silent() -> bool:
        [worker] = (await engine.workers.list()).items
        return worker.is_silent(clock.now())

    clock.advance("29s")
    assert not await is_silent()
    clock.advance("1s")
    assert await is_silent()
    await engine.workers.heartbeat("w1")
    assert not await is_silent()


async def test_silent_worker_is_swept_with_one_event(engine: Engine, clock: VirtualClock) -> None:
    await engine.workers.register("w1", ["a"], ttl="10s")
    await engine.for_namespace("other").workers.register("w2", ["a"], ttl="10s")
    await engine.workers.register("w3", ["a"], ttl="1h")
    clock.advance("10s")
    for _ in range(2):
        await engine.reconcilers.tick()
    assert await read_worker_events(engine) == ["registered w1", "registered w3", "swept w1"]
    assert await read_worker_events(engine.for_namespace("other")) == ["registered w2", "swept w2"]
    assert [worker.id.name for worker in (await engine.workers.list()).items] == ["w3"]


async def test_reconciler_loop_sweeps_an_expired_worker(engine: Engine, store: TestStore, clock: VirtualClock) -> None:
    await engine.workers.register("w1", ["a"], ttl="10s")
    await engine.reconcilers._run_overdue()
    assert (await engine.workers.list()).items != ()
    clock.advance("10s")
    await engine.reconcilers._run_overdue()
    assert await store.query("SELECT * FROM ff.worker") == []


async def test_worker_is_marked_dead_once_and_keeps_its_leases(engine: Engine) -> None:
    await engine.workers.register("worker-1", ["default"])
    lease = await leased(engine)
    assert await engine.workers.mark_dead("worker-1", "on fire", principal="ada") == MarkedDead("worker-1")
    assert await engine.workers.mark_dead("worker-1") == AlreadySatisfied("not_registered")
    await engine.leases.renew(lease.fence)
    assert await read_worker_events(engine) == ["registered worker-1", "marked_dead worker-1"]


async def test_workers_are_listed_by_lane(engine: Engine) -> None:
    await engine.workers.register("w1", ["a", "b"])
    await engine.workers.register("w2", ["b"])
    assert [worker.id.name for worker in (await engine.workers.list(lane="b")).items] == ["w1", "w2"]
    assert [worker.id.name for worker in (await engine.workers.list(lane="a")).items] == ["w1"]
    assert (await engine.for_namespace("other").workers.list()).items == ()


async def test_explain_names_capabilities_that_no_live_worker_offers(engine: Engine, clock: VirtualClock) -> None:
    id_ = await submitted(engine, requires=["gpu", "eu"])
    assert 'no live worker on lane "default".' in (await engine.operator.explain(id_)).sentence
    await engine.workers.register("w1", ["default"], capabilities=["eu"])
    await engine.workers.register("w2", ["elsewhere"], capabilities=["eu", "gpu"])
    explanation = await engine.operator.explain(id_)
    assert 'no live worker on lane "default" offers "gpu"' in explanation.sentence
    assert (explanation.facts["unoffered"], explanation.facts["live_workers"]) == (("gpu",), 1)
    await engine.workers.register("w3", ["default"], capabilities=["gpu"], ttl="10s")
    assert (
        'no live worker on lane "default" offers all of "eu" and "gpu"' in (await engine.operator.explain(id_)).sentence
    )
    await engine.workers.register("w4", ["default"], capabilities=["gpu", "eu"], ttl="10s")
    assert "no live worker" not in (await engine.operator.explain(id_)).sentence
    clock.advance("10s")
    assert 'no live worker on lane "default" offers "gpu"' in (await engine.operator.explain(id_)).sentence


async def test_explain_names_a_kind_that_no_live_worker_knows(engine: Engine) -> None:
    id_ = await submitted(engine, kind="refund@2", requires=["gpu"])
    await engine.workers.register("w1", ["default"], capabilities=["gpu"], kinds=["refund", "ship"])
    await engine.workers.register("w2", ["default"], kinds=["ship"])
    assert [worker.kinds for worker in (await engine.workers.list()).items] == [("refund", "ship"), ("ship",)]
    explanation = await engine.operator.explain(id_)
    assert 'no live worker on lane "default" runs "refund@2"' in explanation.sentence
    assert (explanation.facts["unknown_kind"], explanation.facts["live_workers"]) == ("refund@2", 2)
    await engine.workers.register("w2", ["default"], kinds=["refund@2"])
    assert 'no live worker on lane "default" offers "gpu"' in (await engine.operator.explain(id_)).sentence
    await engine.workers.register("w3", ["default"], capabilities=["gpu"])
    assert "no live worker" not in (await engine.operator.explain(id_)).sentence


async def test_workers_are_listed_in_pages(engine: Engine, clock: VirtualClock) -> None:
    for number in range(5):
        await engine.workers.register(WorkerId("w", f"i{number}"), ["mail" if number % 2 else "default"])
    await engine.workers.register(WorkerId("w", "i2-dead"), ["default"], ttl=1)
    clock.advance("2s")
    page = await engine.workers.list(limit=2)
    # A worker that registers before the cursor does not change the next pages.
    await engine.workers.register(WorkerId("w", "i0-new"), ["default"])
    second = await engine.workers.list(limit=2, cursor=page.next_cursor)
    last = await engine.workers.list(limit=2, cursor=second.next_cursor)
    instances = [[worker.id.instance for worker in each.items] for each in (page, second, last)]
    assert (instances, last.next_cursor) == ([["i0", "i1"], ["i2", "i3"], ["i4"]], None)
    on_lane = await engine.workers.list(lane="mail", limit=1)
    assert [worker.id.instance for worker in on_lane.items] == ["i1"]
    rest = await engine.workers.list(lane="mail", limit=1, cursor=on_lane.next_cursor)
    assert ([worker.id.instance for worker in rest.items], rest.next_cursor) == (["i3"], None)
    await refused(engine.workers.list(cursor=on_lane.next_cursor), "cursor_invalid", InvalidRequest)
