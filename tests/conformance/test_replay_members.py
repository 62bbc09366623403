"""replay of flow members: edges to what has not started open again, everything else keeps what it got."""

from __future__ import annotations

import pytest

from flowfabric.engine import Engine, FlowFabricError, Refused, Siblings, any_of, quorum
from flowfabric.testing import VirtualClock
from tests.facts import last_event, nothing_written, refused
from tests.flows import built, ended, flow_events, with_children
from tests.scenarios import leased
from tests.stores import TestStore


async def test_an_upstream_of_one_that_has_not_started_blocks_it_again(engine: Engine) -> None:
    flow = await built(engine, {"a": [], "b": ["a"]})
    await flow.complete("a")
    assert await flow.member("b") == "waiting"
    await engine.operator.replay(flow["a"])
    assert await flow.states() == {"a": "waiting", "b": "blocked"}
    await flow.complete("a")
    assert await flow.member("b") == "waiting"
    await flow.complete("b")
    assert await flow.state() == "completed"


async def test_an_upstream_of_one_that_has_started_leaves_it_alone(engine: Engine) -> None:
    flow = await built(engine, {"a": [], "b": ["a"]})
    await flow.complete("a")
    lease = await flow.claim("b")
    before = await engine.executions.describe(flow["b"])
    await engine.operator.replay(flow["a"])
    assert await engine.executions.describe(flow["b"]) == before
    await flow.fail("a")
    assert await flow.states() == {"a": "failed", "b": "active"}
    await engine.leases.complete(lease.fence, b"")
    assert await flow.member("b") == "completed"


async def test_one_that_has_started_and_waits_again_counts_as_started(engine: Engine) -> None:
    flow = await built(engine, {"a": [], "b": ["a"]})
    await flow.complete("a")
    await engine.leases.release((await flow.claim("b")).fence)
    await engine.operator.replay(flow["a"])
    assert await flow.member("b") == "waiting"


async def test_a_failed_upstream_that_succeeds_in_its_second_life_revives_nothing_by_itself(engine: Engine) -> None:
    flow = await built(engine, {"a": [], "b": ["a"]})
    await flow.fail("a")
    await engine.operator.replay(flow["a"])
    assert await flow.states() == {"a": "waiting", "b": "skipped"}
    await flow.complete("a")
    assert await flow.member("b") == "skipped"


async def test_a_skipped_member_waits_for_its_dependencies_again(engine: Engine) -> None:
    flow = await built(engine, {"a": [], "b": ["a"], "c": ["b"]})
    await flow.fail("a")
    assert await flow.state() == "failed"
    await engine.operator.replay(flow["a"])
    await engine.operator.replay(flow["b"])
    await engine.operator.replay(flow["c"])
    assert await flow.states() == {"a": "waiting", "b": "blocked", "c": "blocked"}
    await flow.complete("a", "b", "c")
    assert await flow.state() == "completed"


async def test_a_skipped_member_whose_upstream_is_done_by_now_starts_at_once(engine: Engine) -> None:
    flow = await built(engine, {"a": [], "b": ["a"]})
    await flow.fail("a")
    await engine.operator.replay(flow["a"])
    await flow.complete("a")
    await engine.operator.replay(flow["b"])
    assert await flow.member("b") == "waiting"


async def test_a_skipped_member_whose_upstream_is_still_failed_waits_for_its_replay(engine: Engine) -> None:
    flow = await built(engine, {"a": [], "b": ["a"]})
    await flow.fail("a")
    await engine.operator.replay(flow["b"])
    assert await flow.member("b") == "blocked"
    await engine.operator.replay(flow["a"])
    await flow.complete("a")
    assert await flow.member("b") == "waiting"


async def test_satisfied_edges_of_a_skipped_member_stay_satisfied(engine: Engine) -> None:
    flow = await built(engine, {"a": [], "b": [], "c": ["a", "b"]})
    await flow.complete("a")
    await flow.fail("b")
    await engine.operator.replay(flow["b"])
    await engine.operator.replay(flow["c"])
    await flow.complete("b")
    assert await flow.member("c") == "waiting"


async def test_a_finished_flow_runs_again_and_finishes_with_another_event(engine: Engine, store: TestStore) -> None:
    flow = await built(engine, {"a": [], "b": ["a"]})
    await flow.complete("a", "b")
    assert await flow_events(store, flow.id) == ["finished"]
    await engine.operator.replay(flow["b"])
    assert await flow.state() in ("running", "open", "blocked")
    assert (await engine.flows.describe(flow.id)).ended_at is None
    await flow.fail("b")
    assert await flow.state() == "failed"
    assert await flow_events(store, flow.id) == ["finished", "finished"]


@pytest.mark.parametrize("policy", ["cancel_all", "flow_only"])
async def test_in_a_cancelled_flow_it_is_refused(engine: Engine, store: TestStore, policy: str) -> None:
    flow = await built(engine, {"a": [], "b": ["a"]})
    await flow.complete("a")
    await engine.flows.cancel(flow.id, "enough", policy=policy)
    names = ["a", "b"] if policy == "cancel_all" else ["a"]
    async with nothing_written(store):
        for name in names:
            await refused(engine.operator.replay(flow[name]), "flow_already_terminal", FlowFabricError)


async def test_a_race_that_was_won_is_a_completed_flow_and_its_loser_may_be_replayed(engine: Engine) -> None:
    flow = await built(engine, {"a": [], "b": [], "c": ["a", "b"]}, joins={"c": any_of()})
    await flow.complete("a", "c")
    assert (await flow.state(), await flow.member("b")) == ("completed", "cancelled")
    await engine.operator.replay(flow["b"])
    assert await flow.states() == {"a": "completed", "b": "waiting", "c": "completed"}
    await flow.fail("b")
    assert await flow.state() == "completed"


async def test_the_winner_of_a_race_that_is_run_again_decides_again_while_nothing_has_started(engine: Engine) -> None:
    flow = await built(engine, {"a": [], "b": [], "c": ["a", "b"]}, joins={"c": any_of(siblings=Siblings.LET_RUN)})
    await flow.complete("a")
    await engine.operator.replay(flow["a"])
    assert await flow.member("c") == "blocked"
    await flow.complete("b")
    assert await flow.member("c") == "waiting"


async def test_a_vote_that_is_taken_back_counts_again_once(engine: Engine, store: TestStore) -> None:
    flow = await built(engine, {"a": [], "b": [], "c": [], "law": ["a", "b", "c"]}, joins={"law": quorum(2)})
    await flow.complete("a")
    for _ in range(3):
        await engine.operator.replay(flow["a"])
        await flow.complete("a")
    assert await flow.member("law") == "blocked"
    await flow.complete("b")
    assert await flow.member("law") == "waiting"


async def test_a_replay_keeps_the_history_and_starts_the_counts_again(engine: Engine, clock: VirtualClock) -> None:
    flow = await built(engine, {"a": [], "b": ["a"]})
    await flow.complete("a")
    await engine.leases.fail((await flow.claim("b")).fence, "not yet")
    clock.advance("5m")
    await engine.reconcilers.tick()
    await flow.fail("b")
    before = await engine.executions.describe(flow["b"])
    await engine.operator.replay(flow["b"], "once more", principal="ada")
    found = await engine.executions.describe(flow["b"])
    assert (found.generation, found.replay_count, found.retry_count) == (before.generation + 1, 1, 0)
    assert found.attempts == before.attempts
    event = await last_event(engine, flow["b"])
    assert (event.family, event.name, event.principal, event.reason) == ("operator", "replayed", "ada", "once more")


async def test_a_member_is_replayed_no_more_often_than_its_limit(engine: Engine) -> None:
    flow = await built(engine, {"a": [], "b": ["a"]})
    for _ in range(10):
        await flow.complete("a")
        await engine.operator.replay(flow["a"])
    await flow.complete("a")
    await refused(engine.operator.replay(flow["a"]), "max_replays_exhausted", Refused)


async def test_only_what_has_ended_is_replayed(engine: Engine, store: TestStore) -> None:
    flow = await built(engine, {"a": [], "b": ["a"]})
    async with nothing_written(store):
        await refused(engine.operator.replay(flow["b"]), "execution_not_terminal", Refused)


async def test_a_second_life_that_fails_is_not_taken_up_by_what_its_first_one_started(engine: Engine) -> None:
    flow = await built(engine, {"a": [], "b": ["a"]})
    await flow.complete("a", "b")
    assert await flow.state() == "completed"
    await engine.operator.replay(flow["a"])
    await flow.fail("a")
    assert await flow.states() == {"a": "failed", "b": "completed"}
    assert await flow.state() == "failed"


@pytest.mark.parametrize("policy", ["cancel_all", "cancel_pending"])
async def test_a_root_whose_children_were_cancelled_as_a_flow_is_not_replayed(
    engine: Engine, store: TestStore, policy: str
) -> None:
    lease = await leased(engine)
    await with_children(engine, lease, "a")
    await engine.flows.cancel(lease.execution_id, "enough", policy=policy)
    await engine.leases.complete(lease.fence, b"")
    async with nothing_written(store):
        await refused(engine.operator.replay(lease.execution_id), "flow_already_terminal", Refused)


async def test_a_root_whose_flow_goes_on_though_it_is_cancelled_is_replayed_and_has_new_children(
    engine: Engine,
) -> None:
    lease = await leased(engine)
    first = await with_children(engine, lease, "a")
    await engine.flows.cancel(lease.execution_id, "enough", policy="flow_only")
    await ended(engine, first["a"])
    await engine.leases.complete(lease.fence, b"")
    await engine.operator.replay(lease.execution_id)
    again = await engine.leases.claim_execution(lease.execution_id, "worker-1")
    second = await with_children(engine, again, "a")
    assert second["a"] != first["a"]
