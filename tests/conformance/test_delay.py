"""Tests of delay, by which a worker gives up its lease and the same attempt resumes later."""

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
)
from flowfabric.testing import VirtualClock
from tests.expectations import event_names, nothing_written, refused
from tests.scenarios import leased
from tests.stores import TestStore

TICK = timedelta(microseconds=1)
HOUR = timedelta(hours=1)


async def test_delayed_attempt_is_interrupted_until_its_time(engine: Engine, clock: VirtualClock) -> None:
    clock.advance("1s")
    at = clock.now() + HOUR
    for time_options in ({"until": at}, {"after": "1h"}):
        lease = await leased(engine)
        arguments: dict[str, Any] = dict(time_options)
        assert await engine.leases.delay(lease.fence, **arguments) == Delayed(at)
        execution = await engine.executions.describe(lease.execution_id)
        assert (execution.state, execution.ready_at, execution.lease) == (State.DELAYED, at, None)
        assert execution.vector.blocking_reason is BlockingReason.WAITING_FOR_DELAY
        assert execution.vector.attempt_state is AttemptState.INTERRUPTED
        assert (execution.epoch, execution.version) == (lease.epoch + 1, 2)


async def test_delay_event_ends_the_lease_and_records_the_time(engine: Engine, clock: VirtualClock) -> None:
    lease = await leased(engine)
    await engine.leases.delay(lease.fence, after="1h")
    event = (await engine.executions.history(lease.execution_id))[-1]
    assert (event.family, event.name, event.state) == ("lease", "delayed", State.DELAYED)
    assert (event.ends_lease, event.lease_id, event.worker) == (True, lease.fence.lease_id, lease.worker)
    assert event.details == {"until": (clock.now() + HOUR).isoformat()}


async def test_same_attempt_resumes_at_its_time_and_never_earlier(engine: Engine, clock: VirtualClock) -> None:
    lease = await leased(engine)
    await engine.leases.progress(lease.fence, 40, "half")
    await engine.leases.delay(lease.fence, after="1h")
    clock.advance(HOUR - TICK)
    await engine.reconcilers.tick()
    assert await engine.leases.claim(["default"], "worker") == []
    clock.advance(TICK)
    await engine.reconcilers.tick()
    assert (await engine.executions.describe(lease.execution_id)).ready_at is None
    [next_lease] = await engine.leases.claim(["default"], "worker")
    assert (next_lease.execution_id, next_lease.origin, next_lease.attempt_index) == (lease.execution_id, "resumed", 0)
    assert next_lease.epoch == lease.epoch + 2
    execution = await engine.executions.describe(lease.execution_id)
    assert (execution.retry_count, execution.reclaim_count, execution.attempts) == (0, 0, ())
    assert (execution.progress_percent, execution.progress_message) == (40, "half")
    assert await event_names(engine, lease.execution_id) == [
        "lease.acquired",
        "lease.delayed",
        "lifecycle.ready",
        "lease.acquired",
    ]


async def test_delay_until_a_past_time_resumes_immediately(engine: Engine, clock: VirtualClock) -> None:
    times: list[dict[str, Any]] = [{"until": clock.now() - HOUR}, {"until": clock.now()}, {"after": 0}]
    for time in times:
        lease = await leased(engine)
        outcome = await engine.leases.delay(lease.fence, **time)
        assert outcome == Delayed(time.get("until", clock.now()))
        execution = await engine.executions.describe(lease.execution_id)
        assert (execution.state, execution.ready_at) == (State.WAITING, None)
        assert await engine.leases.delay(lease.fence, **time) == outcome
        [next_lease] = await engine.leases.claim(["default"], "worker")
        assert (next_lease.execution_id, next_lease.origin, next_lease.attempt_index) == (
            lease.execution_id,
            "resumed",
            0,
        )


async def test_delay_keeps_the_deadline_and_the_deadline_ends_it(engine: Engine, clock: VirtualClock) -> None:
    deadline = clock.now() + timedelta(minutes=30)
    lease = await leased(engine, deadline=deadline)
    await engine.leases.delay(lease.fence, after="1h")
    assert (await engine.executions.describe(lease.execution_id)).deadline_at == deadline
    clock.advance("30m")
    await engine.reconcilers.tick()
    execution = await engine.executions.describe(lease.execution_id)
    assert (execution.state, execution.ready_at) == (State.EXPIRED, None)
    [attempt] = execution.attempts
    assert (attempt.attempt_index, attempt.worker) == (0, lease.worker)


async def test_lease_and_attempt_do_not_time_out_during_a_delay(engine: Engine, clock: VirtualClock) -> None:
    lease = await leased(engine, policy=Policy(attempt_timeout="10m"))
    await engine.leases.delay(lease.fence, after="1h")
    clock.advance("59m")
    await engine.reconcilers.tick()
    execution = await engine.executions.describe(lease.execution_id)
    assert (execution.state, execution.version) == (State.DELAYED, 2)


async def test_repeated_delay_returns_the_first_time(engine: Engine, clock: VirtualClock, store: TestStore) -> None:
    lease = await leased(engine)
    first = await engine.leases.delay(lease.fence, after="1h")
    async with nothing_written(store):
        clock.advance("10m")
        assert await engine.leases.delay(lease.fence, after=3600) == first
        for call in (
            engine.leases.delay(lease.fence, after="2h"),
            engine.leases.delay(lease.fence, until=first.until),
            engine.leases.release(lease.fence),
        ):
            error = await refused(call, "execution_not_active")
            assert (error.fields["state"], error.fields["epoch"]) == (State.DELAYED, lease.epoch + 1)
            assert error.fields["outcome"] == TerminalOutcome.NONE


async def test_delay_can_be_repeated_until_a_later_owner_ends_its_lease(
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


async def test_delay_needs_exactly_one_time(engine: Engine, clock: VirtualClock, store: TestStore) -> None:
    lease = await leased(engine)
    async with nothing_written(store):
        call = engine.leases.delay(lease.fence, until=clock.now(), after=1)
        await refused(call, "invalid_request", InvalidRequest)
        await refused(engine.leases.delay(lease.fence), "invalid_request", InvalidRequest)


async def test_deadline_within_a_delay_expires_the_execution(engine: Engine, clock: VirtualClock) -> None:
    lease = await leased(engine, policy=Policy(deadline="1h"))
    assert isinstance(await engine.leases.delay(lease.fence, after="2h"), Delayed)
    execution = await engine.executions.describe(lease.execution_id)
    assert (execution.deadline_at, execution.ready_at) == (
        clock.now() + timedelta(hours=1),
        clock.now() + timedelta(hours=2),
    )
    clock.advance("1h")
    await engine.reconcilers.tick()
    assert (await engine.executions.describe(lease.execution_id)).state == State.EXPIRED
