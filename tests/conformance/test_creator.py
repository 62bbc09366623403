"""Tests of the creator of a submission, which is kept with the execution."""

from __future__ import annotations

import pytest

from flowfabric.engine import (
    ChildSubmission,
    Conflict,
    Created,
    Duplicate,
    Engine,
    Graph,
    InvalidRequest,
    Submission,
)
from flowfabric.testing import VirtualClock
from tests.expectations import refused
from tests.scenarios import leased, submitted


async def test_creator_is_shown_by_describe_and_in_lists(engine: Engine) -> None:
    id_ = await submitted(engine, creator="ann")
    await submitted(engine)
    assert (await engine.executions.describe(id_)).creator == "ann"
    assert [execution.creator for execution in (await engine.executions.list()).items] == [None, "ann"]


async def test_creator_stays_through_every_later_state(engine: Engine, clock: VirtualClock) -> None:
    lease = await leased(engine, creator="ann")
    await engine.leases.fail(lease.fence, "not yet")
    clock.advance("1h")
    await engine.reconcilers.tick()
    lease = await engine.leases.claim_execution(lease.execution_id, "worker")
    await engine.leases.complete(lease.fence)
    await engine.operator.replay(lease.execution_id)
    assert (await engine.executions.describe(lease.execution_id)).creator == "ann"


async def test_creator_is_stored_along_every_way_to_submit(engine: Engine) -> None:
    many = await engine.executions.submit_many([Submission(kind="job", creator=name) for name in ("a", "b")])
    assert all(isinstance(outcome, Created) for outcome in many)
    await engine.executions.submit("job", key="k", creator="c")
    await engine.executions.submit("job", signals=["paid"], creator="d")
    lease = await leased(engine, creator="e")
    children = [Submission(kind="child", creator="f"), Submission(kind="child")]
    await engine.leases.submit_children(lease.fence, [ChildSubmission(str(n), each) for n, each in enumerate(children)])
    graph = Graph("flow")
    graph.add("first", "job", creator="g")
    flow = await engine.flows.submit(graph, seal=False)
    await engine.flows.add(flow.flow_id, "second", "job", creator="h")
    creators = [execution.creator for execution in (await engine.executions.list()).items]
    # A child does not inherit the creator of its parent.
    assert sorted(creator or "" for creator in creators) == ["", *"abcdefgh"]


async def test_repeated_submit_by_another_creator_is_a_duplicate(engine: Engine) -> None:
    id_ = await submitted(engine, key="once", creator="ann")
    assert await engine.executions.submit("job", b"in", key="once", creator="bob") == Duplicate(id_)
    assert (await engine.executions.describe(id_)).creator == "ann"
    await refused(engine.executions.submit("job", b"other", key="once"), "idempotency_mismatch", Conflict)


@pytest.mark.parametrize("creator", ["", " ann", "a\nb", "x" * 257])
async def test_creator_is_a_printable_name(engine: Engine, creator: str) -> None:
    await refused(engine.executions.submit("job", creator=creator), "invalid_name", InvalidRequest)
    assert (await engine.executions.list()).items == ()
