"""Tests of submit: the stored fields, repeated submits, and when the execution may start."""

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
)
from flowfabric.testing import VirtualClock
from tests.expectations import nothing_written, refused
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


async def test_new_submission_waits_with_all_its_fields(engine: Engine, clock: VirtualClock) -> None:
    policy = Policy(max_retries=1, deadline="1h")
    outcome = await engine.executions.submit(
        "job",
        b"\x00\xff",
        encoding="raw",
        lane="fast",
        priority=7,
        requires=["gpu", "eu", "gpu"],
        policy=policy,
        tags={"team.owner": "ann"},
        id=ID,
    )
    assert outcome == Created(ID, State.WAITING)
    execution = await engine.executions.describe(ID)
    assert (execution.kind, execution.payload, execution.encoding, execution.lane) == (
        "job",
        b"\x00\xff",
        "raw",
        "fast",
    )
    assert (execution.priority, execution.requires, execution.policy) == (7, ("eu", "gpu"), policy)
    assert execution.tags == {"team.owner": "ann"}
    assert (execution.created_at, execution.changed_at) == (clock.now(), clock.now())
    assert execution.deadline_at == clock.now() + timedelta(hours=1)
    assert (execution.started_at, execution.ended_at, execution.ready_at, execution.lease) == (None, None, None, None)
    assert (execution.epoch, execution.generation, execution.attempt_index, execution.attempts) == (0, 0, 0, ())
    assert execution.vector.public_state is PublicState.WAITING
    assert execution.vector.blocking_reason is BlockingReason.WAITING_FOR_WORKER
    assert execution.vector.attempt_state is AttemptState.PENDING_FIRST


async def test_submit_is_version_zero_and_writes_no_event(engine: Engine) -> None:
    id_ = await submitted(engine)
    assert (await engine.executions.describe(id_)).version == 0
    assert await engine.executions.history(id_) == []


@pytest.mark.parametrize("name", ["id", "key"])
async def test_repetition_is_a_duplicate_even_with_other_times_and_priority(
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
async def test_repetition_with_another_body_is_refused_and_writes_nothing(
    engine: Engine, store: TestStore, name: str
) -> None:
    same: dict[str, Any] = {"id": ID} if name == "id" else {"key": "order-1"}
    first = await engine.executions.submit(**BODY, **same)
    for other_body in OTHER_BODIES:
        await engine.executions.submit(**other_body)
    async with nothing_written(store):
        for other_body in OTHER_BODIES:
            error = await refused(engine.executions.submit(**other_body, **same), "idempotency_mismatch", Conflict)
            assert error.fields["execution_id"] == first.id


async def test_later_changes_do_not_affect_the_comparison_of_bodies(engine: Engine) -> None:
    first = await engine.executions.submit(**BODY, id=ID, key="order-1")
    await engine.executions.set_tags(ID, {"team.owner": None, "team.shift": "night"})
    await engine.operator.change_priority(ID, 8)
    await engine.operator.cancel(ID)
    assert await engine.executions.submit(**BODY, id=ID) == Duplicate(first.id)
    assert await engine.executions.submit(**BODY, key="order-1") == Duplicate(first.id)


async def test_key_is_scoped_to_its_namespace(engine: Engine) -> None:
    other_namespace = engine.for_namespace("other")
    own = await engine.executions.submit("job", b"here", key="order-1")
    foreign = await other_namespace.executions.submit("job", b"there", key="order-1")
    assert isinstance(foreign, Created)
    assert foreign.id != own.id
    await refused(engine.executions.describe(foreign.id), "execution_not_found", NotFound)
    assert await other_namespace.executions.submit("job", b"there", key="order-1") == Duplicate(foreign.id)


@pytest.mark.parametrize("name", ["id", "key"])
async def test_one_of_several_concurrent_submits_creates_the_execution(engine: Engine, name: str) -> None:
    same: dict[str, Any] = {"id": ID} if name == "id" else {"key": "order-1"}
    outcomes = await asyncio.gather(*[engine.executions.submit("job", b"in", **same) for _ in range(8)])
    [created] = [outcome for outcome in outcomes if isinstance(outcome, Created)]
    assert [outcome for outcome in outcomes if outcome != created] == [Duplicate(created.id)] * 7
    assert len((await engine.executions.list()).items) == 1


async def test_draining_lane_refuses_new_work_and_stores_nothing_of_it(engine: Engine, store: TestStore) -> None:
    first = await engine.executions.submit("job", lane="old", id=ID, key="known")
    await engine.lanes.drain("old")
    async with nothing_written(store):
        assert (await refused(engine.executions.submit("job", lane="old"), "lane_draining")).fields["lane"] == "old"
        await refused(engine.executions.submit("job", lane="old", key="fresh"), "lane_draining")
        assert await engine.executions.submit("job", lane="old", id=ID) == Duplicate(first.id)
        assert await engine.executions.submit("job", lane="old", key="known") == Duplicate(first.id)
    assert isinstance(await engine.executions.submit("job", lane="new"), Created)
    assert isinstance(await engine.for_namespace("other").executions.submit("job", lane="old"), Created)
    await engine.lanes.resume("old")
    assert isinstance(await engine.executions.submit("job", lane="old", key="fresh"), Created)


async def test_paused_lane_accepts_work(engine: Engine) -> None:
    await engine.lanes.pause("default")
    assert isinstance(await engine.executions.submit("job"), Created)


async def test_work_for_later_is_delayed_and_never_ready_early(engine: Engine, clock: VirtualClock) -> None:
    at = clock.now() + timedelta(hours=1)
    outcomes = [await engine.executions.submit("job", ready_at=at), await engine.executions.submit("job", delay="1h")]
    for outcome in outcomes:
        assert isinstance(outcome, Created)
        assert outcome.state is State.DELAYED
        execution = await engine.executions.describe(outcome.id)
        assert (execution.state, execution.ready_at) == (State.DELAYED, at)
        assert execution.vector.blocking_reason is BlockingReason.WAITING_FOR_DELAY
    clock.advance(timedelta(hours=1) - TICK)
    await engine.reconcilers.tick()
    assert await engine.leases.claim(["default"], "worker", limit=10) == []
    clock.advance(TICK)
    await engine.reconcilers.tick()
    assert len(await engine.leases.claim(["default"], "worker", limit=10)) == 2


async def test_work_with_a_past_ready_time_waits_immediately(engine: Engine, clock: VirtualClock) -> None:
    times: list[dict[str, Any]] = [
        {"ready_at": clock.now() - timedelta(days=1)},
        {"ready_at": clock.now()},
        {"delay": 0},
    ]
    for time in times:
        outcome = await engine.executions.submit("job", **time)
        assert isinstance(outcome, Created)
        execution = await engine.executions.describe(outcome.id)
        assert (outcome.state, execution.state, execution.ready_at) == (State.WAITING, State.WAITING, None)


@pytest.mark.parametrize("ago", [timedelta(0), timedelta(hours=1)])
async def test_deadline_that_is_not_in_the_future_is_refused_and_nothing_is_stored(
    engine: Engine, clock: VirtualClock, store: TestStore, ago: timedelta
) -> None:
    await submitted(engine)
    late = clock.now() - ago
    async with nothing_written(store):
        error = await refused(
            engine.executions.submit("job", deadline=late, key="order-1"), "deadline_in_past", InvalidRequest
        )
    assert error.fields["deadline"] == late


async def test_absolute_deadline_is_stored_and_overrides_the_relative_one(engine: Engine, clock: VirtualClock) -> None:
    at: datetime = clock.now() + timedelta(minutes=5)
    id_ = await submitted(engine, deadline=at, policy=Policy(deadline="1d"))
    assert (await engine.executions.describe(id_)).deadline_at == at


@pytest.mark.parametrize("name", ["id", "key"])
async def test_repetition_is_a_duplicate_even_after_its_deadline(
    engine: Engine, clock: VirtualClock, name: str
) -> None:
    same: dict[str, Any] = {"id": ID} if name == "id" else {"key": "order-1"}
    deadline = clock.now() + timedelta(minutes=1)
    first = await engine.executions.submit("job", deadline=deadline, **same)
    clock.advance("2m")
    assert await engine.executions.submit("job", deadline=deadline, **same) == Duplicate(first.id)


async def test_priority_is_clamped_to_its_range(engine: Engine) -> None:
    for priority, stored in ((-1, 0), (0, 0), (9000, 9000), (9001, 9000), (10**12, 9000)):
        id_ = await submitted(engine, priority=priority)
        assert (await engine.executions.describe(id_)).priority == stored


async def test_minted_ids_are_version_7_and_increase(engine: Engine) -> None:
    ids = [await submitted(engine) for _ in range(5)]
    assert ids == sorted(set(ids))
    assert {id_.version for id_ in ids} == {7}


async def test_submitted_work_can_be_claimed_immediately(engine: Engine) -> None:
    id_ = await submitted(engine)
    [lease] = await engine.leases.claim(["default"], "w")
    assert lease.execution_id == id_


async def test_submit_stores_delay_key_requirements_policy_and_checks_limits(
    engine: Engine, clock: VirtualClock
) -> None:
    policy = Policy(max_retries=7, deadline="1h")
    options: dict[str, Any] = {"requires": ["gpu"], "policy": policy, "tags": {"team.owner": "x"}, "key": "k"}
    first = await engine.executions.submit("job", b"in", delay="10s", priority=1_000_000, **options)
    assert isinstance(first, Created)
    assert await engine.executions.submit("job", b"in", **options) == Duplicate(first.id)
    execution = await engine.executions.describe(first.id)
    assert (execution.state, execution.ready_at) == (State.DELAYED, clock.now() + timedelta(seconds=10))
    assert (execution.requires, execution.policy, execution.priority) == (("gpu",), policy, 9000)
    assert execution.deadline_at == clock.now() + timedelta(hours=1)
    for bad in ({"tags": {"no dot": "x"}}, {"payload": b"x" * (1024 * 1024 + 1)}, {"priority": "high"}):
        with pytest.raises(InvalidRequest):
            await engine.executions.submit("job", **bad)
