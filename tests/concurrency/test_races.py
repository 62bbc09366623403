"""Test that two engines racing over one execution have one winner, a clear error for the loser and a sound history."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any
from uuid import UUID

import pytest

from flowfabric.engine import (
    Created,
    Duplicate,
    Ended,
    Engine,
    Held,
    Lease,
    NotFound,
    Policy,
    PriorityChanged,
    Refused,
    Renewed,
    Replayed,
)
from flowfabric.testing import VirtualClock
from tests.concurrency.soundness import assert_sound
from tests.scenarios import KEEPING, leased, submitted
from tests.stores import TestStore, opened

Act = Callable[[int], Awaitable[Any]]


@pytest.fixture
async def rival(store: TestStore, engine: Engine, rival_clock: VirtualClock) -> AsyncIterator[Engine]:
    """A second engine on the same store with separate connections and its own clock."""
    async with opened(store, rival_clock) as rival:
        yield rival


@pytest.fixture
def rival_clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
def rounds(run_all: bool) -> int:
    return 200 if run_all else 8


async def race(rounds: int, first: Act, second: Act) -> list[tuple[Any, Any]]:
    """Run both calls concurrently in every round, and return their two results for each round.

    All rounds run concurrently, and each call starts first in half of them.
    """
    starts = [(first, second) if number % 2 else (second, first) for number in range(rounds)]
    calls = [act(number) for number, pair in enumerate(starts) for act in pair]
    results = await asyncio.gather(*calls, return_exceptions=True)
    pairs = list(zip(results[0::2], results[1::2], strict=True))
    return [pair if number % 2 else (pair[1], pair[0]) for number, pair in enumerate(pairs)]


def refused(result: object, *codes: str) -> bool:
    return isinstance(result, Refused) and result.code in codes


async def test_every_execution_is_claimed_exactly_once(
    store: TestStore, engine: Engine, rounds: int, rival: Engine
) -> None:
    ids = {await submitted(engine) for _ in range(5 * rounds)}

    async def drain(side: Engine, worker: str) -> list[UUID]:
        taken: list[UUID] = []
        while leases := await side.leases.claim(["default"], worker, limit=4):
            taken += [lease.execution_id for lease in leases]
        return taken

    shares = await asyncio.gather(*(drain(side, f"w-{number}") for number in range(3) for side in (engine, rival)))
    taken = [id_ for share in shares for id_ in share]
    assert sorted(taken) == sorted(ids)
    await assert_sound(store)


async def test_either_complete_or_cancel_ends_the_execution(
    store: TestStore, engine: Engine, rounds: int, rival: Engine
) -> None:
    leases = [await leased(engine) for _ in range(rounds)]
    results = await race(
        rounds,
        lambda number: engine.leases.complete(leases[number].fence, b"out"),
        lambda number: rival.operator.cancel(leases[number].execution_id),
    )
    for lease, (completed, cancelled) in zip(leases, results, strict=True):
        state = (await engine.executions.describe(lease.execution_id)).state
        if state == "completed":
            assert completed == Ended(state)
            assert refused(cancelled, "execution_not_active")
        else:
            assert cancelled == Ended(state)
            assert refused(completed, "execution_not_active")
    await assert_sound(store)


async def test_two_cancels_both_return_cancelled_and_write_one_event(
    store: TestStore, engine: Engine, rounds: int, rival: Engine
) -> None:
    ids = [await submitted(engine) for _ in range(rounds)]
    results = await race(rounds, lambda n: engine.operator.cancel(ids[n]), lambda n: rival.operator.cancel(ids[n]))
    assert all(first == second == Ended("cancelled") for first, second in results)  # type: ignore[arg-type]
    assert [len(await engine.executions.history(id_)) for id_ in ids] == [1] * rounds
    await assert_sound(store)


@pytest.mark.parametrize("known_by", ["key", "id"])
async def test_one_of_two_submits_with_the_same_key_or_id_is_a_duplicate(
    store: TestStore, engine: Engine, rounds: int, rival: Engine, known_by: str
) -> None:
    names = [engine._context.ids.mint() for _ in range(rounds)]

    def options(number: int) -> dict[str, Any]:
        return {"id": names[number]} if known_by == "id" else {"key": str(names[number])}

    results = await race(
        rounds,
        lambda number: engine.executions.submit("job", **options(number)),
        lambda number: rival.executions.submit("job", **options(number)),
    )
    for pair in results:
        assert sorted(type(result).__name__ for result in pair) == ["Created", "Duplicate"], pair
        assert pair[0].id == pair[1].id
    assert (await engine.executions.count())["waiting"].value == rounds  # type: ignore[index]


async def test_submit_racing_a_drain_is_stored_or_refused(
    store: TestStore, engine: Engine, rounds: int, rival: Engine
) -> None:
    await submitted(engine, lane="lane-0")  # Cache the route, so that only the insert races.
    results = await race(
        rounds,
        lambda number: engine.executions.submit("job", lane=f"lane-{number}"),
        lambda number: rival.lanes.drain(f"lane-{number}"),
    )
    created = [result.id for result, _ in results if isinstance(result, Created)]
    assert all(isinstance(result, Created) or refused(result, "lane_draining") for result, _ in results)
    late = await asyncio.gather(
        *(engine.executions.submit("job", lane=f"lane-{number}") for number in range(rounds)), return_exceptions=True
    )
    assert all(refused(result, "lane_draining") for result in late)
    lanes = [f"lane-{number}" for number in range(rounds)]
    taken = {lease.execution_id for lease in await engine.leases.claim(lanes, "w", limit=1000)}
    assert taken >= set(created)
    await assert_sound(store)


async def test_grant_used_twice_concurrently_gives_one_lease(
    store: TestStore, engine: Engine, rounds: int, rival: Engine
) -> None:
    grants = []
    for _ in range(rounds):
        lease = await leased(engine, policy=KEEPING)
        await engine.operator.revoke_lease(lease.execution_id)
        grants.append(await engine.operator.grant_reclaim(lease.execution_id, "heir"))
    results = await race(
        rounds,
        lambda number: engine.leases.reclaim(grants[number], "heir"),
        lambda number: rival.leases.reclaim(grants[number], "heir"),
    )
    for grant, (first, second) in zip(grants, results, strict=True):
        assert isinstance(first, Lease), first
        assert first == second
        names = [event.name for event in await engine.executions.history(grant.execution_id)]
        assert names == ["acquired", "revoked", "reclaim_granted", "reclaimed"]
    await assert_sound(store)


async def test_one_of_two_workers_gets_the_reclaim_grant(
    store: TestStore, engine: Engine, rounds: int, rival: Engine
) -> None:
    ids = []
    for _ in range(rounds):
        lease = await leased(engine, policy=KEEPING)
        await engine.operator.revoke_lease(lease.execution_id)
        ids.append(lease.execution_id)
    results = await race(
        rounds,
        lambda number: engine.operator.grant_reclaim(ids[number], "one"),
        lambda number: rival.operator.grant_reclaim(ids[number], "two"),
    )
    for pair in results:
        assert [refused(result, "grant_already_exists") for result in pair].count(True) == 1, pair
    await assert_sound(store)


async def test_two_replays_open_one_generation(store: TestStore, engine: Engine, rounds: int, rival: Engine) -> None:
    ids = [await submitted(engine) for _ in range(rounds)]
    await asyncio.gather(*(engine.operator.cancel(id_) for id_ in ids))
    results = await race(rounds, lambda n: engine.operator.replay(ids[n]), lambda n: rival.operator.replay(ids[n]))
    for pair in results:
        assert [isinstance(result, Replayed) for result in pair].count(True) == 1, pair
        assert [refused(result, "execution_not_terminal") for result in pair].count(True) == 1, pair
    assert [(await engine.executions.describe(id_)).generation for id_ in ids] == [1] * rounds
    await assert_sound(store)


async def test_two_replays_of_one_generation_return_the_same_result(
    store: TestStore, engine: Engine, rounds: int, rival: Engine
) -> None:
    ids = [await submitted(engine) for _ in range(rounds)]
    await asyncio.gather(*(engine.operator.cancel(id_) for id_ in ids))
    results = await race(
        rounds,
        lambda number: engine.operator.replay(ids[number], expected_generation=0),
        lambda number: rival.operator.replay(ids[number], expected_generation=0),
    )
    assert all(isinstance(first, Replayed) and first == second for first, second in results), results
    await assert_sound(store)


async def test_work_is_held_or_claimed_never_both(store: TestStore, engine: Engine, rounds: int, rival: Engine) -> None:
    ids = [await submitted(engine) for _ in range(rounds)]
    results = await race(
        rounds,
        lambda number: engine.operator.hold(ids[number], "stop"),
        lambda number: rival.leases.claim_execution(ids[number], "w"),
    )
    for held, claimed in results:
        if isinstance(held, Held):
            assert refused(claimed, "execution_not_leaseable"), claimed
        else:
            assert isinstance(claimed, Lease), claimed
            assert refused(held, "execution_not_eligible"), held
    await assert_sound(store)


async def test_priority_change_precedes_the_claim_or_is_refused(
    store: TestStore, engine: Engine, rounds: int, rival: Engine
) -> None:
    ids = [await submitted(engine, lane=f"lane-{number}", priority=1) for number in range(rounds)]
    results = await race(
        rounds,
        lambda number: engine.operator.change_priority(ids[number], 9),
        lambda number: rival.leases.claim([f"lane-{number}"], "w"),
    )
    for number, (id_, (changed, leases)) in enumerate(zip(ids, results, strict=True)):
        # A claim skips locked rows, so the first claim may have returned nothing.
        [lease] = leases or await rival.leases.claim([f"lane-{number}"], "w")
        names = [event.name for event in await engine.executions.history(id_)]
        if lease.priority == 9:
            assert changed == PriorityChanged(1, 9)
            assert names == ["priority_changed", "acquired"]
        else:
            assert refused(changed, "execution_not_eligible"), changed
            assert names == ["acquired"]
    await assert_sound(store)


async def test_renewal_precedes_the_expiry_or_is_refused(
    store: TestStore, engine: Engine, rounds: int, clock: VirtualClock, rival: Engine, rival_clock: VirtualClock
) -> None:
    leases = [await leased(engine, lease_ttl="30s") for _ in range(rounds)]
    # By the clock of `engine`, the leases are about to expire. By the clock of `rival`, they have just expired.
    clock.advance("29s")
    rival_clock.advance("31s")
    results = await race(rounds, lambda n: engine.leases.renew(leases[n].fence), lambda n: rival.reconcilers.tick())
    for _ in range(3):
        await rival.reconcilers.tick()
    for lease, (renewed, _) in zip(leases, results, strict=True):
        names = [event.name for event in await engine.executions.history(lease.execution_id)]
        if isinstance(renewed, Renewed):
            assert names == ["acquired"]
        else:
            assert refused(renewed, "lease_expired"), renewed
            assert names == ["acquired", "expired"]
    await assert_sound(store)


async def test_either_complete_or_the_deadline_ends_the_execution(
    store: TestStore, engine: Engine, rounds: int, rival: Engine, rival_clock: VirtualClock
) -> None:
    leases = [await leased(engine, policy=Policy(deadline="10s")) for _ in range(rounds)]
    rival_clock.advance("11s")
    results = await race(rounds, lambda n: engine.leases.complete(leases[n].fence), lambda n: rival.reconcilers.tick())
    for _ in range(3):
        await rival.reconcilers.tick()
    for lease, (completed, _) in zip(leases, results, strict=True):
        state = (await engine.executions.describe(lease.execution_id)).state
        if isinstance(completed, Ended):
            assert state == "completed"
        else:
            assert refused(completed, "execution_not_active"), completed
            assert state == "expired"
    await assert_sound(store)


async def test_execution_is_either_replayed_or_purged(
    store: TestStore, engine: Engine, rounds: int, rival: Engine, rival_clock: VirtualClock
) -> None:
    ids = [await submitted(engine, policy=Policy(retention="1m"), key=f"key-{number}") for number in range(rounds)]
    await asyncio.gather(*(engine.operator.cancel(id_) for id_ in ids))
    rival_clock.advance("2m")
    results = await race(rounds, lambda n: engine.operator.replay(ids[n]), lambda n: rival.reconcilers.tick())
    assert {type(result) for result, _ in results} <= {Replayed, NotFound}
    for number, (id_, (replayed, _)) in enumerate(zip(ids, results, strict=True)):
        again = await engine.executions.submit("job", b"in", policy=Policy(retention="1m"), key=f"key-{number}")
        if isinstance(replayed, Replayed):
            assert (await engine.executions.describe(id_)).state == "waiting"
            assert again == Duplicate(id_)
        else:
            assert isinstance(again, Created), again
    await assert_sound(store)
