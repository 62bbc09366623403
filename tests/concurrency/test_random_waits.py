"""Test random concurrent calls on waits. No accepted signal may be lost, and no satisfied wait may stay suspended."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from itertools import pairwise

import pytest

from flowfabric.engine import Engine
from flowfabric.testing import VirtualClock
from tests.concurrency.coverage import repeat_until_covered
from tests.concurrency.random_waits import Ledger, World
from tests.concurrency.wait_soundness import assert_waits_sound
from tests.sizes import Size
from tests.stores import TestStore, opened

pytestmark = pytest.mark.full

AT_ONCE = 25
# Each event must occur at least once in the given number of worlds. Otherwise the test covers too little.
HAPPENS = {
    "resume_condition_satisfied": 100, "buffered_for_pending_waitpoint": 20, "appended_to_waitpoint": 20,
    "DuplicateSignal": 20, "Satisfied": 20, "Suspended": 5, "Resumed": 200, "waitpoint_closed": 20,
}  # fmt: skip


@pytest.fixture
async def rival(store: TestStore, engine: Engine, clock: VirtualClock) -> AsyncIterator[Engine]:
    """A second engine on the same store and clock."""
    async with opened(store, clock) as rival:
        yield rival


async def test_random_waits_lose_no_signal_and_resume_once(
    store: TestStore, engine: Engine, rival: Engine, clock: VirtualClock, size: Size, deadlocks: list[BaseException]
) -> None:
    lives = size.of(100, 1000, 10_000)
    seed = size.seed
    chance, ledger = random.Random(seed), Ledger()
    try:
        for _ in repeat_until_covered(ledger.outcomes, HAPPENS, lives, at_once=AT_ONCE):
            worlds = [World((engine, rival), clock, ledger, random.Random(chance.random())) for _ in range(AT_ONCE)]
            async with asyncio.timeout(60):
                await asyncio.gather(*(world.run() for world in worlds))
        # First let the duties end all overdue waits, because the check does not cover overdue waits.
        while any(tick.done for tick in await engine.reconcilers.tick()):
            pass
        await assert_waits_sound(store, ledger.accepted)
        await assert_in_order(store, ledger)
    except BaseException as error:
        error.add_note(f"FLOWFABRIC_SEED={seed}; outcomes: {ledger.outcomes}")
        raise
    assert deadlocks == []


async def assert_in_order(store: TestStore, ledger: Ledger) -> None:
    """Assert that signals that one sender sent one after another were accepted in that order."""
    rows = await store.query("SELECT id, seq FROM ff.signal")
    places = {str(row["id"]): row["seq"] for row in rows}
    for order in ledger.in_order:
        assert all(places[str(one)] < places[str(next_)] for one, next_ in pairwise(order)), order
