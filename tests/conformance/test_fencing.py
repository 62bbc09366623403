"""The fence: whoever lost or gave up a lease, or never had it, is refused with the right word and writes nothing."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from uuid import UUID, uuid4

import pytest

from flowfabric.engine import (
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
)  # fmt: skip
from flowfabric.testing import VirtualClock
from tests.facts import nothing_written, refused, taking_part
from tests.scenarios import KEEPING, ONE_SHOT, STEADY, leased, submitted
from tests.stores import TestStore

# Every fenced operation, with content that no former owner below has sent.
OPERATIONS: dict[str, Callable[[Engine, Fence], Awaitable[object]]] = {
    "renew": lambda engine, fence: engine.leases.renew(fence),
    "progress": lambda engine, fence: engine.leases.progress(fence, 99, "zombie"),
    "checkpoint": lambda engine, fence: engine.leases.checkpoint(fence, [Step("zombie", b"1")]),
    "complete": lambda engine, fence: engine.leases.complete(fence, b"zombie", steps=[Step("zombie", b"1")]),
    "complete, plain": lambda engine, fence: engine.leases.complete(fence, b"zombie"),
    "fail": lambda engine, fence: engine.leases.fail(fence, "zombie"),
    "delay": lambda engine, fence: engine.leases.delay(fence, after="7h"),
    "release": lambda engine, fence: engine.leases.release(fence),
    "cancel": lambda engine, fence: engine.leases.cancel(fence, "zombie"),
    "cancel_children": lambda engine, fence: engine.leases.cancel_children(fence, [uuid4()], "zombie"),
    "transact": lambda engine, fence: engine.leases.transact(
        fence, taking_part(engine), lambda _: Step("zombie", b"1")
    ),
    "hold": lambda engine, fence: engine.leases.hold(fence, "zombie", "zombie", steps=[Step("zombie", b"1")]),
    "continue_with": lambda engine, fence: engine.leases.continue_with(fence, b"zombie", steps=[Step("zombie", b"1")]),
}


async def claim_again(engine: Engine, lease: Lease) -> Lease:
    return await engine.leases.claim_execution(lease.execution_id, "worker-2")


async def pass_time(engine: Engine, clock: VirtualClock, duration: str) -> None:
    clock.advance(duration)
    await engine.reconcilers.tick()


async def expired_untouched(engine: Engine, clock: VirtualClock) -> Lease:
    lease = await leased(engine)
    clock.advance("30s")
    return lease


async def expired_requeued(engine: Engine, clock: VirtualClock) -> Lease:
    lease = await leased(engine)
    await pass_time(engine, clock, "30s")
    return lease


async def expired_kept(engine: Engine, clock: VirtualClock) -> Lease:
    lease = await leased(engine, policy=KEEPING)
    await pass_time(engine, clock, "30s")
    return lease


async def expired_once_too_often(engine: Engine, clock: VirtualClock) -> Lease:
    lease = await leased(engine, policy=Policy(max_reclaims=0))
    await pass_time(engine, clock, "30s")
    return lease


async def requeued_and_taken(engine: Engine, clock: VirtualClock) -> Lease:
    lease = await expired_requeued(engine, clock)
    await claim_again(engine, lease)
    return lease


async def reclaimed_by_grant(engine: Engine, clock: VirtualClock) -> Lease:
    lease = await expired_kept(engine, clock)
    grant = await engine.operator.grant_reclaim(lease.execution_id, "worker-2")
    await engine.leases.reclaim(grant, "worker-2")
    return lease


async def reclaimed_and_released(engine: Engine, clock: VirtualClock) -> Lease:
    lease = await expired_requeued(engine, clock)
    later = await claim_again(engine, lease)
    await engine.leases.release(later.fence)
    return lease


async def reclaimed_and_completed(engine: Engine, clock: VirtualClock) -> Lease:
    lease = await expired_requeued(engine, clock)
    later = await claim_again(engine, lease)
    await engine.leases.complete(later.fence, b"out")
    return lease


async def two_owners_ago(engine: Engine, clock: VirtualClock) -> Lease:
    lease = await reclaimed_and_released(engine, clock)
    await claim_again(engine, lease)
    return lease


async def revoked(engine: Engine, clock: VirtualClock) -> Lease:
    lease = await leased(engine)
    await engine.operator.revoke_lease(lease.execution_id)
    return lease


async def revoked_kept(engine: Engine, clock: VirtualClock) -> Lease:
    lease = await leased(engine, policy=KEEPING)
    await engine.operator.revoke_lease(lease.execution_id)
    return lease


async def revoked_and_taken(engine: Engine, clock: VirtualClock) -> Lease:
    lease = await revoked(engine, clock)
    await claim_again(engine, lease)
    return lease


async def revoked_then_cancelled(engine: Engine, clock: VirtualClock) -> Lease:
    lease = await revoked(engine, clock)
    await engine.operator.cancel(lease.execution_id)
    return lease


async def retry_pending(engine: Engine, clock: VirtualClock) -> Lease:
    lease = await leased(engine, policy=STEADY)
    assert isinstance(await engine.leases.fail(lease.fence, "not yet"), RetryScheduled)
    return lease


async def retried_over(engine: Engine, clock: VirtualClock) -> Lease:
    lease = await retry_pending(engine, clock)
    await pass_time(engine, clock, "10s")
    await claim_again(engine, lease)
    return lease


async def failed(engine: Engine, clock: VirtualClock) -> Lease:
    lease = await leased(engine, policy=ONE_SHOT)
    await engine.leases.fail(lease.fence, "broken")
    return lease


async def completed(engine: Engine, clock: VirtualClock) -> Lease:
    lease = await leased(engine)
    await engine.leases.complete(lease.fence, b"out")
    return lease


async def completed_and_replayed(engine: Engine, clock: VirtualClock) -> Lease:
    lease = await completed(engine, clock)
    await engine.operator.replay(lease.execution_id)
    await claim_again(engine, lease)
    return lease


async def cancelled_by_operator(engine: Engine, clock: VirtualClock) -> Lease:
    lease = await leased(engine)
    await engine.operator.cancel(lease.execution_id)
    return lease


async def cancelled_by_itself(engine: Engine, clock: VirtualClock) -> Lease:
    lease = await leased(engine)
    await engine.leases.cancel(lease.fence, "enough")
    return lease


async def attempt_timed_out(engine: Engine, clock: VirtualClock) -> Lease:
    lease = await leased(engine, policy=Policy(attempt_timeout="10s", max_retries=0))
    await pass_time(engine, clock, "10s")
    return lease


async def attempt_time_expired(engine: Engine, clock: VirtualClock) -> Lease:
    lease = await leased(engine, policy=Policy(attempt_timeout="10s", on_attempt_timeout=OnAttemptTimeout.EXPIRE))
    await pass_time(engine, clock, "10s")
    return lease


async def deadline_passed(engine: Engine, clock: VirtualClock) -> Lease:
    lease = await leased(engine, policy=Policy(deadline="10s"))
    await pass_time(engine, clock, "10s")
    return lease


async def released(engine: Engine, clock: VirtualClock) -> Lease:
    lease = await leased(engine)
    await engine.leases.release(lease.fence)
    return lease


async def released_and_taken(engine: Engine, clock: VirtualClock) -> Lease:
    lease = await released(engine, clock)
    await claim_again(engine, lease)
    return lease


async def delayed(engine: Engine, clock: VirtualClock) -> Lease:
    lease = await leased(engine)
    await engine.leases.delay(lease.fence, after="1h")
    return lease


async def held_by_itself(engine: Engine, clock: VirtualClock) -> Lease:
    lease = await leased(engine)
    await engine.leases.hold(lease.fence, "diverged", "look at it")
    return lease


async def continued_and_taken(engine: Engine, clock: VirtualClock) -> Lease:
    lease = await leased(engine)
    await engine.leases.continue_with(lease.fence, b"next")
    await claim_again(engine, lease)
    return lease


@dataclass(frozen=True)
class Former:
    """A way to become a former owner, and what it is told afterwards."""

    prepare: Callable[[Engine, VirtualClock], Awaitable[Lease]]
    code: str
    state: State
    outcome: TerminalOutcome = TerminalOutcome.NONE


_EXPIRED, _REVOKED, _STALE, _OVER = "lease_expired", "lease_revoked", "stale_lease", "execution_not_active"
FORMER = [
    Former(expired_untouched, _EXPIRED, State.ACTIVE),
    Former(expired_requeued, _EXPIRED, State.WAITING),
    Former(expired_kept, _EXPIRED, State.ACTIVE),
    Former(expired_once_too_often, _EXPIRED, State.FAILED, TerminalOutcome.FAILED),
    # The last one that lost the lease is told why, even while another works.
    Former(requeued_and_taken, _EXPIRED, State.ACTIVE),
    Former(reclaimed_by_grant, _EXPIRED, State.ACTIVE),
    Former(reclaimed_and_released, _STALE, State.WAITING),
    Former(reclaimed_and_completed, _STALE, State.COMPLETED, TerminalOutcome.SUCCESS),
    Former(two_owners_ago, _STALE, State.ACTIVE),
    Former(revoked, _REVOKED, State.WAITING),
    Former(revoked_kept, _REVOKED, State.ACTIVE),
    Former(revoked_and_taken, _REVOKED, State.ACTIVE),
    Former(revoked_then_cancelled, _REVOKED, State.CANCELLED, TerminalOutcome.CANCELLED),
    Former(retry_pending, _OVER, State.DELAYED),
    Former(retried_over, _OVER, State.ACTIVE),
    Former(failed, _OVER, State.FAILED, TerminalOutcome.FAILED),
    Former(completed, _OVER, State.COMPLETED, TerminalOutcome.SUCCESS),
    Former(completed_and_replayed, _OVER, State.ACTIVE),
    Former(cancelled_by_operator, _OVER, State.CANCELLED, TerminalOutcome.CANCELLED),
    Former(cancelled_by_itself, _OVER, State.CANCELLED, TerminalOutcome.CANCELLED),
    Former(attempt_timed_out, _OVER, State.FAILED, TerminalOutcome.FAILED),
    Former(attempt_time_expired, _OVER, State.EXPIRED, TerminalOutcome.EXPIRED),
    Former(deadline_passed, _OVER, State.EXPIRED, TerminalOutcome.EXPIRED),
    Former(released, _OVER, State.WAITING),
    Former(released_and_taken, _OVER, State.ACTIVE),
    Former(delayed, _OVER, State.DELAYED),
    Former(held_by_itself, _OVER, State.BLOCKED),
    Former(continued_and_taken, _OVER, State.ACTIVE),
]


@pytest.mark.parametrize("former", FORMER, ids=lambda former: former.prepare.__name__)
async def test_a_former_owner_is_told_why_it_lost_and_writes_nothing(
    engine: Engine, clock: VirtualClock, store: TestStore, former: Former
) -> None:
    lease = await former.prepare(engine, clock)
    epoch = (await engine.executions.describe(lease.execution_id)).epoch
    async with nothing_written(store):
        for name, operation in OPERATIONS.items():
            if name == "release" and former.prepare in (released, released_and_taken):
                # It is the very request that gave up the lease, so it is answered as the first time.
                assert await operation(engine, lease.fence) == Released()
                continue
            error = await refused(operation(engine, lease.fence), former.code)
            told = (error.fields["state"], error.fields["epoch"], error.fields["outcome"])
            assert told == (former.state, epoch, former.outcome), name


async def test_a_fence_that_is_not_the_live_one_in_every_part_is_stale(engine: Engine, store: TestStore) -> None:
    lease, other = await leased(engine), await leased(engine)
    bent = [
        replace(lease.fence, lease_id=UUID(int=1)),
        replace(lease.fence, lease_id=other.fence.lease_id),
        replace(lease.fence, epoch=lease.epoch - 1),
        replace(lease.fence, epoch=lease.epoch + 1),
    ]
    async with nothing_written(store):
        for fence in bent:
            for operation in OPERATIONS.values():
                await refused(operation(engine, fence), "stale_lease")


async def test_a_fence_of_work_that_nobody_ever_had_is_refused(engine: Engine, store: TestStore) -> None:
    fence = Fence(await submitted(engine), 1, UUID(int=1))
    async with nothing_written(store):
        for operation in OPERATIONS.values():
            error = await refused(operation(engine, fence), "execution_not_active")
            assert (error.fields["state"], error.fields["epoch"]) == (State.WAITING, 0)


async def test_a_fence_of_an_unknown_execution_or_another_namespace_finds_nothing(
    engine: Engine, store: TestStore
) -> None:
    lease = await leased(engine)
    other = engine.within("other")
    async with nothing_written(store):
        for operation in OPERATIONS.values():
            unknown = operation(engine, replace(lease.fence, execution_id=uuid4()))
            await refused(unknown, "execution_not_found", NotFound)
            await refused(operation(other, lease.fence), "execution_not_found", NotFound)


async def test_the_owner_may_do_all_of_it_until_its_last_moment(engine: Engine, clock: VirtualClock) -> None:
    leases = [await leased(engine) for _ in OPERATIONS]
    clock.advance(timedelta(seconds=30) - timedelta(microseconds=1))
    for lease, operation in zip(leases, OPERATIONS.values(), strict=True):
        await operation(engine, lease.fence)
