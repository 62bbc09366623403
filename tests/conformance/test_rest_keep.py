"""rest="keep": of a satisfied AnyOf only what satisfied it closes; the rest stays with its tokens and signals."""

from __future__ import annotations

from datetime import timedelta

from flowfabric.core.outcomes import Satisfied
from flowfabric.engine import (
    Accepted,
    AllOf,
    AnyOf,
    Effect,
    Engine,
    Pending,
    Rest,
    Single,
    Suspended,
    Timer,
    WaitpointState,
)  # fmt: skip
from flowfabric.testing import VirtualClock
from tests.facts import refused
from tests.scenarios import leased, suspended

CONDITION = AnyOf([Single("a", "yes"), AllOf([Single("b", "yes"), Single("c", "yes")])])


async def test_the_waitpoints_of_other_members_return_to_pending_with_tokens_and_signals(engine: Engine) -> None:
    wait = await suspended(engine, ["a", "b", "c"], CONDITION, rest="keep", timeout="1h")
    await engine.signals.deliver(wait.token("b"), "yes", b"early")
    await engine.signals.deliver(wait.token("a"), "yes")
    assert [signal.waitpoint for signal in await engine.signals.observe(wait.id)] == ["a"]
    listed = {item.key: item for item in await engine.waitpoints.list(wait.id)}
    assert {key: item.state for key, item in listed.items()} == {
        "a": WaitpointState.CLOSED,
        "b": WaitpointState.PENDING,
        "c": WaitpointState.PENDING,
    }
    assert {listed[key].expires_at for key in "bc"} == {None}
    buffered = await engine.signals.deliver(wait.token("c"), "no")
    assert isinstance(buffered, Accepted)
    assert buffered.effect is Effect.BUFFERED
    lease = await engine.leases.claim_resumed(wait.id, "worker-2")
    rest = await suspended(engine, [Pending("b"), Pending("c")], CONDITION.members[1], lease=lease)
    assert [rest.token(key) for key in "bc"] == [wait.token(key) for key in "bc"]
    answer = await engine.signals.deliver(wait.token("c"), "yes")
    assert isinstance(answer, Accepted)
    assert answer.effect is Effect.SATISFIED
    assert [signal.payload for signal in await engine.signals.observe(wait.id)] == [b"early", b""]


async def test_without_it_all_close(engine: Engine) -> None:
    wait = await suspended(engine, ["a", "b", "c"], CONDITION, rest=Rest.CLOSE)
    await engine.signals.deliver(wait.token("b"), "yes")
    await engine.signals.deliver(wait.token("a"), "yes")
    assert {item.close_reason for item in await engine.waitpoints.list(wait.id)} == {"resumed"}
    await refused(engine.signals.deliver(wait.token("c"), "yes"), "waitpoint_closed")


async def test_another_root_an_operator_and_a_timeout_close_all(engine: Engine, clock: VirtualClock) -> None:
    root = await suspended(engine, ["a", "b"], AllOf([AnyOf([Single("a"), Single("b")])]), rest="keep")
    await engine.signals.deliver(root.token("a"), "go")
    operator = await suspended(engine, ["a", "b", "c"], CONDITION, rest="keep")
    await engine.operator.resume(operator.id)
    timed = await suspended(engine, ["a", "b", "c"], CONDITION, rest="keep", timeout="1h", on_timeout="auto_resume")
    clock.advance("1h")
    await engine.reconcilers.tick()
    for wait in (root, operator, timed):
        assert {item.state for item in await engine.waitpoints.list(wait.id)} == {WaitpointState.CLOSED}


async def test_it_is_kept_as_well_when_the_wait_is_over_at_once(engine: Engine) -> None:
    lease = await leased(engine)
    early = {key: await engine.waitpoints.create(lease.fence, key) for key in "ab"}
    for key in "ba":
        token = early[key].token
        assert token is not None
        await engine.signals.deliver(token, "yes")
    answer = await engine.leases.suspend(lease.fence, ["a", "b", "c"], CONDITION, rest="keep")
    assert isinstance(answer, Satisfied)
    assert [signal.waitpoint for signal in answer.signals] == ["a"]
    open_now = [item.key for item in (await engine.executions.describe(lease.execution_id)).waitpoints]
    assert open_now == ["b", "c"]
    again = await engine.leases.suspend(lease.fence, [Pending("b")], Single("b", "yes"))
    assert isinstance(again, Satisfied), "its signal still counts"


async def test_a_kept_timer_fires_into_its_own_queue(engine: Engine, clock: VirtualClock) -> None:
    condition = AnyOf([Single("go"), Single("t")])
    wait = await suspended(engine, ["go", Timer("t", clock.now() + timedelta(minutes=1))], condition, rest="keep")
    await engine.signals.deliver(wait.token(), "go")
    lease = await engine.leases.claim_resumed(wait.id, "worker-2", lease_ttl="1h")
    clock.advance("1m")
    await engine.reconcilers.tick()
    answer = await engine.leases.suspend(lease.fence, [Timer("t", clock.now())])
    assert isinstance(answer, Satisfied)
    assert [signal.name for signal in answer.signals] == ["timer"]


async def test_the_first_answer_is_the_same_again_when_the_rest_is_bound_elsewhere(engine: Engine) -> None:
    wait = await suspended(engine, ["a", "b", "c"], CONDITION, rest="keep", key="k", timeout="1h")
    await engine.signals.deliver(wait.token("a"), "yes")
    lease = await engine.leases.claim_resumed(wait.id, "worker-2")
    await suspended(engine, [Pending("b"), Pending("c")], lease=lease)
    again = await engine.leases.suspend(
        wait.lease.fence, ["a", "b", "c"], CONDITION, rest="keep", key="k", timeout="1h"
    )
    assert isinstance(again, Suspended)
    assert again == wait.answer
