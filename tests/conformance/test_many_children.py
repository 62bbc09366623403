"""Tests of cancels of more members or children than fit into one transaction. A duty ends the rest."""

from __future__ import annotations

from collections import Counter
from uuid import UUID

import pytest

from flowfabric.engine import CancelPending, Engine, State, any_of
from flowfabric.testing import VirtualClock
from tests.concurrency.flow_soundness import assert_flows_sound
from tests.concurrency.waits import duty
from tests.expectations import last_event
from tests.flows import Flow, built, child, count_cancelled
from tests.scenarios import leased
from tests.stores import TestStore

MANY = 1_200


async def build_race(engine: Engine) -> Flow:
    """Build a race between many members and complete one of them."""
    names = [f"m{number}" for number in range(MANY)]
    flow = await built(engine, {**{name: [] for name in names}, "end": names}, joins={"end": any_of()})
    await flow.complete("m0")
    return flow


async def build_family(engine: Engine) -> tuple[UUID, list[UUID]]:
    """Return the ids of a root and its descendants. Two of the root's many children run; one of the two has a child."""
    lease = await leased(engine, lease_ttl="1h")
    ids: list[UUID] = []
    for start in range(0, MANY, 400):
        keys = [f"c{number}" for number in range(start, start + 400)]
        outcomes = await engine.leases.submit_children(lease.fence, [child(key) for key in keys])
        ids += [grandchild.id for grandchild in outcomes]
    busy = await engine.leases.claim_execution(min(ids), "worker-2", lease_ttl="1h")
    await engine.leases.claim_execution(max(ids), "worker-2", lease_ttl="1h")
    [grandchild] = await engine.leases.submit_children(busy.fence, [child("grandchild")])
    return lease.execution_id, [*ids, grandchild.id]


async def count_states(store: TestStore) -> Counter[str]:
    rows = await store.query("SELECT state, COUNT(*) AS number FROM ff.execution GROUP BY state")
    return Counter({row["state"]: row["number"] for row in rows})


async def run_until_idle(engine: Engine, name: str) -> int:
    """Run a duty until it has no work, and return the number of runs that found work."""
    runs = 0
    while await duty(name)(engine):
        runs += 1
    return runs


@pytest.mark.parametrize("cancelled", [False, True], ids=["running flow", "cancelled flow"])
async def test_duty_cancels_losers_beyond_the_transaction_limit(
    engine: Engine, store: TestStore, cancelled: bool
) -> None:
    flow = await build_race(engine)
    assert await count_states(store) == {"completed": 1, "cancelled": 1_000, "waiting": MANY - 1_000}
    if cancelled:
        assert count_cancelled(await engine.flows.cancel(flow.id, "enough", policy="flow_only")) == 0
    assert await run_until_idle(engine, "flow_cancellation") == 1
    assert await count_states(store) == {"completed": 1, "cancelled": MANY - 1, "waiting": 1}
    await flow.complete("end")
    assert await flow.state() == ("cancelled" if cancelled else "completed")
    await assert_flows_sound(store)


async def test_loser_that_is_not_yet_cancelled_may_still_complete(engine: Engine, store: TestStore) -> None:
    flow = await build_race(engine)
    [row] = await store.query("SELECT id FROM ff.execution WHERE state = 'waiting' AND member_name <> 'end' LIMIT 1")
    lease = await engine.leases.claim_execution(str(row["id"]), "worker-1")
    await engine.leases.complete(lease.fence, b"")
    await run_until_idle(engine, "flow_cancellation")
    assert await count_states(store) == {"completed": 2, "cancelled": MANY - 2, "waiting": 1}
    assert await flow.member("end") == "waiting"


async def test_duty_cancels_children_beyond_the_transaction_limit(engine: Engine, store: TestStore) -> None:
    root, family = await build_family(engine)
    await engine.operator.cancel(root, "enough", children=True, source="ops", principal="ada")
    assert await count_states(store) == {"cancelled": 1_001, "waiting": MANY - 1_000, "active": 1}
    while any(tick.done for tick in await engine.reconcilers.tick()):
        pass
    assert await count_states(store) == {"cancelled": MANY + 2}
    for id_ in (min(family), max(family)):
        execution, event = await engine.executions.describe(id_), await last_event(engine, id_)
        assert (execution.cancelled_by, execution.cancel_reason, event.principal) == ("ops", "enough", "ada")
    assert (await engine.flows.describe(root)).ended_at is not None
    await assert_flows_sound(store)


async def test_cancel_request_with_grace_reaches_every_child(
    engine: Engine, store: TestStore, clock: VirtualClock
) -> None:
    root, family = await build_family(engine)
    outcome = await engine.operator.cancel(root, "enough", children=True, grace="20s")
    assert isinstance(outcome, CancelPending)
    # Children that have not started are cancelled immediately. Only the root and its two running children get a
    # cancel request.
    assert await count_states(store) == {"cancelled": MANY - 1, "active": 3}
    for id_ in (min(family[:-1]), max(family[:-1])):
        assert (await last_event(engine, id_)).name == "cancel_requested"
    clock.advance("20s")
    await engine.reconcilers.tick()
    assert await count_states(store) == {"cancelled": MANY + 2}
    assert (await engine.executions.describe(root)).state is State.CANCELLED
    await assert_flows_sound(store)
