"""Tests of flow retention. A flow is purged as a whole when it has finished and its last member is due."""

from __future__ import annotations

from uuid import UUID

from flowfabric.engine import Engine, FlowFabricError, NotFound, Policy
from flowfabric.testing import VirtualClock
from tests.expectations import refused
from tests.flows import built, ended, with_children
from tests.scenarios import leased
from tests.stores import TestStore

TABLES = ("execution", "attempt", "flow", "edge", "edge_group")


async def is_purged(engine: Engine, id_: UUID) -> bool:
    try:
        await engine.executions.describe(id_)
    except FlowFabricError as error:
        return error.code == "execution_not_found"
    return False


async def run_duties(engine: Engine) -> None:
    """Run every duty until none has work."""
    while any(tick.done for tick in await engine.reconcilers.tick()):
        pass


async def test_flow_is_purged_with_its_last_member(engine: Engine, clock: VirtualClock, store: TestStore) -> None:
    policy = {"long": {"policy": Policy(retention="60d")}}
    flow = await built(engine, {"a": [], "b": ["a"], "long": ["a"]}, options=policy)
    await flow.complete("a", "b", "long")
    clock.advance("59d")
    await run_duties(engine)
    assert not any([await is_purged(engine, id_) for id_ in flow.members.values()])
    clock.advance("1d")
    await run_duties(engine)
    assert all([await is_purged(engine, id_) for id_ in flow.members.values()])
    await refused(engine.flows.describe(flow.id), "flow_not_found", NotFound)
    counts = [(await store.query(f"SELECT COUNT(*) AS number FROM ff.{table}"))[0]["number"] for table in TABLES]
    assert counts == [0] * len(TABLES)


async def test_unfinished_flow_keeps_all_its_members(engine: Engine, clock: VirtualClock) -> None:
    running = await built(engine, {"a": [], "b": ["a"]})
    unsealed = await built(engine, {"a": []}, seal=False)
    await running.complete("a")
    await unsealed.complete("a")
    clock.advance("365d")
    await run_duties(engine)
    assert (await running.member("a"), await unsealed.member("a")) == ("completed", "completed")


async def test_cancelled_flow_is_purged(engine: Engine, clock: VirtualClock) -> None:
    flow = await built(engine, {"a": [], "b": ["a"]})
    await engine.flows.cancel(flow.id, "enough")
    clock.advance("30d")
    await run_duties(engine)
    await refused(engine.flows.describe(flow.id), "flow_not_found", NotFound)
    assert await is_purged(engine, flow["a"])


async def test_replay_stops_the_retention(engine: Engine, clock: VirtualClock) -> None:
    flow = await built(engine, {"a": []})
    await flow.complete("a")
    clock.advance("29d")
    await engine.operator.replay(flow["a"])
    clock.advance("29d")
    await run_duties(engine)
    assert await flow.member("a") == "waiting"


async def test_child_is_not_purged_before_its_parent_has_ended(engine: Engine, clock: VirtualClock) -> None:
    lease = await leased(engine, lease_ttl="1h")
    children = await with_children(engine, lease, "kid")
    await ended(engine, children["kid"])
    await engine.leases.suspend(lease.fence, ["go"])
    clock.advance("60d")
    await run_duties(engine)
    assert not await is_purged(engine, children["kid"])
    await engine.operator.cancel(lease.execution_id)
    clock.advance("30d")
    await run_duties(engine)
    assert await is_purged(engine, children["kid"])
    assert await is_purged(engine, lease.execution_id)


async def test_parent_is_not_purged_while_its_child_runs(engine: Engine, clock: VirtualClock) -> None:
    lease = await leased(engine)
    children = await with_children(engine, lease, "kid")
    await engine.leases.complete(lease.fence, b"")
    clock.advance("60d")
    await run_duties(engine)
    assert not await is_purged(engine, children["kid"])
    await ended(engine, children["kid"])
    clock.advance("30d")
    await run_duties(engine)
    assert await is_purged(engine, children["kid"])
    assert await is_purged(engine, lease.execution_id)
