"""release: a lease given back unused or on shutdown costs nothing; the same attempt goes on with the next worker."""

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
)  # fmt: skip
from flowfabric.testing import VirtualClock
from tests.facts import event_names, nothing_written, refused
from tests.scenarios import ONE_SHOT, leased
from tests.stores import TestStore


async def test_a_released_execution_waits_to_go_on(engine: Engine, clock: VirtualClock) -> None:
    lease = await leased(engine, tags={"a.b": "c"})
    clock.advance("1s")
    assert await engine.leases.release(lease.fence) == Released()
    found = await engine.executions.describe(lease.execution_id)
    assert (found.state, found.lease, found.ready_at) == (State.WAITING, None, None)
    assert (found.epoch, found.version, found.changed_at) == (lease.epoch + 1, 2, clock.now())
    assert found.vector.public_state is PublicState.RESUMABLE
    assert found.vector.attempt_state is AttemptState.INTERRUPTED
    assert found.vector.blocking_reason is BlockingReason.WAITING_FOR_WORKER
    event = (await engine.executions.history(lease.execution_id))[-1]
    assert (event.family, event.name, event.ends_lease) == ("lease", "released", True)
    assert (event.lease_id, event.worker, event.tags) == (lease.fence.lease_id, lease.worker, {"a.b": "c"})


async def test_however_often_it_is_released_the_same_attempt_goes_on_and_nothing_is_counted(
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
    found = await engine.executions.describe(lease.execution_id)
    assert (found.retry_count, found.reclaim_count, found.attempts) == (0, 0, ())
    assert (found.progress_percent, found.progress_message) == (40, "half")
    assert [step.name for step in await engine.executions.steps(lease.execution_id)] == ["one"]
    await engine.leases.complete(lease.fence)
    [attempt] = (await engine.executions.describe(lease.execution_id)).attempts
    assert attempt.worker == WorkerId("mail", "mail-2")


async def test_released_work_goes_before_new_work_of_its_priority(engine: Engine, clock: VirtualClock) -> None:
    await leased(engine, payload=b"kept")
    older = await leased(engine, payload=b"older")
    clock.advance("1s")
    lease = await leased(engine, payload=b"released", policy=ONE_SHOT)
    await engine.executions.submit("job", b"new")
    await engine.leases.release(lease.fence)
    await engine.operator.revoke_lease(older.execution_id)
    got = await engine.leases.claim(["default"], "worker", limit=10)
    assert [item.payload for item in got] == [b"released", b"older", b"new"]


async def test_a_released_lease_does_not_expire_later(engine: Engine, clock: VirtualClock, store: TestStore) -> None:
    lease = await leased(engine, policy=Policy(attempt_timeout="1m"))
    await engine.leases.release(lease.fence)
    clock.advance("1h")
    async with nothing_written(store):
        await engine.reconcilers.tick()


async def test_a_repeated_release_is_answered_again_until_a_later_owner_gives_up_the_lease(
    engine: Engine, store: TestStore
) -> None:
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
