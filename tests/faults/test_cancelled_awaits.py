"""Test that an operation can be cancelled at any await. No connection is lost, nothing is half written, and no lease
outlives its term.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from flowfabric.engine import Engine
from flowfabric.testing import VirtualClock
from tests import scenarios
from tests.faults.cancel_points import Cutter
from tests.faults.fault_runner import Call, check, opened_bench, settled
from tests.faults.flow_operations import EVERY_OPERATION
from tests.faults.store_dump import Camera
from tests.sizes import Size
from tests.stores import TestStore, opened

STUCK = """
SELECT COUNT(*) AS number
FROM pg_stat_activity
WHERE application_name = 'flowfabric' AND state LIKE 'idle in transaction%'
"""


async def test_every_await_of_every_operation_can_be_cancelled(
    store: TestStore, clock: VirtualClock, scoreboard: Callable[[str], None], size: Size
) -> None:
    points, least = 0, 40 if store.name == "sqlite" else size.of(60, 250, 250)
    # PostgreSQL has many awaits. A short run cancels each operation only at every sixteenth await. The first
    # cancelled await differs between operations.
    stride = 1 if store.name == "sqlite" else size.of(16, 1, 1)
    async with opened_bench(store, clock) as bench:
        for turn, (name, operation) in enumerate(EVERY_OPERATION.items()):
            whole = await bench.whole(operation, call_directly)
            for at in range(1 + turn % stride, 200, stride):
                cutter = Cutter(at)
                shots = await bench.disturbed(operation, lambda call, cutter=cutter: cutter.run(call()))  # type: ignore[misc]
                if not cutter.cut:
                    break
                check(f"{name}: cancelled at await {at}", whole, shots)
                points += 1
            assert await all_connections_returned(bench.engine), f"{name}: a connection was not given back"
        await wait_until_nothing_is_stuck(store, bench.camera)
    scoreboard(f"{points} awaits cancelled (at least {least})")
    assert points >= least


async def test_lease_of_a_cancelled_claim_expires_on_time(store: TestStore, clock: VirtualClock) -> None:
    earlier = asyncio.all_tasks()
    async with opened(store, clock) as engine:
        id_ = await scenarios.waiting(engine, clock)
        for at in range(1, 200):
            cutter = Cutter(at)
            await cutter.run(engine.leases.claim([scenarios.LANE], scenarios.WORKER))
            await settled(engine, earlier)
            if not cutter.cut:
                return
            clock.advance("31s")
            await engine.reconcilers.tick()
            assert (await engine.executions.describe(id_)).state == "waiting"
    raise AssertionError("the claim did not end")


async def call_directly(call: Call) -> BaseException | None:
    return await call()


async def all_connections_returned(engine: Engine) -> bool:
    """Return True if all connections are back in the pool. A notification may hold a connection briefly. SQLite has no
    pool.
    """
    pool: Any = getattr(engine._context.store, "_pool", None)
    for _ in range(250):
        if pool is None or pool.idle == pool.size:
            return True
        await asyncio.sleep(0.02)
    return False


async def wait_until_nothing_is_stuck(store: TestStore, camera: Camera) -> None:
    if store.name == "sqlite":
        return
    async with asyncio.timeout(5):
        while (await camera.rows(STUCK))[0]["number"]:  # noqa: ASYNC110 - no event to await
            await asyncio.sleep(0.02)
