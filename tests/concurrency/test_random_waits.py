"""Lives of waits drawn at random, on real connections: nothing that was accepted is lost, and nobody waits in vain."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from itertools import pairwise

import pytest

from flowfabric.engine import Engine
from flowfabric.testing import VirtualClock
from tests.concurrency.happenings import until_seen
from tests.concurrency.random_waits import Ledger, World
from tests.concurrency.wait_soundness import assert_waits_sound
from tests.sizes import Size
from tests.stores import TestStore, opened

AT_ONCE = 25
# What must have happened for a run to say anything, at least once in so many lives.
HAPPENS = {
    "resume_condition_satisfied": 100, "buffered_for_pending_waitpoint": 20, "appended_to_waitpoint": 20,
    "DuplicateSignal": 20, "Satisfied": 20, "Suspended": 5, "Resumed": 200, "waitpoint_closed": 20,
}  # fmt: skip


@pytest.fixture
async def rival(store: TestStore, engine: Engine, clock: VirtualClock) -> AsyncIterator[Engine]:
    """A second engine on the same store and the same clock."""
    async with opened(store, clock) as rival:
        yield rival


async def test_lives_at_random_lose_no_signal_and_resume_once(
    store: TestStore, engine: Engine, rival: Engine, clock: VirtualClock, size: Size, deadlocks: list[BaseException]
) -> None:
    lives = size.of(100, 1000, 10_000)
    seed = size.seed
    chance, ledger = random.Random(seed), Ledger()
    try:
        for _ in until_seen(ledger.told, HAPPENS, lives, at_once=AT_ONCE):
            worlds = [World((engine, rival), clock, ledger, random.Random(chance.random())) for _ in range(AT_ONCE)]
            async with asyncio.timeout(60):
                await asyncio.gather(*(world.live() for world in worlds))
        # What is overdue is not judged: it is for the duties, which come first.
        while any(tick.done for tick in await engine.reconcilers.tick()):
            pass
        await assert_waits_sound(store, ledger.accepted)
        await assert_in_order(store, ledger)
    except BaseException as error:
        error.add_note(f"FLOWFABRIC_SEED={seed}; what was told: {ledger.told}")
        raise
    assert deadlocks == []


async def assert_in_order(store: TestStore, ledger: Ledger) -> None:
    """What one sender sent one after the other was accepted in that order."""
    rows = await store.query("SELECT id, seq FROM ff.signal")
    places = {str(row["id"]): row["seq"] for row in rows}
    for order in ledger.in_order:
        assert all(places[str(one)] < places[str(next_)] for one, next_ in pairwise(order)), order
