"""Two engines race over the same executions: one winner each, the loser is told why, and every history stays sound."""

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
    """A second engine on the same store, with connections and a clock of its own."""
    async with opened(store, rival_clock) as rival:
        yield rival


@pytest.fixture
def rival_clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
def rounds(run_all: bool) -> int:
    return 200 if run_all else 8


async def race(rounds: int, first: Act, second: Act) -> list[tuple[Any, Any]]:
    """What both answered in each round; all rounds run at once, and each side is the first to start in half of them."""
    starts = [(first, second) if number % 2 else (second, first) for number in range(rounds)]
    calls = [act(number) for number, pair in enumerate(starts) for act in pair]
    answers = await asyncio.gather(*calls, return_exceptions=True)
    pairs = list(zip(answers[0::2], answers[1::2], strict=True))
    return [pair if number % 2 else (pair[1], pair[0]) for number, pair in enumerate(pairs)]


def refused(answer: object, *codes: str) -> bool:
    return isinstance(answer, Refused) and answer.code in codes


async def test_no_execution_is_claimed_twice_and_none_is_left(
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


async def test_of_complete_and_cancel_one_ends_the_execution(
    store: TestStore, engine: Engine, rounds: int, rival: Engine
) -> None:
    leases = [await leased(engine) for _ in range(rounds)]
    answers = await race(
        rounds,
        lambda number: engine.leases.complete(leases[number].fence, b"out"),
        lambda number: rival.operator.cancel(leases[number].execution_id),
    )
    for lease, (completed, cancelled) in zip(leases, answers, strict=True):
        state = (await engine.executions.describe(lease.execution_id)).state
        if state == "completed":
            assert completed == Ended(state)
            assert refused(cancelled, "execution_not_active")
        else:
            assert cancelled == Ended(state)
            assert refused(completed, "execution_not_active")
    await assert_sound(store)


async def test_two_cancels_both_answer_cancelled_and_make_one_event(
    store: TestStore, engine: Engine, rounds: int, rival: Engine
) -> None:
    ids = [await submitted(engine) for _ in range(rounds)]
    answers = await race(rounds, lambda n: engine.operator.cancel(ids[n]), lambda n: rival.operator.cancel(ids[n]))
    assert all(first == second == Ended("cancelled") for first, second in answers)  # type: ignore[arg-type]
    assert [len(await engine.executions.history(id_)) for id_ in ids] == [1] * rounds
    await assert_sound(store)


@pytest.mark.parametrize("known_by", ["key", "id"])
async def test_of_two_submits_with_one_key_or_id_one_creates_and_the_other_answers_duplicate(
    store: TestStore, engine: Engine, rounds: int, rival: Engine, known_by: str
) -> None:
    names = [engine._context.ids.mint() for _ in range(rounds)]

    def options(number: int) -> dict[str, Any]:
        return {"id": names[number]} if known_by == "id" else {"key": str(names[number])}

    answers = await race(
        rounds,
        lambda number: engine.executions.submit("job", **options(number)),
        lambda number: rival.executions.submit("job", **options(number)),
    )
    for pair in answers:
        assert sorted(type(answer).__name__ for answer in pair) == ["Created", "Duplicate"], pair
        assert pair[0].id == pair[1].id
    assert (await engine.executions.count())["waiting"].number == rounds  # type: ignore[index]


async def test_a_submit_that_races_a_drain_is_stored_or_refused_and_none_is_taken_after_it(
    store: TestStore, engine: Engine, rounds: int, rival: Engine
) -> None:
    await submitted(engine, lane="lane-0")  # The route is known, so that the race is about the insert.
    answers = await race(
        rounds,
        lambda number: engine.executions.submit("job", lane=f"lane-{number}"),
        lambda number: rival.lanes.drain(f"lane-{number}"),
    )
    created = [answer.id for answer, _ in answers if isinstance(answer, Created)]
    assert all(isinstance(answer, Created) or refused(answer, "lane_draining") for answer, _ in answers)
    late = await asyncio.gather(
        *(engine.executions.submit("job", lane=f"lane-{number}") for number in range(rounds)), return_exceptions=True
    )
    assert all(refused(answer, "lane_draining") for answer in late)
    lanes = [f"lane-{number}" for number in range(rounds)]
    taken = {lease.execution_id for lease in await engine.leases.claim(lanes, "w", limit=1000)}
    assert taken >= set(created)
    await assert_sound(store)


async def test_a_grant_that_is_used_twice_at_once_gives_one_lease(
    store: TestStore, engine: Engine, rounds: int, rival: Engine
) -> None:
    grants = []
    for _ in range(rounds):
        lease = await leased(engine, policy=KEEPING)
        await engine.operator.revoke_lease(lease.execution_id)
        grants.append(await engine.operator.grant_reclaim(lease.execution_id, "heir"))
    answers = await race(
        rounds,
        lambda number: engine.leases.reclaim(grants[number], "heir"),
        lambda number: rival.leases.reclaim(grants[number], "heir"),
    )
    for grant, (first, second) in zip(grants, answers, strict=True):
        assert isinstance(first, Lease), first
        assert first == second
        names = [event.name for event in await engine.executions.history(grant.execution_id)]
        assert names == ["acquired", "revoked", "reclaim_granted", "reclaimed"]
    await assert_sound(store)


async def test_of_two_workers_one_is_granted_the_reclaim(
    store: TestStore, engine: Engine, rounds: int, rival: Engine
) -> None:
    ids = []
    for _ in range(rounds):
        lease = await leased(engine, policy=KEEPING)
        await engine.operator.revoke_lease(lease.execution_id)
        ids.append(lease.execution_id)
    answers = await race(
        rounds,
        lambda number: engine.operator.grant_reclaim(ids[number], "one"),
        lambda number: rival.operator.grant_reclaim(ids[number], "two"),
    )
    for pair in answers:
        assert [refused(answer, "grant_already_exists") for answer in pair].count(True) == 1, pair
    await assert_sound(store)


async def test_two_replays_open_one_generation(store: TestStore, engine: Engine, rounds: int, rival: Engine) -> None:
    ids = [await submitted(engine) for _ in range(rounds)]
    await asyncio.gather(*(engine.operator.cancel(id_) for id_ in ids))
    answers = await race(rounds, lambda n: engine.operator.replay(ids[n]), lambda n: rival.operator.replay(ids[n]))
    for pair in answers:
        assert [isinstance(answer, Replayed) for answer in pair].count(True) == 1, pair
        assert [refused(answer, "execution_not_terminal") for answer in pair].count(True) == 1, pair
    assert [(await engine.executions.describe(id_)).generation for id_ in ids] == [1] * rounds
    await assert_sound(store)


async def test_two_replays_of_the_generation_that_both_saw_answer_alike(
    store: TestStore, engine: Engine, rounds: int, rival: Engine
) -> None:
    ids = [await submitted(engine) for _ in range(rounds)]
    await asyncio.gather(*(engine.operator.cancel(id_) for id_ in ids))
    answers = await race(
        rounds,
        lambda number: engine.operator.replay(ids[number], expected_generation=0),
        lambda number: rival.operator.replay(ids[number], expected_generation=0),
    )
    assert all(isinstance(first, Replayed) and first == second for first, second in answers), answers
    await assert_sound(store)


async def test_work_is_held_or_claimed_never_both(store: TestStore, engine: Engine, rounds: int, rival: Engine) -> None:
    ids = [await submitted(engine) for _ in range(rounds)]
    answers = await race(
        rounds,
        lambda number: engine.operator.hold(ids[number], "stop"),
        lambda number: rival.leases.claim_execution(ids[number], "w"),
    )
    for held, claimed in answers:
        if isinstance(held, Held):
            assert refused(claimed, "execution_not_leaseable"), claimed
        else:
            assert isinstance(claimed, Lease), claimed
            assert refused(held, "execution_not_eligible"), held
    await assert_sound(store)


async def test_a_change_of_priority_comes_before_the_claim_or_is_refused(
    store: TestStore, engine: Engine, rounds: int, rival: Engine
) -> None:
    ids = [await submitted(engine, lane=f"lane-{number}", priority=1) for number in range(rounds)]
    answers = await race(
        rounds,
        lambda number: engine.operator.change_priority(ids[number], 9),
        lambda number: rival.leases.claim([f"lane-{number}"], "w"),
    )
    for number, (id_, (changed, leases)) in enumerate(zip(ids, answers, strict=True)):
        # A claim does not wait for a row that somebody changes; it may have come back without it.
        [lease] = leases or await rival.leases.claim([f"lane-{number}"], "w")
        names = [event.name for event in await engine.executions.history(id_)]
        if lease.priority == 9:
            assert changed == PriorityChanged(1, 9)
            assert names == ["priority_changed", "acquired"]
        else:
            assert refused(changed, "execution_not_eligible"), changed
            assert names == ["acquired"]
    await assert_sound(store)


async def test_a_renewal_comes_before_the_expiry_or_is_refused(
    store: TestStore, engine: Engine, rounds: int, clock: VirtualClock, rival: Engine, rival_clock: VirtualClock
) -> None:
    leases = [await leased(engine, lease_ttl="30s") for _ in range(rounds)]
    # The holders read their clock just before the end of the lease, the duty of the other process just after it.
    clock.advance("29s")
    rival_clock.advance("31s")
    answers = await race(rounds, lambda n: engine.leases.renew(leases[n].fence), lambda n: rival.reconcilers.tick())
    for _ in range(3):
        await rival.reconcilers.tick()
    for lease, (renewed, _) in zip(leases, answers, strict=True):
        names = [event.name for event in await engine.executions.history(lease.execution_id)]
        if isinstance(renewed, Renewed):
            assert names == ["acquired"]
        else:
            assert refused(renewed, "lease_expired"), renewed
            assert names == ["acquired", "expired"]
    await assert_sound(store)


async def test_of_complete_and_the_deadline_one_ends_the_execution(
    store: TestStore, engine: Engine, rounds: int, rival: Engine, rival_clock: VirtualClock
) -> None:
    leases = [await leased(engine, policy=Policy(deadline="10s")) for _ in range(rounds)]
    rival_clock.advance("11s")
    answers = await race(rounds, lambda n: engine.leases.complete(leases[n].fence), lambda n: rival.reconcilers.tick())
    for _ in range(3):
        await rival.reconcilers.tick()
    for lease, (completed, _) in zip(leases, answers, strict=True):
        state = (await engine.executions.describe(lease.execution_id)).state
        if isinstance(completed, Ended):
            assert state == "completed"
        else:
            assert refused(completed, "execution_not_active"), completed
            assert state == "expired"
    await assert_sound(store)


async def test_what_is_replayed_is_not_removed_and_what_is_removed_is_not_replayed(
    store: TestStore, engine: Engine, rounds: int, rival: Engine, rival_clock: VirtualClock
) -> None:
    ids = [await submitted(engine, policy=Policy(retention="1m"), key=f"key-{number}") for number in range(rounds)]
    await asyncio.gather(*(engine.operator.cancel(id_) for id_ in ids))
    rival_clock.advance("2m")
    answers = await race(rounds, lambda n: engine.operator.replay(ids[n]), lambda n: rival.reconcilers.tick())
    assert {type(answer) for answer, _ in answers} <= {Replayed, NotFound}
    for number, (id_, (replayed, _)) in enumerate(zip(ids, answers, strict=True)):
        again = await engine.executions.submit("job", b"in", policy=Policy(retention="1m"), key=f"key-{number}")
        if isinstance(replayed, Replayed):
            assert (await engine.executions.describe(id_)).state == "waiting"
            assert again == Duplicate(id_)
        else:
            assert isinstance(again, Created), again
    await assert_sound(store)
