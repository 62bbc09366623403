"""claim: who gets what first, what a worker may take, and what the lease it gets says."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from uuid import UUID

import pytest

from flowfabric.engine import AttemptState, BlockingReason, Created, Engine, Lease, Policy, State, Submission, WorkerId
from flowfabric.testing import VirtualClock
from tests import scenarios
from tests.facts import event_names, nothing_written
from tests.scenarios import STEADY, leased, submitted
from tests.stores import TestStore


async def claimed(engine: Engine, limit: int = 100, lanes: tuple[str, ...] = ("default",)) -> list[Lease]:
    return await engine.leases.claim(lanes, "worker", limit=limit)


async def payloads(engine: Engine, limit: int = 100) -> list[bytes]:
    return [lease.payload for lease in await claimed(engine, limit)]


async def interrupted(engine: Engine, payload: bytes, priority: int = 5) -> None:
    """Work that was begun and given back."""
    lease = await leased(engine, payload=payload, priority=priority)
    await engine.leases.release(lease.fence)


async def test_a_lease_carries_what_the_worker_needs(engine: Engine, clock: VirtualClock) -> None:
    id_ = await submitted(engine, payload=b"\x00in", encoding="raw", priority=3, tags={"a.b": "c"}, lane="fast")
    clock.advance("5s")
    [lease] = await engine.leases.claim(["fast"], WorkerId("mail", "mail-7"))
    assert (lease.execution_id, lease.namespace, lease.lane, lease.kind) == (id_, "default", "fast", "job")
    assert (lease.payload, lease.encoding, lease.priority, lease.tags) == (b"\x00in", "raw", 3, {"a.b": "c"})
    assert (lease.worker, lease.origin) == (WorkerId("mail", "mail-7"), "fresh")
    assert (lease.attempt_index, lease.generation, lease.epoch) == (0, 0, 1)
    assert (lease.acquired_at, lease.expires_at) == (clock.now(), clock.now() + lease.ttl)
    assert (lease.attempt_timeout_at, lease.deadline_at) == (None, None)


async def test_a_claimed_execution_is_active_and_its_event_names_the_lease(engine: Engine, clock: VirtualClock) -> None:
    id_ = await submitted(engine, tags={"a.b": "c"})
    [lease] = await claimed(engine)
    found = await engine.executions.describe(id_)
    assert (found.state, found.epoch, found.version, found.started_at) == (State.ACTIVE, 1, 1, clock.now())
    assert found.vector.ownership_state == "leased"
    assert found.vector.attempt_state is AttemptState.RUNNING
    assert found.vector.blocking_reason is BlockingReason.NONE
    assert found.lease is not None
    assert (found.lease.worker, found.lease.expires_at) == (lease.worker, lease.expires_at)
    [event] = await engine.executions.history(id_)
    assert (event.family, event.name, event.version, event.at) == ("lease", "acquired", 1, clock.now())
    assert (event.lease_id, event.epoch, event.worker) == (lease.fence.lease_id, 1, lease.worker)
    assert (event.state, event.ends_lease, event.tags) == (State.ACTIVE, False, {"a.b": "c"})


@pytest.mark.parametrize("limit", [1, 100])
async def test_priority_goes_first_then_resumed_work_then_age(engine: Engine, clock: VirtualClock, limit: int) -> None:
    await submitted(engine, payload=b"5 new, oldest", priority=5)
    await submitted(engine, payload=b"1 new", priority=1)
    clock.advance("1s")
    await interrupted(engine, b"5 resumed, older")
    await interrupted(engine, b"1 resumed", priority=1)
    clock.advance("1s")
    await interrupted(engine, b"5 resumed, younger")
    await submitted(engine, payload=b"5 new, youngest", priority=5)
    clock.advance("1s")
    await submitted(engine, payload=b"9 new", priority=9)
    got = [payload for _ in range(7 if limit == 1 else 1) for payload in await payloads(engine, limit)]
    assert got == [
        b"9 new", b"5 resumed, older", b"5 resumed, younger", b"5 new, oldest", b"5 new, youngest", b"1 resumed",
        b"1 new",
    ]  # fmt: skip


async def test_a_retry_keeps_its_age_and_does_not_count_as_resumed(engine: Engine, clock: VirtualClock) -> None:
    lease = await leased(engine, payload=b"retried", policy=STEADY)
    await engine.leases.fail(lease.fence, "not yet")
    clock.advance("1s")
    await submitted(engine, payload=b"younger")
    await interrupted(engine, b"resumed", priority=0)
    clock.advance("10s")
    await engine.reconcilers.tick()
    assert await payloads(engine) == [b"resumed", b"retried", b"younger"]


async def test_age_is_told_by_the_clock_of_the_store_and_not_by_ids(engine: Engine, clock: VirtualClock) -> None:
    for number, big in enumerate((0xFFFF, 0x0001, 0x8000)):
        await submitted(engine, payload=b"%d" % number, id=UUID(int=big << 112 | 0x7 << 76 | 0b10 << 62))
        clock.advance("1s")
    assert await payloads(engine) == [b"0", b"1", b"2"]


async def test_a_claim_takes_from_its_lanes_only_and_by_one_order_over_all_of_them(engine: Engine) -> None:
    for lane, priority in (("a", 1), ("b", 2), ("c", 9), ("a", 3)):
        await submitted(engine, payload=f"{lane}{priority}".encode(), lane=lane, priority=priority)
    assert [lease.payload for lease in await claimed(engine, lanes=("a", "b"))] == [b"a3", b"b2", b"a1"]
    assert [lease.payload for lease in await claimed(engine, lanes=("a", "b", "c"))] == [b"c9"]


async def test_a_claim_takes_its_kinds_only(engine: Engine) -> None:
    for kind in ("mail", "report", "image"):
        await submitted(engine, kind)
    got = await engine.leases.claim(["default"], "worker", kinds=["mail", "image"], limit=10)
    assert {lease.kind for lease in got} == {"mail", "image"}
    assert [lease.kind for lease in await claimed(engine)] == ["report"]


async def test_a_worker_takes_only_what_it_is_capable_of(engine: Engine) -> None:
    needs: tuple[tuple[str, ...], ...] = ((), ("gpu",), ("eu", "gpu"), ("GPU",))
    for required in needs:
        await submitted(engine, payload="+".join(required).encode(), requires=required)
    offers: list[tuple[list[str], set[bytes]]] = [
        (["eu"], {b""}),
        (["gpu", "spare"], {b"gpu"}),
        (["gpu", "us"], set()),
        (["us", "gpu", "eu"], {b"eu+gpu"}),
        (["GPU"], {b"GPU"}),
    ]
    for offered, expected in offers:
        got = await engine.leases.claim(["default"], "worker", capabilities=offered, limit=10)
        assert {lease.payload for lease in got} == expected


async def test_what_a_worker_cannot_take_never_hides_work_behind_it(engine: Engine) -> None:
    await engine.lanes.pause("paused")
    blocking = [
        Submission(kind="other", priority=9),
        Submission(kind="job", priority=9, requires=["gpu"]),
        Submission(kind="job", priority=9, lane="paused"),
        Submission(kind="job", priority=9, lane="elsewhere"),
        Submission(kind="job", priority=9, delay="1h"),
    ]
    await engine.executions.submit_many(blocking * 60)
    id_ = await submitted(engine, payload=b"mine", priority=0)
    got = await engine.leases.claim(["default", "paused"], "worker", kinds=["job"], limit=1)
    assert [lease.execution_id for lease in got] == [id_]


async def test_a_claim_returns_no_more_than_its_limit_and_no_less_while_there_is_work(engine: Engine) -> None:
    await engine.executions.submit_many([Submission(kind=f"kind-{number % 3}") for number in range(10)])
    assert [len(await claimed(engine, limit=4)) for _ in range(4)] == [4, 4, 2, 0]


async def test_the_term_is_what_the_claim_asks_for_or_what_the_policy_says(engine: Engine, clock: VirtualClock) -> None:
    for _ in range(2):
        await submitted(engine, policy=Policy(lease_ttl="45s"))
    asked = await engine.leases.claim(["default"], "worker", lease_ttl="5m")
    by_policy = await engine.leases.claim(["default"], "worker")
    for [lease], seconds in ((asked, 300), (by_policy, 45)):
        assert lease.ttl == timedelta(seconds=seconds)
        assert lease.expires_at == clock.now() + lease.ttl


async def test_every_claim_has_a_fresh_lease_id_and_a_higher_epoch(engine: Engine) -> None:
    await submitted(engine)
    leases = []
    for _ in range(3):
        [lease] = await claimed(engine)
        leases.append(lease)
        await engine.leases.release(lease.fence)
    assert len({lease.fence.lease_id for lease in leases}) == 3
    # The claim adds one, and so does the loss of the lease before it.
    assert [lease.epoch for lease in leases] == [1, 3, 5]


async def handed_over(engine: Engine, clock: VirtualClock) -> UUID:
    """An execution whose lease ran out and that went back to the queue."""
    lease = await leased(engine)
    clock.advance("31s")
    await engine.reconcilers.tick()
    return lease.execution_id


async def retry_after_rest(engine: Engine, clock: VirtualClock) -> UUID:
    """A second attempt that was begun and given back."""
    id_ = await scenarios.retrying(engine, clock)
    clock.advance("10s")
    await engine.reconcilers.tick()
    lease = await engine.leases.claim_execution(id_, "worker")
    await engine.leases.release(lease.fence)
    return id_


ORIGINS: dict[str, tuple[Callable[[Engine, VirtualClock], Awaitable[UUID]], str, int]] = {
    "submitted": (scenarios.waiting, "fresh", 0),
    "released": (scenarios.resumable, "resumed", 0),
    "delayed": (scenarios.resting, "resumed", 0),
    "failed": (scenarios.retrying, "retry", 1),
    "failed, then released": (retry_after_rest, "resumed", 1),
    "lease expired": (handed_over, "reclaimed", 1),
    "lease revoked": (scenarios.requeued, "reclaimed", 1),
    "replayed": (scenarios.replayed, "replayed", 1),
}


@pytest.mark.parametrize("way", ORIGINS)
async def test_a_lease_says_how_it_came_about(engine: Engine, clock: VirtualClock, way: str) -> None:
    prepare, origin, attempt_index = ORIGINS[way]
    id_ = await prepare(engine, clock)
    clock.advance("1h")
    await engine.reconcilers.tick()
    [lease] = await claimed(engine)
    assert (lease.execution_id, lease.origin, lease.attempt_index) == (id_, origin, attempt_index)
    event = (await engine.executions.history(id_))[-1]
    assert (event.name, event.details) == ("acquired", {"origin": origin})


async def test_a_paused_lane_gives_out_nothing_and_a_draining_one_what_it_has(engine: Engine) -> None:
    for number in range(3):
        await submitted(engine, payload=b"%d" % number)
    await engine.lanes.pause("default")
    assert await claimed(engine) == []
    await engine.lanes.resume("default")
    assert await payloads(engine, limit=1) == [b"0"]
    await engine.lanes.drain("default")
    assert await payloads(engine) == [b"1", b"2"]


async def test_namespaces_do_not_see_each_others_work_and_lanes(engine: Engine) -> None:
    other = engine.within("other")
    await submitted(engine, payload=b"here")
    await submitted(other, payload=b"there")
    await engine.lanes.pause("default")
    [lease] = await other.leases.claim(["default"], "worker", limit=10)
    assert (lease.payload, lease.namespace) == (b"there", "other")
    await engine.lanes.resume("default")
    assert await payloads(engine) == [b"here"]


async def test_the_time_of_an_attempt_is_armed_by_its_claim_and_stands_still_while_it_is_interrupted(
    engine: Engine, clock: VirtualClock
) -> None:
    await submitted(engine, policy=Policy(attempt_timeout="60s", max_retries=1, backoff=STEADY.backoff))
    [first] = await claimed(engine)
    assert first.attempt_timeout_at == clock.now() + timedelta(seconds=60)
    clock.advance("20s")
    await engine.leases.delay(first.fence, after="1h")
    clock.advance("1h")
    await engine.reconcilers.tick()
    [resumed] = await claimed(engine)
    assert resumed.attempt_timeout_at == clock.now() + timedelta(seconds=40)
    clock.advance("15s")
    await engine.leases.release(resumed.fence)
    clock.advance("1d")
    [again] = await claimed(engine)
    assert again.attempt_timeout_at == clock.now() + timedelta(seconds=25)
    await engine.leases.fail(again.fence, "the next attempt has the whole time")
    clock.advance("10s")
    await engine.reconcilers.tick()
    [retry] = await claimed(engine)
    assert retry.attempt_timeout_at == clock.now() + timedelta(seconds=60)


async def test_a_reclaimed_attempt_has_its_whole_time(engine: Engine, clock: VirtualClock) -> None:
    await submitted(engine, policy=Policy(attempt_timeout="60s"))
    [lease] = await claimed(engine)
    clock.advance("20s")
    await engine.operator.revoke_lease(lease.execution_id)
    [again] = await claimed(engine)
    assert again.attempt_timeout_at == clock.now() + timedelta(seconds=60)


async def test_started_at_is_the_first_claim_for_good(engine: Engine, clock: VirtualClock) -> None:
    id_ = await submitted(engine)
    started = clock.advance("1s")
    [first] = await claimed(engine)
    await engine.leases.release(first.fence)
    clock.advance("1s")
    [second] = await claimed(engine)
    await engine.leases.complete(second.fence)
    await engine.operator.replay(id_)
    clock.advance("1s")
    await claimed(engine)
    found = await engine.executions.describe(id_)
    assert found.started_at == started
    # The interrupted attempt went on, so it began at the first claim as well.
    assert found.attempts[0].started_at == started


async def test_a_claim_that_finds_nothing_writes_nothing(engine: Engine, store: TestStore) -> None:
    await submitted(engine, lane="other")
    async with nothing_written(store):
        assert await claimed(engine) == []


async def test_concurrent_claimers_never_get_the_same_execution(engine: Engine) -> None:
    answers = await engine.executions.submit_many([Submission(kind=f"kind-{number % 4}") for number in range(200)])
    got: list[Lease] = []

    async def work(number: int) -> None:
        for _ in range(200):
            leases = await engine.leases.claim(["default"], f"worker-{number}", limit=5)
            got.extend(leases)
            if len(got) >= 200:
                return

    await asyncio.gather(*[work(number) for number in range(8)])
    submitted_ids = [answer.id for answer in answers if isinstance(answer, Created)]
    assert sorted(lease.execution_id for lease in got) == submitted_ids
    assert {lease.epoch for lease in got} == {1}
    assert len({lease.fence.lease_id for lease in got}) == 200
    assert await event_names(engine, got[0].execution_id) == ["lease.acquired"]
