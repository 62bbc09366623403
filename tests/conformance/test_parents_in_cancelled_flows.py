"""Tests of parents that wait for children in a cancelled flow."""

from __future__ import annotations

from uuid import UUID

import pytest

from flowfabric.engine import CancelPolicy, Engine, FlowAlreadyTerminal, Lease, any_of
from tests.flows import built, count_cancelled, count_remaining, ended, with_children
from tests.scenarios import leased

POLICIES_KEEPING_STARTED = (CancelPolicy.CANCEL_PENDING, CancelPolicy.FLOW_ONLY)


async def wait_for_children(engine: Engine, lease: Lease, **options: object) -> dict[str, UUID]:
    """Make the lease's execution wait for two children, and return them."""
    children = await with_children(engine, lease, "idle", "busy")
    await engine.leases.wait_children(lease.fence, list(children.values()), **options)  # type: ignore[arg-type]
    return children


async def state_of(engine: Engine, id_: UUID) -> str:
    return (await engine.executions.describe(id_)).state.value


async def claim_and_complete(engine: Engine, id_: UUID) -> None:
    """Claim a waiting execution and complete it."""
    lease = await engine.leases.claim_execution(id_, "worker-4")
    await engine.leases.complete(lease.fence, b"")


@pytest.mark.parametrize("policy", POLICIES_KEEPING_STARTED)
async def test_started_member_continues_when_its_children_have_ended(engine: Engine, policy: CancelPolicy) -> None:
    flow = await built(engine, {"a": [], "b": ["a"]})
    children = await wait_for_children(engine, await flow.claim("a"))
    busy = await engine.leases.claim_execution(children["busy"], "worker-2")
    await engine.flows.cancel(flow.id, "enough", policy=policy)
    assert await flow.member("a") == "blocked"
    if policy is CancelPolicy.FLOW_ONLY:
        await ended(engine, children["idle"])
    await engine.leases.complete(busy.fence, b"")
    assert await flow.member("a") == "waiting"
    await claim_and_complete(engine, flow["a"])
    expected = "waiting" if policy is CancelPolicy.FLOW_ONLY else "cancelled"
    assert await flow.states() == {"a": "completed", "b": expected}


async def test_cancel_all_cancels_a_member_with_the_children_it_waits_for(engine: Engine) -> None:
    flow = await built(engine, {"a": []})
    children = await wait_for_children(engine, await flow.claim("a"))
    assert count_cancelled(await engine.flows.cancel(flow.id, "enough")) == 3
    assert [await state_of(engine, id_) for id_ in (flow["a"], *children.values())] == ["cancelled"] * 3
    assert (await engine.flows.describe(flow.id)).ended_at is not None


@pytest.mark.parametrize("policy", CancelPolicy)
async def test_root_continues_when_its_children_have_ended_or_were_cancelled(
    engine: Engine, policy: CancelPolicy
) -> None:
    lease = await leased(engine)
    children = await wait_for_children(engine, lease)
    busy = await engine.leases.claim_execution(children["busy"], "worker-2")
    await engine.flows.cancel(lease.execution_id, "enough", policy=policy)
    if policy is not CancelPolicy.CANCEL_ALL:
        assert await state_of(engine, lease.execution_id) == "blocked"
        await engine.leases.complete(busy.fence, b"")
    if policy is CancelPolicy.FLOW_ONLY:
        await ended(engine, children["idle"])
    assert await state_of(engine, lease.execution_id) == "waiting"
    await claim_and_complete(engine, lease.execution_id)
    assert isinstance(await engine.flows.cancel(lease.execution_id, "again"), FlowAlreadyTerminal)


async def test_race_of_children_decided_after_the_cancel_cancels_no_child(engine: Engine) -> None:
    lease = await leased(engine)
    children = await with_children(engine, lease, "first", "second")
    await engine.leases.wait_children(lease.fence, list(children.values()), join=any_of())
    first, second = [await engine.leases.claim_execution(id_, "worker-2") for id_ in children.values()]
    await engine.flows.cancel(lease.execution_id, "enough", policy="cancel_pending")
    await engine.leases.complete(first.fence, b"")
    assert await state_of(engine, lease.execution_id) == "waiting"
    assert await state_of(engine, children["second"]) == "active"
    await engine.leases.complete(second.fence, b"")


async def test_started_member_is_explained_by_the_children_it_waits_for(engine: Engine) -> None:
    flow = await built(engine, {"a": []})
    children = await wait_for_children(engine, await flow.claim("a"))
    await engine.leases.claim_execution(children["busy"], "worker-2")
    await engine.flows.cancel(flow.id, "enough", policy="cancel_pending")
    explanation = await engine.operator.explain(flow["a"])
    assert explanation.sentence == 'Waiting for 1 of 2 children: "busy" is active.'
    assert explanation.facts["waits_for"] == {"busy": "active"}


async def test_root_is_explained_by_the_children_it_waits_for(engine: Engine) -> None:
    lease = await leased(engine)
    children = await wait_for_children(engine, lease)
    await engine.leases.claim_execution(children["busy"], "worker-2")
    await engine.flows.cancel(lease.execution_id, "enough", policy="cancel_pending")
    explanation = await engine.operator.explain(lease.execution_id)
    assert explanation.sentence == 'Waiting for 1 of 2 children: "busy" is active.'


async def test_member_not_yet_cancelled_is_explained_as_about_to_be_cancelled(engine: Engine) -> None:
    flow = await built(engine, {"a": [], **{f"m{number}": ["a"] for number in range(1_001)}})
    await flow.claim("a")
    assert count_remaining(await engine.flows.cancel(flow.id, "enough", policy="cancel_pending")) == 1
    # Members that are not running are cancelled in the order of their ids, so this one is cancelled last.
    last = max(id_ for name, id_ in flow.members.items() if name != "a")
    explanation = await engine.operator.explain(last)
    assert explanation.sentence == "Its flow was cancelled. The next reconciler pass cancels it too."
    assert explanation.facts["waits_for"] == {"a": "active"}
