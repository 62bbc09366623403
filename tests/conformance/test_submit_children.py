"""Tests of submit_children, by which a lease holder creates each child execution once, in a fenced commit."""

from __future__ import annotations

from flowfabric.engine import Conflict, Created, Duplicate, Engine, NotFound, Step
from flowfabric.testing import VirtualClock
from tests.expectations import error_of, nothing_written, refused
from tests.flows import built, child, claimable, ended, with_children
from tests.scenarios import leased
from tests.stores import TestStore


async def test_children_are_claimable_immediately_and_know_their_parent(engine: Engine) -> None:
    lease = await leased(engine)
    children = await with_children(engine, lease, "a", "b")
    assert await claimable(engine) == set(children.values())
    execution = await engine.executions.describe(children["a"])
    assert (execution.parent_id, execution.flow_id) == (lease.execution_id, lease.execution_id)


async def test_parent_is_the_root_of_a_flow_with_its_own_id(engine: Engine) -> None:
    lease = await leased(engine)
    assert (await engine.executions.describe(lease.execution_id)).flow_id is None
    children = await with_children(engine, lease, "a")
    flow = await engine.flows.describe(lease.execution_id)
    assert flow.id == lease.execution_id
    members = await engine.flows.members(lease.execution_id)
    assert {member.id for member in members.items} == set(children.values())


async def test_children_of_a_member_join_its_flow(engine: Engine) -> None:
    flow = await built(engine, {"a": [], "b": ["a"]})
    lease = await flow.claim("a")
    children = await with_children(engine, lease, "part")
    execution = await engine.executions.describe(children["part"])
    assert (execution.flow_id, execution.parent_id) == (flow.id, flow["a"])
    await engine.leases.complete(lease.fence, b"")
    await flow.complete("b")
    assert await flow.state() in ("running", "open", "blocked")
    await ended(engine, children["part"])
    assert await flow.state() == "completed"


async def test_grandchildren_belong_to_the_flow_of_the_root(engine: Engine) -> None:
    lease = await leased(engine)
    [first] = (await with_children(engine, lease, "a")).values()
    inner = await engine.leases.claim_execution(first, "worker-2")
    [second] = (await with_children(engine, inner, "a")).values()
    execution = await engine.executions.describe(second)
    assert (execution.flow_id, execution.parent_id) == (lease.execution_id, first)


async def test_repeated_submit_creates_no_second_child(engine: Engine, store: TestStore) -> None:
    lease = await leased(engine)
    children = await with_children(engine, lease, "a", "b")
    async with nothing_written(store):
        outcomes = await engine.leases.submit_children(lease.fence, [child("a"), child("b")])
    assert outcomes == [Duplicate(children["a"]), Duplicate(children["b"])]


async def test_next_attempt_finds_the_children_of_the_previous_one(engine: Engine) -> None:
    lease = await leased(engine)
    children = await with_children(engine, lease, "a")
    await engine.operator.revoke_lease(lease.execution_id)
    next_lease = await engine.leases.claim_execution(lease.execution_id, "worker-2")
    outcomes = await engine.leases.submit_children(next_lease.fence, [child("a"), child("b")])
    assert outcomes[0] == Duplicate(children["a"])
    assert isinstance(outcomes[1], Created)


async def test_another_body_under_the_same_key_is_refused(engine: Engine, store: TestStore) -> None:
    lease = await leased(engine)
    await with_children(engine, lease, "a")
    async with nothing_written(store):
        call = engine.leases.submit_children(lease.fence, [child("a", payload=b"other")])
        await refused(call, "idempotency_mismatch", Conflict)


async def test_next_generation_has_its_own_children(engine: Engine) -> None:
    lease = await leased(engine)
    first = await with_children(engine, lease, "a")
    await engine.leases.complete(lease.fence, b"")
    await engine.operator.replay(lease.execution_id)
    next_lease = await engine.leases.claim_execution(lease.execution_id, "worker-1")
    second = await with_children(engine, next_lease, "a")
    assert first["a"] != second["a"]


async def test_former_owner_cannot_submit_children(engine: Engine, store: TestStore, clock: VirtualClock) -> None:
    revoked, expired, completed = await leased(engine), await leased(engine, lease_ttl="5s"), await leased(engine)
    await engine.operator.revoke_lease(revoked.execution_id)
    await engine.leases.complete(completed.fence, b"")
    clock.advance("6s")
    async with nothing_written(store):
        for lease in (revoked, expired, completed):
            error = await error_of(engine.leases.submit_children(lease.fence, [child("a")]))
            assert error.code in ("lease_revoked", "stale_lease", "lease_expired", "execution_not_active")


async def test_steps_and_children_are_committed_together(engine: Engine, store: TestStore) -> None:
    lease = await leased(engine)
    await engine.leases.submit_children(lease.fence, [child("a")], steps=[Step("submit:job", b"1")])
    assert [step.name for step in await engine.executions.steps(lease.execution_id)] == ["submit:job"]
    async with nothing_written(store):
        call = engine.leases.submit_children(lease.fence, [child("b")], steps=[Step("submit:job", b"2")])
        await error_of(call)


async def test_end_of_a_parent_does_not_affect_its_children(engine: Engine) -> None:
    lease = await leased(engine)
    children = await with_children(engine, lease, "a")
    await engine.leases.complete(lease.fence, b"")
    await ended(engine, children["a"])
    assert (await engine.executions.describe(children["a"])).state == "completed"


async def test_children_of_an_execution_are_read_in_pages(engine: Engine) -> None:
    lease, unrelated = await leased(engine), await leased(engine)
    children = sorted((await with_children(engine, lease, "a", "b", "c")).values())
    assert [child.id for child in await engine.executions.children(lease.execution_id, limit=2)] == children[:2]
    rest = await engine.executions.children(lease.execution_id, after=children[1])
    assert [(child.id, child.state) for child in rest] == [(children[2], "waiting")]
    assert await engine.executions.children(unrelated.execution_id) == []
    await refused(
        engine.for_namespace("other").executions.children(lease.execution_id), "execution_not_found", NotFound
    )
