"""One row that cannot be settled, in every duty: the others are, and it is taken up again when it is well."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from unittest.mock import patch

import pytest

from flowfabric.engine import AnyOf, Ended, Engine, Policy, Single, State, Tick, Timer, Unavailable
from flowfabric.ops import cancel_flow, trim_events
from flowfabric.testing import VirtualClock
from tests import flows
from tests.poison import poisoned
from tests.scenarios import leased, submitted
from tests.stores import TestStore

Make = Callable[[Engine, VirtualClock], Awaitable[Any]]


@dataclass(frozen=True)
class Case:
    """`make` arranges something that is due after the wait and answers the value by which its row is found; `left`
    counts what is still to be settled."""

    duty: str
    make: Make
    wait: str
    table: str
    act: str
    column: str
    left: str


async def delayed(engine: Engine, clock: VirtualClock) -> object:
    return await submitted(engine, delay="10s")


async def late(engine: Engine, clock: VirtualClock) -> object:
    return await submitted(engine, policy=Policy(deadline="10s"))


async def lost(engine: Engine, clock: VirtualClock) -> object:
    return (await leased(engine, lease_ttl="10s")).execution_id


async def slow(engine: Engine, clock: VirtualClock) -> object:
    return (await leased(engine, lease_ttl="1h", policy=Policy(attempt_timeout="10s"))).execution_id


async def suspended(engine: Engine, clock: VirtualClock) -> object:
    lease = await leased(engine)
    await engine.leases.suspend(lease.fence, ["go"], timeout="10s")
    return lease.execution_id


async def timed(engine: Engine, clock: VirtualClock) -> object:
    lease = await leased(engine)
    either = AnyOf([Single("go"), Single("alarm")])
    alarm = Timer("alarm", clock.now() + timedelta(seconds=10))
    await engine.leases.suspend(lease.fence, ["go", alarm], either)
    return lease.execution_id


async def handed_out(engine: Engine, clock: VirtualClock) -> object:
    lease = await leased(engine, lease_ttl="1h")
    await engine.waitpoints.create(lease.fence, "go", expires="10s")
    return lease.execution_id


async def asked_to_stop(engine: Engine, clock: VirtualClock) -> object:
    lease = await leased(engine, lease_ttl="1h")
    await engine.operator.cancel(lease.execution_id, grace="10s")
    return lease.execution_id


async def ended(engine: Engine, clock: VirtualClock) -> object:
    id_ = await submitted(engine, policy=Policy(retention="10s"))
    await engine.operator.cancel(id_)
    return id_


async def keyed(engine: Engine, clock: VirtualClock) -> object:
    key = f"key {clock.now()}"
    clock.advance("1ms")
    await submitted(engine, key=key, policy=Policy(dedup_window="10s"))
    return key


async def cancelled(engine: Engine, clock: VirtualClock) -> object:
    flow = await flows.built(engine, {"a": []})
    with patch.object(cancel_flow, "MOST_CANCELLED", 0):
        await engine.flows.cancel(flow.id)
    return flow.id


async def rotated(engine: Engine, clock: VirtualClock) -> object:
    known = len(await engine.keys.list())
    if not known:
        await engine.keys.seed("key-1", "ab" * 32)
    last = max(known, 1)
    await engine.keys.rotate(f"key-{last + 1}", grace="10s")
    return f"key-{last}"


async def finished(engine: Engine, clock: VirtualClock) -> object:
    flow = await flows.built(engine, {"a": []})
    await flow.complete("a")
    return flow.id


async def gone(engine: Engine, clock: VirtualClock) -> object:
    id_ = await ended(engine, clock)
    clock.advance("10s")
    await engine.reconcilers.tick()
    return id_


async def paused(engine: Engine, clock: VirtualClock) -> object:
    lane = f"lane {clock.now()}"
    clock.advance("1ms")
    await engine.lanes.pause(lane)
    return lane


async def registered(engine: Engine, clock: VirtualClock) -> object:
    instance = f"worker {clock.now()}"
    clock.advance("1ms")
    await engine.workers.register(instance, ["default"], ttl="10s")
    return instance


ROWS = "SELECT COUNT(*) AS number FROM ff."
CASES = {
    "delayed work": Case(
        "delayed_work", delayed, "10s", "execution", "UPDATE", "id", ROWS + "execution WHERE state = 'delayed'"
    ),
    "deadline": Case("deadline", late, "10s", "execution", "UPDATE", "id", ROWS + "execution WHERE state = 'waiting'"),
    "lease expiry": Case(
        "lease_expiry", lost, "10s", "execution", "UPDATE", "id", ROWS + "execution WHERE state = 'active'"
    ),
    "attempt timeout": Case(
        "attempt_timeout", slow, "10s", "execution", "UPDATE", "id", ROWS + "execution WHERE state = 'active'"
    ),
    "suspension timeout": Case(
        "suspension_timeout", suspended, "10s", "execution", "UPDATE", "id",
        ROWS + "execution WHERE state = 'suspended'",
    ),
    "timers": Case("timers", timed, "10s", "execution", "UPDATE", "id", ROWS + "execution WHERE state = 'suspended'"),
    "waitpoint expiry": Case(
        "waitpoint_expiry", handed_out, "10s", "waitpoint", "UPDATE", "execution_id",
        ROWS + "waitpoint WHERE state = 'pending'",
    ),
    "cancel grace": Case(
        "cancel_grace", asked_to_stop, "10s", "execution", "UPDATE", "id", ROWS + "execution WHERE state = 'active'"
    ),
    "flow cancellation": Case(
        "flow_cancellation", cancelled, "1s", "flow", "UPDATE", "id", ROWS + "flow WHERE sweep_at IS NOT NULL"
    ),
    "key collection": Case(
        "key_collection", rotated, "10s", "signing_key", "UPDATE", "kid",
        ROWS + "signing_key WHERE retired_at IS NOT NULL AND secret IS NOT NULL",
    ),
    "retention": Case("retention", ended, "10s", "execution", "DELETE", "id", ROWS + "execution"),
    "keys of submissions": Case("retention", keyed, "10s", "submission_key", "DELETE", "key", ROWS + "submission_key"),
    "retention of flows": Case("flow_retention", finished, "60d", "flow", "DELETE", "id", ROWS + "flow"),
    "events of what is gone": Case(
        "event_trimming", gone, "8d", "event", "DELETE", "execution_id",
        "SELECT COUNT(DISTINCT execution_id) AS number FROM ff.event WHERE execution_id IS NOT NULL",
    ),
    "events of lanes": Case(
        "event_trimming", paused, "8d", "event", "DELETE", "lane", ROWS + "event WHERE execution_id IS NULL"
    ),
    "workers": Case("worker_liveness", registered, "10s", "worker", "DELETE", "instance", ROWS + "worker"),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
async def test_a_row_that_fails_stops_no_other_and_is_taken_up_when_it_is_well(
    engine: Engine, clock: VirtualClock, store: TestStore, name: str
) -> None:
    case = CASES[name]
    values = [await case.make(engine, clock) for _ in range(3)]
    clock.advance(case.wait)
    async with poisoned(store, case.table, case.act, case.column, values[0]):
        assert (await run(engine, case.duty)).failed == 1
        assert await count(store, case) == 1
        assert (await run(engine, case.duty)).failed == 0, "it backs off"
    for _ in range(3):
        await run(engine, case.duty)
    assert await count(store, case) == 0


@pytest.mark.parametrize("saying", ["P0001", "XX001", "XX002"])
async def test_a_row_stops_no_other_whether_it_is_refused_or_damaged(
    engine: Engine, clock: VirtualClock, store: TestStore, saying: str
) -> None:
    leases = [await leased(engine) for _ in range(3)]
    bad = leases[0].execution_id
    async with poisoned(store, "execution", "UPDATE", "id", bad, saying=saying):
        first, *others = await engine.leases.complete_many([(lease.fence, b"") for lease in leases[:2]])
        assert isinstance(first, Unavailable) and first.code == "storage_error"
        assert others == [Ended(State.COMPLETED)]
        clock.advance("1m")
        tick = await run(engine, "lease_expiry")
    assert (tick.done, tick.failed) == (1, 1)


async def run(engine: Engine, name: str) -> Tick:
    """One run of a duty alone."""
    [duty] = [duty for duty in engine.reconcilers._duties if duty.name == name]
    return await duty.tick(engine._context.store)


async def count(store: TestStore, case: Case) -> int:
    [row] = await store.query(case.left)
    return int(row["number"])


async def test_the_events_of_a_long_life_go_page_by_page(
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
    monkeypatch.setattr(trim_events, "PAGE", 4)
    left = []
    for _ in range(4):
        await run(engine, "event_trimming")
        [row] = await store.query("SELECT COUNT(*) AS number FROM ff.event")
        left.append(row["number"])
    assert left == [7, 3, 0, 0]
    assert await store.query("SELECT execution_id FROM ff.purged") == []
