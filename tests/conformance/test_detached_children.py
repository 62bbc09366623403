"""Tests of detached children, which are stored in their parent's commit and then are independent."""

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
)
from tests.expectations import nothing_written, refused
from tests.flows import built, child, ended
from tests.scenarios import leased
from tests.stores import TestStore

DETACHED = ChildSubmission("loner", Submission(kind="job", signals=["go"]), detached=True)


async def test_detached_child_has_no_parent_and_no_flow(engine: Engine) -> None:
    lease = await leased(engine)
    [outcome] = await engine.leases.submit_children(lease.fence, [DETACHED], steps=[Step("made")])
    assert isinstance(outcome, Created)
    execution = await engine.executions.describe(outcome.id)
    assert (execution.state, execution.parent_id, execution.flow_id, execution.member_name) == (
        State.WAITING,
        None,
        None,
        None,
    )
    await refused(engine.flows.describe(lease.execution_id), "flow_not_found", NotFound)
    assert [step.name for step in await engine.executions.steps(lease.execution_id)] == ["made"]
    await engine.signals.send(outcome.id, "go")


async def test_detached_child_survives_the_cancel_of_its_parent_and_of_the_flow(engine: Engine) -> None:
    lease = await leased(engine)
    detached, kid = await engine.leases.submit_children(lease.fence, [DETACHED, child("kid")])
    await engine.operator.cancel(lease.execution_id, children=True)
    assert (await engine.executions.describe(kid.id)).state is State.CANCELLED
    assert (await engine.executions.describe(detached.id)).state is State.WAITING
    flow = await built(engine, {"a": []})
    member = await flow.claim("a")
    [detached_member_child] = await engine.leases.submit_children(member.fence, [DETACHED])
    await engine.flows.cancel(flow.id)
    assert (await engine.executions.describe(detached_member_child.id)).state is State.WAITING


async def test_detached_child_does_not_delay_or_fail_the_flow(engine: Engine) -> None:
    flow = await built(engine, {"a": []})
    lease = await flow.claim("a")
    [detached] = await engine.leases.submit_children(lease.fence, [DETACHED])
    await engine.leases.complete(lease.fence)
    assert await flow.state() == "completed"
    await ended(engine, detached.id, "failed")
    assert await flow.state() == "completed"


async def test_repeated_detached_child_is_a_duplicate_even_in_a_later_attempt(engine: Engine, store: TestStore) -> None:
    lease = await leased(engine)
    [first] = await engine.leases.submit_children(lease.fence, [DETACHED])
    async with nothing_written(store):
        assert await engine.leases.submit_children(lease.fence, [DETACHED]) == [Duplicate(first.id)]
        body = ChildSubmission("loner", Submission(kind="other"), detached=True)
        await refused(engine.leases.submit_children(lease.fence, [body]), "idempotency_mismatch", Conflict)
        attached = ChildSubmission("loner", DETACHED.submission)
        await refused(engine.leases.submit_children(lease.fence, [attached]), "idempotency_mismatch", Conflict)
    await engine.operator.revoke_lease(lease.execution_id)
    next_lease = await engine.leases.claim_execution(lease.execution_id, "worker-2")
    assert await engine.leases.submit_children(next_lease.fence, [DETACHED]) == [Duplicate(first.id)]


async def test_attached_child_does_not_match_a_detached_one(engine: Engine, store: TestStore) -> None:
    lease = await leased(engine)
    await engine.leases.submit_children(lease.fence, [child("kid")])
    async with nothing_written(store):
        detached = ChildSubmission("kid", child("kid").submission, detached=True)
        await refused(engine.leases.submit_children(lease.fence, [detached]), "idempotency_mismatch", Conflict)


async def test_detached_child_is_stored_atomically_with_its_siblings(engine: Engine, store: TestStore) -> None:
    lease = await leased(engine)
    await engine.lanes.drain("closed")
    async with nothing_written(store):
        children = [DETACHED, child("kid", lane="closed")]
        await refused(engine.leases.submit_children(lease.fence, children), "lane_draining")


async def test_detached_child_can_be_submitted_while_the_flow_is_cancelled(engine: Engine) -> None:
    flow = await built(engine, {"a": []})
    lease = await flow.claim("a")
    await engine.flows.cancel(flow.id, policy="cancel_pending")
    await refused(engine.leases.submit_children(lease.fence, [DETACHED, child("kid")]), "flow_already_terminal")
    [outcome] = await engine.leases.submit_children(lease.fence, [DETACHED])
    assert isinstance(outcome, Created)


@pytest.mark.parametrize("detached", [1, "yes", None])
def test_detached_must_be_a_boolean(detached: object) -> None:
    with pytest.raises(InvalidRequest):
        ChildSubmission("a", Submission(kind="job"), detached=detached)  # type: ignore[arg-type]
