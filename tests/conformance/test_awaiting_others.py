"""Child bindings to executions that are nobody's child, or somebody else's: any of the namespace can be waited for."""

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
    Standing,
    State,
    Step,
    Submission,
    Suspended,
)  # fmt: skip
from flowfabric.testing import VirtualClock
from tests.facts import nothing_written, refused
from tests.flows import built, ended, with_children
from tests.scenarios import leased, submitted
from tests.stores import TestStore

OUTCOMES = ("completed", "failed", "cancelled")


async def state_of(engine: Engine, id_: UUID) -> State:
    return (await engine.executions.describe(id_)).state


async def told(engine: Engine, id_: UUID) -> list[tuple[str, str]]:
    return [(signal.waitpoint, signal.name) for signal in await engine.signals.observe(id_)]


@pytest.mark.parametrize("outcome", OUTCOMES)
async def test_the_end_of_a_stranger_resumes_whoever_waits_for_it(engine: Engine, outcome: str) -> None:
    stranger, lease = await submitted(engine), await leased(engine)
    assert isinstance(await engine.leases.suspend(lease.fence, [Child("it", stranger)]), Suspended)
    assert await state_of(engine, lease.execution_id) is State.SUSPENDED
    await ended(engine, stranger, outcome)
    assert await state_of(engine, lease.execution_id) is State.WAITING
    assert await told(engine, lease.execution_id) == [("it", outcome)]


@pytest.mark.parametrize("outcome", OUTCOMES)
async def test_a_stranger_that_has_ended_counts_at_once(engine: Engine, outcome: str) -> None:
    stranger, lease = await submitted(engine), await leased(engine)
    await ended(engine, stranger, outcome)
    answer = await engine.leases.suspend(lease.fence, [Child("it", stranger)])
    assert isinstance(answer, Satisfied)
    assert [signal.name for signal in answer.signals] == [outcome]


async def test_work_under_way_that_was_plain_tells_when_it_completes(engine: Engine) -> None:
    running, lease = await leased(engine), await leased(engine)
    assert running.plain
    await engine.leases.suspend(lease.fence, [Child("it", running.execution_id)])
    await engine.leases.complete(running.fence, b"out")
    assert await told(engine, lease.execution_id) == [("it", "completed")]
    again = await engine.leases.claim_execution(lease.execution_id, "worker-2")
    look = await engine.leases.look(again.fence, {"it": 0}, [running.execution_id])
    assert look.children[running.execution_id].result == b"out"


async def test_many_that_complete_in_one_batch_tell_everybody(engine: Engine) -> None:
    strangers = [await leased(engine) for _ in range(3)]
    waiting = [await leased(engine) for _ in range(2)]
    bindings = [Child(f"s{number}", item.execution_id) for number, item in enumerate(strangers)]
    for lease in waiting:
        await engine.leases.suspend(lease.fence, bindings, AllOf([Single(binding.key) for binding in bindings]))
    await engine.leases.complete_many([(item.fence, b"out") for item in strangers])
    for lease in waiting:
        assert await state_of(engine, lease.execution_id) is State.WAITING
        assert len(await told(engine, lease.execution_id)) == 3


async def test_every_way_to_end_is_told(engine: Engine, clock: VirtualClock) -> None:
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
    assert dict(await told(engine, lease.execution_id)) == {
        "deadline": "expired", "attempt": "failed", "lease": "failed",
    }  # fmt: skip


async def test_members_of_flows_and_children_of_others_can_be_waited_for(engine: Engine) -> None:
    flow = await built(engine, {"a": [], "b": ["a"]})
    other = await leased(engine, lease_ttl="1h")
    children = await with_children(engine, other, "kid")
    lease = await leased(engine, lease_ttl="1h")
    own = await with_children(engine, lease, "own")
    awaited = {"b": flow["b"], "kid": children["kid"], "own": own["own"]}
    bindings = [Child(key, id_) for key, id_ in awaited.items()]
    answer = await engine.leases.suspend(lease.fence, bindings, AllOf([Single(key) for key in awaited]))
    assert isinstance(answer, Suspended)
    # Skipped, because what it needs has failed: it ends by what follows, not by a call of its own.
    await ended(engine, flow["a"], "failed")
    await ended(engine, children["kid"])
    await ended(engine, own["own"])
    assert sorted(await told(engine, lease.execution_id)) == [
        ("b", "skipped"), ("kid", "completed"), ("own", "completed"),
    ]  # fmt: skip


async def test_members_that_are_cancelled_with_their_flow_are_told(engine: Engine) -> None:
    flow = await built(engine, {"a": [], "b": ["a"]})
    lease = await leased(engine)
    both = AllOf([Single("a"), Single("b")])
    await engine.leases.suspend(lease.fence, [Child("a", flow["a"]), Child("b", flow["b"])], both)
    await engine.flows.cancel(flow.id)
    assert sorted(await told(engine, lease.execution_id)) == [("a", "cancelled"), ("b", "cancelled")]


async def test_a_member_of_a_flow_may_wait_for_strangers(engine: Engine) -> None:
    flow, stranger = await built(engine, {"a": []}), await submitted(engine)
    lease = await flow.claim("a")
    await engine.leases.suspend(lease.fence, [Child("it", stranger)])
    await ended(engine, stranger)
    again = await engine.leases.claim_execution(flow["a"], "worker-2")
    await engine.leases.complete(again.fence)
    assert await flow.state() == "completed"


async def test_a_detached_one_is_waited_for_like_any_other(engine: Engine) -> None:
    lease = await leased(engine)
    loner = ChildSubmission("loner", Submission(kind="job"), detached=True)
    [made] = await engine.leases.submit_children(lease.fence, [loner])
    await engine.leases.suspend(lease.fence, [Child("it", made.id)])
    await ended(engine, made.id)
    assert await told(engine, lease.execution_id) == [("it", "completed")]


async def test_what_is_kept_is_bound_again_and_has_its_signal_once(engine: Engine) -> None:
    one, other = await submitted(engine), await submitted(engine)
    lease = await leased(engine, signals=["go"], lease_ttl="1h")
    first, second = Child("one", one), Child("other", other)
    either = AnyOf([Single("one"), Single("other"), Single("go")])
    await engine.leases.suspend(lease.fence, [first, second, Standing("go")], either, rest="keep")
    await engine.signals.send(lease.execution_id, "go")
    again = await engine.leases.claim_execution(lease.execution_id, "worker-2", lease_ttl="1h")
    await ended(engine, one)
    answer = await engine.leases.suspend(again.fence, [first, second], AllOf([Single("one"), Single("other")]))
    assert isinstance(answer, Suspended)
    await ended(engine, other)
    assert await told(engine, lease.execution_id) == [("one", "completed"), ("other", "completed")]


async def test_a_waitpoint_that_was_closed_meanwhile_is_made_again(engine: Engine) -> None:
    stranger = await submitted(engine)
    lease = await leased(engine, signals=["go"])
    either = AnyOf([Single("it"), Single("go")])
    await engine.leases.suspend(lease.fence, [Child("it", stranger), Standing("go")], either, rest="keep")
    await engine.signals.send(lease.execution_id, "go")
    again = await engine.leases.claim_execution(lease.execution_id, "worker-2")
    [kept] = [item for item in await engine.waitpoints.list(lease.execution_id) if item.key == "it"]
    await engine.waitpoints.close(kept.id)
    await ended(engine, stranger)
    answer = await engine.leases.suspend(again.fence, [Child("it", stranger)])
    assert isinstance(answer, Satisfied)
    assert [signal.name for signal in answer.signals] == ["completed"]


async def test_what_is_not_there_or_elsewhere_or_itself_cannot_be_waited_for(engine: Engine, store: TestStore) -> None:
    lease = await leased(engine)
    elsewhere = await submitted(engine.within("other"))
    async with nothing_written(store):
        for id_ in (uuid4(), elsewhere, lease.execution_id):
            await refused(engine.leases.suspend(lease.fence, [Child("it", id_)]), "child_not_found", NotFound)


async def test_a_refused_wait_leaves_the_stranger_as_it_was(engine: Engine, store: TestStore) -> None:
    stranger, lease = await submitted(engine), await leased(engine)
    await engine.leases.checkpoint(lease.fence, [Step("final", b"1")])
    async with nothing_written(store):
        contradicting = engine.leases.suspend(lease.fence, [Child("it", stranger)], steps=[Step("final", b"2")])
        with pytest.raises(Exception, match="final"):
            await contradicting


async def test_a_repeated_wait_is_answered_as_the_first(engine: Engine) -> None:
    stranger, lease = await submitted(engine), await leased(engine)
    for key in (None, "wait"):
        held = lease if key is None else await leased(engine)
        first = await engine.leases.suspend(held.fence, [Child("it", stranger)], key=key)
        assert await engine.leases.suspend(held.fence, [Child("it", stranger)], key=key) == first


async def test_two_may_wait_for_each_other_until_one_gives_up(engine: Engine) -> None:
    one, other = await leased(engine), await leased(engine)
    await engine.leases.suspend(one.fence, [Child("it", other.execution_id)])
    await engine.leases.suspend(other.fence, [Child("it", one.execution_id)])
    await engine.operator.cancel(one.execution_id)
    assert await told(engine, other.execution_id) == [("it", "cancelled")]
