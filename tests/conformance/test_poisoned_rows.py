"""Tests that one failing row does not stop a duty from processing the others, and is retried later."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from unittest.mock import patch

import pytest

from flowfabric.engine import AnyOf, Ended, Engine, Policy, Single, State, Tick, Timer, Unavailable
from flowfabric.ops.events import trim as trim_events
from flowfabric.ops.flows import cancel as cancel_flow
from flowfabric.testing import VirtualClock
from tests import flows
from tests.poison import poisoned
from tests.scenarios import leased, submitted
from tests.stores import TestStore

Make = Callable[[Engine, VirtualClock], Awaitable[Any]]


@dataclass(frozen=True)
class Case:
    """A duty, and how to arrange a row for it.

    `make` creates the row and returns its value in `column`. `wait` is the time until the row is due. `act` is the
    kind of statement with which the duty changes `table`. `left` is a query that counts the rows that still need it.
    """

    duty: str
    make: Make
    wait: str
    table: str
    act: str
    column: str
    left: str


async def submit_delayed(engine: Engine, clock: VirtualClock) -> object:
    return await submitted(engine, delay="10s")


async def submit_with_deadline(engine: Engine, clock: VirtualClock) -> object:
    return await submitted(engine, policy=Policy(deadline="10s"))


async def lease_shortly(engine: Engine, clock: VirtualClock) -> object:
    return (await leased(engine, lease_ttl="10s")).execution_id


async def lease_with_attempt_timeout(engine: Engine, clock: VirtualClock) -> object:
    return (await leased(engine, lease_ttl="1h", policy=Policy(attempt_timeout="10s"))).execution_id


async def suspend_with_timeout(engine: Engine, clock: VirtualClock) -> object:
    lease = await leased(engine)
    await engine.leases.suspend(lease.fence, ["go"], timeout="10s")
    return lease.execution_id


async def suspend_with_timer(engine: Engine, clock: VirtualClock) -> object:
    lease = await leased(engine)
    condition = AnyOf([Single("go"), Single("alarm")])
    alarm = Timer("alarm", clock.now() + timedelta(seconds=10))
    await engine.leases.suspend(lease.fence, ["go", alarm], condition)
    return lease.execution_id


async def create_expiring_waitpoint(engine: Engine, clock: VirtualClock) -> object:
    lease = await leased(engine, lease_ttl="1h")
    await engine.waitpoints.create(lease.fence, "go", expires="10s")
    return lease.execution_id


async def request_cancel(engine: Engine, clock: VirtualClock) -> object:
    lease = await leased(engine, lease_ttl="1h")
    await engine.operator.cancel(lease.execution_id, grace="10s")
    return lease.execution_id


async def cancel_with_retention(engine: Engine, clock: VirtualClock) -> object:
    id_ = await submitted(engine, policy=Policy(retention="10s"))
    await engine.operator.cancel(id_)
    return id_


async def purge_inside_window(engine: Engine, clock: VirtualClock) -> object:
    """Return a key whose execution was purged before the key's window passed."""
    key = f"key {clock.now()}"
    id_ = await submitted(engine, key=key, policy=Policy(dedup_window="10s", retention="1ms"))
    await engine.operator.cancel(id_)
    clock.advance("1ms")
    await engine.reconcilers.tick()
    return key


async def cancel_flow_partly(engine: Engine, clock: VirtualClock) -> object:
    flow = await flows.built(engine, {"a": []})
    with patch.object(cancel_flow, "MAX_CANCELLED", 0):
        await engine.flows.cancel(flow.id)
    return flow.id


async def rotate_key(engine: Engine, clock: VirtualClock) -> object:
    key_count = len(await engine.keys.list())
    if not key_count:
        await engine.keys.seed("key-1", "ab" * 32)
    last = max(key_count, 1)
    await engine.keys.rotate(f"key-{last + 1}", grace="10s")
    return f"key-{last}"


async def finish_flow(engine: Engine, clock: VirtualClock) -> object:
    flow = await flows.built(engine, {"a": []})
    await flow.complete("a")
    return flow.id


async def purge_execution(engine: Engine, clock: VirtualClock) -> object:
    id_ = await cancel_with_retention(engine, clock)
    clock.advance("10s")
    await engine.reconcilers.tick()
    return id_


async def pause_lane(engine: Engine, clock: VirtualClock) -> object:
    lane = f"lane {clock.now()}"
    clock.advance("1ms")
    await engine.lanes.pause(lane)
    return lane


async def register_worker(engine: Engine, clock: VirtualClock) -> object:
    instance = f"worker {clock.now()}"
    clock.advance("1ms")
    await engine.workers.register(instance, ["default"], ttl="10s")
    return instance


ROWS = "SELECT COUNT(*) AS number FROM ff."
CASES = {
    "delayed work": Case(
        "delayed_work", submit_delayed, "10s", "execution", "UPDATE", "id",
        ROWS + "execution WHERE state = 'delayed'",
    ),
    "deadline": Case(
        "deadline", submit_with_deadline, "10s", "execution", "UPDATE", "id",
        ROWS + "execution WHERE state = 'waiting'",
    ),
    "lease expiry": Case(
        "lease_expiry", lease_shortly, "10s", "execution", "UPDATE", "id", ROWS + "execution WHERE state = 'active'"
    ),
    "attempt timeout": Case(
        "attempt_timeout", lease_with_attempt_timeout, "10s", "execution", "UPDATE", "id",
        ROWS + "execution WHERE state = 'active'",
    ),
    "suspension timeout": Case(
        "suspension_timeout", suspend_with_timeout, "10s", "execution", "UPDATE", "id",
        ROWS + "execution WHERE state = 'suspended'",
    ),
    "timers": Case(
        "timers", suspend_with_timer, "10s", "execution", "UPDATE", "id",
        ROWS + "execution WHERE state = 'suspended'",
    ),
    "waitpoint expiry": Case(
        "waitpoint_expiry", create_expiring_waitpoint, "10s", "waitpoint", "UPDATE", "execution_id",
        ROWS + "waitpoint WHERE state = 'pending'",
    ),
    "cancel grace": Case(
        "cancel_grace", request_cancel, "10s", "execution", "UPDATE", "id", ROWS + "execution WHERE state = 'active'"
    ),
    "flow cancellation": Case(
        "flow_cancellation", cancel_flow_partly, "1s", "flow", "UPDATE", "id", ROWS + "flow WHERE sweep_at IS NOT NULL"
    ),
    "key collection": Case(
        "key_collection", rotate_key, "10s", "signing_key", "UPDATE", "kid",
        ROWS + "signing_key WHERE retired_at IS NOT NULL AND secret IS NOT NULL",
    ),
    "retention": Case("retention", cancel_with_retention, "10s", "execution", "DELETE", "id", ROWS + "execution"),
    "submission keys": Case(
        "retention", purge_inside_window, "10s", "submission_key", "DELETE", "key",
        ROWS + "submission_key",
    ),
    "flow retention": Case("flow_retention", finish_flow, "60d", "flow", "DELETE", "id", ROWS + "flow"),
    "events of purged executions": Case(
        "event_trimming", purge_execution, "8d", "event", "DELETE", "execution_id",
        "SELECT COUNT(DISTINCT execution_id) AS number FROM ff.event WHERE execution_id IS NOT NULL",
    ),
    "lane events": Case(
        "event_trimming", pause_lane, "8d", "event", "DELETE", "lane", ROWS + "event WHERE execution_id IS NULL"
    ),
    "workers": Case("worker_liveness", register_worker, "10s", "worker", "DELETE", "instance", ROWS + "worker"),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
async def test_failing_row_does_not_stop_the_others_and_is_retried(
    engine: Engine, clock: VirtualClock, store: TestStore, name: str
) -> None:
    case = CASES[name]
    values = [await case.make(engine, clock) for _ in range(3)]
    clock.advance(case.wait)
    async with poisoned(store, case.table, case.act, case.column, values[0]):
        assert (await run_duty(engine, case.duty)).failed == 1
        assert await count_remaining(store, case) == 1
        assert (await run_duty(engine, case.duty)).failed == 0, "the duty backs off"
    for _ in range(3):
        await run_duty(engine, case.duty)
    assert await count_remaining(store, case) == 0


@pytest.mark.parametrize("sqlstate", ["P0001", "XX001", "XX002"])
async def test_refused_or_damaged_row_does_not_stop_the_others(
    engine: Engine, clock: VirtualClock, store: TestStore, sqlstate: str
) -> None:
    leases = [await leased(engine) for _ in range(3)]
    bad = leases[0].execution_id
    async with poisoned(store, "execution", "UPDATE", "id", bad, saying=sqlstate):
        first, *others = await engine.leases.complete_many([(lease.fence, b"") for lease in leases[:2]])
        assert isinstance(first, Unavailable) and first.code == "storage_error"
        assert others == [Ended(State.COMPLETED)]
        clock.advance("1m")
        tick = await run_duty(engine, "lease_expiry")
    assert (tick.done, tick.failed) == (1, 1)


async def run_duty(engine: Engine, name: str) -> Tick:
    """Run one duty once."""
    [duty] = [duty for duty in engine.reconcilers._duties if duty.name == name]
    return await duty.tick(engine._context.store)


async def count_remaining(store: TestStore, case: Case) -> int:
    [row] = await store.query(case.left)
    return int(row["number"])


async def test_events_of_a_long_history_are_trimmed_page_by_page(
    engine: Engine, clock: VirtualClock, store: TestStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    id_ = await submitted(engine, policy=Policy(retention="10s"))
    for _ in range(5):
        await engine.operator.hold(id_)
        await engine.operator.unhold(id_)
    await engine.operator.cancel(id_)
    clock.advance("10s")
    await engine.reconcilers.tick()
    clock.advance("8d")
    monkeypatch.setattr(trim_events, "MAX_TRIMMED_EVENTS", 4)
    remaining = []
    for _ in range(4):
        await run_duty(engine, "event_trimming")
        [row] = await store.query("SELECT COUNT(*) AS number FROM ff.event")
        remaining.append(row["number"])
    assert remaining == [7, 3, 0, 0]
    assert await store.query("SELECT execution_id FROM ff.purged") == []
