"""cancel_flow: three policies; what has finished keeps its outcome, what is cancelled is fenced off."""

from __future__ import annotations

from uuid import uuid4

import pytest

from flowfabric.engine import (
    CancelPolicy,
    CancelScheduled,
    Engine,
    FlowAlreadyCancelled,
    FlowCancelled,
    FlowFabricError,
    NotFound,
    State,
    any_of,
)
from flowfabric.testing import VirtualClock
from tests.concurrency.waits import duty
from tests.facts import every_write_is_refused, last_event, nothing_written, refused
from tests.flows import Flow, built, claimable, flow_events
from tests.stores import TestStore

ALL = {
    "done": [], "broken": [], "active": [], "suspended": [], "resting": [], "released": [], "retrying": [],
    "waiting": [], "held": [], "delayed": [], "blocked": ["active"],
}  # fmt: skip
FINISHED = {"done": "completed", "broken": "failed"}
STARTED = {
    "active": "active",
    "suspended": "suspended",
    "resting": "delayed",
    "released": "waiting",
    "retrying": "delayed",
}
PENDING = {"waiting": "waiting", "held": "blocked", "delayed": "delayed", "blocked": "blocked"}


async def in_every_state(engine: Engine) -> Flow:
    """A flow with a member in every state."""
    flow = await built(engine, ALL, options={"delayed": {"delay": "1h"}})
    await flow.complete("done")
    await flow.fail("broken")
    await flow.claim("active")
    await engine.leases.suspend((await flow.claim("suspended")).fence, ["go"])
    await engine.leases.delay((await flow.claim("resting")).fence, after="1h")
    await engine.leases.release((await flow.claim("released")).fence)
    await engine.leases.fail((await flow.claim("retrying")).fence, "not yet")
    await engine.operator.hold(flow["held"], "look")
    assert await flow.states() == FINISHED | STARTED | PENDING
    return flow


def cancelled(states: dict[str, str]) -> dict[str, str]:
    return dict.fromkeys(states, "cancelled")


async def test_cancel_all_ends_everything_that_has_not_ended(engine: Engine, store: TestStore) -> None:
    flow = await in_every_state(engine)
    answer = await engine.flows.cancel(flow.id, "enough", source="cleanup", principal="ada")
    assert answer == FlowCancelled(9)
    assert await flow.states() == FINISHED | cancelled(STARTED | PENDING)
    assert await flow.state() == "cancelled"
    assert await claimable(engine) == set()
    assert await flow_events(store, flow.id) == ["cancel_requested", "finished"]


async def test_cancel_pending_lets_what_has_started_go_on(engine: Engine) -> None:
    flow = await in_every_state(engine)
    answer = await engine.flows.cancel(flow.id, "enough", policy=CancelPolicy.CANCEL_PENDING)
    assert answer == FlowCancelled(4)
    assert await flow.states() == FINISHED | STARTED | cancelled(PENDING)
    assert await flow.state() == "cancelled"


async def test_flow_only_cancels_no_member(engine: Engine) -> None:
    flow = await in_every_state(engine)
    answer = await engine.flows.cancel(flow.id, "enough", policy="flow_only")
    assert answer == FlowCancelled(0)
    assert await flow.states() == FINISHED | STARTED | PENDING
    assert await flow.state() == "cancelled"


async def test_leases_of_cancelled_members_are_fenced_off(engine: Engine) -> None:
    flow = await built(engine, {"a": [], "b": ["a"]})
    lease = await flow.claim("a")
    await engine.flows.cancel(flow.id, "enough")
    await every_write_is_refused(engine, lease.fence, "execution_not_active")
    assert await flow.states() == {"a": "cancelled", "b": "cancelled"}


async def test_who_and_why_is_recorded_on_every_member(engine: Engine) -> None:
    flow = await built(engine, {"a": [], "b": ["a"]})
    await engine.flows.cancel(flow.id, "too dear", source="budget", principal="ada")
    for name in ("a", "b"):
        found, event = await engine.executions.describe(flow[name]), await last_event(engine, flow[name])
        assert (found.cancelled_by, found.cancel_reason) == ("budget", "too dear")
        assert (event.name, event.principal, event.reason) == ("cancelled", "ada", "too dear")


async def test_finished_members_are_not_touched(engine: Engine) -> None:
    flow = await in_every_state(engine)
    before = {name: await engine.executions.describe(flow[name]) for name in FINISHED}
    await engine.flows.cancel(flow.id, "enough")
    assert {name: await engine.executions.describe(flow[name]) for name in FINISHED} == before


@pytest.mark.parametrize("policy", CancelPolicy)
async def test_a_second_cancel_tells_of_the_first_and_writes_nothing(
    engine: Engine, store: TestStore, policy: CancelPolicy
) -> None:
    flow = await in_every_state(engine)
    await engine.flows.cancel(flow.id, "first", policy=policy, source="one")
    async with nothing_written(store):
        for again in CancelPolicy:
            answer = await engine.flows.cancel(flow.id, "second", policy=again, source="two")
            assert answer == FlowAlreadyCancelled(policy, "first", "one")


async def test_a_finished_flow_keeps_its_outcome(engine: Engine, store: TestStore) -> None:
    flow = await built(engine, {"a": []})
    await flow.complete("a")
    async with nothing_written(store):
        await refused(engine.flows.cancel(flow.id, "late"), "flow_already_terminal", FlowFabricError)
    assert await flow.state() == "completed"


async def test_an_unknown_flow_is_not_found(engine: Engine) -> None:
    await refused(engine.flows.cancel(uuid4(), "stop"), "flow_not_found", NotFound)


async def test_after_a_cancel_nothing_is_released_skipped_or_cancelled_by_an_edge(engine: Engine) -> None:
    shape = {"a": [], "b": [], "next": ["a"], "race": ["a", "b"]}
    flow = await built(engine, shape, joins={"race": any_of()})
    lease, loser = await flow.claim("a"), await flow.claim("b")
    await engine.flows.cancel(flow.id, "enough", policy="cancel_pending")
    await engine.leases.complete(lease.fence, b"")
    assert await flow.states() == {"a": "completed", "b": "active", "next": "cancelled", "race": "cancelled"}
    await engine.leases.complete(loser.fence, b"")
    described = await engine.flows.describe(flow.id)
    assert {edge.state.value for edge in described.edges} == {"satisfied"}


async def test_a_flow_that_is_only_marked_goes_on_by_itself(engine: Engine) -> None:
    flow = await built(engine, {"a": [], "b": ["a"], "c": []})
    await engine.flows.cancel(flow.id, "enough", policy="flow_only")
    await flow.complete("a")
    assert await flow.member("b") == "waiting"
    await flow.complete("b", "c")
    assert await flow.state() == "cancelled"


async def test_a_member_waiting_for_a_signal_closes_its_waitpoints(engine: Engine) -> None:
    flow = await built(engine, {"a": []})
    await engine.leases.suspend((await flow.claim("a")).fence, ["go"])
    await engine.flows.cancel(flow.id, "enough")
    found = await engine.executions.describe(flow["a"])
    assert (found.state, found.suspension, found.waitpoints) == (State.CANCELLED, None, ())


async def test_more_than_a_batch_is_cancelled_by_the_caller_or_by_the_duty(engine: Engine, store: TestStore) -> None:
    flow = await built(engine, {f"m{number}": [] for number in range(1_050)})
    answer = await engine.flows.cancel(flow.id, "enough")
    while await duty("flow_cancellation")(engine):
        pass
    [row] = await store.query("SELECT COUNT(*) AS number FROM ff.execution WHERE state = 'cancelled'")
    assert row["number"] == 1_050, answer
    assert await flow.state() == "cancelled"
    assert await claimable(engine) == set()


async def test_whom_the_cancel_has_not_reached_yet_is_not_released(engine: Engine, store: TestStore) -> None:
    names = [f"m{number}" for number in range(1_010)]
    flow = await built(engine, {"a": [], **{name: ["a"] for name in names}})
    lease = await flow.claim("a")
    assert await engine.flows.cancel(flow.id, "enough", policy="cancel_pending") == CancelScheduled(10)
    await engine.leases.complete(lease.fence, b"")
    assert await claimable(engine) == set()
    [row] = await store.query("SELECT COUNT(*) AS number FROM ff.execution WHERE state = 'blocked'")
    assert row["number"] == 10
    while await duty("flow_cancellation")(engine):
        pass
    assert set((await flow.states()).values()) == {"completed", "cancelled"}


async def test_a_cancel_that_waits_answers_when_all_have_ended(engine: Engine, store: TestStore) -> None:
    flow = await built(engine, {f"m{number}": [] for number in range(1_050)})
    assert await engine.flows.cancel(flow.id, "enough", wait="10s") == FlowCancelled(1_050)
    [row] = await store.query("SELECT COUNT(*) AS number FROM ff.execution WHERE state = 'cancelled'")
    assert row["number"] == 1_050


async def test_a_second_cancel_that_waits_ends_what_the_first_has_left(engine: Engine, store: TestStore) -> None:
    flow = await built(engine, {f"m{number}": [] for number in range(1_050)})
    assert await engine.flows.cancel(flow.id, "enough") == CancelScheduled(50)
    answer = await engine.flows.cancel(flow.id, "second", wait="10s")
    assert answer == FlowAlreadyCancelled(CancelPolicy.CANCEL_ALL, "enough", "operator_override")
    assert await claimable(engine) == set()
    assert (await engine.flows.describe(flow.id)).counts == {State.CANCELLED: 1_050}
    async with nothing_written(store):
        assert await engine.flows.cancel(flow.id, "third", wait="10s") == answer


async def test_who_cancelled_a_flow_and_why_is_shown_and_in_its_events(engine: Engine) -> None:
    flow = await built(engine, {"a": []})
    await engine.flows.cancel(flow.id, "too dear", source="budget", principal="ada")
    [listed] = (await engine.flows.list()).items
    for found in (await engine.flows.describe(flow.id), listed):
        assert (found.cancelled_by, found.cancel_reason, found.cancel_principal) == ("budget", "too dear", "ada")
        assert found.cancel_policy is CancelPolicy.CANCEL_ALL
    events = engine.events.subscribe(flow=flow.id, start="beginning", follow=False)
    [event] = [item async for item in events if item.name == "cancel_requested"]
    assert (event.principal, event.reason) == ("ada", "too dear")
    assert event.details == {"name": "etl", "policy": "cancel_all", "source": "budget"}


async def test_cancelling_each_member_alone_makes_a_failed_flow(engine: Engine, clock: VirtualClock) -> None:
    flow = await built(engine, {"a": [], "b": ["a"]})
    await flow.cancel("a")
    assert await flow.states() == {"a": "cancelled", "b": "skipped"}
    assert await flow.state() == "failed"
