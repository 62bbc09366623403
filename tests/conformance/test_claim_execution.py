"""Tests of claim_execution, which leases one execution by its id under the same conditions as claim."""

from __future__ import annotations

from datetime import timedelta
from uuid import UUID, uuid4

import pytest

from flowfabric.engine import ChildSubmission, Engine, NotFound, Policy, Refused, State, Submission, WorkerId
from flowfabric.testing import VirtualClock
from tests.expectations import nothing_written, refused, stored_row
from tests.scenarios import SITUATIONS, WORKER, leased, submitted, suspended
from tests.stores import TestStore

WAITING = [name for name in SITUATIONS if name.startswith("waiting")]
NOT_WAITING = [name for name in SITUATIONS if not name.startswith("waiting")]


async def test_named_execution_is_claimed_before_other_waiting_work(engine: Engine, clock: VirtualClock) -> None:
    await submitted(engine, priority=9)
    id_ = await submitted(engine, policy=Policy(lease_ttl="45s"))
    worker = WorkerId("mail", "mail-7")
    lease = await engine.leases.claim_execution(str(id_), worker)
    assert (lease.execution_id, lease.worker, lease.epoch, lease.origin) == (id_, worker, 1, "fresh")
    assert lease.expires_at == clock.now() + timedelta(seconds=45)
    other_id = await submitted(engine)
    assert (await engine.leases.claim_execution(other_id, worker, lease_ttl=5)).ttl == timedelta(seconds=5)


@pytest.mark.parametrize("situation", WAITING)
async def test_claim_by_id_writes_the_same_rows_as_a_claim_from_the_queue(
    engine: Engine, clock: VirtualClock, store: TestStore, situation: str
) -> None:
    first = await SITUATIONS[situation](engine, clock)
    await engine.leases.claim_execution(first, "worker", lease_ttl="1m")
    second = await SITUATIONS[situation](engine, clock)
    [from_queue] = await engine.leases.claim(["default"], "worker", lease_ttl="1m")
    assert from_queue.execution_id == second
    unique_columns = {"id", "lease_id", "former_lease_id", "resume_suspension_id", "event_xid"}
    rows = [await stored_row(store, id_) for id_ in (first, second)]
    by_id, by_queue = [{name: value for name, value in row.items() if name not in unique_columns} for row in rows]
    assert by_id == by_queue
    events = [(await engine.executions.history(id_))[-1] for id_ in (first, second)]
    facts = [(event.name, event.version, event.epoch, event.worker, event.details, event.at) for event in events]
    assert facts[0] == facts[1]


@pytest.mark.parametrize("situation", NOT_WAITING)
async def test_execution_that_is_not_waiting_is_refused(
    engine: Engine, clock: VirtualClock, store: TestStore, situation: str
) -> None:
    id_ = await SITUATIONS[situation](engine, clock)
    execution = await engine.executions.describe(id_)
    async with nothing_written(store):
        error = await refused(engine.leases.claim_execution(id_, "worker"), "execution_not_leaseable")
    assert (error.fields["state"], error.fields["epoch"]) == (execution.state, execution.epoch)
    assert error.fields["outcome"] == execution.vector.terminal_outcome


async def test_refusal_names_the_missing_capabilities(engine: Engine, store: TestStore) -> None:
    id_ = await submitted(engine, requires=["gpu", "eu", "arm"])
    async with nothing_written(store):
        claim = engine.leases.claim_execution(id_, "worker", capabilities=["eu", "spare"])
        error = await refused(claim, "capability_mismatch")
    assert error.fields["missing"] == ("arm", "gpu")
    lease = await engine.leases.claim_execution(id_, "worker", capabilities=["eu", "gpu", "arm", "spare"])
    assert lease.execution_id == id_


async def test_execution_in_a_paused_lane_cannot_be_claimed_by_id(engine: Engine, store: TestStore) -> None:
    id_ = await submitted(engine)
    await engine.lanes.pause("default")
    async with nothing_written(store):
        await refused(engine.leases.claim_execution(id_, "worker"), "lane_paused")
    await engine.lanes.drain("default")
    await engine.leases.claim_execution(id_, "worker")
    assert (await engine.executions.describe(id_)).state is State.ACTIVE


async def test_execution_that_is_unknown_or_in_another_namespace_is_not_found(engine: Engine, store: TestStore) -> None:
    id_ = await submitted(engine)
    async with nothing_written(store):
        for claim in (
            engine.leases.claim_execution(uuid4(), "worker"),
            engine.for_namespace("other").leases.claim_execution(id_, "worker"),
        ):
            await refused(claim, "execution_not_found", NotFound)


async def waits_for_children(engine: Engine, clock: VirtualClock) -> UUID:
    lease = await leased(engine)
    [child] = await engine.leases.submit_children(lease.fence, [ChildSubmission("c", Submission(kind="child"))])
    await engine.leases.wait_children(lease.fence, [child.id])
    return lease.execution_id


async def resumes_later(engine: Engine, clock: VirtualClock) -> UUID:
    wait = await suspended(engine, resume_delay="1h")
    await engine.signals.deliver(wait.token(), "approved")
    return wait.id


async def held_while_interrupted(engine: Engine, clock: VirtualClock) -> UUID:
    id_ = await SITUATIONS["waiting: resumable"](engine, clock)
    await engine.operator.hold(id_)
    return id_


NOT_RESUMED = {
    **{name: reach for name, reach in SITUATIONS.items() if name not in ("waiting: resumable", "waiting: resumed")},
    "blocked: waiting for children": waits_for_children,
    "blocked: held while interrupted": held_while_interrupted,
    "delayed: resumes later": resumes_later,
}


@pytest.mark.parametrize("situation", ["waiting: resumable", "waiting: resumed"])
async def test_interrupted_attempt_that_may_continue_is_claimed_as_resumed(
    engine: Engine, clock: VirtualClock, situation: str
) -> None:
    id_ = await SITUATIONS[situation](engine, clock)
    lease = await engine.leases.claim_resumed(id_, WORKER)
    assert (lease.origin, lease.attempt_index) == ("resumed", 0)


@pytest.mark.parametrize("situation", NOT_RESUMED)
async def test_execution_without_an_attempt_that_may_continue_is_not_a_resumed_execution(
    engine: Engine, clock: VirtualClock, store: TestStore, situation: str
) -> None:
    id_ = await NOT_RESUMED[situation](engine, clock)
    execution = await engine.executions.describe(id_)
    async with nothing_written(store):
        error = await refused(engine.leases.claim_resumed(id_, WORKER), "not_a_resumed_execution")
    assert (error.fields["state"], error.fields["epoch"]) == (execution.state, execution.epoch)


async def test_claimed_attempt_index_is_that_of_the_live_attempt(engine: Engine) -> None:
    lease = await leased(engine)
    execution = await engine.executions.describe(lease.execution_id)
    assert execution.lease is not None
    assert (lease.attempt_index, execution.attempt_index) == (0, 0)
    with pytest.raises(Refused, match="execution_not_reclaimable"):
        await engine.operator.grant_reclaim(lease.execution_id, "thief")
    await engine.operator.cancel(lease.execution_id)
    [attempt] = (await engine.executions.describe(lease.execution_id)).attempts
    assert (attempt.attempt_index, attempt.outcome) == (0, "ended_cancelled")
