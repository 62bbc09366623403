"""Tests of create_many, which creates several waitpoints and records steps in one commit."""

from __future__ import annotations

from flowfabric.engine import (
    Accepted,
    Conflict,
    Engine,
    InvalidRequest,
    NewWaitpoint,
    PendingWaitpoint,
    Step,
    Suspended,
)
from flowfabric.testing import VirtualClock
from tests.expectations import nothing_written, refused
from tests.scenarios import leased
from tests.stores import TestStore

STEPS = [Step("asked", b"1")]


async def test_waitpoints_are_returned_in_request_order_and_steps_are_recorded(
    engine: Engine, clock: VirtualClock
) -> None:
    lease = await leased(engine)
    waitpoints = await engine.waitpoints.create_many(lease.fence, ["b", NewWaitpoint("a", approver="ada")], steps=STEPS)
    assert [waitpoint.key for waitpoint in waitpoints] == ["b", "a"]
    assert all(waitpoint.token is not None for waitpoint in waitpoints)
    assert [step.name for step in await engine.executions.steps(lease.execution_id)] == ["asked"]
    approvers = {
        waitpoint.key: waitpoint.approver
        for waitpoint in (await engine.executions.describe(lease.execution_id)).waitpoints
    }
    assert approvers == {"a": "ada", "b": None}


async def test_repeated_call_returns_the_same_waitpoints_and_tokens(engine: Engine, store: TestStore) -> None:
    lease = await leased(engine)
    existing = await engine.waitpoints.create(lease.fence, "a")
    waitpoints = await engine.waitpoints.create_many(lease.fence, ["a", "b"], steps=STEPS)
    assert waitpoints[0] == existing
    assert await engine.waitpoints.create_many(lease.fence, ["a", "b"], steps=STEPS) == waitpoints
    async with nothing_written(store):
        assert await engine.waitpoints.create_many(lease.fence, ["b", "a"]) == waitpoints[::-1]
    await engine.operator.revoke_lease(lease.execution_id)
    next_lease = await engine.leases.claim_execution(lease.execution_id, "worker-2")
    assert await engine.waitpoints.create_many(next_lease.fence, ["a", "b"], steps=STEPS) == waitpoints


async def test_tokens_work_before_and_after_the_suspend(engine: Engine) -> None:
    lease = await leased(engine)
    first, second = await engine.waitpoints.create_many(lease.fence, ["one", "other"])
    assert first.token is not None and second.token is not None
    assert isinstance(await engine.signals.deliver(first.token, "go"), Accepted)
    assert isinstance(
        await engine.leases.suspend(lease.fence, [PendingWaitpoint("one"), PendingWaitpoint("other")]), Suspended
    )
    assert isinstance(await engine.signals.deliver(second.token, "go"), Accepted)


async def test_one_refused_waitpoint_prevents_all_of_them(engine: Engine, store: TestStore) -> None:
    lease = await leased(engine)
    await engine.waitpoints.create(lease.fence, "taken", approver="ada")
    await engine.leases.checkpoint(lease.fence, [Step("final", b"1")])
    async with nothing_written(store):
        conflicting_waitpoint = engine.waitpoints.create_many(
            lease.fence, ["new", NewWaitpoint("taken", approver="bob")], steps=STEPS
        )
        await refused(conflicting_waitpoint, "waitpoint_already_exists", Conflict)
        conflicting_step = engine.waitpoints.create_many(lease.fence, ["new"], steps=[Step("final", b"2")])
        await refused(conflicting_step, "step_already_recorded", Conflict)
        many = [f"w{number}" for number in range(1000)]
        await refused(engine.waitpoints.create_many(lease.fence, many), "too_many_open_waitpoints")


async def test_only_new_waitpoints_with_distinct_keys_are_accepted(engine: Engine, store: TestStore) -> None:
    lease = await leased(engine)
    async with nothing_written(store):
        await refused(engine.waitpoints.create_many(lease.fence, ["a", "a"]), "invalid_request", InvalidRequest)
        pending = engine.waitpoints.create_many(lease.fence, [PendingWaitpoint("a")])  # type: ignore[list-item]
        await refused(pending, "invalid_type", InvalidRequest)
        assert await engine.waitpoints.create_many(lease.fence, []) == []
