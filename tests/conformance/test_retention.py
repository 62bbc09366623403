"""Tests of retention, which purges terminal executions with their rows but keeps their events."""

from __future__ import annotations

from datetime import timedelta
from uuid import UUID

import pytest

from flowfabric.engine import Created, Ended, Engine, NotFound, Policy, State, Step, Submission, Tick
from flowfabric.testing import VirtualClock
from tests.expectations import ENDED, LIVE, error_of
from tests.scenarios import KEEPING, SITUATIONS, leased, submitted
from tests.stores import TestStore

MICROSECOND = timedelta(microseconds=1)
OWNED_TABLES = ("execution", "attempt", "step", "reclaim_grant", "submission_key")


async def test_every_outcome_is_kept_for_thirty_days(engine: Engine, clock: VirtualClock) -> None:
    for situation in ENDED:
        id_ = await SITUATIONS[situation](engine, clock)
        clock.advance(timedelta(days=30) - MICROSECOND)
        await engine.reconcilers.tick()
        assert (await engine.executions.describe(id_)).state == situation
        clock.advance(MICROSECOND)
        await engine.reconcilers.tick()
        assert await is_purged(engine, id_), situation


async def test_live_executions_are_not_purged(engine: Engine, clock: VirtualClock) -> None:
    ids = [await SITUATIONS[situation](engine, clock) for situation in LIVE]
    clock.advance("365d")
    await engine.reconcilers.tick()
    await engine.reconcilers.tick()
    for id_ in ids:
        assert not (await engine.executions.describe(id_)).state.is_terminal


async def test_policy_can_set_a_longer_or_shorter_retention(engine: Engine, clock: VirtualClock) -> None:
    short = await submitted(engine, policy=Policy(retention="1h"))
    long = await leased(engine, policy=Policy(retention="60d"))
    await engine.operator.cancel(short)
    await engine.leases.complete(long.fence, b"out")
    clock.advance("1h")
    await engine.reconcilers.tick()
    assert await is_purged(engine, short)
    clock.advance("59d")
    await engine.reconcilers.tick()
    assert not await is_purged(engine, long.execution_id)
    clock.advance("1d")
    await engine.reconcilers.tick()
    assert await is_purged(engine, long.execution_id)


async def test_replay_stops_the_retention_and_the_next_end_restarts_it(engine: Engine, clock: VirtualClock) -> None:
    id_ = await submitted(engine)
    await engine.operator.cancel(id_)
    clock.advance("29d")
    await engine.operator.replay(id_)
    clock.advance("29d")
    await engine.reconcilers.tick()
    await engine.operator.cancel(id_)
    clock.advance("29d")
    await engine.reconcilers.tick()
    assert not await is_purged(engine, id_)
    clock.advance("1d")
    await engine.reconcilers.tick()
    assert await is_purged(engine, id_)


async def test_purge_removes_all_rows_of_an_execution_but_its_events(
    engine: Engine, clock: VirtualClock, store: TestStore
) -> None:
    purged = await complete_with_owned_rows(engine, clock)
    kept = await complete_with_owned_rows(engine, clock)
    await engine.operator.replay(kept)
    events = await engine.executions.history(purged)
    clock.advance("30d")
    await engine.reconcilers.tick()
    remaining = {name: await count_rows(store, name, purged) for name in OWNED_TABLES}
    assert remaining == dict.fromkeys(OWNED_TABLES, 0)
    # The submission key of the kept execution has expired by now. The other rows of that execution remain.
    assert {name: await count_rows(store, name, kept) > 0 for name in OWNED_TABLES[:-1]} == dict.fromkeys(
        OWNED_TABLES[:-1], True
    )
    assert await engine.executions.history(purged) == events
    assert [event.version for event in events] == list(range(1, len(events) + 1))


async def test_purge_runs_in_bounded_batches(engine: Engine, clock: VirtualClock) -> None:
    await engine.executions.submit_many([Submission(kind="job") for _ in range(605)])
    leases = await engine.leases.claim(["default"], "worker-1", limit=605)
    await engine.leases.complete_many([(lease.fence, b"") for lease in leases])
    clock.advance("30d")
    ticks = [await run_retention(engine)]
    assert ticks[0].done < 605
    remaining = (await engine.executions.count())[State.COMPLETED].value
    assert remaining == 605 - ticks[0].done
    while ticks[-1].has_more:
        ticks.append(await run_retention(engine))
    assert sum(tick.done for tick in ticks) == 605
    assert (await engine.executions.list()).items == ()


async def test_executions_with_many_rows_are_purged_in_smaller_batches(
    engine: Engine, store: TestStore, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flowfabric.ops.executions.purge.MAX_PURGE_ROWS", 50)
    ids = [await submitted(engine) for _ in range(5)]
    for lease in await engine.leases.claim(["default"], "worker-1", limit=5):
        await engine.leases.checkpoint(lease.fence, [Step(f"step {number}") for number in range(20)])
        await engine.leases.complete(lease.fence)
    clock.advance("30d")
    assert [(await run_retention(engine)).done for _ in range(4)] == [2, 2, 1, 0]
    assert sum([await count_rows(store, "step", id_) for id_ in ids]) == 0


async def complete_with_owned_rows(engine: Engine, clock: VirtualClock) -> UUID:
    """Return a completed execution with a key, steps, two attempts and a grant."""
    id_ = await submitted(engine, key=f"key {clock.now()}", policy=KEEPING)
    lease = await engine.leases.claim_execution(id_, "worker-1")
    await engine.leases.checkpoint(lease.fence, [Step("a"), Step("b")])
    await engine.operator.revoke_lease(id_)
    await engine.leases.reclaim(await engine.operator.grant_reclaim(id_, "heir"), "heir")
    [held] = await engine.leases.held("heir")
    await engine.leases.complete(held.fence, b"out")
    clock.advance("1s")
    return id_


async def is_purged(engine: Engine, id_: UUID) -> bool:
    """Return whether the engine no longer knows the execution."""
    if id_ in [execution.id for execution in (await engine.executions.list()).items]:
        return False
    return isinstance(await error_of(engine.executions.describe(id_)), NotFound)


async def count_rows(store: TestStore, table: str, id_: UUID) -> int:
    """Return how many rows of a table belong to an execution."""
    column = "id" if table == "execution" else "execution_id"
    [row] = await store.query(f"SELECT COUNT(*) AS number FROM ff.{table} WHERE {column} = ?", id_)
    return int(row["number"])


async def run_retention(engine: Engine) -> Tick:
    """Return the report of one run of the duty."""
    [tick] = [tick for tick in await engine.reconcilers.tick() if tick.duty == "retention"]
    return tick


async def test_reconciler_tick_purges_ended_executions_and_keeps_their_events(
    store: TestStore, engine: Engine, clock: VirtualClock
) -> None:
    short = Policy(retention="1m", dedup_window="1m")
    cancelled = await submitted(engine, policy=short, key="freed")
    await engine.operator.cancel(cancelled)
    completed = await leased(engine, policy=short)
    await engine.leases.complete(completed.fence, b"out")
    kept_lease = await leased(engine)
    assert await engine.leases.complete(kept_lease.fence, b"out") == Ended(State.COMPLETED)
    clock.advance("1m")
    await engine.reconcilers.tick()
    assert [row["id"] for row in await store.query("SELECT CAST(id AS TEXT) AS id FROM ff.execution")] == [
        str(kept_lease.execution_id)
    ]
    assert len(await store.query("SELECT execution_id FROM ff.attempt")) == 1
    assert len(await engine.executions.history(completed.execution_id)) == 2
    assert isinstance(await engine.executions.submit("job", key="freed", payload=b"other"), Created)
