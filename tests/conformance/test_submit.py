"""submit: what is stored, when a repetition is a duplicate and when it is refused, and when the work may start."""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta
from typing import Any

import pytest

from flowfabric.core.ids import IdMinter
from flowfabric.engine import (
    AttemptState,
    BlockingReason,
    Conflict,
    Created,
    Duplicate,
    Engine,
    InvalidRequest,
    NotFound,
    Policy,
    PublicState,
    State,
)  # fmt: skip
from flowfabric.testing import VirtualClock
from tests.facts import nothing_written, refused
from tests.scenarios import submitted
from tests.stores import TestStore

TICK = timedelta(microseconds=1)
ID = IdMinter(lambda: 1_893_456_000_000, lambda bits: 1).mint()
BODY: dict[str, Any] = {"kind": "job", "payload": b"in", "tags": {"team.owner": "ann"}, "requires": ["gpu", "eu"]}
OTHER_BODIES: list[dict[str, Any]] = [
    BODY | {"kind": "other"},
    BODY | {"payload": b"other"},
    BODY | {"encoding": "text"},
    BODY | {"lane": "other"},
    BODY | {"requires": ["gpu"]},
    BODY | {"policy": Policy(max_retries=7)},
    BODY | {"tags": {"team.owner": "bob"}},
]


async def test_a_new_submission_waits_with_everything_it_was_given(engine: Engine, clock: VirtualClock) -> None:
    policy = Policy(max_retries=1, deadline="1h")
    answer = await engine.executions.submit(
        "job", b"\x00\xff", encoding="raw", lane="fast", priority=7, requires=["gpu", "eu", "gpu"], policy=policy,
        tags={"team.owner": "ann"}, id=ID,
    )  # fmt: skip
    assert answer == Created(ID, State.WAITING)
    found = await engine.executions.describe(ID)
    assert (found.kind, found.payload, found.encoding, found.lane) == ("job", b"\x00\xff", "raw", "fast")
    assert (found.priority, found.requires, found.policy) == (7, ("eu", "gpu"), policy)
    assert found.tags == {"team.owner": "ann"}
    assert (found.created_at, found.changed_at) == (clock.now(), clock.now())
    assert found.deadline_at == clock.now() + timedelta(hours=1)
    assert (found.started_at, found.ended_at, found.ready_at, found.lease) == (None, None, None, None)
    assert (found.epoch, found.generation, found.attempt_index, found.attempts) == (0, 0, 0, ())
    assert found.vector.public_state is PublicState.WAITING
    assert found.vector.blocking_reason is BlockingReason.WAITING_FOR_WORKER
    assert found.vector.attempt_state is AttemptState.PENDING_FIRST


async def test_a_submit_is_version_zero_and_leaves_no_event(engine: Engine) -> None:
    id_ = await submitted(engine)
    assert (await engine.executions.describe(id_)).version == 0
    assert await engine.executions.history(id_) == []


@pytest.mark.parametrize("name", ["id", "key"])
async def test_a_repetition_is_a_duplicate_whatever_its_times_and_priority(
    engine: Engine, clock: VirtualClock, store: TestStore, name: str
) -> None:
    same: dict[str, Any] = BODY | ({"id": ID} if name == "id" else {"key": "order-1"})
    first = await engine.executions.submit(**same)
    repetitions: list[dict[str, Any]] = [
        {},
        {"priority": 9},
        {"delay": "1h"},
        {"ready_at": clock.now() + timedelta(days=1)},
        {"deadline": clock.now() + timedelta(days=1)},
        {"requires": ["eu", "gpu", "eu"], "policy": Policy(max_retries=3, lease_ttl=30)},
        {"id": str(ID)} if name == "id" else {"id": ID},
    ]
    async with nothing_written(store):
        for repetition in repetitions:
            assert await engine.executions.submit(**(same | repetition)) == Duplicate(first.id)


@pytest.mark.parametrize("name", ["id", "key"])
async def test_a_repetition_with_another_body_is_refused_and_writes_nothing(
    engine: Engine, store: TestStore, name: str
) -> None:
    same: dict[str, Any] = {"id": ID} if name == "id" else {"key": "order-1"}
    first = await engine.executions.submit(**BODY, **same)
    for other in OTHER_BODIES:
        await engine.executions.submit(**other)
    async with nothing_written(store):
        for other in OTHER_BODIES:
            error = await refused(engine.executions.submit(**other, **same), "idempotency_mismatch", Conflict)
            assert error.fields["execution_id"] == first.id


async def test_later_changes_do_not_make_a_repetition_another_body(engine: Engine) -> None:
    first = await engine.executions.submit(**BODY, id=ID, key="order-1")
    await engine.executions.set_tags(ID, {"team.owner": None, "team.shift": "night"})
    await engine.operator.change_priority(ID, 8)
    await engine.operator.cancel(ID)
    assert await engine.executions.submit(**BODY, id=ID) == Duplicate(first.id)
    assert await engine.executions.submit(**BODY, key="order-1") == Duplicate(first.id)


async def test_a_key_is_scoped_to_its_namespace(engine: Engine) -> None:
    other = engine.within("other")
    here = await engine.executions.submit("job", b"here", key="order-1")
    there = await other.executions.submit("job", b"there", key="order-1")
    assert isinstance(there, Created)
    assert there.id != here.id
    await refused(engine.executions.describe(there.id), "execution_not_found", NotFound)
    assert await other.executions.submit("job", b"there", key="order-1") == Duplicate(there.id)


@pytest.mark.parametrize("collected", [False, True])
async def test_a_key_lives_for_24_hours(engine: Engine, clock: VirtualClock, collected: bool) -> None:
    first = await engine.executions.submit("job", b"in", key="order-1")
    clock.advance(timedelta(hours=24) - TICK)
    if collected:
        await engine.reconcilers.tick()
    assert await engine.executions.submit("job", b"in", key="order-1") == Duplicate(first.id)
    clock.advance(TICK)
    if collected:
        await engine.reconcilers.tick()
    second = await engine.executions.submit("job", b"in", key="order-1")
    assert isinstance(second, Created)
    assert second.id != first.id
    assert await engine.executions.submit("job", b"in", key="order-1") == Duplicate(second.id)


async def test_the_policy_sets_how_long_a_key_lives_and_zero_switches_it_off(
    engine: Engine, clock: VirtualClock
) -> None:
    hour, never = Policy(dedup_window="1h"), Policy(dedup_window=0)
    first = await engine.executions.submit("job", policy=hour, key="short")
    assert await engine.executions.submit("job", policy=hour, key="short") == Duplicate(first.id)
    clock.advance("1h")
    assert isinstance(await engine.executions.submit("job", policy=hour, key="short"), Created)
    answers = [await engine.executions.submit("job", policy=never, key="off") for _ in range(2)]
    assert all(isinstance(answer, Created) for answer in answers)
    assert isinstance(await engine.executions.submit("job", b"other body", key="off"), Created)


@pytest.mark.parametrize("name", ["id", "key"])
async def test_of_concurrent_submits_under_one_name_one_creates(engine: Engine, name: str) -> None:
    same: dict[str, Any] = {"id": ID} if name == "id" else {"key": "order-1"}
    answers = await asyncio.gather(*[engine.executions.submit("job", b"in", **same) for _ in range(8)])
    [created] = [answer for answer in answers if isinstance(answer, Created)]
    assert [answer for answer in answers if answer != created] == [Duplicate(created.id)] * 7
    assert len((await engine.executions.list()).items) == 1


async def test_a_draining_lane_refuses_new_work_and_stores_nothing_of_it(engine: Engine, store: TestStore) -> None:
    first = await engine.executions.submit("job", lane="old", id=ID, key="known")
    await engine.lanes.drain("old")
    async with nothing_written(store):
        assert (await refused(engine.executions.submit("job", lane="old"), "lane_draining")).fields["lane"] == "old"
        await refused(engine.executions.submit("job", lane="old", key="fresh"), "lane_draining")
        assert await engine.executions.submit("job", lane="old", id=ID) == Duplicate(first.id)
        assert await engine.executions.submit("job", lane="old", key="known") == Duplicate(first.id)
    assert isinstance(await engine.executions.submit("job", lane="new"), Created)
    assert isinstance(await engine.within("other").executions.submit("job", lane="old"), Created)
    await engine.lanes.resume("old")
    assert isinstance(await engine.executions.submit("job", lane="old", key="fresh"), Created)


async def test_a_paused_lane_accepts_work(engine: Engine) -> None:
    await engine.lanes.pause("default")
    assert isinstance(await engine.executions.submit("job"), Created)


async def test_work_for_later_is_delayed_until_its_time_and_never_ready_early(
    engine: Engine, clock: VirtualClock
) -> None:
    at = clock.now() + timedelta(hours=1)
    answers = [await engine.executions.submit("job", ready_at=at), await engine.executions.submit("job", delay="1h")]
    for answer in answers:
        assert isinstance(answer, Created)
        assert answer.state is State.DELAYED
        found = await engine.executions.describe(answer.id)
        assert (found.state, found.ready_at) == (State.DELAYED, at)
        assert found.vector.blocking_reason is BlockingReason.WAITING_FOR_DELAY
    clock.advance(timedelta(hours=1) - TICK)
    await engine.reconcilers.tick()
    assert await engine.leases.claim(["default"], "worker", limit=10) == []
    clock.advance(TICK)
    await engine.reconcilers.tick()
    assert len(await engine.leases.claim(["default"], "worker", limit=10)) == 2


async def test_work_whose_time_has_come_already_waits_at_once(engine: Engine, clock: VirtualClock) -> None:
    times: list[dict[str, Any]] = [
        {"ready_at": clock.now() - timedelta(days=1)},
        {"ready_at": clock.now()},
        {"delay": 0},
    ]
    for time in times:
        answer = await engine.executions.submit("job", **time)
        assert isinstance(answer, Created)
        found = await engine.executions.describe(answer.id)
        assert (answer.state, found.state, found.ready_at) == (State.WAITING, State.WAITING, None)


@pytest.mark.parametrize("ago", [timedelta(0), timedelta(hours=1)])
async def test_a_deadline_that_is_not_in_the_future_is_refused_and_nothing_is_stored(
    engine: Engine, clock: VirtualClock, store: TestStore, ago: timedelta
) -> None:
    await submitted(engine)
    late = clock.now() - ago
    async with nothing_written(store):
        error = await refused(
            engine.executions.submit("job", deadline=late, key="order-1"), "deadline_in_past", InvalidRequest
        )
    assert error.fields["deadline"] == late


async def test_an_absolute_deadline_is_kept_and_counts_more_than_the_relative_one(
    engine: Engine, clock: VirtualClock
) -> None:
    at: datetime = clock.now() + timedelta(minutes=5)
    id_ = await submitted(engine, deadline=at, policy=Policy(deadline="1d"))
    assert (await engine.executions.describe(id_)).deadline_at == at


@pytest.mark.parametrize("name", ["id", "key"])
async def test_a_repetition_is_a_duplicate_even_after_its_deadline(
    engine: Engine, clock: VirtualClock, name: str
) -> None:
    same: dict[str, Any] = {"id": ID} if name == "id" else {"key": "order-1"}
    deadline = clock.now() + timedelta(minutes=1)
    first = await engine.executions.submit("job", deadline=deadline, **same)
    clock.advance("2m")
    assert await engine.executions.submit("job", deadline=deadline, **same) == Duplicate(first.id)


async def test_a_priority_is_clamped_to_its_range(engine: Engine) -> None:
    for given, kept in ((-1, 0), (0, 0), (9000, 9000), (9001, 9000), (10**12, 9000)):
        id_ = await submitted(engine, priority=given)
        assert (await engine.executions.describe(id_)).priority == kept


async def test_minted_ids_are_version_7_and_increase(engine: Engine) -> None:
    ids = [await submitted(engine) for _ in range(5)]
    assert ids == sorted(set(ids))
    assert {id_.version for id_ in ids} == {7}
