"""create_many: several waitpoints and the steps that record them, in one commit."""

from __future__ import annotations

from flowfabric.engine import Accepted, Conflict, Engine, Fresh, InvalidRequest, Pending, Step, Suspended
from flowfabric.testing import VirtualClock
from tests.facts import nothing_written, refused
from tests.scenarios import leased
from tests.stores import TestStore

STEPS = [Step("asked", b"1")]


async def test_waitpoints_come_in_the_order_asked_for_with_the_steps(engine: Engine, clock: VirtualClock) -> None:
    lease = await leased(engine)
    made = await engine.waitpoints.create_many(lease.fence, ["b", Fresh("a", approver="ada")], steps=STEPS)
    assert [item.key for item in made] == ["b", "a"]
    assert all(item.token is not None for item in made)
    assert [step.name for step in await engine.executions.steps(lease.execution_id)] == ["asked"]
    shown = {item.key: item.approver for item in (await engine.executions.describe(lease.execution_id)).waitpoints}
    assert shown == {"a": "ada", "b": None}


async def test_repeated_it_answers_the_same_waitpoints_and_tokens(engine: Engine, store: TestStore) -> None:
    lease = await leased(engine)
    known = await engine.waitpoints.create(lease.fence, "a")
    made = await engine.waitpoints.create_many(lease.fence, ["a", "b"], steps=STEPS)
    assert made[0] == known
    assert await engine.waitpoints.create_many(lease.fence, ["a", "b"], steps=STEPS) == made
    async with nothing_written(store):
        assert await engine.waitpoints.create_many(lease.fence, ["b", "a"]) == made[::-1]
    await engine.operator.revoke_lease(lease.execution_id)
    again = await engine.leases.claim_execution(lease.execution_id, "worker-2")
    assert await engine.waitpoints.create_many(again.fence, ["a", "b"], steps=STEPS) == made


async def test_the_tokens_are_good_before_and_after_somebody_waits(engine: Engine) -> None:
    lease = await leased(engine)
    one, other = await engine.waitpoints.create_many(lease.fence, ["one", "other"])
    assert one.token is not None and other.token is not None
    assert isinstance(await engine.signals.deliver(one.token, "go"), Accepted)
    assert isinstance(await engine.leases.suspend(lease.fence, [Pending("one"), Pending("other")]), Suspended)
    assert isinstance(await engine.signals.deliver(other.token, "go"), Accepted)


async def test_if_one_cannot_be_none_is(engine: Engine, store: TestStore) -> None:
    lease = await leased(engine)
    await engine.waitpoints.create(lease.fence, "taken", approver="ada")
    await engine.leases.checkpoint(lease.fence, [Step("final", b"1")])
    async with nothing_written(store):
        taken = engine.waitpoints.create_many(lease.fence, ["new", Fresh("taken", approver="bob")], steps=STEPS)
        await refused(taken, "waitpoint_already_exists", Conflict)
        contradicting = engine.waitpoints.create_many(lease.fence, ["new"], steps=[Step("final", b"2")])
        await refused(contradicting, "step_already_recorded", Conflict)
        many = [f"w{number}" for number in range(1000)]
        await refused(engine.waitpoints.create_many(lease.fence, many), "too_many_open_waitpoints")


async def test_only_fresh_ones_with_distinct_keys_are_taken(engine: Engine, store: TestStore) -> None:
    lease = await leased(engine)
    async with nothing_written(store):
        await refused(engine.waitpoints.create_many(lease.fence, ["a", "a"]), "invalid_request", InvalidRequest)
        pending = engine.waitpoints.create_many(lease.fence, [Pending("a")])  # type: ignore[list-item]
        await refused(pending, "invalid_type", InvalidRequest)
        assert await engine.waitpoints.create_many(lease.fence, []) == []
