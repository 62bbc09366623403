"""Tests of change_priority, which moves eligible work in its queue and changes nothing else."""

from __future__ import annotations

from flowfabric.engine import Engine, PriorityChanged
from flowfabric.testing import VirtualClock
from tests.expectations import last_event, nothing_written, refused
from tests.scenarios import SITUATIONS, submitted
from tests.stores import TestStore

ELIGIBLE = [name for name in SITUATIONS if name.startswith("waiting")]


async def test_work_with_a_higher_priority_is_claimed_first(engine: Engine) -> None:
    first, second, third = [await submitted(engine, priority=5) for _ in range(3)]
    await engine.operator.change_priority(third, 6)
    await engine.operator.change_priority(first, 4)
    leases = await engine.leases.claim(["default"], "worker-1", limit=3)
    assert [(lease.execution_id, lease.priority) for lease in leases] == [(third, 6), (second, 5), (first, 4)]


async def test_priority_is_clamped_and_an_unchanged_one_writes_nothing(engine: Engine, store: TestStore) -> None:
    id_ = await submitted(engine, priority=7)
    async with nothing_written(store):
        assert await engine.operator.change_priority(id_, 7, "again") == PriorityChanged(7, 7)
    assert await engine.operator.change_priority(id_, 10_000) == PriorityChanged(7, 9000)
    assert await engine.operator.change_priority(id_, -1) == PriorityChanged(9000, 0)
    assert (await engine.executions.describe(id_)).priority == 0


async def test_event_records_principal_reason_old_and_new_priority(engine: Engine) -> None:
    id_ = await submitted(engine, priority=1)
    await engine.operator.change_priority(id_, 2, "customer waits", principal="ada")
    event = await last_event(engine, id_)
    assert (event.family, event.name, event.version) == ("operator", "priority_changed", 1)
    assert (event.principal, event.reason, event.details) == ("ada", "customer waits", {"old": 1, "new": 2})


async def test_change_of_priority_does_not_change_the_state_of_eligible_work(
    engine: Engine, clock: VirtualClock
) -> None:
    for situation in ELIGIBLE:
        id_ = await SITUATIONS[situation](engine, clock)
        before = await engine.executions.describe(id_)
        await engine.operator.change_priority(id_, 100)
        after = await engine.executions.describe(id_)
        assert (after.priority, after.version) == (100, before.version + 1), situation
        assert (after.vector, after.epoch, after.ready_at) == (before.vector, before.epoch, before.ready_at), situation


async def test_work_that_is_not_eligible_keeps_its_priority(engine: Engine, clock: VirtualClock) -> None:
    for situation in SITUATIONS:
        if situation in ELIGIBLE:
            continue
        id_ = await SITUATIONS[situation](engine, clock)
        before = await engine.executions.describe(id_)
        await refused(engine.operator.change_priority(id_, 100), "execution_not_eligible")
        assert await engine.executions.describe(id_) == before, situation
