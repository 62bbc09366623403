"""wait_children: the parent gives its lease up until its children have ended as the join says."""

from __future__ import annotations

from uuid import uuid4

import pytest

from flowfabric.engine import ChildrenReady, Engine, FlowFabricError, NotFound, Step, WaitingForChildren, any_of, quorum
from flowfabric.testing import VirtualClock
from tests.facts import error_of, event_names, nothing_written, refused
from tests.flows import ended, with_children
from tests.scenarios import leased
from tests.stores import TestStore


async def test_a_parent_waits_until_all_of_its_children_have_ended_well(engine: Engine) -> None:
    lease = await leased(engine)
    children = await with_children(engine, lease, "a", "b")
    answer = await engine.leases.wait_children(lease.fence, list(children.values()))
    assert isinstance(answer, WaitingForChildren)
    found = await engine.executions.describe(lease.execution_id)
    assert (found.vector.public_state, found.vector.attempt_state) == ("waiting_children", "attempt_interrupted")
    assert found.vector.eligibility_state == "blocked_by_dependencies"
    await ended(engine, children["a"])
    assert (await engine.executions.describe(lease.execution_id)).state == "blocked"
    await ended(engine, children["b"])
    found = await engine.executions.describe(lease.execution_id)
    assert (found.state, found.vector.public_state) == ("waiting", "resumable")
    again = await engine.leases.claim_execution(lease.execution_id, "worker-3")
    assert (again.attempt_index, again.origin) == (lease.attempt_index, "resumed")
    assert "lease.waiting_children" in await event_names(engine, lease.execution_id)


async def test_what_is_true_already_is_answered_at_once_and_the_lease_kept(engine: Engine) -> None:
    lease = await leased(engine)
    children = await with_children(engine, lease, "a", "b")
    for id_ in children.values():
        await ended(engine, id_)
    before = await engine.executions.describe(lease.execution_id)
    answer = await engine.leases.wait_children(lease.fence, list(children.values()))
    assert isinstance(answer, ChildrenReady)
    after = await engine.executions.describe(lease.execution_id)
    assert (after.state, after.epoch, after.lease) == ("active", before.epoch, before.lease)
    await engine.leases.complete(lease.fence, b"")


@pytest.mark.parametrize("outcome", ["failed", "cancelled"])
async def test_a_child_that_failed_does_not_leave_its_parent_hanging(engine: Engine, outcome: str) -> None:
    lease = await leased(engine)
    children = await with_children(engine, lease, "a", "b")
    await engine.leases.wait_children(lease.fence, list(children.values()))
    await ended(engine, children["a"], outcome)
    await ended(engine, children["b"])
    found = await engine.executions.describe(lease.execution_id)
    assert found.state == "waiting", found.state


async def test_a_race_of_children_wakes_the_parent_with_the_first(engine: Engine) -> None:
    lease = await leased(engine)
    children = await with_children(engine, lease, "a", "b", "c")
    await engine.leases.wait_children(lease.fence, list(children.values()), join=any_of())
    await ended(engine, children["b"])
    assert (await engine.executions.describe(lease.execution_id)).state == "waiting"
    states = [(await engine.executions.describe(children[key])).state for key in "abc"]
    assert states == ["cancelled", "completed", "cancelled"]


async def test_a_quorum_of_children_wakes_the_parent_whatever_became_of_them(engine: Engine) -> None:
    lease = await leased(engine)
    children = await with_children(engine, lease, "a", "b", "c")
    await engine.leases.wait_children(lease.fence, list(children.values()), join=quorum(2))
    await ended(engine, children["a"], "failed")
    assert (await engine.executions.describe(lease.execution_id)).state == "blocked"
    await ended(engine, children["b"])
    assert (await engine.executions.describe(lease.execution_id)).state == "waiting"
    assert (await engine.executions.describe(children["c"])).state == "cancelled"


async def test_a_parent_waits_again_for_others(engine: Engine) -> None:
    lease = await leased(engine)
    first = await with_children(engine, lease, "a")
    await engine.leases.wait_children(lease.fence, list(first.values()))
    await ended(engine, first["a"])
    again = await engine.leases.claim_execution(lease.execution_id, "worker-1")
    second = await with_children(engine, again, "b")
    assert isinstance(await engine.leases.wait_children(again.fence, list(second.values())), WaitingForChildren)
    assert (await engine.executions.describe(lease.execution_id)).state == "blocked"
    await ended(engine, second["b"])
    assert (await engine.executions.describe(lease.execution_id)).state == "waiting"


async def test_a_wait_that_is_over_answers_whoever_comes_later(engine: Engine) -> None:
    lease = await leased(engine)
    children = await with_children(engine, lease, "a")
    await engine.leases.wait_children(lease.fence, list(children.values()))
    await ended(engine, children["a"])
    again = await engine.leases.claim_execution(lease.execution_id, "worker-1")
    answer = await engine.leases.wait_children(again.fence, list(children.values()))
    assert isinstance(answer, ChildrenReady)
    await engine.leases.complete(again.fence, b"")


async def test_a_lost_reply_is_answered_again(engine: Engine, store: TestStore) -> None:
    lease = await leased(engine)
    children = await with_children(engine, lease, "a")
    first = await engine.leases.wait_children(lease.fence, list(children.values()))
    async with nothing_written(store):
        assert await engine.leases.wait_children(lease.fence, list(children.values())) == first


async def test_steps_are_written_with_the_wait(engine: Engine, store: TestStore) -> None:
    lease = await leased(engine)
    children = await with_children(engine, lease, "a")
    await engine.leases.wait_children(lease.fence, list(children.values()), steps=[Step("result:job", b"1")])
    assert [step.name for step in await engine.executions.steps(lease.execution_id)] == ["result:job"]


async def test_strangers_are_not_waited_for(engine: Engine, store: TestStore) -> None:
    lease, other = await leased(engine), await leased(engine)
    strangers = await with_children(engine, other, "a")
    await with_children(engine, lease, "mine")
    async with nothing_written(store):
        for stranger in (strangers["a"], uuid4()):
            await refused(engine.leases.wait_children(lease.fence, [stranger]), "child_not_found", NotFound)


async def test_a_zombie_does_not_wait(engine: Engine, store: TestStore) -> None:
    lease = await leased(engine)
    children = await with_children(engine, lease, "a")
    await engine.operator.revoke_lease(lease.execution_id)
    async with nothing_written(store):
        error = await error_of(engine.leases.wait_children(lease.fence, list(children.values())))
    assert isinstance(error, FlowFabricError)
    assert error.code == "lease_revoked"


async def test_a_parent_that_is_cancelled_stops_waiting(engine: Engine, clock: VirtualClock) -> None:
    lease = await leased(engine)
    children = await with_children(engine, lease, "a")
    await engine.leases.wait_children(lease.fence, list(children.values()))
    await engine.operator.cancel(lease.execution_id, "enough")
    await ended(engine, children["a"])
    found = await engine.executions.describe(lease.execution_id)
    assert (found.state, [attempt.outcome.value for attempt in found.attempts]) == ("cancelled", ["ended_cancelled"])


@pytest.mark.parametrize("outcome", ["failed", "cancelled"])
async def test_who_waits_for_the_success_of_all_goes_on_with_the_first_that_has_none(
    engine: Engine, outcome: str
) -> None:
    lease = await leased(engine)
    children = await with_children(engine, lease, "a", "b", "c")
    await engine.leases.wait_children(lease.fence, list(children.values()), edge="on_success")
    await ended(engine, children["a"])
    assert (await engine.executions.describe(lease.execution_id)).state == "blocked"
    await ended(engine, children["b"], outcome)
    assert (await engine.executions.describe(lease.execution_id)).state == "waiting"
    assert (await engine.executions.describe(children["c"])).state == "waiting"
    again = await engine.leases.claim_execution(lease.execution_id, "worker-1")
    answer = await engine.leases.wait_children(again.fence, list(children.values()), edge="on_success")
    assert isinstance(answer, ChildrenReady)
    assert {str(id_): found.state for id_, found in answer.outcomes.items()} == {
        str(children["a"]): "completed",
        str(children["b"]): outcome,
    }


async def test_who_waits_for_one_success_goes_on_with_it_or_when_none_is_left(engine: Engine) -> None:
    for last, others in (("completed", 1), ("failed", 0)):
        lease = await leased(engine)
        children = await with_children(engine, lease, "a", "b", "c")
        first = any_of(siblings="let_run")
        await engine.leases.wait_children(lease.fence, list(children.values()), join=first, edge="on_success")
        await ended(engine, children["a"], "failed")
        assert (await engine.executions.describe(lease.execution_id)).state == "blocked"
        if not others:
            await ended(engine, children["c"], "failed")
        await ended(engine, children["b"], last)
        assert (await engine.executions.describe(lease.execution_id)).state == "waiting"
        assert (await engine.executions.describe(children["c"])).state == ("waiting" if others else "failed")


async def test_a_failure_that_a_parent_waited_for_fails_no_flow(engine: Engine) -> None:
    lease = await leased(engine)
    children = await with_children(engine, lease, "a", "b")
    await engine.leases.wait_children(lease.fence, list(children.values()), edge="on_success")
    await ended(engine, children["a"], "failed")
    await ended(engine, children["b"])
    again = await engine.leases.claim_execution(lease.execution_id, "worker-1")
    await engine.leases.complete(again.fence, b"")
    assert (await engine.flows.describe(lease.execution_id)).state == "completed"
