"""The reconciler loop fires timers on time and never early, skips bad rows, and changes nothing twice."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from uuid import UUID

import pytest

from flowfabric.engine import (
    Backoff,
    BackoffKind,
    Created,
    Engine,
    Lease,
    NotFound,
    Policy,
    State,
    Submission,
    Tick,
    Timer,
)
from flowfabric.testing import VirtualClock
from tests.callers import ON_POSTGRES, ON_SQLITE
from tests.expectations import error_of, event_names
from tests.postgres_server import PostgresServer
from tests.scenarios import leased, submitted, suspended
from tests.stores import PostgresTestStore, TestStore, opened

MAX_LATENESS = timedelta(milliseconds=100)
UNREADABLE = '{"no such field": 1}'


TimerSetter = Callable[[Engine, Engine], Awaitable[UUID]]


async def fail_with_backoff(engine: Engine, quiet: Engine) -> UUID:
    lease = await leased(quiet, policy=Policy(backoff=Backoff(kind=BackoffKind.FIXED, initial="100ms", jitter=False)))
    await engine.leases.fail(lease.fence, "not yet")
    return lease.execution_id


async def delay_lease(engine: Engine, quiet: Engine) -> UUID:
    lease = await leased(quiet)
    await engine.leases.delay(lease.fence, after="100ms")
    return lease.execution_id


async def unhold_delayed(engine: Engine, quiet: Engine) -> UUID:
    id_ = await submitted(quiet, delay="150ms")
    await quiet.operator.hold(id_)
    await engine.operator.unhold(id_)
    return id_


async def unhold_all_delayed(engine: Engine, quiet: Engine) -> UUID:
    id_ = await submitted(quiet, delay="150ms")
    await quiet.operator.hold(id_)
    await engine.operator.unhold_all()
    return id_


async def replay_with_deadline(engine: Engine, quiet: Engine) -> UUID:
    id_ = await submitted(quiet, policy=Policy(deadline="100ms"))
    await quiet.operator.cancel(id_)
    await engine.operator.replay(id_)
    return id_


async def claim_with_attempt_timeout(engine: Engine, quiet: Engine) -> UUID:
    id_ = await submitted(quiet, policy=Policy(attempt_timeout="100ms", max_retries=0))
    await engine.leases.claim_execution(id_, "worker-1")
    return id_


async def suspend_with_timeout(engine: Engine, quiet: Engine) -> UUID:
    lease = await leased(quiet)
    await engine.leases.suspend(lease.fence, ["go"], timeout="100ms", on_timeout="auto_resume")
    return lease.execution_id


async def suspend_with_timer(engine: Engine, quiet: Engine) -> UUID:
    lease = await leased(quiet)
    await engine.leases.suspend(lease.fence, [Timer("t", datetime.now(UTC) + timedelta(milliseconds=100))])
    return lease.execution_id


async def create_expiring_waitpoint(engine: Engine, quiet: Engine) -> UUID:
    lease = await leased(quiet)
    await engine.waitpoints.create(lease.fence, "go", expires="100ms")
    return lease.execution_id


async def resume_with_delay(engine: Engine, quiet: Engine) -> UUID:
    wait = await suspended(quiet, resume_delay="100ms")
    await engine.signals.deliver(wait.token(), "go")
    return wait.id


WAITPOINT_EXPIRED = "its waitpoint expired"


async def submit_in_callers_transaction(store: TestStore, engine: Engine, quiet: Engine) -> UUID:
    library = "asyncpg" if store.name == "postgres" else "sqlite3"
    async with (ON_POSTGRES | ON_SQLITE)[library](store, quiet) as caller:
        execution = await caller.submit(Submission(kind="job", delay="100ms"))
        await caller.commit()
        return execution.id


# Every call that sets a timer, with the event that shows that the timer fired. A second engine, whose duties do not
# run, makes the preparations, so that only the timer can wake the loop.
TIMERS: dict[str, tuple[TimerSetter, str]] = {
    "submit with a delay": (lambda engine, _: submitted(engine, delay="100ms"), "ready"),
    "submit with a time": (
        lambda engine, _: submitted(engine, ready_at=datetime.now(UTC) + timedelta(milliseconds=100)), "ready",
    ),
    "submit with a deadline": (lambda engine, _: submitted(engine, policy=Policy(deadline="100ms")), "expired"),
    "submit with a time to end": (
        lambda engine, _: submitted(engine, deadline=datetime.now(UTC) + timedelta(milliseconds=100)), "expired",
    ),
    "retry": (fail_with_backoff, "ready"),
    "delay": (delay_lease, "ready"),
    "unhold": (unhold_delayed, "ready"),
    "replay": (replay_with_deadline, "expired"),
    "claim": (claim_with_attempt_timeout, "failed"),
    "suspend with a timeout": (suspend_with_timeout, "resumed"),
    "suspend with a timer": (suspend_with_timer, "resumed"),
    "waitpoint that expires": (create_expiring_waitpoint, WAITPOINT_EXPIRED),
    "resume with a delay": (resume_with_delay, "ready"),
}  # fmt: skip


@pytest.mark.alone
async def test_every_timer_fires_on_time_and_never_early(store: TestStore) -> None:
    late = {}
    timers = TIMERS | {
        "submit in the caller's transaction": (partial(submit_in_callers_transaction, store), "ready"),
        "unhold of all": (unhold_all_delayed, "ready"),
    }
    async with opened(store) as quiet, opened(store) as engine, engine.reconcilers.run_in_background():
        for timer, (set_timer, name) in timers.items():
            await wait_until_idle(engine)
            late[timer] = await measure_lateness(engine, partial(set_timer, engine, quiet), name)
    assert {timer: by for timer, by in late.items() if by >= MAX_LATENESS} == {}


@pytest.mark.alone
async def test_lost_lease_is_detected_on_time_and_never_early(store: TestStore) -> None:
    async with opened(store) as engine, engine.reconcilers.run_in_background():
        late = await measure_lateness(
            engine, lambda: execution_id_of(leased(engine, policy=Policy(lease_ttl="1s"))), "expired"
        )
    assert late < MAX_LATENESS


async def test_timers_fire_in_order_of_their_due_time(store: TestStore) -> None:
    async with opened(store) as engine, engine.reconcilers.run_in_background():
        ids = [await submitted(engine, delay=f"{delay}ms") for delay in (3_600_000, 260, 100, 180)]
        times = [await wait_for_event(engine, id_, "ready") for id_ in ids[1:]]
    # On a busy machine one tick may fire two timers at the same time.
    assert times[1] <= times[2] <= times[0]


@pytest.mark.alone
async def test_bad_row_is_logged_and_does_not_delay_later_timers(
    store: TestStore, caplog: pytest.LogCaptureFixture
) -> None:
    async with opened(store) as engine:
        poisoned = await submitted(engine, delay="1ms")
        await corrupt_row(store, poisoned)
        async with engine.reconcilers.run_in_background():
            late = await measure_lateness(engine, lambda: submitted(engine, delay="150ms"), "ready")
    assert str(poisoned) in caplog.text
    assert late < MAX_LATENESS


async def test_row_locked_at_its_due_time_is_processed_soon(postgres: PostgresServer) -> None:
    store = PostgresTestStore(postgres.dsn)
    async with opened(store) as engine, engine.reconcilers.run_in_background():
        await until(lambda: engine._context.wakeups.is_alive)
        id_, later = await submitted(engine, delay="200ms"), await submitted(engine, delay="300ms")
        async with store.locked(id_):
            # The duty processes all due rows, so once the later row is ready, the duty has skipped the locked row.
            await wait_for_event(engine, later, "ready")
            await until(lambda: engine.reconcilers._wakes_at is not None)
        async with asyncio.timeout(3):
            await wait_for_event(engine, id_, "ready")
    await store.drop()


async def test_bad_row_does_not_stop_other_rows_in_any_duty(
    engine: Engine, clock: VirtualClock, store: TestStore, caplog: pytest.LogCaptureFixture
) -> None:
    factories: list[Callable[[], Awaitable[UUID]]] = [
        lambda: submitted(engine, delay="10s"),
        lambda: submitted(engine, policy=Policy(deadline="10s")),
        lambda: execution_id_of(leased(engine, lease_ttl="10s")),
        lambda: execution_id_of(leased(engine, policy=Policy(attempt_timeout="10s"))),
    ]
    for create in factories:
        poisoned, healthy = await create(), await create()
        await corrupt_row(store, poisoned)
        before = (await engine.executions.describe(healthy)).version
        clock.advance("10s")
        with caplog.at_level(logging.WARNING):
            ticks = await engine.reconcilers.tick()
        assert sum(tick.failed for tick in ticks) == 1
        assert str(poisoned) in caplog.text
        assert (await engine.executions.describe(healthy)).version == before + 1
        await store.query("DELETE FROM ff.execution WHERE id = ?", poisoned)


async def test_bad_row_does_not_stop_the_retention_of_others(
    engine: Engine, clock: VirtualClock, store: TestStore
) -> None:
    poisoned, healthy = await submitted(engine), await submitted(engine)
    for id_ in (poisoned, healthy):
        await engine.operator.cancel(id_)
    await corrupt_row(store, poisoned)
    clock.advance("30d")
    await engine.reconcilers.tick()
    assert isinstance(await error_of(engine.executions.describe(healthy)), NotFound)


async def test_bad_row_backs_off_and_is_processed_once_repaired(
    engine: Engine, clock: VirtualClock, store: TestStore
) -> None:
    id_ = await submitted(engine, delay="10s")
    await corrupt_row(store, id_)
    clock.advance("10s")
    failed = [sum(tick.failed for tick in await engine.reconcilers.tick()) for _ in range(16)]
    assert failed[0] == 1
    assert 2 <= sum(failed) <= 5
    await store.query("UPDATE ff.execution SET policy = ? WHERE id = ?", "{}", id_)
    done = [sum(tick.done for tick in await engine.reconcilers.tick()) for _ in range(32)]
    assert sum(done) == 1
    assert (await engine.executions.describe(id_)).state is State.WAITING


async def test_concurrent_ticks_of_two_engines_change_nothing_twice(
    engine: Engine, clock: VirtualClock, store: TestStore
) -> None:
    submissions = [Submission(kind="job", delay="10s") for _ in range(30)]
    submissions += [Submission(kind="job", policy=Policy(deadline="10s")) for _ in range(30)]
    ids = [
        execution.id for execution in await engine.executions.submit_many(submissions) if isinstance(execution, Created)
    ]
    ids += [(await leased(engine, lease_ttl="10s")).execution_id for _ in range(10)]
    clock.advance("10s")
    async with opened(store, clock) as second:
        tick_lists: list[list[Tick]] = await asyncio.gather(
            *(ticking.reconcilers.tick() for ticking in (engine, second) * 3)
        )
        await second.reconcilers.tick()
        again = await engine.reconcilers.tick()
    assert sum(tick.done for ticks in tick_lists for tick in ticks) <= len(ids)
    assert [(tick.done, tick.failed) for tick in again] == [(0, 0)] * len(again)
    rows = await store.query(
        "SELECT name, COUNT(*) AS number, COUNT(DISTINCT execution_id) AS executions FROM ff.event"
        " WHERE name <> 'acquired' GROUP BY name ORDER BY name"
    )
    assert [(row["name"], row["number"], row["executions"]) for row in rows] == [
        ("expired", 40, 40),
        ("ready", 30, 30),
    ]
    versions = [(await engine.executions.describe(id_)).version for id_ in ids]
    assert sorted(versions) == [1] * 60 + [2] * 10


async def test_two_running_loops_make_work_ready_once(store: TestStore) -> None:
    async with opened(store) as engine, opened(store) as second:
        async with engine.reconcilers.run_in_background(), second.reconcilers.run_in_background():
            ids = [await submitted(engine, delay="100ms") for _ in range(20)]
            for id_ in ids:
                await wait_for_event(engine, id_, "ready")
        assert [await event_names(engine, id_) for id_ in ids] == [["lifecycle.ready"]] * 20


async def test_no_reconciler_task_runs_after_the_block(store: TestStore) -> None:
    async with opened(store) as engine:
        async with engine.reconcilers.run_in_background():
            first = await submitted(engine, delay="1ms")
            await wait_for_event(engine, first, "ready")
        assert [task.get_name() for task in asyncio.all_tasks()].count("flowfabric-reconcilers") == 0


async def corrupt_row(store: TestStore, id_: UUID) -> None:
    """Make the row of an execution unreadable."""
    await store.query("UPDATE ff.execution SET policy = ? WHERE id = ?", UNREADABLE, id_)


async def execution_id_of(lease: Awaitable[Lease]) -> UUID:
    return (await lease).execution_id


async def until(condition: Callable[[], bool]) -> None:
    """Poll the condition until it is true."""
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110 - no notification exists
            await asyncio.sleep(0.01)


async def wait_until_idle(engine: Engine) -> None:
    """Wait until the loop has done its work and nothing else is due, so that only a hint can wake it."""
    await wait_for_event(engine, await submitted(engine, delay="1ms"), "ready")
    await engine.executions.count()


async def measure_lateness(engine: Engine, set_timer: Callable[[], Awaitable[UUID]], name: str) -> timedelta:
    """Set a timer three times, and return the shortest delay from due time to event, since the machine may be busy."""
    best = timedelta.max
    for _ in range(3):
        id_ = await set_timer()
        due_at = await due_time(engine, id_)
        if due_at is None:
            continue  # The timer fired before its due time could be read.
        late = await wait_for_event(engine, id_, name) - due_at
        assert late >= timedelta(0), "a timer fired early"
        best = min(best, late)
        if best < MAX_LATENESS:
            break
    return best


async def due_time(engine: Engine, id_: UUID) -> datetime | None:
    """Return the next due time of an execution, or None if nothing is due."""
    execution = await engine.executions.describe(id_)
    lease_ends_at = execution.lease.expires_at if execution.lease else None
    timeout = execution.policy.attempt_timeout
    if execution.lease and isinstance(timeout, timedelta):
        lease_ends_at = execution.lease.acquired_at + timeout
    wait_ends_at = min(
        (waitpoint.expires_at for waitpoint in execution.waitpoints if waitpoint.expires_at), default=None
    )
    due_at = execution.ready_at or execution.deadline_at or wait_ends_at or lease_ends_at
    if due_at is None and execution.suspension:
        due_at = (await engine.reconcilers.due_times())["timers"]
    return due_at


async def wait_for_event(engine: Engine, id_: UUID, name: str) -> datetime:
    """Wait until the execution has this event, and return the event's time by the store's clock."""
    async with asyncio.timeout(10):
        while True:
            for at in await event_times(engine, id_, name):
                return at
            await asyncio.sleep(0.01)


async def event_times(engine: Engine, id_: UUID, name: str) -> list[datetime]:
    """Return the times of the events with this name.

    The expiry of a waitpoint writes no event, so use the time at which the waitpoint was closed.
    """
    if name == WAITPOINT_EXPIRED:
        return [waitpoint.closed_at for waitpoint in await engine.waitpoints.list(id_) if waitpoint.closed_at]
    return [event.at for event in await engine.executions.history(id_) if event.name == name]
