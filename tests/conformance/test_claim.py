"""Tests of claim: the order of the queue, the claimable work, and the content of a lease."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from uuid import UUID

import pytest

from flowfabric.engine import (
    AttemptState,
    BlockingReason,
    Created,
    Engine,
    Lease,
    Policy,
    Refused,
    State,
    Submission,
    WorkerId,
)
from flowfabric.testing import VirtualClock
from tests import scenarios
from tests.expectations import event_names, nothing_written
from tests.scenarios import STEADY, leased, submitted
from tests.stores import TestStore


async def claim(engine: Engine, limit: int = 100, lanes: tuple[str, ...] = ("default",)) -> list[Lease]:
    return await engine.leases.claim(lanes, "worker", limit=limit)


async def claim_payloads(engine: Engine, limit: int = 100) -> list[bytes]:
    return [lease.payload for lease in await claim(engine, limit)]


async def interrupt(engine: Engine, payload: bytes, priority: int = 5) -> None:
    """Submit work, claim it and release it."""
    lease = await leased(engine, payload=payload, priority=priority)
    await engine.leases.release(lease.fence)


async def test_lease_carries_the_submitted_fields(engine: Engine, clock: VirtualClock) -> None:
    id_ = await submitted(engine, payload=b"\x00in", encoding="raw", priority=3, tags={"a.b": "c"}, lane="fast")
    clock.advance("5s")
    [lease] = await engine.leases.claim(["fast"], WorkerId("mail", "mail-7"))
    assert (lease.execution_id, lease.namespace, lease.lane, lease.kind) == (id_, "default", "fast", "job")
    assert (lease.payload, lease.encoding, lease.priority, lease.tags) == (b"\x00in", "raw", 3, {"a.b": "c"})
    assert (lease.worker, lease.origin) == (WorkerId("mail", "mail-7"), "fresh")
    assert (lease.attempt_index, lease.generation, lease.epoch) == (0, 0, 1)
    assert (lease.acquired_at, lease.expires_at) == (clock.now(), clock.now() + lease.ttl)
    assert (lease.attempt_timeout_at, lease.deadline_at) == (None, None)


async def test_claimed_execution_is_active_and_its_event_names_the_lease(engine: Engine, clock: VirtualClock) -> None:
    id_ = await submitted(engine, tags={"a.b": "c"})
    [lease] = await claim(engine)
    execution = await engine.executions.describe(id_)
    assert (execution.state, execution.epoch, execution.version, execution.started_at) == (
        State.ACTIVE,
        1,
        1,
        clock.now(),
    )
    assert execution.vector.ownership_state == "leased"
    assert execution.vector.attempt_state is AttemptState.RUNNING
    assert execution.vector.blocking_reason is BlockingReason.NONE
    assert execution.lease is not None
    assert (execution.lease.worker, execution.lease.expires_at) == (lease.worker, lease.expires_at)
    [event] = await engine.executions.history(id_)
    assert (event.family, event.name, event.version, event.at) == ("lease", "acquired", 1, clock.now())
    assert (event.lease_id, event.epoch, event.worker) == (lease.fence.lease_id, 1, lease.worker)
    assert (event.state, event.ends_lease, event.tags) == (State.ACTIVE, False, {"a.b": "c"})


@pytest.mark.parametrize("limit", [1, 100])
async def test_order_is_priority_then_resumed_work_then_age(engine: Engine, clock: VirtualClock, limit: int) -> None:
    await submitted(engine, payload=b"5 new, oldest", priority=5)
    await submitted(engine, payload=b"1 new", priority=1)
    clock.advance("1s")
    await interrupt(engine, b"5 resumed, older")
    await interrupt(engine, b"1 resumed", priority=1)
    clock.advance("1s")
    await interrupt(engine, b"5 resumed, younger")
    await submitted(engine, payload=b"5 new, youngest", priority=5)
    clock.advance("1s")
    await submitted(engine, payload=b"9 new", priority=9)
    claimed_payloads = [
        payload for _ in range(7 if limit == 1 else 1) for payload in await claim_payloads(engine, limit)
    ]
    assert claimed_payloads == [
        b"9 new",
        b"5 resumed, older",
        b"5 resumed, younger",
        b"5 new, oldest",
        b"5 new, youngest",
        b"1 resumed",
        b"1 new",
    ]


async def test_retry_keeps_its_age_and_does_not_count_as_resumed(engine: Engine, clock: VirtualClock) -> None:
    lease = await leased(engine, payload=b"retried", policy=STEADY)
    await engine.leases.fail(lease.fence, "not yet")
    clock.advance("1s")
    await submitted(engine, payload=b"younger")
    await interrupt(engine, b"resumed", priority=0)
    clock.advance("10s")
    await engine.reconcilers.tick()
    assert await claim_payloads(engine) == [b"resumed", b"retried", b"younger"]


async def test_age_follows_the_store_clock_and_not_the_ids(engine: Engine, clock: VirtualClock) -> None:
    for number, big in enumerate((0xFFFF, 0x0001, 0x8000)):
        await submitted(engine, payload=b"%d" % number, id=UUID(int=big << 112 | 0x7 << 76 | 0b10 << 62))
        clock.advance("1s")
    assert await claim_payloads(engine) == [b"0", b"1", b"2"]


async def test_claim_orders_all_its_lanes_together_and_takes_no_others(engine: Engine) -> None:
    for lane, priority in (("a", 1), ("b", 2), ("c", 9), ("a", 3)):
        await submitted(engine, payload=f"{lane}{priority}".encode(), lane=lane, priority=priority)
    assert [lease.payload for lease in await claim(engine, lanes=("a", "b"))] == [b"a3", b"b2", b"a1"]
    assert [lease.payload for lease in await claim(engine, lanes=("a", "b", "c"))] == [b"c9"]


async def test_claim_takes_only_its_kinds(engine: Engine) -> None:
    for kind in ("mail", "report", "image"):
        await submitted(engine, kind)
    leases = await engine.leases.claim(["default"], "worker", kinds=["mail", "image"], limit=10)
    assert {lease.kind for lease in leases} == {"mail", "image"}
    assert [lease.kind for lease in await claim(engine)] == ["report"]


async def test_worker_claims_only_work_that_matches_its_capabilities(engine: Engine) -> None:
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
        leases = await engine.leases.claim(["default"], "worker", capabilities=offered, limit=10)
        assert {lease.payload for lease in leases} == expected


async def test_unclaimable_work_never_hides_work_behind_it(engine: Engine) -> None:
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
    leases = await engine.leases.claim(["default", "paused"], "worker", kinds=["job"], limit=1)
    assert [lease.execution_id for lease in leases] == [id_]


async def test_claim_fills_its_limit_while_there_is_work(engine: Engine) -> None:
    await engine.executions.submit_many([Submission(kind=f"kind-{number % 3}") for number in range(10)])
    assert [len(await claim(engine, limit=4)) for _ in range(4)] == [4, 4, 2, 0]


async def test_lease_ttl_comes_from_the_claim_or_else_from_the_policy(engine: Engine, clock: VirtualClock) -> None:
    for _ in range(2):
        await submitted(engine, policy=Policy(lease_ttl="45s"))
    by_claim = await engine.leases.claim(["default"], "worker", lease_ttl="5m")
    by_policy = await engine.leases.claim(["default"], "worker")
    for [lease], seconds in ((by_claim, 300), (by_policy, 45)):
        assert lease.ttl == timedelta(seconds=seconds)
        assert lease.expires_at == clock.now() + lease.ttl


async def test_every_claim_has_a_new_lease_id_and_a_higher_epoch(engine: Engine) -> None:
    await submitted(engine)
    leases = []
    for _ in range(3):
        [lease] = await claim(engine)
        leases.append(lease)
        await engine.leases.release(lease.fence)
    assert len({lease.fence.lease_id for lease in leases}) == 3
    # The epoch grows by one with each claim and with each release.
    assert [lease.epoch for lease in leases] == [1, 3, 5]


async def requeue_after_expiry(engine: Engine, clock: VirtualClock) -> UUID:
    """Let a lease expire, let the reconciler queue its execution again, and return the execution's id."""
    lease = await leased(engine)
    clock.advance("31s")
    await engine.reconcilers.tick()
    return lease.execution_id


async def release_retry(engine: Engine, clock: VirtualClock) -> UUID:
    """Let the first attempt fail, claim and release the second one, and return the execution's id."""
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
    "failed, then released": (release_retry, "resumed", 1),
    "lease expired": (requeue_after_expiry, "reclaimed", 1),
    "lease revoked": (scenarios.requeued, "reclaimed", 1),
    "replayed": (scenarios.replayed, "replayed", 1),
}


@pytest.mark.parametrize("cause", ORIGINS)
async def test_lease_reports_its_origin(engine: Engine, clock: VirtualClock, cause: str) -> None:
    prepare, origin, attempt_index = ORIGINS[cause]
    id_ = await prepare(engine, clock)
    clock.advance("1h")
    await engine.reconcilers.tick()
    [lease] = await claim(engine)
    assert (lease.execution_id, lease.origin, lease.attempt_index) == (id_, origin, attempt_index)
    event = (await engine.executions.history(id_))[-1]
    assert (event.name, event.details) == ("acquired", {"origin": origin})


@pytest.mark.parametrize("by_id", [False, True])
@pytest.mark.parametrize("cause", ORIGINS)
async def test_claim_reports_whether_there_may_be_a_journal(
    engine: Engine, clock: VirtualClock, cause: str, by_id: bool
) -> None:
    prepare, origin, _ = ORIGINS[cause]
    id_ = await prepare(engine, clock)
    clock.advance("1h")
    await engine.reconcilers.tick()
    [lease] = [await engine.leases.claim_execution(id_, "worker")] if by_id else await claim(engine)
    assert lease.has_journal == (origin != "fresh")
    assert [held.has_journal for held in await engine.leases.held("worker")] == [True]


async def test_paused_lane_has_no_claimable_work_and_a_draining_lane_does(engine: Engine) -> None:
    for number in range(3):
        await submitted(engine, payload=b"%d" % number)
    await engine.lanes.pause("default")
    assert await claim(engine) == []
    await engine.lanes.resume("default")
    assert await claim_payloads(engine, limit=1) == [b"0"]
    await engine.lanes.drain("default")
    assert await claim_payloads(engine) == [b"1", b"2"]


async def test_namespaces_do_not_share_work_or_lanes(engine: Engine) -> None:
    other_namespace = engine.for_namespace("other")
    await submitted(engine, payload=b"here")
    await submitted(other_namespace, payload=b"there")
    await engine.lanes.pause("default")
    [lease] = await other_namespace.leases.claim(["default"], "worker", limit=10)
    assert (lease.payload, lease.namespace) == (b"there", "other")
    await engine.lanes.resume("default")
    assert await claim_payloads(engine) == [b"here"]


async def test_attempt_timeout_starts_with_the_claim_and_pauses_while_interrupted(
    engine: Engine, clock: VirtualClock
) -> None:
    await submitted(engine, policy=Policy(attempt_timeout="60s", max_retries=1, backoff=STEADY.backoff))
    [first] = await claim(engine)
    assert first.attempt_timeout_at == clock.now() + timedelta(seconds=60)
    clock.advance("20s")
    await engine.leases.delay(first.fence, after="1h")
    clock.advance("1h")
    await engine.reconcilers.tick()
    [resumed] = await claim(engine)
    assert resumed.attempt_timeout_at == clock.now() + timedelta(seconds=40)
    clock.advance("15s")
    await engine.leases.release(resumed.fence)
    clock.advance("1d")
    [next_lease] = await claim(engine)
    assert next_lease.attempt_timeout_at == clock.now() + timedelta(seconds=25)
    await engine.leases.fail(next_lease.fence, "the next attempt has the whole time")
    clock.advance("10s")
    await engine.reconcilers.tick()
    [retry] = await claim(engine)
    assert retry.attempt_timeout_at == clock.now() + timedelta(seconds=60)


async def test_reclaimed_attempt_has_its_full_timeout(engine: Engine, clock: VirtualClock) -> None:
    await submitted(engine, policy=Policy(attempt_timeout="60s"))
    [lease] = await claim(engine)
    clock.advance("20s")
    await engine.operator.revoke_lease(lease.execution_id)
    [next_lease] = await claim(engine)
    assert next_lease.attempt_timeout_at == clock.now() + timedelta(seconds=60)


async def test_started_at_is_always_the_time_of_the_first_claim(engine: Engine, clock: VirtualClock) -> None:
    id_ = await submitted(engine)
    started = clock.advance("1s")
    [first] = await claim(engine)
    await engine.leases.release(first.fence)
    clock.advance("1s")
    [second] = await claim(engine)
    await engine.leases.complete(second.fence)
    await engine.operator.replay(id_)
    clock.advance("1s")
    await claim(engine)
    execution = await engine.executions.describe(id_)
    assert execution.started_at == started
    # The second claim continued the released attempt, so the attempt also started at the first claim.
    assert execution.attempts[0].started_at == started


async def test_empty_claim_writes_nothing(engine: Engine, store: TestStore) -> None:
    await submitted(engine, lane="other")
    async with nothing_written(store):
        assert await claim(engine) == []


async def test_concurrent_claimers_never_get_the_same_execution(engine: Engine) -> None:
    outcomes = await engine.executions.submit_many([Submission(kind=f"kind-{number % 4}") for number in range(200)])
    claim: list[Lease] = []

    async def work(number: int) -> None:
        for _ in range(200):
            leases = await engine.leases.claim(["default"], f"worker-{number}", limit=5)
            claim.extend(leases)
            if len(claim) >= 200:
                return

    await asyncio.gather(*[work(number) for number in range(8)])
    submitted_ids = [outcome.id for outcome in outcomes if isinstance(outcome, Created)]
    assert sorted(lease.execution_id for lease in claim) == submitted_ids
    assert {lease.epoch for lease in claim} == {1}
    assert len({lease.fence.lease_id for lease in claim}) == 200
    assert await event_names(engine, claim[0].execution_id) == ["lease.acquired"]


async def test_priority_order_spans_all_lanes_and_kinds_of_a_claim(engine: Engine) -> None:
    ids = [await submitted(engine, kind=f"kind-{n % 3}", lane=f"lane-{n % 4}", priority=n) for n in range(12)]
    lanes = [f"lane-{number}" for number in range(4)]
    leases = await engine.leases.claim(lanes, "w", limit=5) + await engine.leases.claim(lanes, "w", limit=20)
    assert [lease.execution_id for lease in leases] == ids[::-1]


async def test_work_with_missing_capabilities_hides_nothing_behind_it(engine: Engine) -> None:
    for _ in range(50):
        await submitted(engine, priority=9000, requires=["gpu"])
    plain = await submitted(engine)
    assert [lease.execution_id for lease in await engine.leases.claim(["default"], "w")] == [plain]
    assert await engine.leases.claim(["default"], "w") == []
    assert len(await engine.leases.claim(["default"], "w", capabilities=["gpu", "more"], limit=100)) == 50


async def test_claim_marks_resumed_work_and_skips_a_paused_lane(engine: Engine) -> None:
    lease = await leased(engine)
    await engine.leases.release(lease.fence)
    fresh = await submitted(engine)
    await engine.lanes.pause("default")
    assert await engine.leases.claim(["default"], "w", limit=5) == []
    with pytest.raises(Refused, match="lane_paused"):
        await engine.leases.claim_execution(fresh, "w")
    await engine.lanes.resume("default")
    leases = await engine.leases.claim(["default"], "w", limit=5)
    assert [(claimed.execution_id, claimed.origin, claimed.attempt_index) for claimed in leases] == [
        (lease.execution_id, "resumed", 0),
        (fresh, "fresh", 0),
    ]


async def test_claim_with_a_lost_reply_can_be_found_and_released(engine: Engine) -> None:
    id_ = await submitted(engine)
    await engine.leases.claim(["default"], "w")
    [held] = await engine.leases.held("w")
    assert held.execution_id == id_
    await engine.leases.release(held.fence)
    assert [lease.attempt_index for lease in await engine.leases.claim(["default"], "other")] == [0]
