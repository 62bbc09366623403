"""Retention: terminal executions go when their time has passed, with all that is theirs but their events."""

from __future__ import annotations

from datetime import timedelta
from uuid import UUID

import pytest

from flowfabric.engine import Created, Duplicate, Engine, NotFound, Policy, State, Step, Submission, Tick
from flowfabric.testing import VirtualClock
from tests.facts import ENDED, LIVE, error_of
from tests.scenarios import KEEPING, SITUATIONS, leased, submitted
from tests.stores import TestStore

MICROSECOND = timedelta(microseconds=1)
BELONGINGS = ("execution", "attempt", "step", "reclaim_grant", "submission_key")


async def test_every_outcome_stays_for_thirty_days(engine: Engine, clock: VirtualClock) -> None:
    for situation in ENDED:
        id_ = await SITUATIONS[situation](engine, clock)
        clock.advance(timedelta(days=30) - MICROSECOND)
        await engine.reconcilers.tick()
        assert (await engine.executions.describe(id_)).state == situation
        clock.advance(MICROSECOND)
        await engine.reconcilers.tick()
        assert await is_gone(engine, id_), situation


async def test_what_has_not_ended_stays(engine: Engine, clock: VirtualClock) -> None:
    ids = [await SITUATIONS[situation](engine, clock) for situation in LIVE]
    clock.advance("365d")
    await engine.reconcilers.tick()
    await engine.reconcilers.tick()
    for id_ in ids:
        assert not (await engine.executions.describe(id_)).state.is_terminal


async def test_a_policy_can_keep_it_longer_or_shorter(engine: Engine, clock: VirtualClock) -> None:
    short = await submitted(engine, policy=Policy(retention="1h"))
    long = await leased(engine, policy=Policy(retention="60d"))
    await engine.operator.cancel(short)
    await engine.leases.complete(long.fence, b"out")
    clock.advance("1h")
    await engine.reconcilers.tick()
    assert await is_gone(engine, short)
    clock.advance("59d")
    await engine.reconcilers.tick()
    assert not await is_gone(engine, long.execution_id)
    clock.advance("1d")
    await engine.reconcilers.tick()
    assert await is_gone(engine, long.execution_id)


async def test_a_replay_stops_it_and_the_next_end_starts_it_again(engine: Engine, clock: VirtualClock) -> None:
    id_ = await submitted(engine)
    await engine.operator.cancel(id_)
    clock.advance("29d")
    await engine.operator.replay(id_)
    clock.advance("29d")
    await engine.reconcilers.tick()
    await engine.operator.cancel(id_)
    clock.advance("29d")
    await engine.reconcilers.tick()
    assert not await is_gone(engine, id_)
    clock.advance("1d")
    await engine.reconcilers.tick()
    assert await is_gone(engine, id_)


async def test_all_that_belongs_to_it_goes_and_its_events_stay(
    engine: Engine, clock: VirtualClock, store: TestStore
) -> None:
    gone = await with_belongings(engine, clock)
    kept = await with_belongings(engine, clock)
    await engine.operator.replay(kept)
    events = await engine.executions.history(gone)
    clock.advance("30d")
    await engine.reconcilers.tick()
    left = {name: await rows_of(store, name, gone) for name in BELONGINGS}
    assert left == dict.fromkeys(BELONGINGS, 0)
    # Its key has run out by itself by now; the rest of what is kept is there.
    assert {name: await rows_of(store, name, kept) > 0 for name in BELONGINGS[:-1]} == dict.fromkeys(
        BELONGINGS[:-1], True
    )
    assert await engine.executions.history(gone) == events
    assert [event.version for event in events] == list(range(1, len(events) + 1))


async def test_a_key_goes_with_the_execution_that_holds_it(
    engine: Engine, clock: VirtualClock, store: TestStore
) -> None:
    policy = Policy(retention="1h", dedup_window="30d")
    first = await submitted(engine, key="once", policy=policy)
    await engine.operator.cancel(first)
    assert await engine.executions.submit("job", b"in", key="once", policy=policy) == Duplicate(first)
    clock.advance("1h")
    await engine.reconcilers.tick()
    assert isinstance(await engine.executions.submit("job", b"in", key="once", policy=policy), Created)
    short = Policy(retention="2h", dedup_window="1h")
    first = await submitted(engine, key="again", policy=short)
    await engine.operator.cancel(first)
    clock.advance("1h")
    second = await submitted(engine, key="again", policy=Policy(dedup_window="1d"))
    clock.advance("1h")
    await engine.reconcilers.tick()
    assert await is_gone(engine, first)
    assert await rows_of(store, "submission_key", second) == 1


async def test_expired_keys_are_dropped_while_their_execution_lives(
    engine: Engine, clock: VirtualClock, store: TestStore
) -> None:
    id_ = await submitted(engine, key="once")
    clock.advance(timedelta(days=1) - MICROSECOND)
    await engine.reconcilers.tick()
    assert await rows_of(store, "submission_key", id_) == 1
    clock.advance(MICROSECOND)
    await engine.reconcilers.tick()
    assert await rows_of(store, "submission_key", id_) == 0
    assert (await engine.executions.describe(id_)).state is State.WAITING


async def test_it_goes_in_bounded_batches(engine: Engine, clock: VirtualClock) -> None:
    await engine.executions.submit_many([Submission(kind="job") for _ in range(605)])
    leases = await engine.leases.claim(["default"], "worker-1", limit=605)
    await engine.leases.complete_many([(lease.fence, b"") for lease in leases])
    clock.advance("30d")
    ticks = [await retention(engine)]
    assert ticks[0].done < 605
    left = (await engine.executions.count())[State.COMPLETED].number
    assert left == 605 - ticks[0].done
    while ticks[-1].more:
        ticks.append(await retention(engine))
    assert sum(tick.done for tick in ticks) == 605
    assert (await engine.executions.list()).items == ()


async def test_those_with_much_to_remove_go_few_at_a_time(
    engine: Engine, store: TestStore, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flowfabric.ops.purge.ROWS", 50)
    ids = [await submitted(engine) for _ in range(5)]
    for lease in await engine.leases.claim(["default"], "worker-1", limit=5):
        await engine.leases.checkpoint(lease.fence, [Step(f"step {number}") for number in range(20)])
        await engine.leases.complete(lease.fence)
    clock.advance("30d")
    assert [(await retention(engine)).done for _ in range(4)] == [2, 2, 1, 0]
    assert sum([await rows_of(store, "step", id_) for id_ in ids]) == 0


async def with_belongings(engine: Engine, clock: VirtualClock) -> UUID:
    """A completed execution with a key, steps, two attempts and a grant."""
    id_ = await submitted(engine, key=f"key {clock.now()}", policy=KEEPING)
    lease = await engine.leases.claim_execution(id_, "worker-1")
    await engine.leases.checkpoint(lease.fence, [Step("a"), Step("b")])
    await engine.operator.revoke_lease(id_)
    await engine.leases.reclaim(await engine.operator.grant_reclaim(id_, "heir"), "heir")
    [again] = await engine.leases.held("heir")
    await engine.leases.complete(again.fence, b"out")
    clock.advance("1s")
    return id_


async def is_gone(engine: Engine, id_: UUID) -> bool:
    """Whether the execution is no longer known."""
    if id_ in [item.id for item in (await engine.executions.list()).items]:
        return False
    return isinstance(await error_of(engine.executions.describe(id_)), NotFound)


async def rows_of(store: TestStore, table: str, id_: UUID) -> int:
    """How many rows of a table belong to an execution."""
    column = "id" if table == "execution" else "execution_id"
    [row] = await store.query(f"SELECT COUNT(*) AS number FROM ff.{table} WHERE {column} = ?", id_)
    return int(row["number"])


async def retention(engine: Engine) -> Tick:
    """What one run of the duty did."""
    [tick] = [tick for tick in await engine.reconcilers.tick() if tick.duty == "retention"]
    return tick
