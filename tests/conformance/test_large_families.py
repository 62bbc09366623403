"""More losers, children or members than one transaction ends: the rest follows, and nobody is forgotten."""

from __future__ import annotations

from collections import Counter
from uuid import UUID

import pytest

from flowfabric.engine import CancelRequested, Engine, FlowCancelled, State, any_of
from flowfabric.testing import VirtualClock
from tests.concurrency.flow_soundness import assert_flows_sound
from tests.concurrency.waits import duty
from tests.facts import last_event
from tests.flows import Flow, built, child
from tests.scenarios import leased
from tests.stores import TestStore

MANY = 1_200


async def a_race(engine: Engine) -> Flow:
    """A member that waits for the first of many, of which one has just won."""
    names = [f"m{number}" for number in range(MANY)]
    flow = await built(engine, {**{name: [] for name in names}, "end": names}, joins={"end": any_of()})
    await flow.complete("m0")
    return flow


async def a_family(engine: Engine) -> tuple[UUID, list[UUID]]:
    """A root with many children, and the children; two of them run, and one has a child of its own."""
    lease = await leased(engine, lease_ttl="1h")
    ids: list[UUID] = []
    for start in range(0, MANY, 400):
        keys = [f"c{number}" for number in range(start, start + 400)]
        answers = await engine.leases.submit_children(lease.fence, [child(key) for key in keys])
        ids += [answer.id for answer in answers]
    busy = await engine.leases.claim_execution(min(ids), "worker-2", lease_ttl="1h")
    await engine.leases.claim_execution(max(ids), "worker-2", lease_ttl="1h")
    [answer] = await engine.leases.submit_children(busy.fence, [child("grandchild")])
    return lease.execution_id, [*ids, answer.id]


async def states(store: TestStore) -> Counter[str]:
    rows = await store.query("SELECT state, COUNT(*) AS number FROM ff.execution GROUP BY state")
    return Counter({row["state"]: row["number"] for row in rows})


async def until_done(engine: Engine, name: str) -> int:
    """How often a duty had something to do."""
    turns = 0
    while await duty(name)(engine):
        turns += 1
    return turns


@pytest.mark.parametrize("cancelled", [False, True], ids=["a flow that runs", "a flow that was cancelled meanwhile"])
async def test_more_losers_than_a_transaction_ends_are_ended_by_the_duty(
    engine: Engine, store: TestStore, cancelled: bool
) -> None:
    flow = await a_race(engine)
    assert await states(store) == {"completed": 1, "cancelled": 1_000, "waiting": MANY - 1_000}
    if cancelled:
        assert await engine.flows.cancel(flow.id, "enough", policy="flow_only") == FlowCancelled(0)
    assert await until_done(engine, "flow_cancellation") == 1
    assert await states(store) == {"completed": 1, "cancelled": MANY - 1, "waiting": 1}
    await flow.complete("end")
    assert await flow.state() == ("cancelled" if cancelled else "completed")
    await assert_flows_sound(store)


async def test_a_loser_that_is_not_reached_yet_may_still_complete(engine: Engine, store: TestStore) -> None:
    flow = await a_race(engine)
    [row] = await store.query("SELECT id FROM ff.execution WHERE state = 'waiting' AND member_name <> 'end' LIMIT 1")
    lease = await engine.leases.claim_execution(str(row["id"]), "worker-1")
    await engine.leases.complete(lease.fence, b"")
    await until_done(engine, "flow_cancellation")
    assert await states(store) == {"completed": 2, "cancelled": MANY - 2, "waiting": 1}
    assert await flow.member("end") == "waiting"


async def test_more_children_than_a_transaction_ends_are_ended_by_the_duty(engine: Engine, store: TestStore) -> None:
    root, family = await a_family(engine)
    await engine.operator.cancel(root, "enough", children=True, source="ops", principal="ada")
    assert await states(store) == {"cancelled": 1_001, "waiting": MANY - 1_000, "active": 1}
    while any(tick.done for tick in await engine.reconcilers.tick()):
        pass
    assert await states(store) == {"cancelled": MANY + 2}
    for id_ in (min(family), max(family)):
        found, event = await engine.executions.describe(id_), await last_event(engine, id_)
        assert (found.cancelled_by, found.cancel_reason, event.principal) == ("ops", "enough", "ada")
    assert (await engine.flows.describe(root)).ended_at is not None
    await assert_flows_sound(store)


async def test_more_children_than_a_transaction_asks_are_all_asked(
    engine: Engine, store: TestStore, clock: VirtualClock
) -> None:
    root, family = await a_family(engine)
    answer = await engine.operator.cancel(root, "enough", children=True, grace="20s")
    assert isinstance(answer, CancelRequested)
    # What nobody has begun has nothing to clean up; the root and those two of its children that run are asked.
    assert await states(store) == {"cancelled": MANY - 1, "active": 3}
    for id_ in (min(family[:-1]), max(family[:-1])):
        assert (await last_event(engine, id_)).name == "cancel_requested"
    clock.advance("20s")
    await engine.reconcilers.tick()
    assert await states(store) == {"cancelled": MANY + 2}
    assert (await engine.executions.describe(root)).state is State.CANCELLED
    await assert_flows_sound(store)
