"""Test random concurrent calls on one flow.

No deadlock may occur, and the flow must always match the outcomes of its members.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator

import pytest

from flowfabric.engine import Engine
from flowfabric.testing import VirtualClock
from tests.concurrency.coverage import repeat_until_covered
from tests.concurrency.flow_soundness import assert_flows_sound
from tests.concurrency.random_flows import World
from tests.concurrency.wait_soundness import assert_waits_sound
from tests.sizes import Size
from tests.stores import TestStore, opened

pytestmark = pytest.mark.full

AT_ONCE = 25
HAPPENS = {"Ended": 2, "Accepted": 4, "EdgeAdded": 10, "FlowCancelled": 10, "Replayed": 20, "execution_not_active": 4}


@pytest.fixture
async def rival(store: TestStore, engine: Engine, clock: VirtualClock) -> AsyncIterator[Engine]:
    """A second engine on the same store and clock."""
    async with opened(store, clock) as rival:
        yield rival


async def test_random_flow_operations_never_deadlock(
    store: TestStore, engine: Engine, rival: Engine, clock: VirtualClock, size: Size, deadlocks: list[BaseException]
) -> None:
    flows = size.of(50, 1_000, 10_000)
    seed = size.seed
    chance, outcomes = random.Random(seed), Counter[str]()
    try:
        for _ in repeat_until_covered(outcomes, HAPPENS, flows, at_once=AT_ONCE):
            worlds = [World((engine, rival), clock, random.Random(chance.random()), outcomes) for _ in range(AT_ONCE)]
            async with asyncio.timeout(60):
                await asyncio.gather(*(world.run() for world in worlds))
        while any(tick.done for tick in await engine.reconcilers.tick()):
            pass
        await assert_flows_sound(store)
        await assert_waits_sound(store)
    except BaseException as error:
        error.add_note(f"FLOWFABRIC_SEED={seed}; outcomes: {outcomes}")
        raise
    assert deadlocks == []
