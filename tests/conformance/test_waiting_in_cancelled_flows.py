"""Parents that wait for children in a flow that is cancelled: they have started, so they end or go on."""

from __future__ import annotations

from uuid import UUID

import pytest

from flowfabric.engine import CancelPolicy, CancelScheduled, Engine, FlowAlreadyCancelled, FlowCancelled, Lease, any_of
from tests.flows import built, ended, with_children
from tests.scenarios import leased

SPARING = (CancelPolicy.CANCEL_PENDING, CancelPolicy.FLOW_ONLY)


async def waiting_parent(engine: Engine, lease: Lease, **options: object) -> dict[str, UUID]:
    """The children of the execution under this lease, which waits for them: one idle, one that runs."""
    children = await with_children(engine, lease, "idle", "busy")
    await engine.leases.wait_children(lease.fence, list(children.values()), **options)  # type: ignore[arg-type]
    return children


async def state_of(engine: Engine, id_: UUID) -> str:
    return (await engine.executions.describe(id_)).state.value


async def finished(engine: Engine, id_: UUID) -> None:
    """Claims what waits, as a worker does, and completes it."""
    lease = await engine.leases.claim_execution(id_, "worker-4")
    await engine.leases.complete(lease.fence, b"")


@pytest.mark.parametrize("policy", SPARING)
async def test_a_member_that_is_spared_goes_on_when_its_children_have_ended(
    engine: Engine, policy: CancelPolicy
) -> None:
    flow = await built(engine, {"a": [], "b": ["a"]})
    children = await waiting_parent(engine, await flow.claim("a"))
    busy = await engine.leases.claim_execution(children["busy"], "worker-2")
    await engine.flows.cancel(flow.id, "enough", policy=policy)
    assert await flow.member("a") == "blocked"
    if policy is CancelPolicy.FLOW_ONLY:
        await ended(engine, children["idle"])
    await engine.leases.complete(busy.fence, b"")
    assert await flow.member("a") == "waiting"
    await finished(engine, flow["a"])
    expected = "waiting" if policy is CancelPolicy.FLOW_ONLY else "cancelled"
    assert await flow.states() == {"a": "completed", "b": expected}


async def test_a_member_is_cancelled_with_the_children_that_it_waits_for(engine: Engine) -> None:
    flow = await built(engine, {"a": []})
    children = await waiting_parent(engine, await flow.claim("a"))
    assert await engine.flows.cancel(flow.id, "enough") == FlowCancelled(3)
    assert [await state_of(engine, id_) for id_ in (flow["a"], *children.values())] == ["cancelled"] * 3
    assert (await engine.flows.describe(flow.id)).ended_at is not None


@pytest.mark.parametrize("policy", CancelPolicy)
async def test_a_root_goes_on_when_its_children_have_ended_or_were_cancelled(
    engine: Engine, policy: CancelPolicy
) -> None:
    lease = await leased(engine)
    children = await waiting_parent(engine, lease)
    busy = await engine.leases.claim_execution(children["busy"], "worker-2")
    await engine.flows.cancel(lease.execution_id, "enough", policy=policy)
    if policy is not CancelPolicy.CANCEL_ALL:
        assert await state_of(engine, lease.execution_id) == "blocked"
        await engine.leases.complete(busy.fence, b"")
    if policy is CancelPolicy.FLOW_ONLY:
        await ended(engine, children["idle"])
    assert await state_of(engine, lease.execution_id) == "waiting"
    await finished(engine, lease.execution_id)
    assert isinstance(await engine.flows.cancel(lease.execution_id, "again"), FlowAlreadyCancelled)


async def test_a_race_of_children_that_is_decided_after_the_cancel_ends_nobody(engine: Engine) -> None:
    lease = await leased(engine)
    children = await with_children(engine, lease, "first", "second")
    await engine.leases.wait_children(lease.fence, list(children.values()), join=any_of())
    first, second = [await engine.leases.claim_execution(id_, "worker-2") for id_ in children.values()]
    await engine.flows.cancel(lease.execution_id, "enough", policy="cancel_pending")
    await engine.leases.complete(first.fence, b"")
    assert await state_of(engine, lease.execution_id) == "waiting"
    assert await state_of(engine, children["second"]) == "active"
    await engine.leases.complete(second.fence, b"")


async def test_who_is_spared_is_explained_by_the_children_that_it_waits_for(engine: Engine) -> None:
    flow = await built(engine, {"a": []})
    children = await waiting_parent(engine, await flow.claim("a"))
    await engine.leases.claim_execution(children["busy"], "worker-2")
    await engine.flows.cancel(flow.id, "enough", policy="cancel_pending")
    found = await engine.operator.explain(flow["a"])
    assert found.sentence == "It waits for 1 more of its children: 'busy' is active."
    assert found.facts["waits_for"] == {"busy": "active"}


async def test_a_root_is_explained_by_the_children_that_it_waits_for(engine: Engine) -> None:
    lease = await leased(engine)
    children = await waiting_parent(engine, lease)
    await engine.leases.claim_execution(children["busy"], "worker-2")
    await engine.flows.cancel(lease.execution_id, "enough", policy="cancel_pending")
    found = await engine.operator.explain(lease.execution_id)
    assert found.sentence == "It waits for 1 more of its children: 'busy' is active."


async def test_who_is_not_reached_yet_is_about_to_be_cancelled(engine: Engine) -> None:
    flow = await built(engine, {"a": [], **{f"m{number}": ["a"] for number in range(1_001)}})
    await flow.claim("a")
    assert await engine.flows.cancel(flow.id, "enough", policy="cancel_pending") == CancelScheduled(1)
    # The last one in id order, which is never the one that runs.
    last = max(id_ for name, id_ in flow.members.items() if name != "a")
    found = await engine.operator.explain(last)
    assert found.sentence == "Its flow was cancelled; it is about to be cancelled too."
    assert found.facts["waits_for"] == {"a": "active"}
