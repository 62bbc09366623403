"""Tests of release, which returns a lease without cost so that the same attempt continues elsewhere."""

from __future__ import annotations

from datetime import timedelta

from flowfabric.engine import (
    AttemptState,
    BlockingReason,
    Engine,
    Policy,
    PublicState,
    Released,
    State,
    Step,
    WorkerId,
)
from flowfabric.testing import VirtualClock
from tests.expectations import event_names, nothing_written, refused
from tests.scenarios import ONE_SHOT, leased
from tests.stores import TestStore


async def test_released_execution_is_resumable(engine: Engine, clock: VirtualClock) -> None:
    lease = await leased(engine, tags={"a.b": "c"})
    clock.advance("1s")
    assert await engine.leases.release(lease.fence) == Released()
    execution = await engine.executions.describe(lease.execution_id)
    assert (execution.state, execution.lease, execution.ready_at) == (State.WAITING, None, None)
    assert (execution.epoch, execution.version, execution.changed_at) == (lease.epoch + 1, 2, clock.now())
    assert execution.vector.public_state is PublicState.RESUMABLE
    assert execution.vector.attempt_state is AttemptState.INTERRUPTED
    assert execution.vector.blocking_reason is BlockingReason.WAITING_FOR_WORKER
    event = (await engine.executions.history(lease.execution_id))[-1]
    assert (event.family, event.name, event.ends_lease) == ("lease", "released", True)
    assert (event.lease_id, event.worker, event.tags) == (lease.fence.lease_id, lease.worker, {"a.b": "c"})


async def test_repeated_releases_continue_the_same_attempt_and_count_nothing(
    engine: Engine, clock: VirtualClock
) -> None:
    lease = await leased(engine, policy=Policy(max_retries=0, max_reclaims=0, attempt_timeout="60s"))
    await engine.leases.checkpoint(lease.fence, [Step("one", b"1")])
    await engine.leases.progress(lease.fence, 40, "half")
    for number in range(3):
        clock.advance("10s")
        await engine.leases.release(lease.fence)
        lease = await engine.leases.claim_execution(lease.execution_id, WorkerId("mail", f"mail-{number}"))
        assert (lease.attempt_index, lease.origin) == (0, "resumed")
    assert lease.attempt_timeout_at == clock.now() + timedelta(seconds=30)
    execution = await engine.executions.describe(lease.execution_id)
    assert (execution.retry_count, execution.reclaim_count, execution.attempts) == (0, 0, ())
    assert (execution.progress_percent, execution.progress_message) == (40, "half")
    assert [step.name for step in await engine.executions.steps(lease.execution_id)] == ["one"]
    await engine.leases.complete(lease.fence)
    [attempt] = (await engine.executions.describe(lease.execution_id)).attempts
    assert attempt.worker == WorkerId("mail", "mail-2")


async def test_released_work_precedes_new_work_of_its_priority(engine: Engine, clock: VirtualClock) -> None:
    await leased(engine, payload=b"kept")
    older = await leased(engine, payload=b"older")
    clock.advance("1s")
    lease = await leased(engine, payload=b"released", policy=ONE_SHOT)
    await engine.executions.submit("job", b"new")
    await engine.leases.release(lease.fence)
    await engine.operator.revoke_lease(older.execution_id)
    leases = await engine.leases.claim(["default"], "worker", limit=10)
    assert [claimed.payload for claimed in leases] == [b"released", b"older", b"new"]


async def test_released_lease_does_not_expire_later(engine: Engine, clock: VirtualClock, store: TestStore) -> None:
    lease = await leased(engine, policy=Policy(attempt_timeout="1m"))
    await engine.leases.release(lease.fence)
    clock.advance("1h")
    async with nothing_written(store):
        await engine.reconcilers.tick()


async def test_release_can_be_repeated_until_a_later_owner_ends_its_lease(engine: Engine, store: TestStore) -> None:
    lease = await leased(engine)
    await engine.leases.release(lease.fence)
    async with nothing_written(store):
        assert await engine.leases.release(lease.fence) == Released()
    later = await engine.leases.claim_execution(lease.execution_id, "worker")
    async with nothing_written(store):
        assert await engine.leases.release(lease.fence) == Released()
    await engine.leases.release(later.fence)
    async with nothing_written(store):
        await refused(engine.leases.release(lease.fence), "stale_lease")
        assert await engine.leases.release(later.fence) == Released()
    assert await event_names(engine, lease.execution_id) == ["lease.acquired", "lease.released"] * 2
