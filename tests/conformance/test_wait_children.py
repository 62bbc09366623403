"""Tests of wait_children, by which a parent gives up its lease until its children satisfy a join."""

from __future__ import annotations

from uuid import uuid4

import pytest

from flowfabric.engine import ChildrenReady, Engine, FlowFabricError, NotFound, Step, WaitingForChildren, any_of, quorum
from flowfabric.testing import VirtualClock
from tests.expectations import error_of, event_names, nothing_written, refused
from tests.flows import ended, with_children
from tests.scenarios import leased
from tests.stores import TestStore


async def test_parent_waits_until_all_its_children_have_completed(engine: Engine) -> None:
    lease = await leased(engine)
    children = await with_children(engine, lease, "a", "b")
    outcome = await engine.leases.wait_children(lease.fence, list(children.values()))
    assert isinstance(outcome, WaitingForChildren)
    execution = await engine.executions.describe(lease.execution_id)
    assert (execution.vector.public_state, execution.vector.attempt_state) == (
        "waiting_children",
        "attempt_interrupted",
    )
    assert execution.vector.eligibility_state == "blocked_by_dependencies"
    await ended(engine, children["a"])
    assert (await engine.executions.describe(lease.execution_id)).state == "blocked"
    await ended(engine, children["b"])
    execution = await engine.executions.describe(lease.execution_id)
    assert (execution.state, execution.vector.public_state) == ("waiting", "resumable")
    next_lease = await engine.leases.claim_execution(lease.execution_id, "worker-3")
    assert (next_lease.attempt_index, next_lease.origin) == (lease.attempt_index, "resumed")
    assert "lease.waiting_children" in await event_names(engine, lease.execution_id)


async def test_satisfied_join_returns_immediately_and_the_lease_is_kept(engine: Engine) -> None:
    lease = await leased(engine)
    children = await with_children(engine, lease, "a", "b")
    for id_ in children.values():
        await ended(engine, id_)
    before = await engine.executions.describe(lease.execution_id)
    outcome = await engine.leases.wait_children(lease.fence, list(children.values()))
    assert isinstance(outcome, ChildrenReady)
    after = await engine.executions.describe(lease.execution_id)
    assert (after.state, after.epoch, after.lease) == ("active", before.epoch, before.lease)
    await engine.leases.complete(lease.fence, b"")


@pytest.mark.parametrize("outcome", ["failed", "cancelled"])
async def test_failed_or_cancelled_child_wakes_its_parent(engine: Engine, outcome: str) -> None:
    lease = await leased(engine)
    children = await with_children(engine, lease, "a", "b")
    await engine.leases.wait_children(lease.fence, list(children.values()))
    await ended(engine, children["a"], outcome)
    await ended(engine, children["b"])
    execution = await engine.executions.describe(lease.execution_id)
    assert execution.state == "waiting", execution.state


async def test_first_child_of_a_race_wakes_the_parent(engine: Engine) -> None:
    lease = await leased(engine)
    children = await with_children(engine, lease, "a", "b", "c")
    await engine.leases.wait_children(lease.fence, list(children.values()), join=any_of())
    await ended(engine, children["b"])
    assert (await engine.executions.describe(lease.execution_id)).state == "waiting"
    states = [(await engine.executions.describe(children[key])).state for key in "abc"]
    assert states == ["cancelled", "completed", "cancelled"]


async def test_quorum_of_ended_children_wakes_the_parent(engine: Engine) -> None:
    lease = await leased(engine)
    children = await with_children(engine, lease, "a", "b", "c")
    await engine.leases.wait_children(lease.fence, list(children.values()), join=quorum(2))
    await ended(engine, children["a"], "failed")
    assert (await engine.executions.describe(lease.execution_id)).state == "blocked"
    await ended(engine, children["b"])
    assert (await engine.executions.describe(lease.execution_id)).state == "waiting"
    assert (await engine.executions.describe(children["c"])).state == "cancelled"


async def test_parent_can_wait_again_for_other_children(engine: Engine) -> None:
    lease = await leased(engine)
    first = await with_children(engine, lease, "a")
    await engine.leases.wait_children(lease.fence, list(first.values()))
    await ended(engine, first["a"])
    next_lease = await engine.leases.claim_execution(lease.execution_id, "worker-1")
    second = await with_children(engine, next_lease, "b")
    assert isinstance(await engine.leases.wait_children(next_lease.fence, list(second.values())), WaitingForChildren)
    assert (await engine.executions.describe(lease.execution_id)).state == "blocked"
    await ended(engine, second["b"])
    assert (await engine.executions.describe(lease.execution_id)).state == "waiting"


async def test_finished_wait_returns_ready_to_a_later_owner(engine: Engine) -> None:
    lease = await leased(engine)
    children = await with_children(engine, lease, "a")
    await engine.leases.wait_children(lease.fence, list(children.values()))
    await ended(engine, children["a"])
    next_lease = await engine.leases.claim_execution(lease.execution_id, "worker-1")
    outcome = await engine.leases.wait_children(next_lease.fence, list(children.values()))
    assert isinstance(outcome, ChildrenReady)
    await engine.leases.complete(next_lease.fence, b"")


async def test_repeated_wait_returns_the_first_outcome(engine: Engine, store: TestStore) -> None:
    lease = await leased(engine)
    children = await with_children(engine, lease, "a")
    first = await engine.leases.wait_children(lease.fence, list(children.values()))
    async with nothing_written(store):
        assert await engine.leases.wait_children(lease.fence, list(children.values())) == first


async def test_steps_are_recorded_with_the_wait(engine: Engine, store: TestStore) -> None:
    lease = await leased(engine)
    children = await with_children(engine, lease, "a")
    await engine.leases.wait_children(lease.fence, list(children.values()), steps=[Step("result:job", b"1")])
    assert [step.name for step in await engine.executions.steps(lease.execution_id)] == ["result:job"]


async def test_executions_that_are_no_children_are_not_found(engine: Engine, store: TestStore) -> None:
    lease, other_lease = await leased(engine), await leased(engine)
    foreign_children = await with_children(engine, other_lease, "a")
    await with_children(engine, lease, "mine")
    async with nothing_written(store):
        for unknown_id in (foreign_children["a"], uuid4()):
            await refused(engine.leases.wait_children(lease.fence, [unknown_id]), "child_not_found", NotFound)


async def test_former_owner_cannot_wait(engine: Engine, store: TestStore) -> None:
    lease = await leased(engine)
    children = await with_children(engine, lease, "a")
    await engine.operator.revoke_lease(lease.execution_id)
    async with nothing_written(store):
        error = await error_of(engine.leases.wait_children(lease.fence, list(children.values())))
    assert isinstance(error, FlowFabricError)
    assert error.code == "lease_revoked"


async def test_cancelled_parent_stops_waiting(engine: Engine, clock: VirtualClock) -> None:
    lease = await leased(engine)
    children = await with_children(engine, lease, "a")
    await engine.leases.wait_children(lease.fence, list(children.values()))
    await engine.operator.cancel(lease.execution_id, "enough")
    await ended(engine, children["a"])
    execution = await engine.executions.describe(lease.execution_id)
    assert (execution.state, [attempt.outcome.value for attempt in execution.attempts]) == (
        "cancelled",
        ["ended_cancelled"],
    )


@pytest.mark.parametrize("outcome", ["failed", "cancelled"])
async def test_parent_that_needs_all_to_succeed_wakes_with_the_first_failure(engine: Engine, outcome: str) -> None:
    lease = await leased(engine)
    children = await with_children(engine, lease, "a", "b", "c")
    await engine.leases.wait_children(lease.fence, list(children.values()), edge="on_success")
    await ended(engine, children["a"])
    assert (await engine.executions.describe(lease.execution_id)).state == "blocked"
    await ended(engine, children["b"], outcome)
    assert (await engine.executions.describe(lease.execution_id)).state == "waiting"
    assert (await engine.executions.describe(children["c"])).state == "waiting"
    next_lease = await engine.leases.claim_execution(lease.execution_id, "worker-1")
    result = await engine.leases.wait_children(next_lease.fence, list(children.values()), edge="on_success")
    assert isinstance(result, ChildrenReady)
    assert {str(id_): child_outcome.state for id_, child_outcome in result.outcomes.items()} == {
        str(children["a"]): "completed",
        str(children["b"]): outcome,
    }


async def test_parent_that_needs_one_success_wakes_with_it_or_when_all_have_failed(engine: Engine) -> None:
    for last, live_siblings in (("completed", 1), ("failed", 0)):
        lease = await leased(engine)
        children = await with_children(engine, lease, "a", "b", "c")
        first = any_of(siblings="let_run")
        await engine.leases.wait_children(lease.fence, list(children.values()), join=first, edge="on_success")
        await ended(engine, children["a"], "failed")
        assert (await engine.executions.describe(lease.execution_id)).state == "blocked"
        if not live_siblings:
            await ended(engine, children["c"], "failed")
        await ended(engine, children["b"], last)
        assert (await engine.executions.describe(lease.execution_id)).state == "waiting"
        assert (await engine.executions.describe(children["c"])).state == ("waiting" if live_siblings else "failed")


async def test_failure_that_a_parent_waited_for_does_not_fail_the_flow(engine: Engine) -> None:
    lease = await leased(engine)
    children = await with_children(engine, lease, "a", "b")
    await engine.leases.wait_children(lease.fence, list(children.values()), edge="on_success")
    await ended(engine, children["a"], "failed")
    await ended(engine, children["b"])
    next_lease = await engine.leases.claim_execution(lease.execution_id, "worker-1")
    await engine.leases.complete(next_lease.fence, b"")
    assert (await engine.flows.describe(lease.execution_id)).state == "completed"
