"""Compare random flows with the model in `flow_model.py`.

No member may start too early, hang, or be cancelled by mistake, and counters must match the edges.
"""

from __future__ import annotations

import random
from collections import Counter

import pytest

from flowfabric.engine import Engine
from flowfabric.testing import VirtualClock
from tests.concurrency.coverage import repeat_until_covered
from tests.concurrency.flow_soundness import assert_flows_sound
from tests.concurrency.random_graphs import MOST, Run
from tests.faults.failing_driver import fit_fuse
from tests.faults.store_dump import camera_on
from tests.sizes import Size
from tests.stores import TestStore

pytestmark = pytest.mark.full

# Each event must occur at least once in the given number of graphs. Otherwise the test covers too little.
HAPPENS = {
    "complete": 1, "fail": 15, "expire": 20, "cancel": 20, "cancelled siblings": 15, "failed statements": 15,
    "zombie": 20, "completed": 20, "failed": 20, "replay": 2, "replay of an unstarted member": 5, "revived": 10,
    "replay of all failed": 5, "finished again": 10, "blocked again": 50,
}  # fmt: skip


async def test_random_graphs_match_the_model(store: TestStore, engine: Engine, clock: VirtualClock, size: Size) -> None:
    graphs, most = size.of((10, 30), (200, MOST), (3_000, MOST))
    seed = size.seed
    chance, outcomes, fuse, camera = random.Random(seed), Counter[str](), fit_fuse(engine), await camera_on(store)
    try:
        for _ in repeat_until_covered(outcomes, HAPPENS, graphs):
            run = Run(engine, store.name, clock, camera, fuse, random.Random(chance.random()), outcomes, most)
            last = await run.run()
            outcomes[str(last.finished)] += 1
        await assert_flows_sound(store)
    except BaseException as error:
        error.add_note(f"FLOWFABRIC_SEED={seed}; what happened: {outcomes}")
        raise
    finally:
        await camera.close()
