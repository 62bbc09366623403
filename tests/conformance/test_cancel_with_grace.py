"""Tests of cancel with `children`, and with `grace`, which gives the worker time to stop before the cancel."""

from __future__ import annotations

from datetime import timedelta

import pytest

from flowfabric.engine import CancelPending, Ended, Engine, Lease, State, Step, any_of
from flowfabric.testing import VirtualClock
from tests.concurrency.flow_soundness import assert_flows_sound
from tests.expectations import event_names, every_write_is_refused, last_event, nothing_written
from tests.flows import ended, with_children
from tests.scenarios import SITUATIONS, leased, submitted, suspended
from tests.stores import TestStore


async def read_states(engine: Engine, *ids: object) -> list[str]:
    return [(await engine.executions.describe(id_)).state.value for id_ in ids]  # type: ignore[arg-type]


async def test_children_are_not_cancelled_by_default(engine: Engine) -> None:
    lease = await leased(engine)
    children = await with_children(engine, lease, "a")
    await engine.operator.cancel(lease.execution_id)
    assert await read_states(engine, lease.execution_id, children["a"]) == ["cancelled", "waiting"]


async def test_cancel_with_children_reaches_every_grandchild(engine: Engine) -> None:
    lease = await leased(engine)
    children = await with_children(engine, lease, "done", "busy", "idle")
    await ended(engine, children["done"])
    busy = await engine.leases.claim_execution(children["busy"], "worker-2")
    grandchildren = await with_children(engine, busy, "x")
    await engine.operator.cancel(lease.execution_id, "enough", children=True)
    ids = [lease.execution_id, *children.values(), *grandchildren.values()]
    assert await read_states(engine, *ids) == ["cancelled", "completed", "cancelled", "cancelled", "cancelled"]
    await every_write_is_refused(engine, busy.fence, "execution_not_active")
    assert (await last_event(engine, grandchildren["x"])).reason == "enough"


async def test_cancelled_child_takes_its_own_children_but_not_its_siblings(engine: Engine) -> None:
    lease = await leased(engine)
    children = await with_children(engine, lease, "a", "b")
    inner = await engine.leases.claim_execution(children["a"], "worker-2")
    grandchildren = await with_children(engine, inner, "x")
    await engine.operator.cancel(children["a"], children=True)
    ids = (lease.execution_id, children["a"], children["b"], grandchildren["x"])
    assert await read_states(engine, *ids) == ["active", "cancelled", "waiting", "cancelled"]


async def test_worker_sees_the_cancel_request_at_its_next_renewal(engine: Engine, clock: VirtualClock) -> None:
    lease = await leased(engine)
    assert not (await engine.leases.renew(lease.fence)).cancel_requested
    await engine.operator.cancel(lease.execution_id, "enough", grace="20s", principal="ada")
    assert await read_states(engine, lease.execution_id) == ["active"]
    assert (await engine.leases.renew(lease.fence)).cancel_requested
    event = await last_event(engine, lease.execution_id)
    assert (event.family, event.name, event.principal, event.reason) == (
        "operator",
        "cancel_requested",
        "ada",
        "enough",
    )
    assert await engine.leases.cancel(lease.fence, "cleaned up") == Ended(State.CANCELLED)


async def test_execution_is_cancelled_when_the_grace_ends(engine: Engine, clock: VirtualClock) -> None:
    lease = await leased(engine, lease_ttl="1h")
    await engine.operator.cancel(lease.execution_id, "enough", grace="20s", source="ops")
    clock.advance("19s")
    await engine.reconcilers.tick()
    assert await read_states(engine, lease.execution_id) == ["active"]
    clock.advance("1s")
    await engine.reconcilers.tick()
    execution = await engine.executions.describe(lease.execution_id)
    assert (execution.state, execution.cancelled_by, execution.cancel_reason) == (State.CANCELLED, "ops", "enough")
    await every_write_is_refused(engine, lease.fence, "execution_not_active")


async def test_worker_may_complete_within_the_grace(engine: Engine, clock: VirtualClock) -> None:
    lease = await leased(engine)
    await engine.operator.cancel(lease.execution_id, "enough", grace="20s")
    await engine.leases.complete(lease.fence, b"just in time")
    clock.advance("1h")
    await engine.reconcilers.tick()
    assert await read_states(engine, lease.execution_id) == ["completed"]


async def test_suspended_execution_is_resumed_to_clean_up(engine: Engine, clock: VirtualClock) -> None:
    wait = await suspended(engine)
    await engine.operator.cancel(wait.id, "enough", grace="20s")
    assert await read_states(engine, wait.id) == ["waiting"]
    lease = await engine.leases.claim_execution(wait.id, "worker-2")
    assert (await engine.leases.renew(lease.fence)).cancel_requested
    clock.advance("20s")
    await engine.reconcilers.tick()
    assert await read_states(engine, wait.id) == ["cancelled"]


async def test_unclaimed_work_is_cancelled_when_the_grace_ends(engine: Engine, clock: VirtualClock) -> None:
    waiting, delayed = await submitted(engine), await submitted(engine, delay="1h")
    for id_ in (waiting, delayed):
        await engine.operator.cancel(id_, "enough", grace="20s")
    clock.advance("20s")
    await engine.reconcilers.tick()
    assert await read_states(engine, waiting, delayed) == ["cancelled", "cancelled"]


async def test_repeated_request_records_one_event(engine: Engine, store: TestStore, clock: VirtualClock) -> None:
    lease = await leased(engine)
    await engine.operator.cancel(lease.execution_id, "enough", grace="20s")
    before = await event_names(engine, lease.execution_id)
    await engine.operator.cancel(lease.execution_id, "enough", grace="20s")
    assert await event_names(engine, lease.execution_id) == before


async def test_cancel_without_grace_does_not_wait_for_an_earlier_grace(
    engine: Engine, store: TestStore, clock: VirtualClock
) -> None:
    lease = await leased(engine)
    await engine.operator.cancel(lease.execution_id, "please", grace=timedelta(hours=1))
    assert await engine.operator.cancel(lease.execution_id, "now") == Ended(State.CANCELLED)
    assert await read_states(engine, lease.execution_id) == ["cancelled"]
    async with nothing_written(store):
        clock.advance("2h")
        await engine.reconcilers.tick()


async def test_replay_discards_the_cancel_request(engine: Engine, clock: VirtualClock) -> None:
    lease = await leased(engine)
    await engine.operator.cancel(lease.execution_id, "please", grace="1h")
    await engine.leases.complete(lease.fence, b"")
    await engine.operator.replay(lease.execution_id)
    next_lease = await engine.leases.claim_execution(lease.execution_id, "worker-1", lease_ttl="3h")
    assert not (await engine.leases.renew(next_lease.fence)).cancel_requested
    clock.advance("2h")
    await engine.reconcilers.tick()
    assert await read_states(engine, lease.execution_id) == ["active"]


async def test_worker_that_stops_on_request_records_the_reason_of_the_request(engine: Engine) -> None:
    submitted = await engine.executions.submit("k")
    [lease] = await engine.leases.claim(["default"], "w")
    await engine.operator.cancel(submitted.id, "enough", grace=60)
    await engine.leases.cancel(lease.fence)
    outcome = await engine.executions.result(submitted.id)
    assert outcome is not None and outcome.cancel_reason == "enough"


@pytest.mark.parametrize(
    "situation", ["delayed: retrying", "waiting: requeued", "waiting: resumable", "delayed: resting"]
)
async def test_started_execution_becomes_claimable_immediately_to_clean_up(
    engine: Engine, clock: VirtualClock, situation: str
) -> None:
    id_ = await SITUATIONS[situation](engine, clock)
    outcome = await engine.operator.cancel(id_, "enough", grace="20s")
    assert outcome == CancelPending(clock.now() + timedelta(seconds=20))
    assert await read_states(engine, id_) == ["waiting"]
    lease = await engine.leases.claim_execution(id_, "worker-2")
    assert lease.cancel_due_at == outcome.due_at
    assert await engine.leases.cancel(lease.fence, "cleaned up") == Ended(State.CANCELLED)


@pytest.mark.parametrize("situation", ["active: kept, lease expired", "active: kept, lease revoked"])
async def test_execution_kept_for_hand_off_is_cleaned_up_by_its_next_owner(
    engine: Engine, clock: VirtualClock, situation: str
) -> None:
    id_ = await SITUATIONS[situation](engine, clock)
    assert isinstance(await engine.operator.cancel(id_, "enough", grace="20s"), CancelPending)
    grant = await engine.operator.grant_reclaim(id_, "worker-2")
    lease = await engine.leases.reclaim(grant.id, "worker-2")
    assert isinstance(lease, Lease)
    assert (await engine.leases.renew(lease.fence)).cancel_requested


async def test_held_retry_stays_held_until_the_grace_ends(engine: Engine, clock: VirtualClock) -> None:
    id_ = await SITUATIONS["delayed: retrying"](engine, clock)
    await engine.operator.hold(id_, "look")
    await engine.operator.cancel(id_, "enough", grace="20s")
    assert await read_states(engine, id_) == ["blocked"]
    clock.advance("20s")
    await engine.reconcilers.tick()
    assert await read_states(engine, id_) == ["cancelled"]


@pytest.mark.parametrize("situation", ["waiting", "delayed", "blocked: held", "waiting: replayed"])
async def test_execution_that_never_started_is_cancelled_immediately(
    engine: Engine, clock: VirtualClock, situation: str
) -> None:
    id_ = await SITUATIONS[situation](engine, clock)
    assert await engine.operator.cancel(id_, "enough", grace="20s") == Ended(State.CANCELLED)
    assert await read_states(engine, id_) == ["cancelled"]


async def test_replay_from_a_step_can_clean_up_within_the_grace(engine: Engine) -> None:
    lease = await leased(engine)
    await engine.leases.checkpoint(lease.fence, [Step("reserve"), Step("pay")])
    await engine.leases.complete(lease.fence, b"")
    await engine.operator.replay(lease.execution_id, from_step="pay")
    assert isinstance(await engine.operator.cancel(lease.execution_id, grace="20s"), CancelPending)
    next_lease = await engine.leases.claim_execution(lease.execution_id, "worker-2")
    assert next_lease.cancel_due_at is not None


async def test_resumed_parent_is_not_woken_again_by_children_of_its_earlier_wait(
    engine: Engine, store: TestStore
) -> None:
    lease = await leased(engine)
    first = await with_children(engine, lease, "a")
    await engine.leases.wait_children(lease.fence, list(first.values()))
    await engine.operator.cancel(lease.execution_id, "enough", grace="1h")
    next_lease = await engine.leases.claim_execution(lease.execution_id, "worker-1")
    second = await with_children(engine, next_lease, "clean-up")
    await engine.leases.wait_children(next_lease.fence, list(second.values()))
    await ended(engine, first["a"])
    await engine.operator.cancel(lease.execution_id, "asked again", grace="2h")
    assert await read_states(engine, lease.execution_id) == ["blocked"]
    await ended(engine, second["clean-up"])
    assert await read_states(engine, lease.execution_id) == ["waiting"]
    await assert_flows_sound(store)


async def test_cancelled_child_does_not_win_the_race_of_its_resumed_parent(
    engine: Engine,
) -> None:
    lease = await leased(engine)
    children = await with_children(engine, lease, "idle", "busy")
    busy = await engine.leases.claim_execution(children["busy"], "worker-2")
    await engine.leases.wait_children(lease.fence, list(children.values()), join=any_of())
    await engine.operator.cancel(lease.execution_id, "enough", children=True, grace="20s")
    assert await read_states(engine, lease.execution_id, *children.values()) == ["waiting", "cancelled", "active"]
    assert (await engine.leases.renew(busy.fence)).cancel_requested
