"""Faults that another engine was proven to have in its flows, each as the fact that holds here."""

from __future__ import annotations

import asyncio
import time
from uuid import uuid4

from flowfabric.engine import (
    AttemptOutcome,
    CancelPolicy,
    Edge,
    EdgeKind,
    Engine,
    FlowAlreadyCancelled,
    FlowCancelled,
    FlowFabricError,
    InvalidRequest,
    NotFound,
    Siblings,
    State,
    any_of,
    quorum,
)
from flowfabric.testing import VirtualClock
from tests.concurrency.flow_soundness import assert_flows_sound
from tests.facts import error_of, event_names, every_write_is_refused, last_event, nothing_written, refused
from tests.faults.fuses import FAILURES, fit_fuse
from tests.flows import Shape, built, claimable, created, flow_events
from tests.stores import TestStore, opened

PAIR = {"a": [], "b": ["a"]}


async def test_a_dependency_blocks(engine: Engine) -> None:
    flow = await built(engine, PAIR)
    assert await claimable(engine) == {flow["a"]}
    await refused(engine.leases.claim_execution(flow["b"], "worker-1"), "execution_not_leaseable")
    found = await engine.executions.describe(flow["b"])
    assert found.vector.eligibility_state == "blocked_by_dependencies"


async def test_a_repeated_completion_counts_once(engine: Engine, store: TestStore) -> None:
    flow = await built(engine, {"a": [], "b": [], "c": ["a", "b"]})
    lease = await flow.claim("a")
    for _ in range(3):
        await engine.leases.complete(lease.fence, b"")
    await engine.operator.replay(flow["a"])
    await flow.complete("a")
    assert await flow.member("c") == "blocked"
    await assert_flows_sound(store)


async def test_an_edge_that_comes_after_its_upstream_has_ended_is_not_lost(engine: Engine, store: TestStore) -> None:
    flow = await built(engine, {"a": [], "b": []}, seal=False)
    await flow.complete("a")
    await flow.add("c", "a", "b")
    await flow.complete("b")
    assert await flow.member("c") == "waiting"
    await assert_flows_sound(store)


async def test_an_edge_that_was_not_added_does_not_count(engine: Engine, store: TestStore) -> None:
    flow = await built(engine, {"a": [], "b": [], "c": ["a"]}, seal=False)
    await error_of(engine.flows.add_edge(flow.id, "b", "c", expected_revision=99))
    await flow.complete("a")
    assert await flow.member("c") == "waiting"
    await assert_flows_sound(store)


async def test_an_end_and_its_edges_are_one_transaction(store: TestStore, clock: VirtualClock) -> None:
    """Whichever statement fails, the upstream has not ended or everything after it has moved."""
    async with opened(store, clock) as engine:
        fuse = fit_fuse(engine)
        at, went_through = 1, False
        while not went_through:
            flow = await built(engine, {"a": [], "b": ["a"], "c": ["a"], "d": [Edge("a", EdgeKind.ON_FAILURE)]})
            lease = await flow.claim("a")
            fuse.arm(at, FAILURES[store.name]["outage"])
            try:
                await engine.leases.complete(lease.fence, b"")
            except FlowFabricError:
                pass
            finally:
                fuse.disarm()
            states = await flow.states()
            assert tuple(states.values()) in {
                ("active", "blocked", "blocked", "blocked"), ("completed", "waiting", "waiting", "skipped"),
            }, (at, fuse.statements)  # fmt: skip
            went_through, at = not fuse.blown, at + 1
        await assert_flows_sound(store)
    assert at > 3


async def test_a_release_skips_no_delay_and_flips_nothing_that_runs(engine: Engine, clock: VirtualClock) -> None:
    shape: Shape = {
        "a": [],
        "b": [],
        "delayed": ["a", "b"],
        "runs": ["a", "b"],
        "waits": ["a", "b"],
        "retries": ["a", "b"],
    }
    joins = {name: any_of(siblings=Siblings.LET_RUN) for name in ("delayed", "runs", "waits", "retries")}
    flow = await built(engine, shape, joins=joins, options={"delayed": {"delay": "1h"}})
    await flow.complete("a")
    await flow.claim("runs")
    await engine.leases.suspend((await flow.claim("waits")).fence, ["go"])
    await engine.leases.fail((await flow.claim("retries")).fence, "not yet")
    names = ("delayed", "runs", "waits", "retries")
    before = {name: await engine.executions.describe(flow[name]) for name in names}
    assert [item.state.value for item in before.values()] == ["delayed", "active", "suspended", "delayed"]
    await flow.complete("b")
    assert {name: await engine.executions.describe(flow[name]) for name in names} == before
    assert await claimable(engine) == set()


async def test_a_released_member_shows_it_in_its_whole_vector(engine: Engine) -> None:
    flow = await built(engine, PAIR)
    await flow.complete("a")
    vector = (await engine.executions.describe(flow["b"])).vector
    assert (vector.public_state, vector.eligibility_state) == ("waiting", "eligible_now")
    assert "dependencies" not in str(vector.blocking_reason)
    assert "children" not in str(vector.blocking_reason)


async def test_a_child_that_runs_is_not_skipped_under_its_worker(engine: Engine, store: TestStore) -> None:
    """What has started is decided by its own row: its upstream may be run again and fail."""
    flow = await built(engine, PAIR)
    await flow.complete("a")
    lease = await flow.claim("b")
    await engine.operator.replay(flow["a"])
    await flow.fail("a")
    assert await flow.member("b") == "active"
    await engine.leases.complete(lease.fence, b"")
    assert await flow.member("b") == "completed"
    await assert_flows_sound(store)


async def test_an_impossible_race_or_quorum_cancels_its_siblings(engine: Engine) -> None:
    flow = await built(engine, {"a": [], "b": [], "c": [], "law": ["a", "b", "c"]}, joins={"law": quorum(2)})
    loser = await flow.claim("c")
    await flow.fail("a", "b")
    assert await flow.states() == {"a": "failed", "b": "failed", "c": "cancelled", "law": "skipped"}
    await every_write_is_refused(engine, loser.fence, "execution_not_active")


async def test_no_cycle_no_started_downstream_and_no_closed_flow(engine: Engine, store: TestStore) -> None:
    flow = await built(engine, {"a": [], "b": ["a"], "c": []}, seal=False)
    closed = await built(engine, {"a": [], "b": []})
    await flow.claim("c")
    async with nothing_written(store):
        await refused(engine.flows.add_edge(flow.id, "b", "a"), "cycle", FlowFabricError)
        await refused(engine.flows.add_edge(flow.id, "a", "c"), "downstream_already_started", FlowFabricError)
        await refused(engine.flows.add_edge(closed.id, "a", "b"), "flow_sealed", FlowFabricError)
        await refused(engine.flows.add_edge(uuid4(), "a", "b"), "flow_not_found", NotFound)
        await refused(engine.flows.add(uuid4(), "x", "job", after=["a"], join=any_of()), "flow_not_found", NotFound)


async def test_a_quorum_has_the_number_it_was_given_and_groups_reach_their_end(engine: Engine) -> None:
    flow = await built(engine, {"a": [], "b": [], "c": [], "law": ["a", "b", "c"]}, joins={"law": quorum(2)})
    [group] = (await engine.flows.describe(flow.id)).groups
    assert (group.join.k, group.state.value) == (2, "open")
    await flow.complete("a", "b")
    found = await engine.flows.describe(flow.id)
    assert [group.state.value for group in found.groups] == ["fired"]
    assert [edge.state.value for edge in found.edges if edge.upstream_id in (flow["a"], flow["b"])] == ["satisfied"] * 2


async def test_results_pass_downstream_by_name(engine: Engine) -> None:
    flow = await built(engine, {"a": [], "b": [], "c": ["a", "b"]}, options={"c": {"payload": b"own"}})
    await flow.complete("a", "b")
    found = await engine.flows.inputs(flow["c"])
    assert {name: item.result for name, item in found.items()} == {"a": b"a", "b": b"b"}
    assert (await flow.claim("c")).payload == b"own"


async def test_a_cancelled_flow_does_not_rewrite_what_has_finished(engine: Engine) -> None:
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


async def test_cancel_pending_cancels_what_is_pending(engine: Engine) -> None:
    flow = await built(engine, {"a": [], "b": [], "c": ["a"]})
    await flow.claim("a")
    assert await engine.flows.cancel(flow.id, "enough", policy=CancelPolicy.CANCEL_PENDING) == FlowCancelled(2)
    assert await flow.states() == {"a": "active", "b": "cancelled", "c": "cancelled"}


async def test_the_leases_of_cancelled_members_are_worth_nothing(engine: Engine) -> None:
    flow = await built(engine, PAIR)
    lease = await flow.claim("a")
    await engine.flows.cancel(flow.id, "enough")
    await every_write_is_refused(engine, lease.fence, "execution_not_active")
    found = await engine.executions.describe(flow["a"])
    assert (found.state, [attempt.outcome for attempt in found.attempts]) == (
        State.CANCELLED,
        [AttemptOutcome.CANCELLED],
    )
    assert (await last_event(engine, flow["a"])).name == "cancelled"


async def test_flow_only_cancels_only_the_flow(engine: Engine) -> None:
    flow = await built(engine, PAIR)
    await engine.flows.cancel(flow.id, "enough", policy=CancelPolicy.FLOW_ONLY)
    assert (await flow.state(), await flow.states()) == ("cancelled", {"a": "waiting", "b": "blocked"})


async def test_an_unknown_flow_cannot_be_cancelled_and_a_cancelled_one_not_again(
    engine: Engine, store: TestStore
) -> None:
    await refused(engine.flows.cancel(uuid4(), "enough"), "flow_not_found", NotFound)
    flow = await built(engine, PAIR)
    await engine.flows.cancel(flow.id, "first", source="one")
    async with nothing_written(store):
        answer = await engine.flows.cancel(flow.id, "second", source="two")
    assert answer == FlowAlreadyCancelled(CancelPolicy.CANCEL_ALL, "first", "one")
    assert await flow_events(store, flow.id) == ["cancel_requested", "finished"]


async def test_a_cancelled_sibling_is_fenced_and_other_joins_hear_of_it(engine: Engine, store: TestStore) -> None:
    shape: Shape = {"a": [], "b": [], "race": ["a", "b"], "other": [Edge("b", EdgeKind.ON_COMPLETION)]}
    flow = await built(engine, shape, joins={"race": any_of()})
    lease = await flow.claim("b")
    await flow.cancel("other")
    await flow.complete("a")
    assert await flow.states() == {"a": "completed", "b": "cancelled", "race": "waiting", "other": "cancelled"}
    await every_write_is_refused(engine, lease.fence, "execution_not_active")
    assert (await last_event(engine, flow["b"])).ends_lease
    assert (await engine.executions.describe(flow["b"])).cancel_reason
    await assert_flows_sound(store)


async def test_explain_knows_that_a_member_is_not_eligible(engine: Engine) -> None:
    flow = await built(engine, PAIR)
    explanation = await engine.operator.explain(flow["b"])
    assert explanation.state is State.BLOCKED
    assert explanation.sentence == "It waits for all of its upstreams: 'a' is waiting."
    assert explanation.facts["waits_for"] == {"a": "waiting"}


async def test_a_hop_does_not_wait_for_a_scanner(engine: Engine) -> None:
    """No duty runs here at all, and every next member is there as soon as the one before it was answered."""
    names = [f"m{number}" for number in range(10)]
    flow = await built(
        engine, {name: names[number - 1 : number] if number else [] for number, name in enumerate(names)}
    )
    began = time.monotonic()
    for name in names:
        [lease] = await asyncio.wait_for(engine.leases.claim(["default"], "worker-1"), 5)
        assert lease.execution_id == flow[name]
        await engine.leases.complete(lease.fence, b"")
    assert time.monotonic() - began < 5


async def test_the_state_of_a_flow_counts_every_member_as_it_is(engine: Engine) -> None:
    flow = await built(engine, {"a": [], "b": [], "c": ["b"]})
    lease = await flow.claim("a")
    assert await flow.state() == "running"
    await engine.leases.release(lease.fence)
    counts = (await engine.flows.describe(flow.id)).counts
    assert sum(counts.values()) == 3
    await flow.fail("a", "b")
    assert (await flow.member("c"), await flow.state()) == ("skipped", "failed")


async def test_an_empty_open_flow_is_open_and_wrong_policies_are_refused(engine: Engine) -> None:
    flow = await created(engine)
    assert await flow.state() == "open"
    error = await error_of(engine.flows.cancel(flow.id, "enough", policy="everything"))
    assert isinstance(error, InvalidRequest)
