"""Whichever await of an operation is cancelled: no connection lost, no half write, no lease beyond its time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from flowfabric.engine import Engine
from flowfabric.testing import VirtualClock
from tests import scenarios
from tests.faults.bench import Call, check, opened_bench, settled
from tests.faults.cutting import Cutter
from tests.faults.flow_operations import EVERY_OPERATION
from tests.faults.pictures import Camera
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
    # PostgreSQL has many awaits: in a short run each operation is cancelled at every eighth, beginning at another one.
    stride = 1 if store.name == "sqlite" else size.of(8, 1, 1)
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
            assert await all_given_back(bench.engine), f"{name}: a connection was not given back"
        await nothing_stuck(store, bench.camera)
    scoreboard(f"{points} awaits cancelled (at least {least})")
    assert points >= least


async def test_a_lease_from_a_cancelled_claim_ends_at_its_time(store: TestStore, clock: VirtualClock) -> None:
    async with opened(store, clock) as engine:
        id_ = await scenarios.waiting(engine, clock)
        for at in range(1, 200):
            cutter = Cutter(at)
            await cutter.run(engine.leases.claim([scenarios.LANE], scenarios.WORKER))
            await settled(engine)
            if not cutter.cut:
                return
            clock.advance("31s")
            await engine.reconcilers.tick()
            assert (await engine.executions.describe(id_)).state == "waiting"
    raise AssertionError("the claim never came to its end")


async def call_directly(call: Call) -> BaseException | None:
    return await call()


async def all_given_back(engine: Engine) -> bool:
    """True when all connections are back in the pool, of which an announcement may have one for a moment; on SQLite
    there is none to lose."""
    pool: Any = getattr(engine._context.store, "_pool", None)
    for _ in range(250):
        if pool is None or pool.idle == pool.size:
            return True
        await asyncio.sleep(0.02)
    return False


async def nothing_stuck(store: TestStore, camera: Camera) -> None:
    if store.name == "sqlite":
        return
    async with asyncio.timeout(5):
        while (await camera.rows(STUCK))[0]["number"]:  # noqa: ASYNC110 - the server tells nobody when it is done
            await asyncio.sleep(0.02)
