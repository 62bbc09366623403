"""Tests of replays that bring back skipped members: of one failed member, and of all failed members of a flow."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from uuid import uuid4

import pytest

from flowfabric.engine import (
    Edge,
    EdgeKind,
    Engine,
    InvalidRequest,
    NotFound,
    Policy,
    Refused,
    Unavailable,
    any_of,
    quorum,
)
from flowfabric.testing import VirtualClock
from tests.concurrency.flow_soundness import assert_flows_sound
from tests.concurrency.waits import duty
from tests.expectations import last_event, nothing_written, refused
from tests.faults.kit.replies import lose_each, losing_engine
from tests.flows import Flow, Shape, built, ended, flow_events, with_children
from tests.scenarios import leased
from tests.stores import TestStore

DIAMOND: Shape = {"a": [], "b": ["a"], "c": ["b"], "d": ["a"], "end": ["a", "c", "d"]}


async def _is_completed(flow: Flow) -> bool:
    return await flow.state() == "completed"


async def test_replay_brings_back_every_member_skipped_because_of_the_failure(engine: Engine, store: TestStore) -> None:
    flow = await built(engine, DIAMOND)
    await flow.fail("a")
    assert await flow.state() == "failed"
    replayed = await engine.operator.replay(flow["a"], "fixed", principal="ada")
    assert (replayed.generation, replayed.revived) == (1, 4)
    assert await flow.states() == {"a": "waiting", "b": "blocked", "c": "blocked", "d": "blocked", "end": "blocked"}
    event = await last_event(engine, flow["c"])
    assert (event.family, event.name, event.principal, event.reason) == ("operator", "replayed", "ada", "fixed")
    assert event.details == {"generation": 1, "cause": "upstream_replayed", "upstream": str(flow["b"])}
    assert (await engine.executions.describe(flow["c"])).replay_count == 0
    await flow.complete("a", "b", "c", "d", "end")
    assert await _is_completed(flow)
    assert await flow_events(store, flow.id) == ["finished", "finished"]
    await assert_flows_sound(store)


async def test_member_lost_to_two_failures_comes_back_with_the_second_replay(engine: Engine, store: TestStore) -> None:
    flow = await built(engine, {"a": [], "b": [], "c": ["a", "b"], "d": ["c"]})
    await flow.fail("a", "b")
    assert (await engine.operator.replay(flow["a"])).revived == 0
    await flow.complete("a")
    assert (await engine.operator.replay(flow["b"])).revived == 2
    assert await flow.states() == {"a": "completed", "b": "waiting", "c": "blocked", "d": "blocked"}
    await flow.complete("b", "c", "d")
    assert await _is_completed(flow)
    await assert_flows_sound(store)


async def test_member_that_fails_again_skips_its_downstream_members_again(engine: Engine) -> None:
    flow = await built(engine, {"a": [], "b": ["a"], "c": ["b"]})
    await flow.fail("a")
    for _ in range(3):
        await engine.operator.replay(flow["a"])
        await flow.fail("a")
        assert await flow.states() == {"a": "failed", "b": "skipped", "c": "skipped"}
        assert await flow.state() == "failed"


async def test_alarm_that_ran_stays_completed_and_its_unused_sibling_comes_back(engine: Engine) -> None:
    shape: Shape = {"a": [], "b": ["a"], "alarm": [Edge("a", EdgeKind.ON_FAILURE)], "after": ["alarm"]}
    flow = await built(engine, shape)
    await flow.fail("a")
    await flow.complete("alarm", "after")
    assert await _is_completed(flow)
    await engine.operator.replay(flow["a"])
    assert await flow.states() == {"a": "waiting", "b": "blocked", "alarm": "completed", "after": "completed"}
    await flow.complete("a", "b")
    assert await _is_completed(flow)


async def test_handled_failure_leaves_the_flow_completed_without_a_replay(engine: Engine) -> None:
    flow = await built(engine, {"a": [], "b": ["a"], "alarm": [Edge("a", EdgeKind.ON_FAILURE)]})
    await flow.fail("a")
    await flow.complete("alarm")
    assert await _is_completed(flow)


async def test_flow_that_left_a_member_behind_fails_even_if_its_last_member_completes_later(engine: Engine) -> None:
    flow = await built(engine, {"a": [], "b": ["a"], "z": [], "zz": ["z"]})
    await flow.fail("a")
    await engine.operator.replay(flow["a"], downstream=False)
    await flow.complete("a", "z", "zz")
    assert await flow.state() == "failed"


async def test_fired_group_keeps_its_member_when_a_failed_upstream_is_replayed(engine: Engine) -> None:
    flow = await built(engine, {"a": [], "b": [], "c": ["a", "b"]}, joins={"c": any_of()})
    await flow.fail("a")
    await flow.complete("b", "c")
    assert (await engine.operator.replay(flow["a"])).revived == 0
    assert await flow.member("c") == "completed"
    await flow.complete("a")
    assert await _is_completed(flow)


async def test_lost_race_comes_back_with_the_first_replayed_racer(engine: Engine, store: TestStore) -> None:
    flow = await built(engine, {"a": [], "b": [], "c": ["a", "b"], "d": ["c"]}, joins={"c": any_of()})
    await flow.fail("a", "b")
    assert (await engine.operator.replay(flow["b"])).revived == 2
    await flow.complete("b", "c", "d")
    assert await _is_completed(flow)
    await assert_flows_sound(store)


async def test_quorum_comes_back_with_the_members_that_were_cancelled_because_of_it(
    engine: Engine, store: TestStore
) -> None:
    voters = ["a", "b", "c", "d"]
    flow = await built(engine, {**{name: [] for name in voters}, "law": voters}, joins={"law": quorum(3)})
    lease = await flow.claim("c")
    await flow.fail("a", "b")
    assert await flow.states() == {
        "a": "failed",
        "b": "failed",
        "c": "cancelled",
        "d": "cancelled",
        "law": "skipped",
    }
    assert (await engine.operator.replay(flow["a"])).revived == 3
    assert await flow.states() == {
        "a": "waiting",
        "b": "failed",
        "c": "waiting",
        "d": "waiting",
        "law": "blocked",
    }
    await refused(engine.leases.complete(lease.fence, b"late"), "execution_not_active")
    await flow.complete("a", "c", "d", "law")
    assert await _is_completed(flow)
    await assert_flows_sound(store)


async def test_quorum_left_behind_with_its_cancelled_members_fails_the_flow(engine: Engine, store: TestStore) -> None:
    voters = ["a", "b", "c", "d"]
    flow = await built(engine, {**{name: [] for name in voters}, "law": voters}, joins={"law": quorum(3)})
    await flow.fail("a", "b")
    for name in ("a", "b"):
        await engine.operator.replay(flow[name], downstream=False)
        await flow.complete(name)
    assert await flow.state() == "failed"
    outcome = await engine.flows.replay(flow.id, failed=True)
    assert (outcome.replayed, outcome.revived) == (0, 3)
    await flow.complete("c")
    assert await flow.member("d") == "cancelled"
    await flow.complete("law")
    assert await _is_completed(flow)
    await assert_flows_sound(store)


async def test_waiting_member_downstream_of_a_revived_one_waits_again(engine: Engine) -> None:
    flow = await built(engine, {"a": [], "b": ["a"], "always": [Edge("b", EdgeKind.ON_COMPLETION)]})
    await flow.fail("a")
    assert await flow.member("always") == "waiting"
    await engine.operator.replay(flow["a"])
    assert await flow.states() == {"a": "waiting", "b": "blocked", "always": "blocked"}
    await flow.complete("a", "b", "always")
    assert await _is_completed(flow)


async def test_cancelled_member_stays_cancelled_and_its_downstream_members_stay_skipped(engine: Engine) -> None:
    flow = await built(engine, {"a": [], "x": [], "c": ["a", "x"], "d": ["a"]})
    await flow.cancel("x")
    await flow.fail("a")
    assert (await engine.operator.replay(flow["a"])).revived == 1
    assert await flow.states() == {"a": "waiting", "x": "cancelled", "c": "skipped", "d": "blocked"}
    assert (await engine.operator.replay(flow["x"])).revived == 1
    assert await flow.member("c") == "blocked"


async def test_long_chain_comes_back_in_one_transaction(engine: Engine, store: TestStore) -> None:
    names = [f"m{number}" for number in range(300)]
    shape: Shape = {name: [names[number - 1]] if number else [] for number, name in enumerate(names)}
    flow = await built(engine, shape)
    await flow.fail("m0")
    assert (await engine.operator.replay(flow["m0"])).revived == 299
    assert set((await flow.states()).values()) == {"waiting", "blocked"}
    await flow.complete(*names[:3])
    assert await flow.member("m3") == "waiting"
    await assert_flows_sound(store)


async def test_wide_flow_comes_back_in_batches(engine: Engine, store: TestStore) -> None:
    names = [f"m{number}" for number in range(1_050)]
    flow = await built(engine, {"a": [], **{name: ["a"] for name in names}})
    await flow.fail("a")
    assert (await engine.operator.replay(flow["a"])).revived == 1_050
    await flow.complete("a")
    [row] = await store.query("SELECT COUNT(*) AS number FROM ff.execution WHERE state = 'waiting'")
    assert row["number"] == 1_050
    await assert_flows_sound(store)


async def test_revived_member_opens_the_waitpoints_of_its_declared_signals(engine: Engine) -> None:
    flow = await built(engine, {"a": [], "b": ["a"]}, options={"b": {"signals": ["go"]}})
    await flow.fail("a")
    await engine.operator.replay(flow["a"])
    await engine.signals.send(flow["b"], "go", b"1")
    await flow.complete("a")
    lease = await flow.claim("b")
    snapshot = await engine.leases.read_waits(lease.fence, {"go": 0})
    assert len(snapshot.signals) == 1


async def test_repeated_replay_brings_back_nothing_twice(engine: Engine, store: TestStore) -> None:
    flow = await built(engine, {"a": [], "b": ["a"]})
    await flow.fail("a")
    assert (await engine.operator.replay(flow["a"], expected_generation=0)).revived == 1
    async with nothing_written(store):
        again = await engine.operator.replay(flow["a"], expected_generation=0)
    assert (again.generation, again.revived) == (1, 0)


async def test_flow_replay_replays_all_failed_members(engine: Engine, store: TestStore, clock: VirtualClock) -> None:
    shape: Shape = {"a": [], "b": [], "x": [], "ok": [], "c": ["a", "b"], "d": ["c", "ok"]}
    flow = await built(engine, shape)
    await flow.fail("a")
    await flow.expire("b", clock)
    await flow.cancel("x")
    await flow.complete("ok")
    outcome = await engine.flows.replay(flow.id, "fixed", failed=True, principal="ada")
    assert (outcome.replayed, outcome.revived, outcome.is_truncated) == (2, 2, False)
    assert (set(outcome.members), outcome.exhausted) == ({flow["a"], flow["b"]}, ())
    assert await flow.states() == {
        "a": "waiting",
        "b": "waiting",
        "x": "cancelled",
        "ok": "completed",
        "c": "blocked",
        "d": "blocked",
    }
    event = await last_event(engine, flow["a"])
    assert (event.name, event.principal, event.reason) == ("replayed", "ada", "fixed")
    await flow.complete("a", "b", "c", "d")
    assert await flow.state() == "failed"  # `x` was cancelled.
    await assert_flows_sound(store)


async def test_flow_replay_can_be_repeated_after_a_lost_reply(
    engine: Engine, store: TestStore, clock: VirtualClock
) -> None:
    flow = await built(engine, {"a": [], "b": ["a"]})
    await flow.fail("a")
    clock.advance("1s")
    first = await engine.flows.replay(flow.id, failed=True)
    assert first.ended_until == clock.now()
    clock.advance("1s")
    await flow.fail("a")
    async with nothing_written(store):
        again = await engine.flows.replay(flow.id, failed=True, ended_until=first.ended_until)
    assert (again.replayed, again.revived) == (0, 0)
    early = clock.now() - timedelta(hours=1)
    assert (await engine.flows.replay(flow.id, failed=True, ended_until=early)).replayed == 0
    assert (await engine.flows.replay(flow.id, failed=True)).replayed == 1


async def test_lost_reply_of_a_flow_replay_carries_the_time_to_repeat_it_with(
    engine: Engine, clock: VirtualClock, store: TestStore
) -> None:
    flow = await built(engine, {"a": []})
    await flow.fail("a")
    context = replace(engine._context, retry_for_s=0)
    lossy, _ = losing_engine(Engine(context), lose_each(None, "reply"))
    with pytest.raises(Unavailable, match="ended_until=") as caught:
        await lossy.flows.replay(flow.id, failed=True)
    clock.advance("1s")
    await flow.fail("a")
    async with nothing_written(store):
        again = await lossy.flows.replay(flow.id, failed=True, ended_until=caught.value.fields["ended_until"])
    assert again.replayed == 0


async def test_flow_replay_brings_back_members_that_were_left_behind(engine: Engine, store: TestStore) -> None:
    flow = await built(engine, {"a": [], "b": ["a"], "c": ["b"]})
    await flow.fail("a")
    await engine.operator.replay(flow["a"], downstream=False)
    await flow.complete("a")
    assert await flow.state() == "failed"
    outcome = await engine.flows.replay(flow.id, failed=True)
    assert (outcome.replayed, outcome.revived) == (0, 2)
    await flow.complete("b", "c")
    assert await _is_completed(flow)
    await assert_flows_sound(store)


async def test_flow_replay_leaves_out_members_that_reached_their_limit(engine: Engine) -> None:
    policy = Policy(max_replays=1)
    flow = await built(engine, {"a": [], "b": []}, options={"a": {"policy": policy}})
    await flow.fail("a", "b")
    await engine.operator.replay(flow["a"])
    await flow.fail("a")
    outcome = await engine.flows.replay(flow.id, failed=True)
    assert (outcome.members, outcome.exhausted) == ((flow["b"],), (flow["a"],))


async def test_flow_replay_takes_more_members_than_one_transaction(engine: Engine, store: TestStore) -> None:
    names = [f"m{number}" for number in range(230)]
    flow = await built(engine, {**{name: [] for name in names}, "end": names})
    await flow.fail(*names)
    outcome = await engine.flows.replay(flow.id, failed=True)
    assert (outcome.replayed, outcome.revived) == (230, 1)
    assert (await engine.flows.describe(flow.id)).counts == {"waiting": 230, "blocked": 1}
    await assert_flows_sound(store)


async def test_flow_replay_leaves_children_to_a_parent_that_received_the_failure(engine: Engine) -> None:
    flow = await built(engine, {"a": []})
    lease = await flow.claim("a")
    children = await with_children(engine, lease, "awaited", "forgotten")
    await engine.leases.wait_children(lease.fence, [children["awaited"]])
    await ended(engine, children["awaited"], "failed")
    await ended(engine, children["forgotten"], "failed")
    await flow.complete("a")
    outcome = await engine.flows.replay(flow.id, failed=True)
    assert outcome.members == (children["forgotten"],)


async def test_flow_replay_leaves_a_child_to_a_member_that_submits_it_again(
    engine: Engine, clock: VirtualClock, store: TestStore
) -> None:
    flow = await built(engine, {"a": []})
    lease = await flow.claim("a")
    old = (await with_children(engine, lease, "charge"))["charge"]
    await ended(engine, old, "failed")
    await engine.leases.fail(lease.fence, "broken", failure_class="permanent")
    assert (await engine.flows.replay(flow.id, failed=True)).members == (flow["a"],)
    # The member runs again now, so a repeated call leaves the child alone too.
    clock.advance("1s")
    lease = await flow.claim("a")
    assert (await engine.flows.replay(flow.id, failed=True)).replayed == 0
    new = (await with_children(engine, lease, "charge"))["charge"]
    await ended(engine, new)
    await engine.leases.complete(lease.fence, b"paid")
    assert await _is_completed(flow)
    assert (await engine.executions.describe(old)).state == "failed"
    assert (await engine.flows.replay(flow.id, failed=True)).replayed == 0
    await assert_flows_sound(store)


async def test_failed_child_of_the_latest_generation_still_fails_the_flow(engine: Engine, clock: VirtualClock) -> None:
    flow = await built(engine, {"a": []})
    await flow.fail("a")
    await engine.flows.replay(flow.id, failed=True)
    clock.advance("1s")
    lease = await flow.claim("a")
    clock.advance("1s")
    child = (await with_children(engine, lease, "charge"))["charge"]
    await ended(engine, child, "failed")
    await engine.leases.complete(lease.fence, b"paid")
    assert await flow.state() == "failed"
    assert (await engine.flows.replay(flow.id, failed=True)).members == (child,)
    await ended(engine, child)
    assert await _is_completed(flow)


@pytest.mark.parametrize("policy", ["cancel_all", "cancel_pending", "flow_only"])
async def test_cancelled_flow_is_not_replayed(engine: Engine, store: TestStore, policy: str) -> None:
    flow = await built(engine, {"a": [], "b": ["a"]})
    await flow.fail("a")
    flow = await built(engine, {"a": [], "b": ["a"], "c": []})
    await flow.fail("a")
    await engine.flows.cancel(flow.id, policy=policy)
    async with nothing_written(store):
        await refused(engine.flows.replay(flow.id, failed=True), "flow_already_terminal", Refused)


async def test_bad_flow_replays_are_refused(engine: Engine, store: TestStore) -> None:
    flow = await built(engine, {"a": []})
    async with nothing_written(store):
        await refused(engine.flows.replay(uuid4(), failed=True), "flow_not_found", NotFound)
        await refused(engine.flows.replay(flow.id, failed=False), "invalid_choice", InvalidRequest)
        other = engine.for_namespace("other")
        await refused(other.flows.replay(flow.id, failed=True), "flow_not_found", NotFound)
        outcome = await engine.flows.replay(flow.id, failed=True)
    assert (outcome.replayed, outcome.revived, outcome.members) == (0, 0, ())


async def test_children_of_a_root_can_be_replayed_together(engine: Engine) -> None:
    lease = await leased(engine)
    children = await with_children(engine, lease, "one", "two")
    await ended(engine, children["one"], "failed")
    outcome = await engine.flows.replay(lease.execution_id, failed=True)
    assert outcome.members == (children["one"],)
    assert await duty("flow_cancellation")(engine) == 0
