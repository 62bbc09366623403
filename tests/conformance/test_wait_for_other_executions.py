"""Tests of Child bindings to executions of the namespace that are not children of the waiting one."""

from __future__ import annotations

from uuid import UUID, uuid4

import pytest

from flowfabric.engine import (
    AllOf,
    AnyOf,
    Child,
    ChildSubmission,
    Engine,
    NotFound,
    Policy,
    Satisfied,
    Single,
    StandingWaitpoint,
    State,
    Step,
    Submission,
    Suspended,
)
from flowfabric.testing import VirtualClock
from tests.expectations import nothing_written, refused
from tests.flows import built, ended, with_children
from tests.scenarios import leased, submitted
from tests.stores import TestStore

OUTCOMES = ("completed", "failed", "cancelled")


async def state_of(engine: Engine, id_: UUID) -> State:
    return (await engine.executions.describe(id_)).state


async def read_signals(engine: Engine, id_: UUID) -> list[tuple[str, str]]:
    return [(signal.waitpoint, signal.name) for signal in await engine.signals.list(id_)]


@pytest.mark.parametrize("outcome", OUTCOMES)
async def test_end_of_another_execution_resumes_the_waiting_one(engine: Engine, outcome: str) -> None:
    other_id, lease = await submitted(engine), await leased(engine)
    assert isinstance(await engine.leases.suspend(lease.fence, [Child("it", other_id)]), Suspended)
    assert await state_of(engine, lease.execution_id) is State.SUSPENDED
    await ended(engine, other_id, outcome)
    assert await state_of(engine, lease.execution_id) is State.WAITING
    assert await read_signals(engine, lease.execution_id) == [("it", outcome)]


@pytest.mark.parametrize("outcome", OUTCOMES)
async def test_execution_that_has_already_ended_counts_immediately(engine: Engine, outcome: str) -> None:
    other_id, lease = await submitted(engine), await leased(engine)
    await ended(engine, other_id, outcome)
    result = await engine.leases.suspend(lease.fence, [Child("it", other_id)])
    assert isinstance(result, Satisfied)
    assert [signal.name for signal in result.signals] == [outcome]


async def test_running_standalone_execution_signals_when_it_completes(engine: Engine) -> None:
    running, lease = await leased(engine), await leased(engine)
    assert running.is_standalone
    await engine.leases.suspend(lease.fence, [Child("it", running.execution_id)])
    await engine.leases.complete(running.fence, b"out")
    assert await read_signals(engine, lease.execution_id) == [("it", "completed")]
    next_lease = await engine.leases.claim_execution(lease.execution_id, "worker-2")
    waits = await engine.leases.read_waits(next_lease.fence, {"it": 0}, [running.execution_id])
    assert waits.children[running.execution_id].result == b"out"


async def test_executions_completed_in_one_batch_signal_every_waiting_one(engine: Engine) -> None:
    others = [await leased(engine) for _ in range(3)]
    waiting = [await leased(engine) for _ in range(2)]
    bindings = [Child(f"s{number}", other.execution_id) for number, other in enumerate(others)]
    for lease in waiting:
        await engine.leases.suspend(lease.fence, bindings, AllOf([Single(binding.key) for binding in bindings]))
    await engine.leases.complete_many([(other.fence, b"out") for other in others])
    for lease in waiting:
        assert await state_of(engine, lease.execution_id) is State.WAITING
        assert len(await read_signals(engine, lease.execution_id)) == 3


async def test_every_way_to_end_signals_the_waiting_execution(engine: Engine, clock: VirtualClock) -> None:
    ids = {
        "deadline": await submitted(engine, policy=Policy(deadline="10s")),
        "attempt": (
            await leased(engine, policy=Policy(attempt_timeout="10s", max_retries=0), lease_ttl="1h")
        ).execution_id,
        "lease": (await leased(engine, policy=Policy(max_reclaims=0))).execution_id,
    }
    lease = await leased(engine, lease_ttl="1h")
    bindings = [Child(key, id_) for key, id_ in ids.items()]
    await engine.leases.suspend(lease.fence, bindings, AllOf([Single(key) for key in ids]))
    clock.advance("40s")
    await engine.reconcilers.tick()
    assert dict(await read_signals(engine, lease.execution_id)) == {
        "deadline": "expired",
        "attempt": "failed",
        "lease": "failed",
    }


async def test_members_of_flows_and_children_of_others_can_be_awaited(engine: Engine) -> None:
    flow = await built(engine, {"a": [], "b": ["a"]})
    other_lease = await leased(engine, lease_ttl="1h")
    children = await with_children(engine, other_lease, "kid")
    lease = await leased(engine, lease_ttl="1h")
    own = await with_children(engine, lease, "own")
    awaited = {"b": flow["b"], "kid": children["kid"], "own": own["own"]}
    bindings = [Child(key, id_) for key, id_ in awaited.items()]
    outcome = await engine.leases.suspend(lease.fence, bindings, AllOf([Single(key) for key in awaited]))
    assert isinstance(outcome, Suspended)
    # The awaited member is skipped because its upstream member failed, so no call ends it directly.
    await ended(engine, flow["a"], "failed")
    await ended(engine, children["kid"])
    await ended(engine, own["own"])
    assert sorted(await read_signals(engine, lease.execution_id)) == [
        ("b", "skipped"),
        ("kid", "completed"),
        ("own", "completed"),
    ]


async def test_members_cancelled_with_their_flow_signal_the_waiting_execution(engine: Engine) -> None:
    flow = await built(engine, {"a": [], "b": ["a"]})
    lease = await leased(engine)
    condition = AllOf([Single("a"), Single("b")])
    await engine.leases.suspend(lease.fence, [Child("a", flow["a"]), Child("b", flow["b"])], condition)
    await engine.flows.cancel(flow.id)
    assert sorted(await read_signals(engine, lease.execution_id)) == [("a", "cancelled"), ("b", "cancelled")]


async def test_member_of_a_flow_may_wait_for_other_executions(engine: Engine) -> None:
    flow, other_id = await built(engine, {"a": []}), await submitted(engine)
    lease = await flow.claim("a")
    await engine.leases.suspend(lease.fence, [Child("it", other_id)])
    await ended(engine, other_id)
    next_lease = await engine.leases.claim_execution(flow["a"], "worker-2")
    await engine.leases.complete(next_lease.fence)
    assert await flow.state() == "completed"


async def test_detached_child_can_be_awaited(engine: Engine) -> None:
    lease = await leased(engine)
    detached = ChildSubmission("loner", Submission(kind="job"), detached=True)
    [created] = await engine.leases.submit_children(lease.fence, [detached])
    await engine.leases.suspend(lease.fence, [Child("it", created.id)])
    await ended(engine, created.id)
    assert await read_signals(engine, lease.execution_id) == [("it", "completed")]


async def test_kept_binding_can_be_bound_again_and_has_its_signal_once(engine: Engine) -> None:
    first_id, second_id = await submitted(engine), await submitted(engine)
    lease = await leased(engine, signals=["go"], lease_ttl="1h")
    first, second = Child("one", first_id), Child("other", second_id)
    condition = AnyOf([Single("one"), Single("other"), Single("go")])
    await engine.leases.suspend(
        lease.fence, [first, second, StandingWaitpoint("go")], condition, unused_waitpoints="keep"
    )
    await engine.signals.send(lease.execution_id, "go")
    next_lease = await engine.leases.claim_execution(lease.execution_id, "worker-2", lease_ttl="1h")
    await ended(engine, first_id)
    outcome = await engine.leases.suspend(next_lease.fence, [first, second], AllOf([Single("one"), Single("other")]))
    assert isinstance(outcome, Suspended)
    await ended(engine, second_id)
    assert await read_signals(engine, lease.execution_id) == [("one", "completed"), ("other", "completed")]


async def test_waitpoint_closed_before_the_next_wait_is_created_again(engine: Engine) -> None:
    other_id = await submitted(engine)
    lease = await leased(engine, signals=["go"])
    condition = AnyOf([Single("it"), Single("go")])
    await engine.leases.suspend(
        lease.fence, [Child("it", other_id), StandingWaitpoint("go")], condition, unused_waitpoints="keep"
    )
    await engine.signals.send(lease.execution_id, "go")
    next_lease = await engine.leases.claim_execution(lease.execution_id, "worker-2")
    [kept] = [waitpoint for waitpoint in await engine.waitpoints.list(lease.execution_id) if waitpoint.key == "it"]
    await engine.waitpoints.close(kept.id)
    await ended(engine, other_id)
    outcome = await engine.leases.suspend(next_lease.fence, [Child("it", other_id)])
    assert isinstance(outcome, Satisfied)
    assert [signal.name for signal in outcome.signals] == ["completed"]


async def test_unknown_foreign_or_own_execution_cannot_be_awaited(engine: Engine, store: TestStore) -> None:
    lease = await leased(engine)
    elsewhere = await submitted(engine.for_namespace("other"))
    async with nothing_written(store):
        for id_ in (uuid4(), elsewhere, lease.execution_id):
            await refused(engine.leases.suspend(lease.fence, [Child("it", id_)]), "child_not_found", NotFound)


async def test_refused_wait_does_not_change_the_awaited_execution(engine: Engine, store: TestStore) -> None:
    other_id, lease = await submitted(engine), await leased(engine)
    await engine.leases.checkpoint(lease.fence, [Step("final", b"1")])
    async with nothing_written(store):
        conflicting = engine.leases.suspend(lease.fence, [Child("it", other_id)], steps=[Step("final", b"2")])
        with pytest.raises(Exception, match="final"):
            await conflicting


async def test_repeated_wait_returns_the_first_outcome(engine: Engine) -> None:
    other_id, lease = await submitted(engine), await leased(engine)
    for key in (None, "wait"):
        waiting = lease if key is None else await leased(engine)
        first = await engine.leases.suspend(waiting.fence, [Child("it", other_id)], key=key)
        assert await engine.leases.suspend(waiting.fence, [Child("it", other_id)], key=key) == first


async def test_two_executions_may_wait_for_each_other_until_one_is_cancelled(engine: Engine) -> None:
    first, second = await leased(engine), await leased(engine)
    await engine.leases.suspend(first.fence, [Child("it", second.execution_id)])
    await engine.leases.suspend(second.fence, [Child("it", first.execution_id)])
    await engine.operator.cancel(first.execution_id)
    assert await read_signals(engine, second.execution_id) == [("it", "cancelled")]
