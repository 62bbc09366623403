"""Tests of joins: the outcomes that satisfy an edge, when a group fires, and what happens to siblings."""

from __future__ import annotations

import pytest

from flowfabric.engine import AttemptOutcome, Edge, EdgeKind, Ended, Engine, Siblings, State, all_of, any_of, quorum
from flowfabric.testing import VirtualClock
from tests.concurrency.flow_soundness import assert_flows_sound
from tests.expectations import event_names, every_write_is_refused, last_event, nothing_written
from tests.flows import OUTCOMES, Shape, built, flow_events
from tests.stores import TestStore

SATISFYING_OUTCOMES = {
    EdgeKind.ON_SUCCESS: {"completed"},
    EdgeKind.ON_FAILURE: {"failed", "expired"},
    EdgeKind.ON_FAILURE_OR_SKIP: {"failed", "expired"},
    EdgeKind.ON_COMPLETION: {"completed", "failed", "expired", "cancelled"},
}
RACERS: Shape = {"a": [], "b": [], "c": []}
RACE = {**RACERS, "winner": ["a", "b", "c"]}


@pytest.mark.parametrize("kind", EdgeKind)
async def test_each_kind_of_edge_is_satisfied_by_its_outcomes_only(
    engine: Engine, clock: VirtualClock, kind: EdgeKind
) -> None:
    for outcome in OUTCOMES:
        flow = await built(engine, {"up": [], "down": [Edge("up", kind)]})
        await flow.end("up", outcome, clock)
        assert await flow.states() == {
            "up": outcome,
            "down": "waiting" if outcome in SATISFYING_OUTCOMES[kind] else "skipped",
        }


@pytest.mark.parametrize("kind", EdgeKind)
async def test_upstream_skipped_because_of_a_failure_satisfies_two_kinds_of_edges(
    engine: Engine, clock: VirtualClock, kind: EdgeKind
) -> None:
    expected = "waiting" if kind in (EdgeKind.ON_COMPLETION, EdgeKind.ON_FAILURE_OR_SKIP) else "skipped"
    for outcome in ("failed", "expired"):
        flow = await built(engine, {"a": [], "b": ["a"], "bb": ["b"], "c": [Edge("b", kind)], "d": [Edge("bb", kind)]})
        await flow.end("a", outcome, clock)
        assert await flow.states() == {"a": outcome, "b": "skipped", "bb": "skipped", "c": expected, "d": expected}


@pytest.mark.parametrize("kind", EdgeKind)
async def test_upstream_skipped_without_a_failure_satisfies_only_an_on_completion_edge(
    engine: Engine, kind: EdgeKind
) -> None:
    expected = "waiting" if kind is EdgeKind.ON_COMPLETION else "skipped"
    flow = await built(engine, {"a": [], "b": ["a"], "c": [Edge("b", kind)]})
    await flow.cancel("a")
    assert await flow.states() == {"a": "cancelled", "b": "skipped", "c": expected}
    flow = await built(engine, {"a": [], "b": [Edge("a", EdgeKind.ON_FAILURE)], "c": [Edge("b", kind)]})
    await flow.complete("a")
    assert await flow.states() == {"a": "completed", "b": "skipped", "c": expected}


async def test_alarm_after_a_skipped_member_leaves_the_failure_unhandled(engine: Engine) -> None:
    flow = await built(engine, {"a": [], "b": ["a"], "alarm": [Edge("b", EdgeKind.ON_FAILURE_OR_SKIP)]})
    await flow.fail("a")
    await flow.complete("alarm")
    assert await flow.state() == "failed"
    flow = await built(engine, {"a": [], "alarm": [Edge("a", EdgeKind.ON_FAILURE_OR_SKIP)]})
    await flow.fail("a")
    await flow.complete("alarm")
    assert await flow.state() == "completed"


async def test_one_failure_makes_an_all_of_join_impossible_and_siblings_continue(engine: Engine) -> None:
    flow = await built(engine, RACE, joins={"winner": all_of()})
    lease = await flow.claim("b")
    await flow.fail("a")
    assert await flow.states() == {"a": "failed", "b": "active", "c": "waiting", "winner": "skipped"}
    await engine.leases.complete(lease.fence, b"")
    await flow.complete("c")
    assert await flow.member("winner") == "skipped"


async def test_all_of_with_cancel_remaining_cancels_the_siblings_of_a_failure(engine: Engine) -> None:
    flow = await built(engine, RACE, joins={"winner": all_of(siblings=Siblings.CANCEL_REMAINING)})
    lease = await flow.claim("b")
    await flow.fail("a")
    assert await flow.states() == {"a": "failed", "b": "cancelled", "c": "cancelled", "winner": "skipped"}
    await every_write_is_refused(engine, lease.fence, "execution_not_active")
    assert await flow.state() == "failed"


async def test_first_of_a_race_wins_and_the_losers_are_cancelled_and_fenced_off(
    engine: Engine, store: TestStore
) -> None:
    flow = await built(engine, RACE, joins={"winner": any_of()})
    winner, loser = await flow.claim("a"), await flow.claim("b")
    await engine.leases.complete(winner.fence, b"first")
    assert await flow.states() == {"a": "completed", "b": "cancelled", "c": "cancelled", "winner": "waiting"}
    await every_write_is_refused(engine, loser.fence, "execution_not_active")
    execution = await engine.executions.describe(flow["b"])
    assert [attempt.outcome for attempt in execution.attempts] == [AttemptOutcome.CANCELLED]
    assert execution.epoch > loser.epoch
    event = await last_event(engine, flow["b"])
    assert (event.family, event.name, event.ends_lease) == ("completion", "cancelled", True)
    assert execution.cancel_reason
    await flow.complete("winner")
    assert await flow.state() == "completed"
    assert await flow_events(store, flow.id) == ["finished"]


async def test_losers_that_continue_to_run_change_nothing(engine: Engine) -> None:
    flow = await built(engine, RACE, joins={"winner": any_of(siblings=Siblings.LET_RUN)})
    await flow.complete("a")
    lease = await flow.claim("winner")
    await flow.complete("b")
    await flow.fail("c")
    assert await flow.states() == {"a": "completed", "b": "completed", "c": "failed", "winner": "active"}
    assert (await event_names(engine, flow["winner"])) == ["lifecycle.ready", "lease.acquired"]
    await engine.leases.complete(lease.fence, b"")
    assert await flow.state() == "completed"


async def test_race_without_a_winner_is_skipped(engine: Engine, clock: VirtualClock) -> None:
    flow = await built(engine, RACE, joins={"winner": any_of()})
    await flow.fail("a")
    await flow.cancel("b")
    assert await flow.member("winner") == "blocked"
    await flow.expire("c", clock)
    assert await flow.member("winner") == "skipped"
    assert await flow.state() == "failed"


async def test_quorum_tolerates_as_many_failures_as_it_can(engine: Engine) -> None:
    voters = [f"v{number}" for number in range(5)]
    flow = await built(engine, {**{name: [] for name in voters}, "law": voters}, joins={"law": quorum(3)})
    await flow.complete("v0")
    await flow.fail("v1", "v2")
    await flow.complete("v3")
    assert await flow.member("law") == "blocked"
    await flow.complete("v4")
    assert await flow.member("law") == "waiting"
    await flow.complete("law")
    assert await flow.state() == "completed"


async def test_unreachable_quorum_is_skipped_and_the_rest_cancelled(engine: Engine) -> None:
    voters = [f"v{number}" for number in range(5)]
    flow = await built(engine, {**{name: [] for name in voters}, "law": voters}, joins={"law": quorum(4)})
    await flow.fail("v0")
    assert await flow.member("law") == "blocked"
    await flow.fail("v1")
    states = await flow.states()
    assert states.pop("law") == "skipped"
    assert states == {"v0": "failed", "v1": "failed", "v2": "cancelled", "v3": "cancelled", "v4": "cancelled"}


async def test_reached_quorum_cancels_the_rest(engine: Engine) -> None:
    flow = await built(engine, RACE, joins={"winner": quorum(2)})
    await flow.complete("a")
    assert await flow.member("b") == "waiting"
    await flow.complete("c")
    assert await flow.states() == {"a": "completed", "b": "cancelled", "c": "completed", "winner": "waiting"}


async def test_sibling_needed_by_another_group_is_not_cancelled(engine: Engine) -> None:
    shape: Shape = {**RACE, "report": ["b"]}
    flow = await built(engine, shape, joins={"winner": any_of()})
    await flow.complete("a")
    states = await flow.states()
    assert (states["b"], states["c"], states["report"]) == ("waiting", "cancelled", "blocked")
    await flow.complete("b", "report", "winner")
    assert await flow.state() == "completed"


async def test_sibling_whose_other_group_is_also_closed_is_cancelled(engine: Engine) -> None:
    shape: Shape = {"a": [], "b": [], "one": ["a", "b"], "two": ["a", "b"]}
    flow = await built(engine, shape, joins={"one": any_of(), "two": any_of()})
    await flow.complete("a")
    assert await flow.states() == {"a": "completed", "b": "cancelled", "one": "waiting", "two": "waiting"}


async def test_cancelled_loser_ends_its_own_branch(engine: Engine) -> None:
    shape: Shape = {
        "a": [],
        "b1": [],
        "b2": ["b1"],
        "after b1": [Edge("b1", EdgeKind.ON_COMPLETION)],
        "end": ["a", "b1"],
    }
    flow = await built(engine, shape, joins={"end": any_of()})
    await flow.complete("a")
    states = await flow.states()
    # `b1` is not cancelled, because two other members also wait for it.
    assert (states["b1"], states["b2"], states["after b1"]) == ("waiting", "blocked", "blocked")
    await flow.cancel("b1")
    states = await flow.states()
    assert (states["b2"], states["after b1"], states["end"]) == ("skipped", "waiting", "waiting")


async def test_impossible_edge_skips_every_downstream_member(engine: Engine, store: TestStore) -> None:
    names = [f"m{number}" for number in range(50)]
    flow = await built(
        engine, {name: names[number - 1 : number] if number else [] for number, name in enumerate(names)}
    )
    await flow.fail("m0")
    states = await flow.states()
    assert states.pop("m0") == "failed"
    assert set(states.values()) == {"skipped"}
    assert await flow.state() == "failed"
    assert await flow_events(store, flow.id) == ["finished"]
    assert await event_names(engine, flow["m49"]) == ["completion.skipped"]
    execution = await engine.executions.describe(flow["m49"])
    assert (execution.attempts, execution.vector.terminal_outcome) == ((), "skipped")


async def test_skip_does_not_close_a_join_that_does_not_need_it(engine: Engine) -> None:
    shape: Shape = {
        "a": [],
        "b": [],
        "skipped": ["a"],
        "any": ["skipped", "b"],
        "done": [Edge("skipped", EdgeKind.ON_COMPLETION)],
    }
    flow = await built(engine, shape, joins={"any": any_of()})
    await flow.fail("a")
    states = await flow.states()
    assert (states["skipped"], states["any"], states["done"]) == ("skipped", "blocked", "waiting")
    await flow.complete("b")
    assert await flow.member("any") == "waiting"


async def test_repeated_completion_writes_nothing(engine: Engine, store: TestStore) -> None:
    flow = await built(engine, {"a": [], "b": [], "c": ["a", "b"]})
    lease = await flow.claim("a")
    await engine.leases.complete(lease.fence, b"once")
    async with nothing_written(store):
        assert await engine.leases.complete(lease.fence, b"once") == Ended(State.COMPLETED)
    assert await flow.member("c") == "blocked"


async def test_fired_group_does_not_change_a_member_that_has_started(engine: Engine, clock: VirtualClock) -> None:
    flow = await built(engine, RACE, joins={"winner": any_of(siblings=Siblings.LET_RUN)})
    await flow.complete("a")
    lease = await flow.claim("winner")
    await engine.leases.delay(lease.fence, after="1h")
    before = await engine.executions.describe(flow["winner"])
    await flow.complete("b", "c")
    assert await engine.executions.describe(flow["winner"]) == before
    assert before.state is State.DELAYED


async def test_losers_are_cancelled_in_every_state(engine: Engine) -> None:
    for situation in ("waiting", "delayed", "blocked", "active", "suspended"):
        flow = await built(engine, {"a": [], "b": [], "c": ["a", "b"]}, joins={"c": any_of()})
        if situation == "blocked":
            await engine.operator.hold(flow["b"], "look")
        elif situation != "waiting":
            lease = await flow.claim("b")
            if situation == "delayed":
                await engine.leases.delay(lease.fence, after="1h")
            elif situation == "suspended":
                await engine.leases.suspend(lease.fence, ["go"])
        assert await flow.member("b") == situation
        await flow.complete("a")
        execution = await engine.executions.describe(flow["b"])
        assert (execution.state, execution.waitpoints, execution.suspension) == (State.CANCELLED, (), None), situation
    assert await engine.waitpoints.list_suspended() == []


async def test_blocked_sibling_is_cancelled_but_its_upstreams_are_not(engine: Engine) -> None:
    shape: Shape = {"a": [], "b": [], "b2": ["b"], "c": ["a", "b2"]}
    flow = await built(engine, shape, joins={"c": any_of()})
    await flow.complete("a")
    assert await flow.states() == {"a": "completed", "b": "waiting", "b2": "cancelled", "c": "waiting"}
    await flow.complete("b", "c")
    assert await flow.state() == "completed"


async def test_repeated_completion_and_replay_count_once(engine: Engine, store: TestStore) -> None:
    flow = await built(engine, {"a": [], "b": [], "c": ["a", "b"]})
    lease = await flow.claim("a")
    for _ in range(3):
        await engine.leases.complete(lease.fence, b"")
    await engine.operator.replay(flow["a"])
    await flow.complete("a")
    assert await flow.member("c") == "blocked"
    await assert_flows_sound(store)


async def test_impossible_quorum_cancels_its_siblings(engine: Engine) -> None:
    flow = await built(engine, {"a": [], "b": [], "c": [], "law": ["a", "b", "c"]}, joins={"law": quorum(2)})
    loser = await flow.claim("c")
    await flow.fail("a", "b")
    assert await flow.states() == {"a": "failed", "b": "failed", "c": "cancelled", "law": "skipped"}
    await every_write_is_refused(engine, loser.fence, "execution_not_active")


async def test_quorum_keeps_its_number_and_its_group_fires(engine: Engine) -> None:
    flow = await built(engine, {"a": [], "b": [], "c": [], "law": ["a", "b", "c"]}, joins={"law": quorum(2)})
    [group] = (await engine.flows.describe(flow.id)).groups
    assert (group.join.k, group.state.value) == (2, "open")
    await flow.complete("a", "b")
    description = await engine.flows.describe(flow.id)
    assert [group.state.value for group in description.groups] == ["fired"]
    assert [edge.state.value for edge in description.edges if edge.upstream_id in (flow["a"], flow["b"])] == [
        "satisfied"
    ] * 2


async def test_cancelled_sibling_is_fenced_and_its_other_edges_are_resolved(engine: Engine, store: TestStore) -> None:
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
