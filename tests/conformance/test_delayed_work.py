"""Tests that delayed work becomes ready at its time and never earlier."""

from __future__ import annotations

from datetime import timedelta
from uuid import UUID

from flowfabric.engine import Engine, State, Submission, Tick
from flowfabric.testing import VirtualClock
from tests.expectations import last_event
from tests.scenarios import SITUATIONS, leased, submitted

MICROSECOND = timedelta(microseconds=1)
DELAYED = [name for name in SITUATIONS if name.startswith("delayed")]


async def test_delayed_work_is_ready_at_its_time_and_not_a_microsecond_earlier(
    engine: Engine, clock: VirtualClock
) -> None:
    for situation in DELAYED:
        id_ = await SITUATIONS[situation](engine, clock)
        before = await engine.executions.describe(id_)
        assert before.ready_at is not None, situation
        clock.advance(before.ready_at - clock.now() - MICROSECOND)
        await engine.reconcilers.tick()
        assert await engine.executions.describe(id_) == before, situation
        clock.advance(MICROSECOND)
        for _ in range(3):
            await engine.reconcilers.tick()
        after, event = await engine.executions.describe(id_), await last_event(engine, id_)
        assert (after.state, after.ready_at, after.version) == (State.WAITING, None, before.version + 1), situation
        assert after.vector.blocking_reason == "waiting_for_worker", situation
        assert after.vector.attempt_state == before.vector.attempt_state, situation
        assert (after.epoch, after.attempt_index) == (before.epoch, before.attempt_index), situation
        assert (event.family, event.name, event.at) == ("lifecycle", "ready", clock.now()), situation


async def test_delayed_work_is_not_claimed(engine: Engine, clock: VirtualClock) -> None:
    id_ = await submitted(engine, ready_at=clock.now() + timedelta(minutes=1))
    assert await claim_ids(engine) == []
    clock.advance("1m")
    await engine.reconcilers.tick()
    assert await claim_ids(engine) == [id_]


async def test_past_time_delays_nothing(engine: Engine, clock: VirtualClock) -> None:
    past = await submitted(engine, ready_at=clock.now() - timedelta(days=1))
    without_delay = await submitted(engine, delay=0)
    for id_ in (past, without_delay):
        execution = await engine.executions.describe(id_)
        assert (execution.state, execution.ready_at) == (State.WAITING, None)
    assert await claim_ids(engine) == [past, without_delay]


async def test_delayed_attempt_resumes_as_the_same_attempt(engine: Engine, clock: VirtualClock) -> None:
    lease = await leased(engine)
    await engine.leases.delay(lease.fence, after="1m")
    clock.advance("1m")
    await engine.reconcilers.tick()
    next_lease = await engine.leases.claim_execution(lease.execution_id, "worker-2")
    assert (next_lease.origin, next_lease.attempt_index, next_lease.epoch) == ("resumed", 0, lease.epoch + 2)


async def test_backlog_larger_than_one_batch_becomes_ready(engine: Engine, clock: VirtualClock) -> None:
    await engine.executions.submit_many([Submission(kind="job", delay="1m") for _ in range(101)])
    clock.advance("1h")
    ticks = [await run_delayed_work(engine)]
    while ticks[-1].has_more:
        ticks.append(await run_delayed_work(engine))
    assert sum(tick.done for tick in ticks) == 101
    assert len(ticks) > 1
    counts = await engine.executions.count()
    assert (counts[State.WAITING].value, counts[State.DELAYED].value) == (101, 0)


async def run_delayed_work(engine: Engine) -> Tick:
    """Return the report of one run of the duty."""
    [tick] = [tick for tick in await engine.reconcilers.tick() if tick.duty == "delayed_work"]
    return tick


async def claim_ids(engine: Engine) -> list[UUID]:
    return [lease.execution_id for lease in await engine.leases.claim(["default"], "worker-1", limit=10)]
