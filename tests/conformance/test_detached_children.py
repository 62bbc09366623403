"""Detached children: stored with their parent's commit under a derived id, and then on their own."""

from __future__ import annotations

import pytest

from flowfabric.engine import (
    ChildSubmission,
    Conflict,
    Created,
    Duplicate,
    Engine,
    InvalidRequest,
    NotFound,
    State,
    Step,
    Submission,
)  # fmt: skip
from tests.facts import nothing_written, refused
from tests.flows import built, child, ended
from tests.scenarios import leased
from tests.stores import TestStore

LONER = ChildSubmission("loner", Submission(kind="job", signals=["go"]), detached=True)


async def test_it_belongs_to_nobody(engine: Engine) -> None:
    lease = await leased(engine)
    [answer] = await engine.leases.submit_children(lease.fence, [LONER], steps=[Step("made")])
    assert isinstance(answer, Created)
    found = await engine.executions.describe(answer.id)
    assert (found.state, found.parent_id, found.flow_id, found.member_name) == (State.WAITING, None, None, None)
    await refused(engine.flows.describe(lease.execution_id), "flow_not_found", NotFound)
    assert [step.name for step in await engine.executions.steps(lease.execution_id)] == ["made"]
    await engine.signals.send(answer.id, "go")


async def test_it_goes_on_when_its_maker_and_the_flow_are_cancelled(engine: Engine) -> None:
    lease = await leased(engine)
    alone, kid = await engine.leases.submit_children(lease.fence, [LONER, child("kid")])
    await engine.operator.cancel(lease.execution_id, children=True)
    assert (await engine.executions.describe(kid.id)).state is State.CANCELLED
    assert (await engine.executions.describe(alone.id)).state is State.WAITING
    flow = await built(engine, {"a": []})
    member = await flow.claim("a")
    [other] = await engine.leases.submit_children(member.fence, [LONER])
    await engine.flows.cancel(flow.id)
    assert (await engine.executions.describe(other.id)).state is State.WAITING


async def test_it_does_not_hold_up_or_fail_the_flow(engine: Engine) -> None:
    flow = await built(engine, {"a": []})
    lease = await flow.claim("a")
    [alone] = await engine.leases.submit_children(lease.fence, [LONER])
    await engine.leases.complete(lease.fence)
    assert await flow.state() == "completed"
    await ended(engine, alone.id, "failed")
    assert await flow.state() == "completed"


async def test_repeated_it_is_the_same_one_also_in_a_later_attempt(engine: Engine, store: TestStore) -> None:
    lease = await leased(engine)
    [first] = await engine.leases.submit_children(lease.fence, [LONER])
    async with nothing_written(store):
        assert await engine.leases.submit_children(lease.fence, [LONER]) == [Duplicate(first.id)]
        body = ChildSubmission("loner", Submission(kind="other"), detached=True)
        await refused(engine.leases.submit_children(lease.fence, [body]), "idempotency_mismatch", Conflict)
        attached = ChildSubmission("loner", LONER.submission)
        await refused(engine.leases.submit_children(lease.fence, [attached]), "idempotency_mismatch", Conflict)
    await engine.operator.revoke_lease(lease.execution_id)
    again = await engine.leases.claim_execution(lease.execution_id, "worker-2")
    assert await engine.leases.submit_children(again.fence, [LONER]) == [Duplicate(first.id)]


async def test_a_child_is_not_taken_for_a_detached_one(engine: Engine, store: TestStore) -> None:
    lease = await leased(engine)
    await engine.leases.submit_children(lease.fence, [child("kid")])
    async with nothing_written(store):
        alone = ChildSubmission("kid", child("kid").submission, detached=True)
        await refused(engine.leases.submit_children(lease.fence, [alone]), "idempotency_mismatch", Conflict)


async def test_it_is_stored_with_all_or_not_at_all(engine: Engine, store: TestStore) -> None:
    lease = await leased(engine)
    await engine.lanes.drain("closed")
    async with nothing_written(store):
        both = [LONER, child("kid", lane="closed")]
        await refused(engine.leases.submit_children(lease.fence, both), "lane_draining")


async def test_it_may_be_made_while_the_flow_is_cancelled(engine: Engine) -> None:
    flow = await built(engine, {"a": []})
    lease = await flow.claim("a")
    await engine.flows.cancel(flow.id, policy="cancel_pending")
    await refused(engine.leases.submit_children(lease.fence, [LONER, child("kid")]), "flow_already_terminal")
    [answer] = await engine.leases.submit_children(lease.fence, [LONER])
    assert isinstance(answer, Created)


@pytest.mark.parametrize("detached", [1, "yes", None])
def test_detached_is_true_or_false(detached: object) -> None:
    with pytest.raises(InvalidRequest):
        ChildSubmission("a", Submission(kind="job"), detached=detached)  # type: ignore[arg-type]
