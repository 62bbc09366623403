"""Tests that the duties over waits decide again under the lock, because a wait may have ended since the read."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

from flowfabric.engine import Engine, PendingWaitpoint, Timer
from flowfabric.ops.waits.resume import expire_waitpoints, fire_timers, time_out_suspensions
from flowfabric.testing import VirtualClock
from tests.expectations import nothing_written
from tests.scenarios import SITUATIONS, leased, suspended
from tests.stores import TestStore

Body = Callable[[Any, Sequence[UUID]], Coroutine[Any, Any, int]]


async def count_timed_out(tx: Any, ids: Sequence[UUID]) -> int:
    """Return how many suspensions the duty has handled, as the other duties do."""
    return len(await time_out_suspensions(tx, ids))


DUTIES: dict[str, Body] = {
    "suspension timeout": count_timed_out,
    "timers": fire_timers,
    "waitpoint expiry": expire_waitpoints,
}


async def run_duty(engine: Engine, duty: str, *ids: UUID) -> int:
    """Run the transaction of a duty for these executions, as if the duty had just read them as due."""
    return await engine._context.store.run(lambda tx: DUTIES[duty](tx, ids))


@pytest.mark.parametrize("duty", DUTIES)
async def test_duty_ignores_waits_that_are_not_due(
    engine: Engine, clock: VirtualClock, store: TestStore, duty: str
) -> None:
    lease = await leased(engine)
    await engine.waitpoints.create(lease.fence, "later", expires="1h")
    timer = Timer("t", clock.now() + timedelta(hours=1))
    wait = await suspended(engine, ["go", timer], lease=lease, timeout="1h")
    clock.advance("59m")
    async with nothing_written(store):
        assert await run_duty(engine, duty, wait.id) == 0
    clock.advance("1m")
    assert await run_duty(engine, duty, wait.id) == 1


@pytest.mark.parametrize("duty", DUTIES)
async def test_duty_ignores_executions_without_a_wait(
    engine: Engine, clock: VirtualClock, store: TestStore, duty: str
) -> None:
    ids = [await make(engine, clock) for make in SITUATIONS.values()]
    clock.advance("30d")
    async with nothing_written(store):
        assert await run_duty(engine, duty, *ids) == 0


@pytest.mark.parametrize("duty", DUTIES)
async def test_duty_ignores_a_closed_wait_when_another_is_open(
    engine: Engine, clock: VirtualClock, store: TestStore, duty: str
) -> None:
    lease = await leased(engine)
    await engine.waitpoints.create(lease.fence, "early", expires="1h")
    timer = Timer("t", clock.now() + timedelta(hours=1))
    first = await suspended(engine, ["go", PendingWaitpoint("early"), timer], lease=lease, timeout="1h")
    await engine.operator.resume(first.id)
    lease = await engine.leases.claim_resumed(first.id, "worker-2")
    await suspended(engine, ["next"], lease=lease, timeout="3h")
    clock.advance("2h")
    async with nothing_written(store):
        assert await run_duty(engine, duty, first.id) == 0


async def test_suspend_publishes_the_earliest_of_its_due_times(engine: Engine, clock: VirtualClock) -> None:
    soon, late = clock.now() + timedelta(seconds=1), clock.now() + timedelta(hours=1)
    waits: list[tuple[list[Any], dict[str, Any]]] = [
        (["go"], {"timeout": "1s"}),
        (["go"], {"timeout_at": soon}),
        (["go", Timer("t", soon)], {"timeout": "1h"}),
        ([Timer("t", late), Timer("s", soon)], {}),
        (["go"], {}),
    ]
    leases = [await leased(engine) for _ in waits]
    due_times: list[datetime | None] = []
    engine._context.wakeups.on_due(due_times.append)
    for lease, (waitpoints, times) in zip(leases, waits, strict=True):
        await suspended(engine, waitpoints, lease=lease, **times)
    assert due_times == [soon] * 4, "the last wait has no due time"
