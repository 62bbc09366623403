"""delay: a worker gives its lease up, and the same attempt goes on at its time."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from flowfabric.engine import (
    AttemptState,
    BlockingReason,
    Delayed,
    Engine,
    InvalidRequest,
    Policy,
    State,
    TerminalOutcome,
)  # fmt: skip
from flowfabric.testing import VirtualClock
from tests.facts import event_names, nothing_written, refused
from tests.scenarios import leased
from tests.stores import TestStore

TICK = timedelta(microseconds=1)
HOUR = timedelta(hours=1)


async def test_a_delayed_attempt_rests_until_its_time(engine: Engine, clock: VirtualClock) -> None:
    clock.advance("1s")
    at = clock.now() + HOUR
    for when in ({"until": at}, {"after": "1h"}):
        lease = await leased(engine)
        arguments: dict[str, Any] = dict(when)
        assert await engine.leases.delay(lease.fence, **arguments) == Delayed(at)
        found = await engine.executions.describe(lease.execution_id)
        assert (found.state, found.ready_at, found.lease) == (State.DELAYED, at, None)
        assert found.vector.blocking_reason is BlockingReason.WAITING_FOR_DELAY
        assert found.vector.attempt_state is AttemptState.INTERRUPTED
        assert (found.epoch, found.version) == (lease.epoch + 1, 2)


async def test_the_event_of_a_delay_ends_the_lease_and_says_until_when(engine: Engine, clock: VirtualClock) -> None:
    lease = await leased(engine)
    await engine.leases.delay(lease.fence, after="1h")
    event = (await engine.executions.history(lease.execution_id))[-1]
    assert (event.family, event.name, event.state) == ("lease", "delayed", State.DELAYED)
    assert (event.ends_lease, event.lease_id, event.worker) == (True, lease.fence.lease_id, lease.worker)
    assert event.details == {"until": (clock.now() + HOUR).isoformat()}


async def test_the_same_attempt_goes_on_at_its_time_and_never_before(engine: Engine, clock: VirtualClock) -> None:
    lease = await leased(engine)
    await engine.leases.progress(lease.fence, 40, "half")
    await engine.leases.delay(lease.fence, after="1h")
    clock.advance(HOUR - TICK)
    await engine.reconcilers.tick()
    assert await engine.leases.claim(["default"], "worker") == []
    clock.advance(TICK)
    await engine.reconcilers.tick()
    assert (await engine.executions.describe(lease.execution_id)).ready_at is None
    [again] = await engine.leases.claim(["default"], "worker")
    assert (again.execution_id, again.origin, again.attempt_index) == (lease.execution_id, "resumed", 0)
    assert again.epoch == lease.epoch + 2
    found = await engine.executions.describe(lease.execution_id)
    assert (found.retry_count, found.reclaim_count, found.attempts) == (0, 0, ())
    assert (found.progress_percent, found.progress_message) == (40, "half")
    assert await event_names(engine, lease.execution_id) == [
        "lease.acquired", "lease.delayed", "lifecycle.ready", "lease.acquired",
    ]  # fmt: skip


async def test_a_delay_until_a_time_that_has_passed_goes_on_at_once(engine: Engine, clock: VirtualClock) -> None:
    times: list[dict[str, Any]] = [{"until": clock.now() - HOUR}, {"until": clock.now()}, {"after": 0}]
    for time in times:
        lease = await leased(engine)
        answer = await engine.leases.delay(lease.fence, **time)
        assert answer == Delayed(time.get("until", clock.now()))
        found = await engine.executions.describe(lease.execution_id)
        assert (found.state, found.ready_at) == (State.WAITING, None)
        assert await engine.leases.delay(lease.fence, **time) == answer
        [again] = await engine.leases.claim(["default"], "worker")
        assert (again.execution_id, again.origin, again.attempt_index) == (lease.execution_id, "resumed", 0)


async def test_a_delay_leaves_the_deadline_alone_and_the_deadline_ends_it(engine: Engine, clock: VirtualClock) -> None:
    deadline = clock.now() + timedelta(minutes=30)
    lease = await leased(engine, deadline=deadline)
    await engine.leases.delay(lease.fence, after="1h")
    assert (await engine.executions.describe(lease.execution_id)).deadline_at == deadline
    clock.advance("30m")
    await engine.reconcilers.tick()
    found = await engine.executions.describe(lease.execution_id)
    assert (found.state, found.ready_at) == (State.EXPIRED, None)
    [attempt] = found.attempts
    assert (attempt.attempt_index, attempt.worker) == (0, lease.worker)


async def test_neither_the_lease_nor_the_attempt_runs_out_during_a_delay(engine: Engine, clock: VirtualClock) -> None:
    lease = await leased(engine, policy=Policy(attempt_timeout="10m"))
    await engine.leases.delay(lease.fence, after="1h")
    clock.advance("59m")
    await engine.reconcilers.tick()
    found = await engine.executions.describe(lease.execution_id)
    assert (found.state, found.version) == (State.DELAYED, 2)


async def test_a_repeated_delay_is_answered_with_the_first_time(
    engine: Engine, clock: VirtualClock, store: TestStore
) -> None:
    lease = await leased(engine)
    first = await engine.leases.delay(lease.fence, after="1h")
    async with nothing_written(store):
        clock.advance("10m")
        assert await engine.leases.delay(lease.fence, after=3600) == first
        for other in (
            engine.leases.delay(lease.fence, after="2h"),
            engine.leases.delay(lease.fence, until=first.until),
            engine.leases.release(lease.fence),
        ):
            error = await refused(other, "execution_not_active")
            assert (error.fields["state"], error.fields["epoch"]) == (State.DELAYED, lease.epoch + 1)
            assert error.fields["outcome"] == TerminalOutcome.NONE


async def test_a_delay_is_answered_again_until_a_later_owner_gives_up_the_lease(
    engine: Engine, clock: VirtualClock, store: TestStore
) -> None:
    lease = await leased(engine)
    first = await engine.leases.delay(lease.fence, after="1h")
    clock.advance("1h")
    await engine.reconcilers.tick()
    later = await engine.leases.claim_execution(lease.execution_id, "worker")
    async with nothing_written(store):
        assert await engine.leases.delay(lease.fence, after="1h") == first
    await engine.leases.delay(later.fence, after="1h")
    async with nothing_written(store):
        await refused(engine.leases.delay(lease.fence, after="1h"), "stale_lease")


async def test_a_delay_needs_exactly_one_time(engine: Engine, clock: VirtualClock, store: TestStore) -> None:
    lease = await leased(engine)
    async with nothing_written(store):
        both = engine.leases.delay(lease.fence, until=clock.now(), after=1)
        await refused(both, "invalid_request", InvalidRequest)
        await refused(engine.leases.delay(lease.fence), "invalid_request", InvalidRequest)
