"""Complete, fail, cancel, cancel of the flow, growth, replay, signals and children, all at once on one flow: nobody
waits in a circle, and whatever came first, the flow is as the ends of its members say."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator

import pytest

from flowfabric.engine import Engine
from flowfabric.testing import VirtualClock
from tests.concurrency.flow_soundness import assert_flows_sound
from tests.concurrency.happenings import until_seen
from tests.concurrency.random_flows import World
from tests.concurrency.wait_soundness import assert_waits_sound
from tests.sizes import Size
from tests.stores import TestStore, opened

AT_ONCE = 25
HAPPENS = {"Ended": 2, "Accepted": 4, "EdgeAdded": 10, "FlowCancelled": 10, "Replayed": 20, "execution_not_active": 4}


@pytest.fixture
async def rival(store: TestStore, engine: Engine, clock: VirtualClock) -> AsyncIterator[Engine]:
    """A second engine on the same store and the same clock."""
    async with opened(store, clock) as rival:
        yield rival


async def test_whoever_meets_in_a_flow_waits_in_no_circle(
    store: TestStore, engine: Engine, rival: Engine, clock: VirtualClock, size: Size, deadlocks: list[BaseException]
) -> None:
    flows = size.of(50, 1_000, 10_000)
    seed = size.seed
    chance, told = random.Random(seed), Counter[str]()
    try:
        for _ in until_seen(told, HAPPENS, flows, at_once=AT_ONCE):
            worlds = [World((engine, rival), clock, random.Random(chance.random()), told) for _ in range(AT_ONCE)]
            async with asyncio.timeout(60):
                await asyncio.gather(*(world.live() for world in worlds))
        while any(tick.done for tick in await engine.reconcilers.tick()):
            pass
        await assert_flows_sound(store)
        await assert_waits_sound(store)
    except BaseException as error:
        error.add_note(f"FLOWFABRIC_SEED={seed}; what was told: {told}")
        raise
    assert deadlocks == []
