"""The memory of a worker does not grow with the number of executions that it has run."""

from __future__ import annotations

import pytest

from tests.faults.kit.soak import Memory, MixedLoad, come_to_rest, fill_tables
from tests.stores import TestStore

WARM_UP, PERIODS = 4, 48
# These periods have 192 children. One object that each of them leaves behind exceeds this number. Cancelled timers of
# the driver keep the objects of a few runs for a while.
MAX_GAINED = 150


@pytest.mark.alone
async def test_mixed_executions_with_children_leave_no_objects_behind(store: TestStore) -> None:
    load = MixedLoad(store)
    async with load.app, load.app.worker(concurrency=32) as worker:
        await load.run(WARM_UP)
        fill_tables(worker)
        await come_to_rest()
        before = Memory.measure()
        await load.run(PERIODS)
        fill_tables(worker)  # Otherwise, the tables hold the ids of the last leases, and hide who else holds them.
        await come_to_rest()
        gained = Memory.measure().gained_since(before)
    assert load.wrong == []
    assert gained.total() <= MAX_GAINED, gained
