"""Graphs drawn at random, against the model: no wrong start, nothing stuck, nobody cancelled who completes, and
counters that can be counted again from the edges."""

from __future__ import annotations

import random
from collections import Counter

from flowfabric.engine import Engine
from flowfabric.testing import VirtualClock
from tests.concurrency.flow_soundness import assert_flows_sound
from tests.concurrency.happenings import until_seen
from tests.concurrency.random_graphs import MOST, Run
from tests.faults.fuses import fit_fuse
from tests.faults.pictures import camera_on
from tests.sizes import Size
from tests.stores import TestStore

# What must have happened for a run to say anything, at least once in so many graphs.
HAPPENS = {
    "complete": 1, "fail": 15, "expire": 20, "cancel": 20, "cancelled siblings": 15, "failed statements": 15,
    "zombie": 20, "completed": 20, "failed": 20, "replay": 2, "replay of one that never started": 5,
    "finished again": 10, "blocked again": 50,
}  # fmt: skip


async def test_graphs_at_random_are_what_the_ends_of_their_members_make_of_them(
    store: TestStore, engine: Engine, clock: VirtualClock, size: Size
) -> None:
    graphs, most = size.of((10, 30), (200, MOST), (3_000, MOST))
    seed = size.seed
    chance, told, fuse, camera = random.Random(seed), Counter[str](), fit_fuse(engine), await camera_on(store)
    try:
        for _ in until_seen(told, HAPPENS, graphs):
            run = Run(engine, store.name, clock, camera, fuse, random.Random(chance.random()), told, most)
            last = await run.live()
            told[str(last.finished)] += 1
        await assert_flows_sound(store)
    except BaseException as error:
        error.add_note(f"FLOWFABRIC_SEED={seed}; what happened: {told}")
        raise
    finally:
        await camera.close()
