"""Tests that every fenced operation refuses a former or forged owner with the right code and writes nothing."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from uuid import UUID, uuid4

import pytest

from flowfabric.engine import (
    Ended,
    Engine,
    Fence,
    Lease,
    NotFound,
    OnAttemptTimeout,
    Policy,
    Released,
    RetryScheduled,
    State,
    Step,
    TerminalOutcome,
)
from flowfabric.testing import VirtualClock
from tests.concurrency.soundness import assert_sound
from tests.expectations import nothing_written, refusals, refused, step_retry, taking_part
from tests.scenarios import KEEPING, ONE_SHOT, STEADY, leased, submitted
from tests.stores import TestStore, snapshot

# Every fenced operation. Its content, if any, differs from the requests that the former owners below have sent.
OPERATIONS: dict[str, Callable[[Engine, Fence], Awaitable[object]]] = {
    "renew": lambda engine, fence: engine.leases.renew(fence),
    "progress": lambda engine, fence: engine.leases.progress(fence, 99, "zombie"),
    "checkpoint": lambda engine, fence: engine.leases.checkpoint(fence, [Step("zombie", b"1")]),
    "complete": lambda engine, fence: engine.leases.complete(fence, b"zombie", steps=[Step("zombie", b"1")]),
    "complete without steps": lambda engine, fence: engine.leases.complete(fence, b"zombie"),
    "fail": lambda engine, fence: engine.leases.fail(fence, "zombie"),
    "delay": lambda engine, fence: engine.leases.delay(fence, after="7h"),
    "retry_steps": lambda engine, fence: engine.leases.retry_steps(fence, *step_retry("zombie")),
    "release": lambda engine, fence: engine.leases.release(fence),
    "cancel": lambda engine, fence: engine.leases.cancel(fence, "zombie"),
    "cancel_children": lambda engine, fence: engine.leases.cancel_children(fence, [uuid4()], "zombie"),
    "transact": lambda engine, fence: engine.leases.transact(
        fence, taking_part(engine), lambda _: Step("zombie", b"1")
    ),
    "hold": lambda engine, fence: engine.leases.hold(fence, "zombie", "zombie", steps=[Step("zombie", b"1")]),
    "postpone": lambda engine, fence: engine.leases.postpone(fence, "diverged", "zombie", version="zombie"),
    "continue_with": lambda engine, fence: engine.leases.continue_with(fence, b"zombie", steps=[Step("zombie", b"1")]),
}


async def claim_again(engine: Engine, lease: Lease) -> Lease:
    return await engine.leases.claim_execution(lease.execution_id, "worker-2")


async def pass_time(engine: Engine, clock: VirtualClock, duration: str) -> None:
    clock.advance(duration)
    await engine.reconcilers.tick()


async def let_lease_expire(engine: Engine, clock: VirtualClock) -> Lease:
    lease = await leased(engine)
    clock.advance("30s")
    return lease


async def requeue_after_expiry(engine: Engine, clock: VirtualClock) -> Lease:
    lease = await leased(engine)
    await pass_time(engine, clock, "30s")
    return lease


async def keep_after_expiry(engine: Engine, clock: VirtualClock) -> Lease:
    lease = await leased(engine, policy=KEEPING)
    await pass_time(engine, clock, "30s")
    return lease


async def exceed_max_reclaims(engine: Engine, clock: VirtualClock) -> Lease:
    lease = await leased(engine, policy=Policy(max_reclaims=0))
    await pass_time(engine, clock, "30s")
    return lease


async def requeue_and_claim(engine: Engine, clock: VirtualClock) -> Lease:
    lease = await requeue_after_expiry(engine, clock)
    await claim_again(engine, lease)
    return lease


async def reclaim_by_grant(engine: Engine, clock: VirtualClock) -> Lease:
    lease = await keep_after_expiry(engine, clock)
    grant = await engine.operator.grant_reclaim(lease.execution_id, "worker-2")
    await engine.leases.reclaim(grant, "worker-2")
    return lease


async def claim_again_and_release(engine: Engine, clock: VirtualClock) -> Lease:
    lease = await requeue_after_expiry(engine, clock)
    later = await claim_again(engine, lease)
    await engine.leases.release(later.fence)
    return lease


async def claim_again_and_complete(engine: Engine, clock: VirtualClock) -> Lease:
    lease = await requeue_after_expiry(engine, clock)
    later = await claim_again(engine, lease)
    await engine.leases.complete(later.fence, b"out")
    return lease


async def claim_three_times(engine: Engine, clock: VirtualClock) -> Lease:
    lease = await claim_again_and_release(engine, clock)
    await claim_again(engine, lease)
    return lease


async def revoke(engine: Engine, clock: VirtualClock) -> Lease:
    lease = await leased(engine)
    await engine.operator.revoke_lease(lease.execution_id)
    return lease


async def revoke_and_keep(engine: Engine, clock: VirtualClock) -> Lease:
    lease = await leased(engine, policy=KEEPING)
    await engine.operator.revoke_lease(lease.execution_id)
    return lease


async def revoke_and_claim(engine: Engine, clock: VirtualClock) -> Lease:
    lease = await revoke(engine, clock)
    await claim_again(engine, lease)
    return lease


async def revoke_and_cancel(engine: Engine, clock: VirtualClock) -> Lease:
    lease = await revoke(engine, clock)
    await engine.operator.cancel(lease.execution_id)
    return lease


async def schedule_retry(engine: Engine, clock: VirtualClock) -> Lease:
    lease = await leased(engine, policy=STEADY)
    assert isinstance(await engine.leases.fail(lease.fence, "not yet"), RetryScheduled)
    return lease


async def retry_and_claim(engine: Engine, clock: VirtualClock) -> Lease:
    lease = await schedule_retry(engine, clock)
    await pass_time(engine, clock, "10s")
    await claim_again(engine, lease)
    return lease


async def fail(engine: Engine, clock: VirtualClock) -> Lease:
    lease = await leased(engine, policy=ONE_SHOT)
    await engine.leases.fail(lease.fence, "broken")
    return lease


async def complete(engine: Engine, clock: VirtualClock) -> Lease:
    lease = await leased(engine)
    await engine.leases.complete(lease.fence, b"out")
    return lease


async def complete_and_replay(engine: Engine, clock: VirtualClock) -> Lease:
    lease = await complete(engine, clock)
    await engine.operator.replay(lease.execution_id)
    await claim_again(engine, lease)
    return lease


async def cancel_by_operator(engine: Engine, clock: VirtualClock) -> Lease:
    lease = await leased(engine)
    await engine.operator.cancel(lease.execution_id)
    return lease


async def cancel_by_worker(engine: Engine, clock: VirtualClock) -> Lease:
    lease = await leased(engine)
    await engine.leases.cancel(lease.fence, "enough")
    return lease


async def time_out_attempt(engine: Engine, clock: VirtualClock) -> Lease:
    lease = await leased(engine, policy=Policy(attempt_timeout="10s", max_retries=0))
    await pass_time(engine, clock, "10s")
    return lease


async def expire_by_attempt_timeout(engine: Engine, clock: VirtualClock) -> Lease:
    lease = await leased(engine, policy=Policy(attempt_timeout="10s", on_attempt_timeout=OnAttemptTimeout.EXPIRE))
    await pass_time(engine, clock, "10s")
    return lease


async def pass_deadline(engine: Engine, clock: VirtualClock) -> Lease:
    lease = await leased(engine, policy=Policy(deadline="10s"))
    await pass_time(engine, clock, "10s")
    return lease


async def release(engine: Engine, clock: VirtualClock) -> Lease:
    lease = await leased(engine)
    await engine.leases.release(lease.fence)
    return lease


async def release_and_claim(engine: Engine, clock: VirtualClock) -> Lease:
    lease = await release(engine, clock)
    await claim_again(engine, lease)
    return lease


async def delay(engine: Engine, clock: VirtualClock) -> Lease:
    lease = await leased(engine)
    await engine.leases.delay(lease.fence, after="1h")
    return lease


async def hold_by_worker(engine: Engine, clock: VirtualClock) -> Lease:
    lease = await leased(engine)
    await engine.leases.hold(lease.fence, "diverged", "look at it")
    return lease


async def continue_and_claim(engine: Engine, clock: VirtualClock) -> Lease:
    lease = await leased(engine)
    await engine.leases.continue_with(lease.fence, b"next")
    await claim_again(engine, lease)
    return lease


@dataclass(frozen=True)
class FormerOwner:
    """A function that makes a lease holder a former owner, and the error code and state expected afterwards."""

    prepare: Callable[[Engine, VirtualClock], Awaitable[Lease]]
    code: str
    state: State
    outcome: TerminalOutcome = TerminalOutcome.NONE


_EXPIRED, _REVOKED, _STALE, _OVER = "lease_expired", "lease_revoked", "stale_lease", "execution_not_active"
FORMER_OWNERS = [
    FormerOwner(let_lease_expire, _EXPIRED, State.ACTIVE),
    FormerOwner(requeue_after_expiry, _EXPIRED, State.WAITING),
    FormerOwner(keep_after_expiry, _EXPIRED, State.ACTIVE),
    FormerOwner(exceed_max_reclaims, _EXPIRED, State.FAILED, TerminalOutcome.FAILED),
    # The most recent former owner gets the cause of its loss, even while another worker has the lease.
    FormerOwner(requeue_and_claim, _EXPIRED, State.ACTIVE),
    FormerOwner(reclaim_by_grant, _EXPIRED, State.ACTIVE),
    FormerOwner(claim_again_and_release, _STALE, State.WAITING),
    FormerOwner(claim_again_and_complete, _STALE, State.COMPLETED, TerminalOutcome.SUCCESS),
    FormerOwner(claim_three_times, _STALE, State.ACTIVE),
    FormerOwner(revoke, _REVOKED, State.WAITING),
    FormerOwner(revoke_and_keep, _REVOKED, State.ACTIVE),
    FormerOwner(revoke_and_claim, _REVOKED, State.ACTIVE),
    FormerOwner(revoke_and_cancel, _REVOKED, State.CANCELLED, TerminalOutcome.CANCELLED),
    FormerOwner(schedule_retry, _OVER, State.DELAYED),
    FormerOwner(retry_and_claim, _OVER, State.ACTIVE),
    FormerOwner(fail, _OVER, State.FAILED, TerminalOutcome.FAILED),
    FormerOwner(complete, _OVER, State.COMPLETED, TerminalOutcome.SUCCESS),
    FormerOwner(complete_and_replay, _OVER, State.ACTIVE),
    FormerOwner(cancel_by_operator, _OVER, State.CANCELLED, TerminalOutcome.CANCELLED),
    FormerOwner(cancel_by_worker, _OVER, State.CANCELLED, TerminalOutcome.CANCELLED),
    FormerOwner(time_out_attempt, _OVER, State.FAILED, TerminalOutcome.FAILED),
    FormerOwner(expire_by_attempt_timeout, _OVER, State.EXPIRED, TerminalOutcome.EXPIRED),
    FormerOwner(pass_deadline, _OVER, State.EXPIRED, TerminalOutcome.EXPIRED),
    FormerOwner(release, _OVER, State.WAITING),
    FormerOwner(release_and_claim, _OVER, State.ACTIVE),
    FormerOwner(delay, _OVER, State.DELAYED),
    FormerOwner(hold_by_worker, _OVER, State.BLOCKED),
    FormerOwner(continue_and_claim, _OVER, State.ACTIVE),
]


@pytest.mark.parametrize("former_owner", FORMER_OWNERS, ids=lambda former_owner: former_owner.prepare.__name__)
async def test_former_owner_gets_the_cause_of_its_loss_and_writes_nothing(
    engine: Engine, clock: VirtualClock, store: TestStore, former_owner: FormerOwner
) -> None:
    lease = await former_owner.prepare(engine, clock)
    epoch = (await engine.executions.describe(lease.execution_id)).epoch
    async with nothing_written(store):
        for name, operation in OPERATIONS.items():
            if name == "release" and former_owner.prepare in (release, release_and_claim):
                # This request gave up the lease, so its repetition returns the first outcome.
                assert await operation(engine, lease.fence) == Released()
                continue
            error = await refused(operation(engine, lease.fence), former_owner.code)
            reported = (error.fields["state"], error.fields["epoch"], error.fields["outcome"])
            assert reported == (former_owner.state, epoch, former_owner.outcome), name


async def test_fence_must_match_the_live_one_in_every_part(engine: Engine, store: TestStore) -> None:
    lease, other_lease = await leased(engine), await leased(engine)
    forged_fences = [
        replace(lease.fence, lease_id=UUID(int=1)),
        replace(lease.fence, lease_id=other_lease.fence.lease_id),
        replace(lease.fence, epoch=lease.epoch - 1),
        replace(lease.fence, epoch=lease.epoch + 1),
    ]
    async with nothing_written(store):
        for fence in forged_fences:
            for operation in OPERATIONS.values():
                await refused(operation(engine, fence), "stale_lease")


async def test_fence_of_an_execution_that_was_never_leased_is_refused(engine: Engine, store: TestStore) -> None:
    fence = Fence(await submitted(engine), 1, UUID(int=1))
    async with nothing_written(store):
        for operation in OPERATIONS.values():
            error = await refused(operation(engine, fence), "execution_not_active")
            assert (error.fields["state"], error.fields["epoch"]) == (State.WAITING, 0)


async def test_fence_of_an_unknown_execution_or_another_namespace_is_not_found(
    engine: Engine, store: TestStore
) -> None:
    lease = await leased(engine)
    other_namespace = engine.for_namespace("other")
    async with nothing_written(store):
        for operation in OPERATIONS.values():
            unknown = operation(engine, replace(lease.fence, execution_id=uuid4()))
            await refused(unknown, "execution_not_found", NotFound)
            await refused(operation(other_namespace, lease.fence), "execution_not_found", NotFound)


async def test_owner_may_write_until_its_lease_expires(engine: Engine, clock: VirtualClock) -> None:
    leases = [await leased(engine) for _ in OPERATIONS]
    clock.advance(timedelta(seconds=30) - timedelta(microseconds=1))
    for lease, operation in zip(leases, OPERATIONS.values(), strict=True):
        await operation(engine, lease.fence)


async def retry(engine: Engine, clock: VirtualClock) -> tuple[Lease, Lease]:
    """Return the leases of a failed first attempt and of the running second one."""
    first = await leased(engine, policy=STEADY)
    await engine.leases.fail(first.fence, "once")
    clock.advance("10s")
    await engine.reconcilers.tick()
    return first, await engine.leases.claim_execution(first.execution_id, "worker-2")


async def test_owner_of_the_first_attempt_cannot_complete_the_second(
    store: TestStore, engine: Engine, clock: VirtualClock
) -> None:
    first, second = await retry(engine, clock)
    before = await snapshot(store)
    assert await refusals(engine, first.fence) == {"execution_not_active"}
    assert await snapshot(store) == before
    assert await engine.leases.complete(second.fence, b"second") == Ended(State.COMPLETED)
    await assert_sound(store)
