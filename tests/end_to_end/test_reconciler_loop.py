"""The loop of the reconcilers: timers fire in time and never early, a bad row stops nothing, nothing happens twice."""

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
from tests.facts import error_of, event_names
from tests.postgres_server import PostgresServer
from tests.scenarios import leased, submitted, suspended
from tests.stores import PostgresTestStore, TestStore, opened

IN_TIME = timedelta(milliseconds=100)
UNREADABLE = '{"no such field": 1}'


Setting = Callable[[Engine, Engine], Awaitable[UUID]]


async def retried(engine: Engine, quiet: Engine) -> UUID:
    lease = await leased(quiet, policy=Policy(backoff=Backoff(kind=BackoffKind.FIXED, initial="100ms", jitter=False)))
    await engine.leases.fail(lease.fence, "not yet")
    return lease.execution_id


async def rested(engine: Engine, quiet: Engine) -> UUID:
    lease = await leased(quiet)
    await engine.leases.delay(lease.fence, after="100ms")
    return lease.execution_id


async def unheld(engine: Engine, quiet: Engine) -> UUID:
    id_ = await submitted(quiet, delay="150ms")
    await quiet.operator.hold(id_)
    await engine.operator.unhold(id_)
    return id_


async def all_unheld(engine: Engine, quiet: Engine) -> UUID:
    id_ = await submitted(quiet, delay="150ms")
    await quiet.operator.hold(id_)
    await engine.operator.unhold_all()
    return id_


async def replayed(engine: Engine, quiet: Engine) -> UUID:
    id_ = await submitted(quiet, policy=Policy(deadline="100ms"))
    await quiet.operator.cancel(id_)
    await engine.operator.replay(id_)
    return id_


async def claimed(engine: Engine, quiet: Engine) -> UUID:
    id_ = await submitted(quiet, policy=Policy(attempt_timeout="100ms", max_retries=0))
    await engine.leases.claim_execution(id_, "worker-1")
    return id_


async def timed_out(engine: Engine, quiet: Engine) -> UUID:
    lease = await leased(quiet)
    await engine.leases.suspend(lease.fence, ["go"], timeout="100ms", on_timeout="auto_resume")
    return lease.execution_id


async def rung(engine: Engine, quiet: Engine) -> UUID:
    lease = await leased(quiet)
    await engine.leases.suspend(lease.fence, [Timer("t", datetime.now(UTC) + timedelta(milliseconds=100))])
    return lease.execution_id


async def handed_out(engine: Engine, quiet: Engine) -> UUID:
    lease = await leased(quiet)
    await engine.waitpoints.create(lease.fence, "go", expires="100ms")
    return lease.execution_id


async def resumed_later(engine: Engine, quiet: Engine) -> UUID:
    wait = await suspended(quiet, resume_delay="100ms")
    await engine.signals.deliver(wait.token(), "go")
    return wait.id


EXPIRED = "its waitpoint expired"


async def joined(store: TestStore, engine: Engine, quiet: Engine) -> UUID:
    library = "asyncpg" if store.name == "postgres" else "sqlite3"
    async with (ON_POSTGRES | ON_SQLITE)[library](store, quiet) as caller:
        answer = await caller.submit(Submission(kind="job", delay="100ms"))
        await caller.commit()
        return answer.id


# Everything that sets a timer, the event by which the timer shows, and nothing else that could wake the loop: what
# must be arranged before is arranged by an engine whose duties do not run.
TIMERS: dict[str, tuple[Setting, str]] = {
    "submit with a delay": (lambda engine, _: submitted(engine, delay="100ms"), "ready"),
    "submit with a time": (
        lambda engine, _: submitted(engine, ready_at=datetime.now(UTC) + timedelta(milliseconds=100)), "ready",
    ),
    "submit with a deadline": (lambda engine, _: submitted(engine, policy=Policy(deadline="100ms")), "expired"),
    "submit with a time to end": (
        lambda engine, _: submitted(engine, deadline=datetime.now(UTC) + timedelta(milliseconds=100)), "expired",
    ),
    "retry": (retried, "ready"),
    "delay": (rested, "ready"),
    "unhold": (unheld, "ready"),
    "replay": (replayed, "expired"),
    "claim": (claimed, "failed"),
    "suspend with a timeout": (timed_out, "resumed"),
    "suspend with a timer": (rung, "resumed"),
    "waitpoint that expires": (handed_out, EXPIRED),
    "resume with a delay": (resumed_later, "ready"),
}  # fmt: skip


async def test_every_timer_fires_in_time_and_never_early(store: TestStore) -> None:
    late = {}
    timers = TIMERS | {
        "submit in a transaction of the caller's": (partial(joined, store), "ready"),
        "unhold of all": (all_unheld, "ready"),
    }
    async with opened(store) as quiet, opened(store) as engine, engine.reconcilers.running():
        for timer, (setting, name) in timers.items():
            await asleep(engine)
            late[timer] = await lateness(engine, partial(setting, engine, quiet), name)
    assert {timer: by for timer, by in late.items() if by >= IN_TIME} == {}


async def test_a_lost_lease_is_noticed_in_time_and_never_early(store: TestStore) -> None:
    async with opened(store) as engine, engine.reconcilers.running():
        late = await lateness(engine, lambda: an_id(leased(engine, policy=Policy(lease_ttl="1s"))), "expired")
    assert late < IN_TIME


async def test_timers_behind_each_other_fire_in_their_order(store: TestStore) -> None:
    async with opened(store) as engine, engine.reconcilers.running():
        ids = [await submitted(engine, delay=f"{delay}ms") for delay in (3_600_000, 260, 100, 180)]
        times = [await time_of(engine, id_, "ready") for id_ in ids[1:]]
    # On a busy machine two of them may be settled by one look, at one time.
    assert times[1] <= times[2] <= times[0]


async def test_a_bad_row_is_logged_and_does_not_hold_up_later_timers(
    store: TestStore, caplog: pytest.LogCaptureFixture
) -> None:
    async with opened(store) as engine:
        poisoned = await submitted(engine, delay="1ms")
        await spoil(store, poisoned)
        async with engine.reconcilers.running():
            late = await lateness(engine, lambda: submitted(engine, delay="150ms"), "ready")
    assert str(poisoned) in caplog.text
    assert late < IN_TIME


async def test_a_row_that_was_locked_when_it_was_due_is_taken_up_soon(postgres: PostgresServer) -> None:
    store = PostgresTestStore(postgres.dsn)
    async with opened(store) as engine, engine.reconcilers.running():
        await until(lambda: engine._context.wakeups.alive)
        id_, later = await submitted(engine, delay="200ms"), await submitted(engine, delay="300ms")
        async with store.locked(id_):
            # The duty takes all that is due, so when the later one is ready, the first was left out.
            await time_of(engine, later, "ready")
            await until(lambda: engine.reconcilers._sleeps_until is not None)
        async with asyncio.timeout(3):
            await time_of(engine, id_, "ready")
    await store.drop()


async def test_a_bad_row_does_not_stop_its_neighbours_in_any_duty(
    engine: Engine, clock: VirtualClock, store: TestStore, caplog: pytest.LogCaptureFixture
) -> None:
    makers: list[Callable[[], Awaitable[UUID]]] = [
        lambda: submitted(engine, delay="10s"),
        lambda: submitted(engine, policy=Policy(deadline="10s")),
        lambda: an_id(leased(engine, lease_ttl="10s")),
        lambda: an_id(leased(engine, policy=Policy(attempt_timeout="10s"))),
    ]
    for make in makers:
        poisoned, well = await make(), await make()
        await spoil(store, poisoned)
        before = (await engine.executions.describe(well)).version
        clock.advance("10s")
        with caplog.at_level(logging.WARNING):
            ticks = await engine.reconcilers.tick()
        assert sum(tick.failed for tick in ticks) == 1
        assert str(poisoned) in caplog.text
        assert (await engine.executions.describe(well)).version == before + 1
        await store.query("DELETE FROM ff.execution WHERE id = ?", poisoned)


async def test_a_bad_row_does_not_stop_the_retention_of_others(
    engine: Engine, clock: VirtualClock, store: TestStore
) -> None:
    poisoned, well = await submitted(engine), await submitted(engine)
    for id_ in (poisoned, well):
        await engine.operator.cancel(id_)
    await spoil(store, poisoned)
    clock.advance("30d")
    await engine.reconcilers.tick()
    assert isinstance(await error_of(engine.executions.describe(well)), NotFound)


async def test_a_bad_row_backs_off_and_is_taken_up_when_it_is_well(
    engine: Engine, clock: VirtualClock, store: TestStore
) -> None:
    id_ = await submitted(engine, delay="10s")
    await spoil(store, id_)
    clock.advance("10s")
    failed = [sum(tick.failed for tick in await engine.reconcilers.tick()) for _ in range(16)]
    assert failed[0] == 1
    assert 2 <= sum(failed) <= 5
    await store.query("UPDATE ff.execution SET policy = ? WHERE id = ?", "{}", id_)
    done = [sum(tick.done for tick in await engine.reconcilers.tick()) for _ in range(32)]
    assert sum(done) == 1
    assert (await engine.executions.describe(id_)).state is State.WAITING


async def test_ticks_of_two_engines_at_once_change_nothing_twice(
    engine: Engine, clock: VirtualClock, store: TestStore
) -> None:
    submissions = [Submission(kind="job", delay="10s") for _ in range(30)]
    submissions += [Submission(kind="job", policy=Policy(deadline="10s")) for _ in range(30)]
    ids = [answer.id for answer in await engine.executions.submit_many(submissions) if isinstance(answer, Created)]
    ids += [(await leased(engine, lease_ttl="10s")).execution_id for _ in range(10)]
    clock.advance("10s")
    async with opened(store, clock) as second:
        both: list[list[Tick]] = await asyncio.gather(*(one.reconcilers.tick() for one in (engine, second) * 3))
        await second.reconcilers.tick()
        again = await engine.reconcilers.tick()
    assert sum(tick.done for ticks in both for tick in ticks) <= len(ids)
    assert [(tick.done, tick.failed) for tick in again] == [(0, 0)] * len(again)
    rows = await store.query(
        "SELECT name, COUNT(*) AS number, COUNT(DISTINCT execution_id) AS executions FROM ff.event"
        " WHERE name <> 'acquired' GROUP BY name ORDER BY name"
    )
    assert [(row["name"], row["number"], row["executions"]) for row in rows] == [
        ("expired", 40, 40), ("ready", 30, 30),
    ]  # fmt: skip
    versions = [(await engine.executions.describe(id_)).version for id_ in ids]
    assert sorted(versions) == [1] * 60 + [2] * 10


async def test_two_running_loops_make_work_ready_once(store: TestStore) -> None:
    async with opened(store) as engine, opened(store) as second:
        async with engine.reconcilers.running(), second.reconcilers.running():
            ids = [await submitted(engine, delay="100ms") for _ in range(20)]
            for id_ in ids:
                await time_of(engine, id_, "ready")
        assert [await event_names(engine, id_) for id_ in ids] == [["lifecycle.ready"]] * 20


async def test_nothing_runs_any_more_after_the_block(store: TestStore) -> None:
    async with opened(store) as engine:
        async with engine.reconcilers.running():
            first = await submitted(engine, delay="1ms")
            await time_of(engine, first, "ready")
        assert [task.get_name() for task in asyncio.all_tasks()].count("flowfabric-reconcilers") == 0


async def spoil(store: TestStore, id_: UUID) -> None:
    """Makes the row of an execution unreadable."""
    await store.query("UPDATE ff.execution SET policy = ? WHERE id = ?", UNREADABLE, id_)


async def an_id(lease: Awaitable[Lease]) -> UUID:
    return (await lease).execution_id


async def until(true: Callable[[], bool]) -> None:
    """Waits until something is so."""
    async with asyncio.timeout(10):
        while not true():  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.01)


async def asleep(engine: Engine) -> None:
    """Returns when the loop has done something and knows of nothing else, so that only a hint can wake it."""
    await time_of(engine, await submitted(engine, delay="1ms"), "ready")
    await engine.executions.count()


async def lateness(engine: Engine, set_timer: Callable[[], Awaitable[UUID]], name: str) -> timedelta:
    """How long after its due time the event of a timer came; on a busy machine the best of three."""
    best = timedelta.max
    for _ in range(3):
        id_ = await set_timer()
        due_at = await due_time(engine, id_)
        if due_at is None:
            continue  # It fired before it could be looked at.
        late = await time_of(engine, id_, name) - due_at
        assert late >= timedelta(0), "a timer fired early"
        best = min(best, late)
        if best < IN_TIME:
            break
    return best


async def due_time(engine: Engine, id_: UUID) -> datetime | None:
    """When the next thing is due for an execution; None if nothing is any more."""
    found = await engine.executions.describe(id_)
    lease_ends_at = found.lease.expires_at if found.lease else None
    timeout = found.policy.attempt_timeout
    if found.lease and isinstance(timeout, timedelta):
        lease_ends_at = found.lease.acquired_at + timeout
    wait_ends_at = min((item.expires_at for item in found.waitpoints if item.expires_at), default=None)
    due_at = found.ready_at or found.deadline_at or wait_ends_at or lease_ends_at
    if due_at is None and found.suspension:
        due_at = (await engine.reconcilers.due())["timers"]
    return due_at


async def time_of(engine: Engine, id_: UUID, name: str) -> datetime:
    """When this happened to the execution, by the store's clock; looks until it has."""
    async with asyncio.timeout(10):
        while True:
            for at in await times_of(engine, id_, name):
                return at
            await asyncio.sleep(0.01)


async def times_of(engine: Engine, id_: UUID, name: str) -> list[datetime]:
    """The times of the events of this name; an expired waitpoint leaves none, and says itself when it was."""
    if name == EXPIRED:
        return [item.closed_at for item in await engine.waitpoints.list(id_) if item.closed_at]
    return [event.at for event in await engine.executions.history(id_) if event.name == name]
