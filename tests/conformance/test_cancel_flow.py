"""Tests of cancel_flow and its three policies. Finished members keep their outcome."""

from __future__ import annotations

from uuid import uuid4

import pytest

from flowfabric.engine import (
    AttemptOutcome,
    CancelPolicy,
    Engine,
    FlowAlreadyTerminal,
    FlowCancelled,
    FlowState,
    NotFound,
    State,
    any_of,
)
from flowfabric.testing import VirtualClock
from tests.concurrency.waits import duty
from tests.expectations import event_names, every_write_is_refused, last_event, nothing_written, refused
from tests.flows import Flow, built, claimable, count_cancelled, count_remaining, flow_events
from tests.stores import TestStore

PAIR = {"a": [], "b": ["a"]}

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


async def build_flow_in_every_state(engine: Engine) -> Flow:
    """Build a flow with a member in every state."""
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


def all_cancelled(states: dict[str, str]) -> dict[str, str]:
    return dict.fromkeys(states, "cancelled")


async def test_cancel_all_cancels_every_live_member(engine: Engine, store: TestStore) -> None:
    flow = await build_flow_in_every_state(engine)
    outcome = await engine.flows.cancel(flow.id, "enough", source="cleanup", principal="ada")
    assert count_cancelled(outcome) == 9
    assert await flow.states() == FINISHED | all_cancelled(STARTED | PENDING)
    assert await flow.state() == "cancelled"
    assert await claimable(engine) == set()
    assert await flow_events(store, flow.id) == ["cancel_requested", "finished"]


async def test_cancel_pending_does_not_cancel_started_members(engine: Engine) -> None:
    flow = await build_flow_in_every_state(engine)
    outcome = await engine.flows.cancel(flow.id, "enough", policy=CancelPolicy.CANCEL_PENDING)
    assert count_cancelled(outcome) == 4
    assert await flow.states() == FINISHED | STARTED | all_cancelled(PENDING)
    assert await flow.state() == "cancelled"


async def test_flow_only_cancels_no_member(engine: Engine) -> None:
    flow = await build_flow_in_every_state(engine)
    outcome = await engine.flows.cancel(flow.id, "enough", policy="flow_only")
    assert count_cancelled(outcome) == 0
    assert await flow.states() == FINISHED | STARTED | PENDING
    assert await flow.state() == "cancelled"


async def test_leases_of_cancelled_members_are_fenced_off(engine: Engine) -> None:
    flow = await built(engine, {"a": [], "b": ["a"]})
    lease = await flow.claim("a")
    await engine.flows.cancel(flow.id, "enough")
    await every_write_is_refused(engine, lease.fence, "execution_not_active")
    assert await flow.states() == {"a": "cancelled", "b": "cancelled"}


async def test_source_reason_and_principal_are_recorded_on_every_member(engine: Engine) -> None:
    flow = await built(engine, {"a": [], "b": ["a"]})
    await engine.flows.cancel(flow.id, "too dear", source="budget", principal="ada")
    for name in ("a", "b"):
        execution, event = await engine.executions.describe(flow[name]), await last_event(engine, flow[name])
        assert (execution.cancelled_by, execution.cancel_reason) == ("budget", "too dear")
        assert (event.name, event.principal, event.reason) == ("cancelled", "ada", "too dear")


async def test_finished_members_are_not_changed(engine: Engine) -> None:
    flow = await build_flow_in_every_state(engine)
    before = {name: await engine.executions.describe(flow[name]) for name in FINISHED}
    await engine.flows.cancel(flow.id, "enough")
    assert {name: await engine.executions.describe(flow[name]) for name in FINISHED} == before


@pytest.mark.parametrize("policy", CancelPolicy)
async def test_second_cancel_returns_the_first_and_writes_nothing(
    engine: Engine, store: TestStore, policy: CancelPolicy
) -> None:
    flow = await build_flow_in_every_state(engine)
    await engine.flows.cancel(flow.id, "first", policy=policy, source="one")
    async with nothing_written(store):
        for second_policy in CancelPolicy:
            outcome = await engine.flows.cancel(flow.id, "second", policy=second_policy, source="two")
            assert outcome == FlowAlreadyTerminal(FlowState.CANCELLED, policy, "first", "one")


async def test_finished_flow_keeps_its_outcome(engine: Engine, store: TestStore) -> None:
    flow = await built(engine, {"a": []})
    await flow.complete("a")
    async with nothing_written(store):
        for policy in CancelPolicy:
            outcome = await engine.flows.cancel(flow.id, "late", policy=policy, wait="1s")
            assert outcome == FlowAlreadyTerminal(FlowState.COMPLETED)
    assert await flow.state() == "completed"


async def test_failed_flow_keeps_its_outcome(engine: Engine, store: TestStore) -> None:
    flow = await built(engine, PAIR)
    await flow.fail("a")
    async with nothing_written(store):
        assert await engine.flows.cancel(flow.id, "late") == FlowAlreadyTerminal(FlowState.FAILED)


async def test_cancel_returns_the_ids_of_the_members_it_cancelled(engine: Engine) -> None:
    flow = await built(engine, {"done": [], "a": [], "b": ["a"]})
    await flow.complete("done")
    outcome = await engine.flows.cancel(flow.id, "enough")
    assert isinstance(outcome, FlowCancelled)
    assert set(outcome.members) == {flow["a"], flow["b"]}
    assert (outcome.cancelled, outcome.is_truncated) == (2, False)


async def test_unknown_flow_is_not_found(engine: Engine) -> None:
    await refused(engine.flows.cancel(uuid4(), "stop"), "flow_not_found", NotFound)


async def test_edges_do_not_release_skip_or_cancel_members_of_a_cancelled_flow(engine: Engine) -> None:
    shape = {"a": [], "b": [], "next": ["a"], "race": ["a", "b"]}
    flow = await built(engine, shape, joins={"race": any_of()})
    lease, loser = await flow.claim("a"), await flow.claim("b")
    await engine.flows.cancel(flow.id, "enough", policy="cancel_pending")
    await engine.leases.complete(lease.fence, b"")
    assert await flow.states() == {"a": "completed", "b": "active", "next": "cancelled", "race": "cancelled"}
    await engine.leases.complete(loser.fence, b"")
    described = await engine.flows.describe(flow.id)
    assert {edge.state.value for edge in described.edges} == {"satisfied"}


async def test_flow_cancelled_with_flow_only_still_runs_its_members(engine: Engine) -> None:
    flow = await built(engine, {"a": [], "b": ["a"], "c": []})
    await engine.flows.cancel(flow.id, "enough", policy="flow_only")
    await flow.complete("a")
    assert await flow.member("b") == "waiting"
    await flow.complete("b", "c")
    assert await flow.state() == "cancelled"


async def test_cancelled_member_closes_its_waitpoints(engine: Engine) -> None:
    flow = await built(engine, {"a": []})
    await engine.leases.suspend((await flow.claim("a")).fence, ["go"])
    await engine.flows.cancel(flow.id, "enough")
    execution = await engine.executions.describe(flow["a"])
    assert (execution.state, execution.suspension, execution.waitpoints) == (State.CANCELLED, None, ())


async def test_cancel_and_its_duty_cancel_more_members_than_one_batch(engine: Engine, store: TestStore) -> None:
    flow = await built(engine, {f"m{number}": [] for number in range(1_050)})
    outcome = await engine.flows.cancel(flow.id, "enough")
    while await duty("flow_cancellation")(engine):
        pass
    [row] = await store.query("SELECT COUNT(*) AS number FROM ff.execution WHERE state = 'cancelled'")
    assert row["number"] == 1_050, outcome
    assert await flow.state() == "cancelled"
    assert await claimable(engine) == set()


async def test_member_not_yet_cancelled_is_not_released(engine: Engine, store: TestStore) -> None:
    names = [f"m{number}" for number in range(1_010)]
    flow = await built(engine, {"a": [], **{name: ["a"] for name in names}})
    lease = await flow.claim("a")
    assert count_remaining(await engine.flows.cancel(flow.id, "enough", policy="cancel_pending")) == 10
    await engine.leases.complete(lease.fence, b"")
    assert await claimable(engine) == set()
    [row] = await store.query("SELECT COUNT(*) AS number FROM ff.execution WHERE state = 'blocked'")
    assert row["number"] == 10
    while await duty("flow_cancellation")(engine):
        pass
    assert set((await flow.states()).values()) == {"completed", "cancelled"}


async def test_cancel_with_wait_returns_when_all_members_have_ended(engine: Engine, store: TestStore) -> None:
    flow = await built(engine, {f"m{number}": [] for number in range(1_050)})
    assert count_cancelled(await engine.flows.cancel(flow.id, "enough", wait="10s")) == 1_050
    [row] = await store.query("SELECT COUNT(*) AS number FROM ff.execution WHERE state = 'cancelled'")
    assert row["number"] == 1_050


async def test_second_cancel_with_wait_ends_the_remaining_members(engine: Engine, store: TestStore) -> None:
    flow = await built(engine, {f"m{number}": [] for number in range(1_050)})
    assert count_remaining(await engine.flows.cancel(flow.id, "enough")) == 50
    outcome = await engine.flows.cancel(flow.id, "second", wait="10s")
    assert outcome == FlowAlreadyTerminal(FlowState.CANCELLED, CancelPolicy.CANCEL_ALL, "enough", "operator_override")
    assert await claimable(engine) == set()
    assert (await engine.flows.describe(flow.id)).counts == {State.CANCELLED: 1_050}
    async with nothing_written(store):
        assert await engine.flows.cancel(flow.id, "third", wait="10s") == outcome


async def test_flow_and_its_events_show_who_cancelled_it_and_why(engine: Engine) -> None:
    flow = await built(engine, {"a": []})
    await engine.flows.cancel(flow.id, "too dear", source="budget", principal="ada")
    [list_entry] = (await engine.flows.list()).items
    for description in (await engine.flows.describe(flow.id), list_entry):
        assert (description.cancelled_by, description.cancel_reason, description.cancel_principal) == (
            "budget",
            "too dear",
            "ada",
        )
        assert description.cancel_policy is CancelPolicy.CANCEL_ALL
    events = engine.events.subscribe(flow=flow.id, start="beginning", follow=False)
    [event] = [event async for event in events if event.name == "cancel_requested"]
    assert (event.principal, event.reason) == ("ada", "too dear")
    assert event.details == {"name": "etl", "policy": "cancel_all", "source": "budget"}


async def test_cancelling_each_member_alone_fails_the_flow(engine: Engine, clock: VirtualClock) -> None:
    flow = await built(engine, {"a": [], "b": ["a"]})
    await flow.cancel("a")
    assert await flow.states() == {"a": "cancelled", "b": "skipped"}
    assert await flow.state() == "failed"


async def test_cancel_does_not_rewrite_finished_members(engine: Engine) -> None:
    flow = await built(engine, {"good": [], "bad": [], "left": []})
    await flow.complete("good")
    await flow.fail("bad")
    before = [
        (await engine.executions.describe(flow[name]), await event_names(engine, flow[name]))
        for name in ("good", "bad")
    ]
    await engine.flows.cancel(flow.id, "enough")
    after = [
        (await engine.executions.describe(flow[name]), await event_names(engine, flow[name]))
        for name in ("good", "bad")
    ]
    assert after == before
    outcome = await engine.executions.result(flow["good"])
    assert outcome is not None
    assert (outcome.state, outcome.result) == (State.COMPLETED, b"good")


async def test_cancel_pending_cancels_pending_members(engine: Engine) -> None:
    flow = await built(engine, {"a": [], "b": [], "c": ["a"]})
    await flow.claim("a")
    assert count_cancelled(await engine.flows.cancel(flow.id, "enough", policy=CancelPolicy.CANCEL_PENDING)) == 2
    assert await flow.states() == {"a": "active", "b": "cancelled", "c": "cancelled"}


async def test_lease_of_a_cancelled_member_is_fenced_and_its_attempt_is_cancelled(engine: Engine) -> None:
    flow = await built(engine, PAIR)
    lease = await flow.claim("a")
    await engine.flows.cancel(flow.id, "enough")
    await every_write_is_refused(engine, lease.fence, "execution_not_active")
    execution = await engine.executions.describe(flow["a"])
    assert (execution.state, [attempt.outcome for attempt in execution.attempts]) == (
        State.CANCELLED,
        [AttemptOutcome.CANCELLED],
    )
    assert (await last_event(engine, flow["a"])).name == "cancelled"


async def test_flow_only_changes_only_the_flow(engine: Engine) -> None:
    flow = await built(engine, PAIR)
    await engine.flows.cancel(flow.id, "enough", policy=CancelPolicy.FLOW_ONLY)
    assert (await flow.state(), await flow.states()) == ("cancelled", {"a": "waiting", "b": "blocked"})


async def test_unknown_flow_is_not_found_and_a_second_cancel_writes_nothing(engine: Engine, store: TestStore) -> None:
    await refused(engine.flows.cancel(uuid4(), "enough"), "flow_not_found", NotFound)
    flow = await built(engine, PAIR)
    await engine.flows.cancel(flow.id, "first", source="one")
    async with nothing_written(store):
        outcome = await engine.flows.cancel(flow.id, "second", source="two")
    assert outcome == FlowAlreadyTerminal(FlowState.CANCELLED, CancelPolicy.CANCEL_ALL, "first", "one")
    assert await flow_events(store, flow.id) == ["cancel_requested", "finished"]
