"""cancel with children and with grace: the whole family, and a worker that is asked before it is stopped."""

from __future__ import annotations

from datetime import timedelta

import pytest

from flowfabric.engine import CancelRequested, Ended, Engine, Lease, State, Step, any_of
from flowfabric.testing import VirtualClock
from tests.concurrency.flow_soundness import assert_flows_sound
from tests.facts import event_names, every_write_is_refused, last_event, nothing_written
from tests.flows import ended, with_children
from tests.scenarios import SITUATIONS, leased, submitted, suspended
from tests.stores import TestStore


async def states(engine: Engine, *ids: object) -> list[str]:
    return [(await engine.executions.describe(id_)).state.value for id_ in ids]  # type: ignore[arg-type]


async def test_children_are_left_alone_unless_asked(engine: Engine) -> None:
    lease = await leased(engine)
    children = await with_children(engine, lease, "a")
    await engine.operator.cancel(lease.execution_id)
    assert await states(engine, lease.execution_id, children["a"]) == ["cancelled", "waiting"]


async def test_a_family_is_cancelled_to_its_last_grandchild(engine: Engine) -> None:
    lease = await leased(engine)
    children = await with_children(engine, lease, "done", "busy", "idle")
    await ended(engine, children["done"])
    busy = await engine.leases.claim_execution(children["busy"], "worker-2")
    grand = await with_children(engine, busy, "x")
    await engine.operator.cancel(lease.execution_id, "enough", children=True)
    ids = [lease.execution_id, *children.values(), *grand.values()]
    assert await states(engine, *ids) == ["cancelled", "completed", "cancelled", "cancelled", "cancelled"]
    await every_write_is_refused(engine, busy.fence, "execution_not_active")
    assert (await last_event(engine, grand["x"])).reason == "enough"


async def test_a_child_takes_its_own_children_and_not_its_siblings(engine: Engine) -> None:
    lease = await leased(engine)
    children = await with_children(engine, lease, "a", "b")
    inner = await engine.leases.claim_execution(children["a"], "worker-2")
    grand = await with_children(engine, inner, "x")
    await engine.operator.cancel(children["a"], children=True)
    ids = (lease.execution_id, children["a"], children["b"], grand["x"])
    assert await states(engine, *ids) == ["active", "cancelled", "waiting", "cancelled"]


async def test_with_grace_the_worker_hears_of_it_at_its_next_renewal(engine: Engine, clock: VirtualClock) -> None:
    lease = await leased(engine)
    assert not (await engine.leases.renew(lease.fence)).cancel_requested
    await engine.operator.cancel(lease.execution_id, "enough", grace="20s", principal="ada")
    assert await states(engine, lease.execution_id) == ["active"]
    assert (await engine.leases.renew(lease.fence)).cancel_requested
    event = await last_event(engine, lease.execution_id)
    assert (event.family, event.name, event.principal, event.reason) == (
        "operator",
        "cancel_requested",
        "ada",
        "enough",
    )
    assert await engine.leases.cancel(lease.fence, "cleaned up") == Ended(State.CANCELLED)


async def test_when_the_grace_is_over_the_cancel_is_hard(engine: Engine, clock: VirtualClock) -> None:
    lease = await leased(engine, lease_ttl="1h")
    await engine.operator.cancel(lease.execution_id, "enough", grace="20s", source="ops")
    clock.advance("19s")
    await engine.reconcilers.tick()
    assert await states(engine, lease.execution_id) == ["active"]
    clock.advance("1s")
    await engine.reconcilers.tick()
    found = await engine.executions.describe(lease.execution_id)
    assert (found.state, found.cancelled_by, found.cancel_reason) == (State.CANCELLED, "ops", "enough")
    await every_write_is_refused(engine, lease.fence, "execution_not_active")


async def test_a_worker_may_finish_within_the_grace(engine: Engine, clock: VirtualClock) -> None:
    lease = await leased(engine)
    await engine.operator.cancel(lease.execution_id, "enough", grace="20s")
    await engine.leases.complete(lease.fence, b"just in time")
    clock.advance("1h")
    await engine.reconcilers.tick()
    assert await states(engine, lease.execution_id) == ["completed"]


async def test_with_grace_a_suspended_one_is_resumed_to_clean_up(engine: Engine, clock: VirtualClock) -> None:
    wait = await suspended(engine)
    await engine.operator.cancel(wait.id, "enough", grace="20s")
    assert await states(engine, wait.id) == ["waiting"]
    lease = await engine.leases.claim_execution(wait.id, "worker-2")
    assert (await engine.leases.renew(lease.fence)).cancel_requested
    clock.advance("20s")
    await engine.reconcilers.tick()
    assert await states(engine, wait.id) == ["cancelled"]


async def test_what_nobody_works_on_ends_with_the_grace_at_the_latest(engine: Engine, clock: VirtualClock) -> None:
    waiting, delayed = await submitted(engine), await submitted(engine, delay="1h")
    for id_ in (waiting, delayed):
        await engine.operator.cancel(id_, "enough", grace="20s")
    clock.advance("20s")
    await engine.reconcilers.tick()
    assert await states(engine, waiting, delayed) == ["cancelled", "cancelled"]


async def test_a_request_that_is_repeated_is_one(engine: Engine, store: TestStore, clock: VirtualClock) -> None:
    lease = await leased(engine)
    await engine.operator.cancel(lease.execution_id, "enough", grace="20s")
    before = await event_names(engine, lease.execution_id)
    await engine.operator.cancel(lease.execution_id, "enough", grace="20s")
    assert await event_names(engine, lease.execution_id) == before


async def test_a_hard_cancel_does_not_wait_for_the_grace(engine: Engine, store: TestStore, clock: VirtualClock) -> None:
    lease = await leased(engine)
    await engine.operator.cancel(lease.execution_id, "please", grace=timedelta(hours=1))
    assert await engine.operator.cancel(lease.execution_id, "now") == Ended(State.CANCELLED)
    assert await states(engine, lease.execution_id) == ["cancelled"]
    async with nothing_written(store):
        clock.advance("2h")
        await engine.reconcilers.tick()


async def test_a_replay_forgets_the_request(engine: Engine, clock: VirtualClock) -> None:
    lease = await leased(engine)
    await engine.operator.cancel(lease.execution_id, "please", grace="1h")
    await engine.leases.complete(lease.fence, b"")
    await engine.operator.replay(lease.execution_id)
    again = await engine.leases.claim_execution(lease.execution_id, "worker-1", lease_ttl="3h")
    assert not (await engine.leases.renew(again.fence)).cancel_requested
    clock.advance("2h")
    await engine.reconcilers.tick()
    assert await states(engine, lease.execution_id) == ["active"]


async def test_a_worker_that_leaves_as_it_was_asked_cancels_for_the_reason_it_was_asked(engine: Engine) -> None:
    submitted = await engine.executions.submit("k")
    [lease] = await engine.leases.claim(["default"], "w")
    await engine.operator.cancel(submitted.id, "enough", grace=60)
    await engine.leases.cancel(lease.fence)
    outcome = await engine.executions.result(submitted.id)
    assert outcome is not None and outcome.cancel_reason == "enough"


@pytest.mark.parametrize(
    "situation", ["delayed: retrying", "waiting: requeued", "waiting: resumable", "delayed: resting"]
)
async def test_with_grace_whatever_has_begun_goes_on_at_once_to_clean_up(
    engine: Engine, clock: VirtualClock, situation: str
) -> None:
    id_ = await SITUATIONS[situation](engine, clock)
    answer = await engine.operator.cancel(id_, "enough", grace="20s")
    assert answer == CancelRequested(clock.now() + timedelta(seconds=20))
    assert await states(engine, id_) == ["waiting"]
    lease = await engine.leases.claim_execution(id_, "worker-2")
    assert lease.cancel_due_at == answer.due_at
    assert await engine.leases.cancel(lease.fence, "cleaned up") == Ended(State.CANCELLED)


@pytest.mark.parametrize("situation", ["active: kept, lease expired", "active: kept, lease revoked"])
async def test_with_grace_what_is_kept_for_a_hand_off_is_cleaned_up_by_whoever_takes_it(
    engine: Engine, clock: VirtualClock, situation: str
) -> None:
    id_ = await SITUATIONS[situation](engine, clock)
    assert isinstance(await engine.operator.cancel(id_, "enough", grace="20s"), CancelRequested)
    grant = await engine.operator.grant_reclaim(id_, "worker-2")
    lease = await engine.leases.reclaim(grant.id, "worker-2")
    assert isinstance(lease, Lease)
    assert (await engine.leases.renew(lease.fence)).cancel_requested


async def test_with_grace_what_is_held_after_a_failure_waits_for_nobody_longer_than_that(
    engine: Engine, clock: VirtualClock
) -> None:
    id_ = await SITUATIONS["delayed: retrying"](engine, clock)
    await engine.operator.hold(id_, "look")
    await engine.operator.cancel(id_, "enough", grace="20s")
    assert await states(engine, id_) == ["blocked"]
    clock.advance("20s")
    await engine.reconcilers.tick()
    assert await states(engine, id_) == ["cancelled"]


@pytest.mark.parametrize("situation", ["waiting", "delayed", "blocked: held", "waiting: replayed"])
async def test_with_grace_what_nobody_has_begun_ends_at_once(
    engine: Engine, clock: VirtualClock, situation: str
) -> None:
    id_ = await SITUATIONS[situation](engine, clock)
    assert await engine.operator.cancel(id_, "enough", grace="20s") == Ended(State.CANCELLED)
    assert await states(engine, id_) == ["cancelled"]


async def test_with_grace_what_was_replayed_from_a_step_has_something_to_clean_up(engine: Engine) -> None:
    lease = await leased(engine)
    await engine.leases.checkpoint(lease.fence, [Step("reserve"), Step("pay")])
    await engine.leases.complete(lease.fence, b"")
    await engine.operator.replay(lease.execution_id, from_step="pay")
    assert isinstance(await engine.operator.cancel(lease.execution_id, grace="20s"), CancelRequested)
    again = await engine.leases.claim_execution(lease.execution_id, "worker-2")
    assert again.cancel_due_at is not None


async def test_with_grace_a_parent_goes_on_and_its_next_wait_is_not_ended_by_the_last(
    engine: Engine, store: TestStore
) -> None:
    lease = await leased(engine)
    first = await with_children(engine, lease, "a")
    await engine.leases.wait_children(lease.fence, list(first.values()))
    await engine.operator.cancel(lease.execution_id, "enough", grace="1h")
    again = await engine.leases.claim_execution(lease.execution_id, "worker-1")
    second = await with_children(engine, again, "clean-up")
    await engine.leases.wait_children(again.fence, list(second.values()))
    await ended(engine, first["a"])
    await engine.operator.cancel(lease.execution_id, "asked again", grace="2h")
    assert await states(engine, lease.execution_id) == ["blocked"]
    await ended(engine, second["clean-up"])
    assert await states(engine, lease.execution_id) == ["waiting"]
    await assert_flows_sound(store)


async def test_with_grace_a_child_that_ends_at_once_does_not_win_the_race_against_one_that_cleans_up(
    engine: Engine,
) -> None:
    lease = await leased(engine)
    children = await with_children(engine, lease, "idle", "busy")
    busy = await engine.leases.claim_execution(children["busy"], "worker-2")
    await engine.leases.wait_children(lease.fence, list(children.values()), join=any_of())
    await engine.operator.cancel(lease.execution_id, "enough", children=True, grace="20s")
    assert await states(engine, lease.execution_id, *children.values()) == ["waiting", "cancelled", "active"]
    assert (await engine.leases.renew(busy.fence)).cancel_requested
