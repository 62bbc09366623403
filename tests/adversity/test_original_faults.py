"""Faults that another engine was proven to have in its attempts and leases, each as the fact that holds here."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import pytest

from flowfabric.engine import (
    AlreadySatisfied,
    Backoff,
    Conflict,
    Delayed,
    Ended,
    Engine,
    Fence,
    FlowFabricError,
    InvalidRequest,
    Lease,
    NotFound,
    OnLeaseLoss,
    Policy,
    Refused,
    RetryScheduled,
    State,
    Step,
)
from flowfabric.testing import VirtualClock
from tests.concurrency.soundness import assert_sound
from tests.scenarios import KEEPING, ONE_SHOT, STEADY, leased, submitted
from tests.stores import TestStore, snapshot

CAPPED = Policy(max_reclaims=1)
CAPPED_KEEPING = Policy(max_reclaims=1, on_lease_loss=OnLeaseLoss.HAND_OFF)


async def refusals(engine: Engine, fence: Fence) -> set[str]:
    """The codes by which every write of a worker is refused."""
    codes = set()
    for write in (
        engine.leases.renew(fence), engine.leases.progress(fence, 1), engine.leases.checkpoint(fence, [Step("s")]),
        engine.leases.complete(fence, b"late"), engine.leases.fail(fence, "late"), engine.leases.release(fence),
        engine.leases.delay(fence, after="1m"), engine.leases.cancel(fence, "late"),
    ):  # fmt: skip
        with pytest.raises(Refused) as refused:
            await write
        codes.add(refused.value.code)
    return codes


async def retried(engine: Engine, clock: VirtualClock) -> tuple[Lease, Lease]:
    """The leases of a first attempt that failed and of the second one, which runs."""
    first = await leased(engine, policy=STEADY)
    await engine.leases.fail(first.fence, "once")
    clock.advance("10s")
    await engine.reconcilers.tick()
    return first, await engine.leases.claim_execution(first.execution_id, "worker-2")


async def test_a_zombie_of_the_first_attempt_cannot_complete_over_the_second(
    store: TestStore, engine: Engine, clock: VirtualClock
) -> None:
    first, second = await retried(engine, clock)
    before = await snapshot(store)
    assert await refusals(engine, first.fence) == {"execution_not_active"}
    assert await snapshot(store) == before
    assert await engine.leases.complete(second.fence, b"second") == Ended(State.COMPLETED)
    await assert_sound(store)


async def test_a_second_complete_does_not_overwrite_the_result(engine: Engine) -> None:
    lease = await leased(engine)
    await engine.leases.complete(lease.fence, b"first")
    with pytest.raises(FlowFabricError):
        await engine.leases.complete(lease.fence, b"second")
    assert await engine.leases.complete(lease.fence, b"first") == Ended(State.COMPLETED)
    outcome = await engine.executions.result(lease.execution_id)
    assert outcome is not None
    assert outcome.result == b"first"
    assert [event.name for event in await engine.executions.history(lease.execution_id)] == ["acquired", "completed"]


async def test_a_fail_after_complete_does_not_make_a_terminal_execution_runnable(engine: Engine) -> None:
    lease = await leased(engine)
    await engine.leases.complete(lease.fence)
    assert await refusals(engine, lease.fence) == {"execution_not_active"}
    assert (await engine.executions.describe(lease.execution_id)).state == State.COMPLETED


async def test_no_complete_follows_what_gave_up_the_lease(engine: Engine) -> None:
    ways: list[Callable[[Fence], Awaitable[Any]]] = [
        lambda fence: engine.leases.fail(fence, "once"),
        lambda fence: engine.leases.delay(fence, after="1h"),
        engine.leases.release,
        lambda fence: engine.leases.cancel(fence, "enough"),
    ]
    for give_up in ways:
        lease = await leased(engine, policy=STEADY)
        await give_up(lease.fence)
        with pytest.raises(Refused, match="execution_not_active"):
            await engine.leases.complete(lease.fence)


async def test_a_repeated_fail_uses_one_retry_and_answers_the_same_time(engine: Engine, clock: VirtualClock) -> None:
    lease = await leased(engine, policy=STEADY)
    first = await engine.leases.fail(lease.fence, "once")
    clock.advance("1s")
    assert await engine.leases.fail(lease.fence, "once") == first
    found = await engine.executions.describe(lease.execution_id)
    assert (found.retry_count, found.attempt_index, len(found.attempts)) == (1, 1, 1)


async def test_an_expired_lease_is_neither_renewed_nor_written_under_before_or_after_it_was_noticed(
    store: TestStore, engine: Engine, clock: VirtualClock
) -> None:
    lease = await leased(engine)
    clock.advance("30s")
    before = await snapshot(store)
    assert await refusals(engine, lease.fence) == {"lease_expired"}
    assert await snapshot(store) == before
    await engine.reconcilers.tick()
    assert await refusals(engine, lease.fence) == {"lease_expired"}
    assert (await engine.executions.describe(lease.execution_id)).state == State.WAITING


async def test_the_index_of_a_claimed_attempt_is_that_of_the_live_one(engine: Engine) -> None:
    lease = await leased(engine)
    found = await engine.executions.describe(lease.execution_id)
    assert found.lease is not None
    assert (lease.attempt_index, found.attempt_index) == (0, 0)
    with pytest.raises(Refused, match="execution_not_reclaimable"):
        await engine.operator.grant_reclaim(lease.execution_id, "thief")
    await engine.operator.cancel(lease.execution_id)
    [attempt] = (await engine.executions.describe(lease.execution_id)).attempts
    assert (attempt.attempt_index, attempt.outcome) == (0, "ended_cancelled")


async def test_the_expired_lease_of_an_attempt_does_not_end_the_one_that_reclaimed_it(
    engine: Engine, clock: VirtualClock
) -> None:
    lease = await leased(engine, policy=Policy(on_lease_loss=OnLeaseLoss.HAND_OFF, attempt_timeout="40s"))
    clock.advance("31s")
    await engine.reconcilers.tick()
    grant = await engine.operator.grant_reclaim(lease.execution_id, "heir")
    heir = await engine.leases.reclaim(grant, "heir")
    assert isinstance(heir, Lease)
    # The time of the first attempt passes now; the new one has its own.
    clock.advance("10s")
    await engine.reconcilers.tick()
    assert heir.attempt_timeout_at == heir.acquired_at + timedelta(seconds=40)
    assert await engine.leases.complete(heir.fence) == Ended(State.COMPLETED)


async def test_a_grant_does_not_take_over_what_has_moved_on_meanwhile(engine: Engine) -> None:
    lease = await leased(engine, policy=KEEPING)
    await engine.operator.revoke_lease(lease.execution_id)
    grant = await engine.operator.grant_reclaim(lease.execution_id, "heir")
    await engine.operator.cancel(lease.execution_id)
    await engine.operator.replay(lease.execution_id)
    owner = await engine.leases.claim_execution(lease.execution_id, "owner")
    with pytest.raises(Refused, match="execution_not_reclaimable"):
        await engine.leases.reclaim(grant, "heir")
    assert await engine.leases.complete(owner.fence) == Ended(State.COMPLETED)


@pytest.mark.parametrize("loss", ["expired", "revoked"])
async def test_a_kept_execution_can_be_reclaimed_however_late(engine: Engine, clock: VirtualClock, loss: str) -> None:
    lease = await leased(engine, policy=KEEPING)
    if loss == "revoked":
        await engine.operator.revoke_lease(lease.execution_id)
    clock.advance("1d")
    await engine.reconcilers.tick()
    grant = await engine.operator.grant_reclaim(lease.execution_id, "heir")
    heir = await engine.leases.reclaim(grant, "heir")
    assert isinstance(heir, Lease)
    assert (heir.origin, heir.attempt_index) == ("reclaimed", 1)


async def test_a_worker_that_dies_costs_no_retry_and_ends_nothing(engine: Engine, clock: VirtualClock) -> None:
    lease = await leased(engine, policy=ONE_SHOT)
    clock.advance("31s")
    await engine.reconcilers.tick()
    found = await engine.executions.describe(lease.execution_id)
    assert (found.state, found.retry_count, found.reclaim_count) == (State.WAITING, 0, 1)


async def test_an_attempt_past_its_own_time_is_retried_within_the_cap(engine: Engine, clock: VirtualClock) -> None:
    policy = Policy(max_retries=1, attempt_timeout="5s", backoff=Backoff(initial=0))
    id_ = await submitted(engine, policy=policy)
    for state in (State.DELAYED, State.FAILED):
        await engine.leases.claim_execution(id_, "w", lease_ttl="1h")
        clock.advance("5s")
        await engine.reconcilers.tick()
        found = await engine.executions.describe(id_)
        assert found.state == state
        assert found.last_failure is not None
        assert found.last_failure.category == "attempt_timeout"
        await engine.reconcilers.tick()


async def test_a_poisoned_execution_fails_after_its_retries_with_a_pause_before_each(
    engine: Engine, clock: VirtualClock
) -> None:
    policy = Policy(max_retries=2, backoff=Backoff(initial="4s", multiplier=2, jitter=False))
    id_ = await submitted(engine, policy=policy)
    pauses = []
    while True:
        lease = await engine.leases.claim_execution(id_, "w")
        answer = await engine.leases.fail(lease.fence, "poison", category="poison", detail=b"why")
        if isinstance(answer, Ended):
            break
        pauses.append(answer.at - clock.now())
        assert await engine.leases.claim(["default"], "w") == []
        clock.advance(pauses[-1])
        await engine.reconcilers.tick()
    assert pauses == [timedelta(seconds=4), timedelta(seconds=8)]
    found = await engine.executions.describe(id_)
    assert (found.state, found.vector.terminal_outcome) == (State.FAILED, "failed")
    assert [(item.failure_category, item.failure_detail) for item in found.attempts] == [("poison", b"why")] * 3


async def test_only_the_categories_and_classes_of_the_policy_are_retried(engine: Engine) -> None:
    policy = Policy(retryable_categories=["network"])
    for category, failure_class, retried_ in (
        ("network", "transient", True), ("network", "timeout", True), ("network", "permanent", False),
        ("network", "cancelled", False), ("logic", "transient", False),
    ):  # fmt: skip
        lease = await leased(engine, policy=policy)
        answer = await engine.leases.fail(lease.fence, "no", category=category, failure_class=failure_class)
        assert isinstance(answer, RetryScheduled) == retried_, (category, failure_class)


async def test_a_delay_keeps_the_deadline_and_the_deadline_is_not_taken_for_the_delay(
    engine: Engine, clock: VirtualClock
) -> None:
    lease = await leased(engine, policy=Policy(deadline="1h"))
    assert isinstance(await engine.leases.delay(lease.fence, after="2h"), Delayed)
    found = await engine.executions.describe(lease.execution_id)
    assert (found.deadline_at, found.ready_at) == (clock.now() + timedelta(hours=1), clock.now() + timedelta(hours=2))
    clock.advance("1h")
    await engine.reconcilers.tick()
    assert (await engine.executions.describe(lease.execution_id)).state == State.EXPIRED


async def test_delayed_work_wakes_up_and_a_deadline_holds_in_every_state(engine: Engine, clock: VirtualClock) -> None:
    policy = Policy(deadline="1m")
    woken = await submitted(engine, delay="10s")
    active = await leased(engine, policy=policy, lease_ttl="1h")
    kept = await leased(engine, policy=Policy(deadline="1m", on_lease_loss=OnLeaseLoss.HAND_OFF))
    await engine.operator.revoke_lease(kept.execution_id)
    held = await submitted(engine, policy=policy)
    await engine.operator.hold(held)
    due = [await submitted(engine, policy=policy), await submitted(engine, policy=policy, delay="1h"), held]
    due += [active.execution_id, kept.execution_id]
    clock.advance("10s")
    await engine.reconcilers.tick()
    assert (await engine.executions.describe(woken)).state == State.WAITING
    clock.advance("50s")
    await engine.reconcilers.tick()
    assert {(await engine.executions.describe(id_)).state for id_ in due} == {State.EXPIRED}


async def test_a_worker_cancels_only_what_it_owns_and_ends_its_lease_and_attempt(engine: Engine) -> None:
    lease = await leased(engine)
    foreign = Fence(lease.execution_id, lease.epoch, (await leased(engine)).fence.lease_id)
    with pytest.raises(Refused, match="stale_lease"):
        await engine.leases.cancel(foreign)
    with pytest.raises(NotFound, match="execution_not_found"):
        await engine.leases.cancel(Fence(lease.fence.lease_id, 1, lease.fence.lease_id))
    assert await engine.leases.cancel(lease.fence, "enough") == Ended(State.CANCELLED)
    found = await engine.executions.describe(lease.execution_id)
    assert (found.lease, found.epoch, found.attempts[0].outcome) == (None, lease.epoch + 1, "ended_cancelled")
    last = (await engine.executions.history(lease.execution_id))[-1]
    assert (last.family, last.name, last.ends_lease) == ("completion", "cancelled", True)


async def test_a_cancel_ends_the_attempt_is_told_to_all_and_can_be_replayed(engine: Engine) -> None:
    lease = await leased(engine)
    await engine.leases.delay(lease.fence, after="1h")
    await engine.operator.cancel(lease.execution_id, "not wanted", source="budget")
    found = await engine.executions.describe(lease.execution_id)
    assert (found.attempts[0].outcome, found.cancelled_by, found.ready_at) == ("ended_cancelled", "budget", None)
    assert [event.family for event in await engine.executions.history(lease.execution_id)][-1] == "completion"
    await engine.operator.replay(lease.execution_id)
    assert (await engine.leases.claim_execution(lease.execution_id, "w")).origin == "replayed"


async def test_a_revoke_leaves_an_expired_lease_alone_and_the_next_claim_is_another_attempt(
    engine: Engine, clock: VirtualClock
) -> None:
    lease = await leased(engine)
    clock.advance("30s")
    assert await engine.operator.revoke_lease(lease.execution_id) == AlreadySatisfied("already_expired")
    await engine.reconcilers.tick()
    assert await engine.operator.revoke_lease(lease.execution_id) == AlreadySatisfied("no_active_lease")
    second = await engine.leases.claim_execution(lease.execution_id, "w")
    await engine.operator.revoke_lease(lease.execution_id)
    third = await engine.leases.claim_execution(lease.execution_id, "w")
    assert [second.attempt_index, third.attempt_index] == [1, 2]
    found = await engine.executions.describe(lease.execution_id)
    assert [item.outcome for item in found.attempts] == ["interrupted_reclaimed"] * 2


async def test_a_replay_is_capped_starts_its_counts_again_and_keeps_the_old_attempts(
    engine: Engine, clock: VirtualClock
) -> None:
    policy = Policy(max_retries=1, max_replays=1, backoff=Backoff(initial=0))
    id_ = await submitted(engine, policy=policy)
    for _ in range(2):
        lease = await engine.leases.claim_execution(id_, "w")
        await engine.leases.fail(lease.fence, "no")
        await engine.reconcilers.tick()
    await engine.operator.replay(id_)
    found = await engine.executions.describe(id_)
    assert (found.retry_count, found.attempt_index, found.last_failure) == (0, 2, None)
    assert found.vector.terminal_outcome == "none"
    assert [item.generation for item in found.attempts] == [0, 0]
    await engine.operator.cancel(id_)
    with pytest.raises(Refused, match="max_replays_exhausted"):
        await engine.operator.replay(id_)


async def test_progress_is_bounded_and_refused_unless_the_execution_is_active(
    engine: Engine, clock: VirtualClock
) -> None:
    lease = await leased(engine)
    for percent in (-1, 101, 255):
        with pytest.raises(InvalidRequest, match="out_of_range"):
            await engine.leases.progress(lease.fence, percent)
    clock.advance("1s")
    await engine.leases.progress(lease.fence, 100, "done")
    assert (await engine.executions.describe(lease.execution_id)).changed_at == clock.now()
    await engine.leases.complete(lease.fence)
    with pytest.raises(Refused, match="execution_not_active"):
        await engine.leases.progress(lease.fence, 1)


async def test_cancel_and_complete_at_once_do_not_deadlock_and_the_loser_is_told_the_outcome(engine: Engine) -> None:
    for steps in ([], [Step("last")]):
        lease = await leased(engine)
        answers = await asyncio.gather(
            engine.leases.complete(lease.fence, b"out", steps=steps),
            engine.operator.cancel(lease.execution_id),
            return_exceptions=True,
        )
        [loser] = [answer for answer in answers if isinstance(answer, BaseException)]
        assert isinstance(loser, Refused)
        found = await engine.executions.describe(lease.execution_id)
        assert (loser.code, loser.fields["state"]) == ("execution_not_active", found.state)


@pytest.mark.parametrize("policy", [CAPPED, CAPPED_KEEPING])
async def test_an_execution_that_fails_over_its_cap_of_reclaims_is_told_to_all(
    engine: Engine, clock: VirtualClock, policy: Policy
) -> None:
    id_ = await submitted(engine, policy=policy)
    await engine.leases.claim_execution(id_, "w")
    for _ in range(2):
        clock.advance("31s")
        await engine.reconcilers.tick()
        if policy is CAPPED_KEEPING:
            await engine.leases.reclaim(await engine.operator.grant_reclaim(id_, "w"), "w")
        elif (await engine.executions.describe(id_)).state == State.WAITING:
            await engine.leases.claim_execution(id_, "w")
    found = await engine.executions.describe(id_)
    assert found.last_failure is not None
    assert (found.state, found.last_failure.category) == (State.FAILED, "max_reclaims_exceeded")
    last = (await engine.executions.history(id_))[-1]
    assert (last.family, last.name) == ("completion", "failed")


async def test_a_final_step_is_not_overwritten_by_a_later_attempt(engine: Engine, clock: VirtualClock) -> None:
    lease = await leased(engine)
    await engine.leases.checkpoint(lease.fence, [Step("paid", b"1")])
    await engine.operator.revoke_lease(lease.execution_id)
    heir = await engine.leases.claim_execution(lease.execution_id, "w")
    with pytest.raises(Conflict, match="step_already_recorded"):
        await engine.leases.checkpoint(heir.fence, [Step("paid", b"2")])
    assert [step.payload for step in await engine.executions.steps(lease.execution_id)] == [b"1"]
